"""Logging of a command: JSON lines on stderr, or coloured lines on a terminal."""

import logging
import os
import sys
from typing import Any, Final

import msgspec

from stepwire_broker.telemetry import RUN_MEMBERS

# structlog uses rich for tracebacks if it can import it. That costs a fifth of a broker's start, and it prints every
# local variable, payloads and tokens included.
_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402

del sys.modules["rich"]
if _rich is not None:
    sys.modules["rich"] = _rich

_LEVELS: Final = logging.getLevelNamesMapping()
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # variables may hold payloads and tokens
)
_level = logging.INFO  # loggers are cached, so the level is read at each line


def set_up(level: str, verbosity: int = 0) -> None:
    """Configure logging. Each `-v` or `-q` moves the configured level by one."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    is_terminal = sys.stderr.isatty()
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))]
        if is_terminal
        else [_TRACEBACKS, structlog.processors.JSONRenderer(serializer=_json)]
    )
    structlog.configure(
        processors=[_drop_below_level, *shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[*shared, _step_ids], processors=_foreign(last))
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level, verbosity)


def set_level(level: str, verbosity: int = 0) -> None:
    """Change the level from the next log line on."""
    global _level
    _level = min(max(_LEVELS[level.upper()] - 10 * verbosity, logging.DEBUG), logging.CRITICAL)
    logging.getLogger().setLevel(max(_level, logging.WARNING))
    logging.getLogger("stepwire").setLevel(_level)  # handlers in this process


def _drop_below_level(_logger: Any, method: str, event: Any) -> Any:
    if _LEVELS["ERROR" if method == "exception" else method.upper()] < _level:
        raise structlog.DropEvent
    return event


def _step_ids(_logger: Any, _method: str, event: Any) -> Any:
    """Add the ids of the step to a record of `ctx.log` or of a failed run."""
    record = vars(event["_record"])
    return event | {name: record[name] for name in RUN_MEMBERS if name in record}


def _foreign(last: list[Any]) -> list[Any]:
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]


def _json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
