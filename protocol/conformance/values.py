"""Patterns of values in dialogues: match a message against a pattern, and render a pattern as a message to send."""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from msgspec import UNSET, Raw, Struct

Bindings: TypeAlias = dict[str, Any]


def match(pattern: Any, value: Any, bindings: Bindings, at: str = "$") -> Iterator[str]:
    """Yield every difference between the value and the pattern. Members that the pattern does not name may differ.

    Binds the names of `$bind` in `bindings`, even if the value differs elsewhere.
    """
    if isinstance(pattern, dict) and ("$ref" in pattern or pattern.get("$bind") in bindings):
        pattern = render(pattern, bindings)
    if isinstance(pattern, dict) and "$any" in pattern:
        return
    if isinstance(pattern, dict) and "$bind" in pattern:
        bindings[pattern["$bind"]] = value
    elif isinstance(pattern, dict):
        yield from _match_object(pattern, value, bindings, at)
    elif isinstance(pattern, list):
        yield from _match_array(pattern, value, bindings, at)
    else:
        pattern = render(pattern, bindings)
        if type(pattern) is not type(value) or pattern != value:
            yield f"{at} is {value!r}, not {pattern!r}"


def _match_object(pattern: dict[str, Any], value: Any, bindings: Bindings, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} is {value!r}, not an object"
        return
    for name, inner in pattern.items():
        name = render(name, bindings)
        if name not in value:
            yield f"{at}.{name} is missing"
        else:
            yield from match(inner, value[name], bindings, f"{at}.{name}")


def _match_array(pattern: list[Any], value: Any, bindings: Bindings, at: str) -> Iterator[str]:
    if not isinstance(value, list) or len(value) != len(pattern):
        yield f"{at} is {value!r}, not {len(pattern)} items"
        return
    for i, (inner, item) in enumerate(zip(pattern, value, strict=True)):
        yield from match(inner, item, bindings, f"{at}[{i}]")


def render(pattern: Any, bindings: Bindings) -> Any:
    """The pattern as a value. A name becomes its bound value, or its example, which is then bound."""
    if isinstance(pattern, dict):
        if "$ref" in pattern:
            return bindings[pattern["$ref"]]
        if "$any" in pattern:
            return pattern["example"]
        if "$bind" in pattern:
            return bindings.setdefault(pattern["$bind"], pattern["example"])
        return {render(name, bindings): render(value, bindings) for name, value in pattern.items()}
    if isinstance(pattern, list):
        return [render(item, bindings) for item in pattern]
    if isinstance(pattern, str) and "${" in pattern:
        for name, value in bindings.items():
            pattern = pattern.replace("${" + name + "}", str(value))
        assert "${" not in pattern, f"{pattern!r} uses a name that is not bound yet"
    return pattern


def members(value: Any) -> Any:
    """A decoded message as plain values, including absent members that have a default."""
    if isinstance(value, Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return tag | {name: members(member) for name, member in fields.items() if member is not UNSET}
    if isinstance(value, Raw):
        return json.loads(bytes(value))
    if isinstance(value, list | tuple):
        return [members(item) for item in value]
    if isinstance(value, dict):
        return {name: members(member) for name, member in value.items()}
    return value
