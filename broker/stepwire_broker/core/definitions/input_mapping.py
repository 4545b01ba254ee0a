"""A step's `input` and a workflow's `output`: objects built from values at paths into the context and the outputs."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from stepwire_broker.core.reading.json_paths import NOTHING, value_at

from .step_definition import Mapping

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def mapped(mapping: Mapping, context: bytes, output_of: Callable[[str], bytes | None]) -> bytes:
    """Return an object with the value at each path; `null` where a path leads nowhere.

    The context and each output are decoded at most once, and only if a path leads into them.
    """
    opened: dict[tuple[str, ...], Any] = {}
    return _encode({member: _value(path, context, output_of, opened) for member, path in mapping})


def _value(
    path: tuple[str, ...], context: bytes, output_of: Callable[[str], bytes | None], opened: dict[tuple[str, ...], Any]
) -> Any:
    root, rest = (path[:1], path[1:]) if path[0] == "context" else (path[:2], path[2:])
    if root not in opened:
        raw = context if root[0] == "context" else output_of(root[1])
        opened[root] = NOTHING if raw is None else _decode(raw)
    value = value_at(opened[root], rest)
    return None if value is NOTHING else value


def task_result(mapping: Mapping | None, last: Iterable[str], context: bytes, outputs: dict[str, bytes]) -> bytes:
    """Return a completed task's result: its workflow's `output`, or the outputs of its last steps by name."""
    if mapping is not None:
        return mapped(mapping, context, outputs.get)
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), outputs[name]) for name in last if name in outputs) + b"}"
