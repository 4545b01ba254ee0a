"""Tracebacks of handlers: they begin at the handler's own code, and leave out the frames of the SDK."""

import os
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from .redaction import redact
from .texts import clean

BACKTRACE_BYTES_MAX: Final = 8192
LINE_CHARS_MAX: Final = 1000
EXCEPTION_LINES_MAX: Final = 20  # lines of the exception's own text at the end; the frames need the rest

_SDK: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep


def text_of(error: BaseException) -> str:
    """`str(error)`; empty if the exception's own method raises."""
    try:
        return str(error)
    except Exception:
        return ""


def summary(error: BaseException) -> str:
    """The type and the text of an exception: `KeyError: 'nope'`."""
    name, text = type(error).__name__, text_of(error)
    return f"{name}: {text}" if text else name


def from_the_handler_on(error: BaseException) -> TracebackType | None:
    """The exception's traceback without the SDK's frames at its start."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_SDK):
        at = at.tb_next
    return at


def origin(error: BaseException) -> tuple[str, int, str] | None:
    """The file, the line and the function in which the exception was raised."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_SDK)]
    if not frames:
        return None
    return frames[-1].filename, frames[-1].lineno or 0, frames[-1].name


def backtrace(error: BaseException) -> list[str]:
    """The lines of the traceback. At most 8 KiB: the last lines, because the innermost frames explain most."""
    formatted = traceback.TracebackException.from_exception(error)
    _leave_out_the_sdk(formatted)
    lines = _lines(formatted.format())
    exception = _lines(formatted.format_exception_only())
    if len(exception) > EXCEPTION_LINES_MAX and lines[-len(exception) :] == exception:
        lines[-len(exception) :] = exception[:EXCEPTION_LINES_MAX]
        lines.append(f"… ({len(exception) - EXCEPTION_LINES_MAX} more lines)")
    return _last(lines)


def _leave_out_the_sdk(formatted: traceback.TracebackException) -> None:
    """Remove the SDK's frames, also from the exceptions that led to this one."""
    waiting = [formatted]
    while waiting:
        each = waiting.pop()
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not frame.filename.startswith(_SDK)]
        )
        related = (each.__cause__, each.__context__, *(each.exceptions or ()))
        waiting += [one for one in related if one is not None]


def _lines(parts: Iterable[str]) -> list[str]:
    return [clean(line, LINE_CHARS_MAX) for part in parts for line in redact(part).splitlines()]


def _last(lines: list[str]) -> list[str]:
    """The last lines that fit into the limit, below a line with the number of the others."""
    left = BACKTRACE_BYTES_MAX - 64  # for that line
    kept = 0
    for line in reversed(lines):
        left -= len(line.encode()) + 1
        if left < 0:
            break
        kept += 1
    if kept == len(lines):
        return lines
    return [f"… ({len(lines) - kept} earlier lines)", *lines[len(lines) - kept :]]
