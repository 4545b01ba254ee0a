"""Processes that a command starts and has to see to their end."""

import asyncio
import os
import signal
import sys


def tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """The process and whatever it has started in its group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def ended(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def environ_of_handlers(steps: str, results: str, url: str, token_file: str) -> dict[str, str]:
    """Where the broker is, in the words that every SDK knows; and the Python that this runs in comes first."""
    given = {
        "STEPWIRE_STEPS": steps,
        "STEPWIRE_RESULTS": results,
        "STEPWIRE_URL": url,
        "STEPWIRE_TOKEN_FILE": os.path.abspath(token_file),
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
    }
    return {**os.environ, **given}
