"""Readable log lines on stderr, for programs that do not configure `logging`.

    2026-11-19 10:03:15 INFO    task 9 step 12 pay: charged 12.50 EUR

A program configures logging with a handler of the root logger or of a logger `stepwire…`. The SDK then adds nothing.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, TextIO

WORKER: Final = "stepwire.worker"  # the worker's own events
HANDLER: Final = "stepwire.handler"  # `ctx.log`
_OWN: Final = (WORKER, HANDLER)
_COLOURS: Final = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}


class StepLogger(logging.LoggerAdapter[logging.Logger]):
    """`ctx.log`: every record has the step's ids as attributes, and the `extra` of its call."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


def step_ids(step: Any) -> Mapping[str, object]:
    """The attributes of a step's log records."""
    return {
        "task_id": step.task_id,
        "step_id": step.step_id,
        "step_name": step.step_name,
        "attempt": step.metadata.attempt,
        "delivery": step.delivery,
    }


def set_up() -> None:
    """Write the SDK's records to stderr from INFO on, unless the program has configured logging."""
    if is_configured():
        return
    for name in _OWN:
        logger = logging.getLogger(name)
        if any(isinstance(handler, ReadableHandler) for handler in logger.handlers):
            continue
        is_level_given = logger.level != logging.NOTSET or logging.getLogger("stepwire").level != logging.NOTSET
        if not is_level_given:
            logger.setLevel(logging.INFO)
        logger.addHandler(ReadableHandler(logger, owns_level=not is_level_given))


def is_configured() -> bool:
    """True if the program has a handler that receives the SDK's records."""
    return any(not isinstance(handler, ReadableHandler) for handler in _handlers())


def _handlers() -> Iterator[logging.Handler]:
    for name in ("", "stepwire", *_OWN):
        yield from logging.getLogger(name or None).handlers


class ReadableHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`. Writes nothing once the program has a handler of its own."""

    def __init__(self, logger: logging.Logger, *, owns_level: bool) -> None:
        logging.Handler.__init__(self)  # not StreamHandler's, which would keep one stream
        self._logger = logger
        self._owns_level = owns_level
        self.setFormatter(ReadableFormatter())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if is_configured():
            if self._owns_level:
                self._logger.setLevel(logging.NOTSET)  # from the next record on, the program's levels apply
            return
        super().emit(record)


class ReadableFormatter(logging.Formatter):
    """Time, level, step and text of a record. On a terminal without the date, and with colours for faults."""

    def format(self, record: logging.LogRecord) -> str:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        time = self.formatTime(record, "%H:%M:%S" if is_terminal else "%Y-%m-%d %H:%M:%S")
        level = f"{record.levelname:<7}"
        if is_terminal and record.levelno in _COLOURS and not os.environ.get("NO_COLOR"):
            level = f"{_COLOURS[record.levelno]}{level}\033[0m"
        return f"{time} {level} {step_prefix(record)}{self._body(record)}"

    def _body(self, record: logging.LogRecord) -> str:
        """The message, and the traceback if there is one."""
        lines = [record.getMessage()]
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            lines.append(record.exc_text)
        if record.stack_info:
            lines.append(self.formatStack(record.stack_info))
        return "\n".join(lines)


def step_prefix(record: logging.LogRecord) -> str:
    """`task 9 step 12 pay: ` for a record of `ctx.log`; the worker's own records name the step in their text."""
    if record.name != HANDLER or not hasattr(record, "task_id"):
        return ""
    ids: Any = record
    attempt = f" attempt {ids.attempt + 1}" if ids.attempt else ""
    return f"task {ids.task_id} step {ids.step_id} {ids.step_name}{attempt}: "
