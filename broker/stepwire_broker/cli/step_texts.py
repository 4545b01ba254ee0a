"""Sentences and figures about a step for people: its attempt, times, progress, error, traceback and standard error."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from stepwire_broker.core.answers.error_texts import described
from stepwire_broker.core.phrases import progress_text

from . import output

NOT_INSPECTED: Final = "the token lacks the scope `inspect`: stepwire token new --scope read,inspect"
ENDED: Final = frozenset({"completed", "failed", "cancelled", "skipped"})


def attempt(step: dict[str, Any]) -> str | None:
    """`2 of 4`: people count attempts from 1, the protocol counts failed ones. None: the step was never handed out."""
    if not step["deliveries"]:
        return None
    limit = step.get("retry_limit")
    return f"{step['attempt'] + 1}" if limit is None else f"{step['attempt'] + 1} of {limit + 1}"


def duration(ms: float | None) -> str | None:
    """`12 ms`, `3.2 s`, `4 min 5 s`, `2 h 10 min`."""
    if ms is None:
        return None
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    seconds = round(ms / 1_000)
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = seconds // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2_880 else f"{minutes // 1_440} d"


def since(at: str | None) -> float | None:
    """The milliseconds since this time."""
    return None if at is None else between(at, datetime.now(UTC).isoformat())


def between(first: str | None, last: str | None) -> float | None:
    if first is None or last is None:
        return None
    took = datetime.fromisoformat(last) - datetime.fromisoformat(first)
    return max(0.0, took.total_seconds() * 1_000)


def ran(step: dict[str, Any]) -> str | None:
    """The duration of the latest run; of a run that goes on, the time since its start."""
    if step["state"] == "dispatched":
        return duration(since(step["started_at"]))
    return duration(step["run_ms"])


def queued(step: dict[str, Any]) -> str | None:
    """The time for which the step waited for a worker; of a ready step, the time so far."""
    if step["state"] == "ready":
        return duration(since(step["ready_at"]))
    return duration(step["queue_ms"])


def progress(report: dict[str, Any]) -> str:
    return progress_text(report["done"], report["total"], report["note"])


def error(detail: Any) -> str:
    """The type and the message of an error. An error that is no document is shown as it is."""
    if not isinstance(detail, dict):
        return str(detail)
    code, message = detail.get("code"), detail.get("message")
    return described(code if isinstance(code, str) else None, message if isinstance(message, str) else "")


def why(step: dict[str, Any]) -> str | None:
    """The progress of a step, or else its error, or else the reason for its state."""
    if step["progress"]:
        return progress(step["progress"])
    if step["error"]:
        return error(step["error"])
    return str(step["reason"]["message"]) if step["reason"] else None


# -- tracebacks -------------------------------------------------------------------------------------------------------

_FRAME: Final = re.compile(r'^(\s*)File "(?P<file>.*)", line \d+')
_OWN: Final = re.compile(
    r"[/\\](stepwire_broker[/\\]|stepwire[/\\]((runners|worker|session)[/\\]|(handler|context|actions|testing)\.py$))"
)
_RUNS_HANDLERS: Final = re.compile(r"[/\\](asyncio|concurrent[/\\]futures|multiprocessing)[/\\]|[/\\]threading\.py$")


def traceback(detail: Any, *, is_whole: bool = False) -> list[str]:
    """The lines of an error's backtrace. It begins at the handler's code: frames of Stepwire before it are left out,
    unless `is_whole`."""
    backtrace = detail.get("backtrace") if isinstance(detail, dict) else None
    lines = backtrace.splitlines() if isinstance(backtrace, str) else [str(line) for line in backtrace or ()]
    return lines if is_whole else list(_from_the_handler_on(lines))


def _from_the_handler_on(lines: list[str]) -> Iterator[str]:
    """Leave out the frames of Stepwire at the beginning of each traceback, and the library frames that led to them."""
    at = 0
    while at < len(lines):
        end = at
        frames = []  # of one traceback: the first line of each, and its file
        while end < len(lines) and (frame := _FRAME.match(lines[end])):
            frames.append((end, frame["file"]))
            end += 1
            while end < len(lines) and lines[end][:1].isspace() and not _FRAME.match(lines[end]):
                end += 1
        yield from lines[_first_of_handler(frames, at, end) : max(end, at + 1)]
        at = max(end, at + 1)


def _first_of_handler(frames: list[tuple[int, str]], at: int, end: int) -> int:
    """The line of the first frame that is the handler's. All lines are kept if no frame is."""
    own = -1
    for number, (_, file) in enumerate(frames):
        if _OWN.search(file):
            own = number
        elif not _RUNS_HANDLERS.search(file):
            break
    return frames[own + 1][0] if 0 <= own < len(frames) - 1 else at


# -- printing ---------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """One line of stored text, without control characters."""
    return output.cell(text.expandtabs())


def print_line(label: str, text: str | None, style: str = "", *, width: int = 9) -> None:
    """Print `label` and a text in the given colour. The colour is left out in a pipe, and where NO_COLOR is set."""
    if text is None:
        return
    text = printable(text)
    line = f"{label:<{width}}{text}"
    if not (style and output.is_terminal()):
        output.echo(line, indent=width)
        return
    from rich.console import Console
    from rich.text import Text

    coloured = Text(output.terminal_wrapped(line, width))
    coloured.stylize(style, width)
    Console(highlight=False).print(coloured, soft_wrap=True)


def print_block(lines: list[str]) -> None:
    """Print lines of stored text, indented."""
    for line in lines:
        click.echo(f"  {printable(line)}".rstrip())
