"""Trigger rules: may a step run, given how what it depends on ended? Paths and literals only, nothing evaluated.

A path that leads nowhere (also into the output of a step that has none) finds nothing, which equals nothing, holds
nothing, is neither greater nor less than anything, and does not exist. `null` is a value and exists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .json_paths import NOTHING, value_at

Op: TypeAlias = Literal[
    "equals", "not_equals", "greater_than", "less_than", "contains", "not_contains", "exists", "not_exists"
]


class DependencyEnded(Struct, frozen=True, tag="ended"):
    """A dependency ended in this state: `{completed: step}`, `{failed: step}`, `{skipped: step}`."""

    state: Literal["completed", "failed", "skipped"]
    step: int


class Compare(Struct, frozen=True, tag="compare"):
    """A value in the context or in a dependency's output: `{context: path, op, value}`, `{result: step.path, …}`."""

    source: Literal["context", "result"]
    step: int | None
    path: tuple[str, ...]
    op: Op
    value: Any = None


class Every(Struct, frozen=True, tag="all"):
    rules: "tuple[TriggerRule, ...]"


class Some(Struct, frozen=True, tag="any"):
    rules: "tuple[TriggerRule, ...]"


class Nothing(Struct, frozen=True, tag="none"):
    rules: "tuple[TriggerRule, ...]"


TriggerRule: TypeAlias = DependencyEnded | Compare | Every | Some | Nothing

_decode: Final = msgspec.json.Decoder().decode


def evaluate(rule: TriggerRule, states: Sequence[str], context: bytes, outputs: Mapping[int, bytes]) -> bool:
    """`states[i]` is the final state of step i, `outputs[i]` its output as JSON, where it has one.

    A payload is decoded at most once, and only when a comparison wants it.
    """
    opened: dict[int | None, Any] = {}

    def find(step: int | None, path: tuple[str, ...]) -> Any:
        if step not in opened:
            raw = context if step is None else outputs.get(step)
            opened[step] = NOTHING if raw is None else _decode(raw)
        return value_at(opened[step], path)

    def holds(rule: TriggerRule) -> bool:
        match rule:
            case DependencyEnded(state, step):
                return states[step] == state
            case Compare(_, step, path, op, value):
                return _OPS[op](find(step, path), value)
            case Every(rules):
                return all(holds(each) for each in rules)
            case Some(rules):
                return any(holds(each) for each in rules)
            case Nothing(rules):
                return not any(holds(each) for each in rules)

    return holds(rule)


def needs_payloads(rule: TriggerRule) -> bool:
    """Does it compare values, so that context and outputs must be at hand?"""
    match rule:
        case DependencyEnded():
            return False
        case Compare():
            return True
        case Every(rules) | Some(rules) | Nothing(rules):
            return any(needs_payloads(each) for each in rules)


def _equals(found: Any, value: Any) -> bool:
    """As JSON: 1 is 1.0, but true is not 1."""
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(found, dict) and isinstance(value, dict):
        return found.keys() == value.keys() and all(_equals(found[key], value[key]) for key in found)
    if isinstance(found, list) and isinstance(value, list):
        return len(found) == len(value) and all(map(_equals, found, value))
    return bool(found == value)


def _is_greater(found: Any, value: Any) -> bool:
    """Numbers among numbers, strings among strings; anything else has no order."""
    if isinstance(found, str) and isinstance(value, str):
        return found > value
    return _is_number(found) and _is_number(value) and bool(found > value)


def _contains(found: Any, value: Any) -> bool:
    """A string its part, a list its item, an object its key."""
    if isinstance(found, list):
        return any(_equals(item, value) for item in found)
    return isinstance(found, str | dict) and isinstance(value, str) and value in found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exists(found: Any, _value: Any) -> bool:
    return found is not NOTHING


_OPS: Final[dict[Op, Callable[[Any, Any], bool]]] = {
    "equals": _equals,
    "not_equals": lambda found, value: not _equals(found, value),
    "greater_than": _is_greater,
    "less_than": lambda found, value: _is_greater(value, found),
    "contains": _contains,
    "not_contains": lambda found, value: not _contains(found, value),
    "exists": _exists,
    "not_exists": lambda found, value: not _exists(found, value),
}
