"""The processes that a command starts: their signals, their end, and their environment."""

import asyncio
import os
import signal
import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final

TOKEN_FILE: Final = "STEPWIRE_TOKEN_FILE"
INHERITED: Final = frozenset({"PATH", "HOME", "LANG", "TZ"})
OF_WORKER: Final = frozenset(
    f"STEPWIRE_{name}"
    for name in (
        *("NAME", "SLOTS", "LABELS", "HANDLER_VERSION"),
        *("CURVE_SERVER_KEY", "CURVE_PUBLIC_KEY", "CURVE_SECRET_KEY", "CURVE_FILE"),
        *("SECRETS_DIR", "SEAL_KEYS_FILE"),
    )
)


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send the signal to the whole process group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def end_text(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def handler_environ(
    steps: str, results: str, url: str, token_file: str, pass_env: Collection[str] = ()
) -> dict[str, str]:
    """The environment of a handler process: the broker's addresses for every SDK, the worker's own variables, and those
    that the configuration passes. The broker's token file is passed only if `pass_env` names STEPWIRE_TOKEN_FILE. The
    Python of this process comes first on PATH."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name in OF_WORKER or any(fnmatchcase(name, pattern) for pattern in pass_env)
    }
    given = {
        "STEPWIRE_STEPS": steps,
        "STEPWIRE_RESULTS": results,
        "STEPWIRE_URL": url,
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
    }
    if TOKEN_FILE in pass_env:
        given[TOKEN_FILE] = os.path.abspath(token_file)
    return {**passed, **given}
