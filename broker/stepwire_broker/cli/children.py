"""The processes that a command starts: their signals, their end, and their environment."""

import asyncio
import os
import signal
import sys


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send the signal to the whole process group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def end_text(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def handler_environ(steps: str, results: str, url: str, token_file: str) -> dict[str, str]:
    """The environment with the broker's addresses for every SDK. The Python of this process comes first on PATH."""
    given = {
        "STEPWIRE_STEPS": steps,
        "STEPWIRE_RESULTS": results,
        "STEPWIRE_URL": url,
        "STEPWIRE_TOKEN_FILE": os.path.abspath(token_file),
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
    }
    return {**os.environ, **given}
