"""Read workflow files and configuration strictly: YAML or JSON, into plain values with their lines.

Only the part of YAML is read that JSON can express: no anchors, aliases, tags or merges, because 352 bytes of aliases
make a billion leaves. Plain scalars are read as in YAML 1.2, so `no`, `1:30` and `2024-01-01` are strings. A number
whose value depends on the version of YAML (`012` is 10 or 12) is refused.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import yaml
from stepwire_protocol import strict_json
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.limits import INTEGER_MAX

from stepwire_broker.core.reading.document_problems import Path
from stepwire_broker.core.reading.nearest import echoed
from stepwire_broker.errors import BrokerError

YAML_BYTES_MAX: Final = 256 * 1024
JSON_BYTES_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 16
PLACES_MAX: Final = 200_000  # the number of parts of a JSON document whose lines are known

_JSON_BEGINS: Final = re.compile(r'\s*[\[{]\s*["\[{\]}]')  # `{name: x}` is YAML

# The C parser, if available, is twenty times as fast and yields the same events.
_PARSER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(BrokerError):
    """The text cannot be read. The message names the line and the correct form."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.message = message
        self.line = line

    def where(self, name: str) -> str:
        """Return `order.yaml:12` for the file of this name."""
        return name if self.line is None else f"{name}:{self.line}"


class SourceDocument:
    """A plain value, and the lines of its parts. Lines of JSON are determined on the first call of `where`."""

    def __init__(self, value: Any, lines: Mapping[Path, int] | Callable[[], Mapping[Path, int]], name: str) -> None:
        self.value = value
        self.name = name  # of the file, for messages
        self._lines = lines

    def where(self, path: Path) -> str:
        """Return `order.yaml:12` for the part at this path, or for the nearest enclosing part of the document."""
        if callable(self._lines):
            self._lines = self._lines()
        while path and path not in self._lines:
            path = path[:-1]
        line = self._lines.get(path)
        return self.name if line is None else f"{self.name}:{line}" if self.name else f"line {line}"


def read_document(text: str | bytes, name: str = "") -> SourceDocument:
    """Read JSON if the text begins like JSON, else YAML. Raises DocumentError."""
    text = _decoded(text)
    return (_json_document if _JSON_BEGINS.match(text) else _yaml_document)(text, name)


def read_yaml(text: str | bytes) -> Any:
    """Return the plain value of one YAML document. Raises DocumentError."""
    return _yaml_document(_decoded(text)).value


def _decoded(text: str | bytes) -> str:
    try:
        if isinstance(text, bytes):
            text = text.decode()
        text.encode()
    except UnicodeError:
        raise DocumentError("the text is not UTF-8; save it as UTF-8") from None
    return text.removeprefix("\ufeff")


# -- YAML -------------------------------------------------------------------------------------------------------------


def _yaml_document(text: str, name: str = "") -> SourceDocument:
    if (size := len(text.encode())) > YAML_BYTES_MAX:
        raise DocumentError(
            f"the document has {size} bytes; YAML may have at most {YAML_BYTES_MAX}. "
            f"Write a generated document as JSON, of at most {JSON_BYTES_MAX} bytes"
        )
    try:
        builder = _Builder(yaml.parse(text, Loader=_PARSER))
        return SourceDocument(builder.document(), builder.lines, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise DocumentError(_plainly(str(error.problem or error.context), text, line), line) from None
    except yaml.YAMLError as error:
        raise DocumentError(str(error).splitlines()[0]) from None


def _plainly(problem: str, text: str, line: int | None) -> str:
    """Add the cause to the parser's two most frequent messages, which describe only a symptom."""
    written = text.splitlines()[line - 1] if line and line <= text.count("\n") + 1 else ""
    if "cannot start any token" in problem:
        indent = written[: len(written) - len(written.lstrip())]
        return "a tab; indent YAML with spaces" if "\t" in indent else f"{problem}; quote the value"
    if "mapping values are not allowed" in problem:
        return f"{problem}; quote a value that contains a colon and a space"
    return problem


class _Builder:
    """Builds the value event by event, and stops at the first event that is not allowed."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self.lines: dict[Path, int] = {}

    def document(self) -> Any:
        next(self._events)  # the stream begins
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            raise DocumentError("the document is empty")
        if start.version is not None or start.tags:
            raise DocumentError("directives (%YAML, %TAG) are not supported; remove them", _line(start))
        value = self._value(next(self._events), ())
        next(self._events)  # the document ends
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise DocumentError("a second document begins here; a file contains one document", _line(following))
        return value

    def _value(self, event: Any, path: Path) -> Any:
        _refuse_indirection(event)
        self.lines.setdefault(path, _line(event))  # a member has the line of its key
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= DEPTH_MAX:
            raise DocumentError(f"the nesting is deeper than {DEPTH_MAX}", _line(event))
        return self._sequence(path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(path)

    def _sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            place = (*path, key)
            if key in members:
                raise DocumentError(
                    f"the key {echoed(key)!r} occurs twice; the first is on line {self.lines[place]}", _line(event)
                )
            self.lines[place] = _line(event)
            members[key] = self._value(next(self._events), place)
        return members

    def _key(self, event: Any) -> str:
        _refuse_indirection(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise DocumentError("a key is a string, not a list or a map", _line(event))
        if event.value == "<<" and event.implicit[0]:
            raise DocumentError("<<: merges are not supported; write the members out", _line(event))
        key = _scalar(event)
        if not isinstance(key, str):
            raise DocumentError(f"the key {echoed(event.value)} is not a string; quote it", _line(event))
        return key


def _refuse_indirection(event: Any) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise DocumentError(
            f"*{echoed(str(event.anchor))}: aliases are not supported; write the value out", _line(event)
        )
    if event.anchor is not None:
        raise DocumentError(f"&{echoed(event.anchor)}: anchors are not supported; remove it", _line(event))
    if event.tag is not None:
        raise DocumentError(f"{echoed(event.tag)}: tags are not supported; remove it", _line(event))


_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_NUMBER: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DISPUTED: Final = re.compile(r"[-+]?(?:0[0-9_]+|0o[0-7]+|0b[01_]+|0x[0-9a-fA-F_]+)")
_NOT_JSON: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def _scalar(event: Any) -> Any:
    text: str = event.value
    if not event.implicit[0]:  # quoted, or a block
        if "\0" in text:
            raise DocumentError("a string contains U+0000, which databases cannot store", _line(event))
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise DocumentError("a string contains half of a surrogate pair", _line(event))
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _DISPUTED.fullmatch(text):
        raise DocumentError(
            f"{echoed(text)} is a different number in different versions of YAML; quote it, or write it in decimal",
            _line(event),
        )
    if _INTEGER.fullmatch(text):
        if len(text) > 17 or abs(int(text)) > INTEGER_MAX:
            raise DocumentError(f"{text[:32]} is outside ±(2^53 - 1); quote it", _line(event))
        return int(text)
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise DocumentError(f"{text[:32]} is too large for a double; quote it", _line(event))
        return number
    if _NOT_JSON.fullmatch(text):
        raise DocumentError(f"{echoed(text)} is not a number in JSON; quote it", _line(event))
    return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


# -- JSON -------------------------------------------------------------------------------------------------------------


def _json_document(text: str, name: str = "") -> SourceDocument:
    try:
        value = strict_json.parse(text.encode(), JSON_BYTES_MAX)
    except InvalidMessage as refusal:
        raise DocumentError(refusal.message, _line_of_fault(text, refusal.code)) from None
    return SourceDocument(value, lambda: dict(islice(_json_places(text), PLACES_MAX)), name)


def _line_of_fault(text: str, code: str) -> int | None:
    if code == "not_json":
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            return error.lineno
        except (ValueError, RecursionError):
            pass
    if code == "duplicate_key":
        seen: set[Path] = set()
        for path, line in islice(_json_places(text), PLACES_MAX):
            if path in seen:
                return line
            seen.add(path)
    return None


_TOKEN: Final = re.compile(r'["\n{}\[\],:]')
_read_string: Final = json.JSONDecoder().raw_decode


def _json_places(text: str) -> Iterator[tuple[Path, int]]:
    """Yield the line of each key and each item of this valid JSON."""
    yield (), 1
    path: list[str | int] = []
    line = 1
    position = 0
    is_key = False
    while (token := _TOKEN.search(text, position)) is not None:
        position = token.end()
        match token[0]:
            case "\n":
                line += 1
            case '"':
                string, position = _read_string(text, token.start())
                if is_key:
                    path[-1] = string
                    yield tuple(path), line
            case "{":
                path.append("")
                is_key = True
            case "[":
                path.append(0)
                is_key = False
                yield tuple(path), line
            case ",":
                last = path[-1]
                is_key = isinstance(last, str)
                if isinstance(last, int):
                    path[-1] = last + 1
                    yield tuple(path), line
            case ":":
                is_key = False
            case _:
                path.pop()
                is_key = False
