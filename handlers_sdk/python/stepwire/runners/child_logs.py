"""Log records of handler processes: the worker's process writes them, so the program configures `logging` once.

A child whose own modules configure logging, because it imports them too, writes its records itself.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from stepwire import logs
from stepwire.redaction import redact
from stepwire.texts import clean

TEXT_CHARS_MAX: Final = 65_536

_LOGGERS: Final = ("", "stepwire", *logs.OWN)
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _SentRecord(msgspec.Struct, frozen=True):
    """A record as the child formats it. `extra` holds the attributes that the call has added."""

    name: str
    level: int
    text: str
    created: float
    traceback: str | None
    extra: dict[str, Any]


_encoder: Final = msgspec.json.Encoder(enc_hook=str)
_decode: Final = msgspec.json.Decoder(_SentRecord).decode


def levels() -> dict[str, int]:
    """The levels from which on this process writes records, by logger, for a child."""
    return {name: logging.getLogger(name or None).getEffectiveLevel() for name in _LOGGERS}


def receive(body: bytes) -> None:
    """Pass a record of a child to the loggers of this process."""
    sent = _decode(body)
    logger = logging.getLogger(sent.name)
    if not logger.isEnabledFor(sent.level):
        return
    record = logging.makeLogRecord(
        {
            **sent.extra,
            "name": sent.name,
            "levelno": sent.level,
            "levelname": logging.getLevelName(sent.level),
            "msg": "%s",
            "args": (sent.text,),
            "created": sent.created,
            "msecs": sent.created % 1 * 1000,
            "exc_text": sent.traceback,
            "processName": "stepwire-handler",
        }
    )
    logger.handle(record)


def send_to_worker(levels: dict[str, int], send: Callable[[bytes], None]) -> None:
    """Send all records of this process to the worker, unless this process has configured logging already."""
    if logs.is_configured():
        return
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.getLogger().addHandler(_ToWorker(send))


class _ToWorker(logging.Handler):
    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send
        self._tracebacks = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(_encoder.encode(self._sent(record)))
        except OSError:
            pass  # the worker has ended, and this process will
        except Exception:
            self.handleError(record)

    def _sent(self, record: logging.LogRecord) -> _SentRecord:
        traceback = self._tracebacks.formatException(record.exc_info) if record.exc_info else None
        return _SentRecord(
            record.name,
            record.levelno,
            clean(record.getMessage(), TEXT_CHARS_MAX),
            record.created,
            None if traceback is None else clean(redact(traceback)[-TEXT_CHARS_MAX:], TEXT_CHARS_MAX),
            {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD},
        )
