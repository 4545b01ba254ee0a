"""Paths into JSON: a step's `input` and a workflow's `output`. Opened only for who asks for a part."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

Mapping = tuple[tuple[str, tuple[str, ...]], ...]


def mapped(mapping: Mapping, context: bytes, output_of: Callable[[str], bytes | None]) -> bytes:
    """The object whose members are the values at these paths; what is not there is null."""
    opened: dict[tuple[str, ...], Any] = {}
    return _encode({member: _value(path, context, output_of, opened) for member, path in mapping})


def _value(
    path: tuple[str, ...], context: bytes, output_of: Callable[[str], bytes | None], opened: dict[tuple[str, ...], Any]
) -> Any:
    root, rest = (path[:1], path[1:]) if path[0] == "context" else (path[:2], path[2:])
    if root not in opened:
        raw = context if root[0] == "context" else output_of(root[1])
        opened[root] = None if raw is None else _decode(raw)
    return at(opened[root], rest)


def task_result(mapping: Mapping | None, last: Iterable[str], context: bytes, outputs: dict[str, bytes]) -> bytes:
    """What a completed task came to: its workflow's `output`, or the outputs of its last steps by name."""
    if mapping is not None:
        return mapped(mapping, context, outputs.get)
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), outputs[name]) for name in last if name in outputs) + b"}"


def at(value: Any, path: tuple[str, ...]) -> Any:
    for word in path:
        if isinstance(value, dict):
            value = value.get(word)
        elif isinstance(value, list) and word.isdecimal() and int(word) < len(value):
            value = value[int(word)]
        else:
            return None
    return value
