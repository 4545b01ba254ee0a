"""Paths into JSON: the value at a path, for trigger rules, a step's `input` and a workflow's `output`."""

from typing import Any, Final

NOTHING: Final = object()  # the result for a path that leads nowhere: `null` is a value


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at this path, or NOTHING. In a list a part of the path is an index of ASCII digits, from 0."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part, NOTHING)
        elif isinstance(value, list) and part.isascii() and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return NOTHING
    return value
