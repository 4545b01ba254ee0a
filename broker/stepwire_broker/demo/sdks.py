"""The SDKs of a clone that are built: the demo runs one step of a workflow on each. It builds and installs nothing.

A program that is not built, or whose language is not installed, ends at once. So the test for an SDK is to start its
conformance worker, and to see it connect. Without a clone there are no programs.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[3] / "handlers_sdk"
# Not Java: the demo's broker uses Unix sockets, which JeroMQ does not have.
LANGUAGES: Final = ("go", "node", "ruby", "rust")
NAME: Final = "languages"
ECHO: Final = "conform.echo"  # returns its input


def programs(folder: Path = FOLDER) -> dict[str, Path]:
    """The worker of each SDK, built or not, by language."""
    workers = {language: folder / language / "bin" / "conform" for language in LANGUAGES}
    return {language: worker for language, worker in workers.items() if os.access(worker, os.X_OK)}


def environ(language: str) -> dict[str, str]:
    return {"STEPWIRE_NAME": language, "STEPWIRE_SLOTS": "1", "STEPWIRE_LABELS": f"language={language}"}


def workflow(languages: Sequence[str]) -> dict[str, Any]:
    """One step for each language. A worker of this language runs the step, after the step before."""
    steps: list[dict[str, Any]] = []
    for language in languages:
        before = [step["name"] for step in steps[-1:]]
        step = {"name": language, "handler_class": ECHO, "worker_selector": {"language": language}}
        steps.append(step | ({"depends_on": before} if before else {}))
    return {"name": NAME, "namespace": "demo", "version": "-".join(languages), "steps": steps}
