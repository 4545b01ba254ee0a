"""The canary worker with one rule broken, which the file `broken` in the directory names."""

import sys
from pathlib import Path
from typing import Any

from stepwire import redaction
from stepwire.runners import run_log

broken = (Path(sys.argv[1]) / "broken").read_text()
if broken == "redaction":
    redaction.OF_PROCESS.add = lambda name, value: None  # type: ignore[method-assign]
else:
    whole = run_log.raised

    def raised(*arguments: Any, is_sealed: bool = False) -> None:
        whole(*arguments)

    run_log.raised = raised

from .canary_worker import worker  # noqa: E402

worker.run()
