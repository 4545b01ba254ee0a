"""Removes the values of secrets from texts that leave this process: errors, backtraces, progress and log records.

The values of all secrets that this process has resolved count, whichever run a text comes from.
"""

import logging
import re
import threading
from typing import Any, Final

from . import logs

VALUES_MAX: Final = 1_000  # the latest resolved values; earlier ones are forgotten
LINE_CHARS_MIN: Final = 4  # of one line of a value with several lines
OUTPUT_CHARS_MIN: Final = 8  # of a value that is removed from an output: a shorter one may be part of any data

_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def forms_of(value: str) -> set[str]:
    """The texts in which a value occurs: itself, its lines, and both as a JSON string or `repr` writes them."""
    lines = [line.strip() for line in value.splitlines()]
    plain = {value, value.strip(), *(line for line in lines if len(lines) > 1 and len(line) >= LINE_CHARS_MIN)}
    return {form for text in plain for form in (text, _escaped(text)) if form}


class Redactor:
    """The values to remove, and what replaces each: `[secret stripe/live]`."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by value, the latest last
        self._of_form: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._lock = threading.Lock()

    @property
    def is_active(self) -> bool:
        return bool(self._names)

    def add(self, name: str, value: str) -> None:
        """Remove this value from now on. A value that was added again counts as the latest."""
        if not value or self._names.get(value) == name:
            return
        with self._lock:
            self._names.pop(value, None)
            self._names[value] = name
            while len(self._names) > VALUES_MAX:
                del self._names[next(iter(self._names))]
            self._pattern = None

    def redact(self, text: str) -> str:
        """The text with the names of secrets in the place of their values."""
        if not self._names:
            return text
        pattern = self._pattern or self._compiled()
        return pattern.sub(self._replacement, text)

    def redacted(self, value: Any) -> Any:
        """A copy of a decoded JSON value without the secrets' values in its strings and keys."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact(key): self.redacted(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.redacted(inner) for inner in value]
        return value

    def _compiled(self) -> re.Pattern[str]:
        """Compile the pattern of all values, which takes milliseconds, once after values were added."""
        with self._lock:
            if self._pattern is None:
                self._of_form = {form: name for value, name in self._names.items() for form in forms_of(value)}
                longest_first = sorted(self._of_form, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))
            return self._pattern

    def _replacement(self, match: re.Match[str]) -> str:
        return f"[secret {self._of_form.get(match[0], 'removed')}]"


def _escaped(text: str) -> str:
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


OF_PROCESS: Final = Redactor()  # everything that this process has resolved
redact: Final = OF_PROCESS.redact


def remember(values: dict[str, str]) -> None:
    """Remove these values, by the names of their secrets, from all texts of this process from now on."""
    for name, value in values.items():
        OF_PROCESS.add(name, value)
    if values:
        for logger in logs.OWN:
            logging.getLogger(logger).addFilter(_FILTER)  # at most once: a logger keeps no filter twice


class _RecordFilter(logging.Filter):
    """Redacts the records of the SDK's loggers, `ctx.log` included, before any handler formats them."""

    _formatter: Final = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # a wrong format is reported by the handler, as without this filter
            return True
        record.msg, record.args = redact(message), ()
        if record.exc_info:
            whole = self._formatter.formatException(record.exc_info)
            record.exc_text = redact(record.exc_text or whole)
            if redact(whole) != whole:
                record.exc_info = None  # a handler that formats the exception itself would write the value
        elif record.exc_text:
            record.exc_text = redact(record.exc_text)
        for name, value in vars(record).items():
            if isinstance(value, str) and name not in _PLAIN:
                setattr(record, name, redact(value))
        return True


_PLAIN: Final = frozenset({*vars(logging.makeLogRecord({})), "message"}) - {"stack_info"}
_FILTER: Final = _RecordFilter()
