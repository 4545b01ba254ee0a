"""Trigger rules decide whether a step runs, given how its dependencies ended.

A rule has paths and literals, and no expressions. A path that leads nowhere has no value, for example a path into the
output of a step without output. A missing value does not exist, equals nothing and contains nothing, and is neither
greater nor less than anything. `null` is a value and exists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from stepwire_broker.core.reading.json_paths import NOTHING, value_at

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
    """Evaluate the rule. `states[i]` is the final state of step i, and `outputs[i]` its output as JSON, if any.

    A payload is decoded at most once, and only if a comparison needs it.
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
            case _:
                assert_never(rule)

    return holds(rule)


def needs_payloads(rule: TriggerRule) -> bool:
    """True if the rule compares values, so that context and outputs must be in memory."""
    match rule:
        case DependencyEnded():
            return False
        case Compare():
            return True
        case Every(rules) | Some(rules) | Nothing(rules):
            return any(needs_payloads(each) for each in rules)
        case _:
            assert_never(rule)


def _equals(actual: Any, value: Any) -> bool:
    """Compare as JSON does: 1 equals 1.0, and true does not equal 1."""
    if isinstance(actual, bool) or isinstance(value, bool):
        return actual is value
    if isinstance(actual, dict) and isinstance(value, dict):
        return actual.keys() == value.keys() and all(_equals(actual[key], value[key]) for key in actual)
    if isinstance(actual, list) and isinstance(value, list):
        return len(actual) == len(value) and all(map(_equals, actual, value))
    return bool(actual == value)


def _is_greater(actual: Any, value: Any) -> bool:
    """Numbers compare with numbers and strings with strings; other values have no order."""
    if isinstance(actual, str) and isinstance(value, str):
        return actual > value
    return _is_number(actual) and _is_number(value) and bool(actual > value)


def _contains(actual: Any, value: Any) -> bool:
    """A string contains its parts, a list its items, an object its keys."""
    if isinstance(actual, list):
        return any(_equals(item, value) for item in actual)
    return isinstance(actual, str | dict) and isinstance(value, str) and value in actual


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exists(actual: Any, _value: Any) -> bool:
    return actual is not NOTHING


_OPS: Final[dict[Op, Callable[[Any, Any], bool]]] = {
    "equals": _equals,
    "not_equals": lambda actual, value: not _equals(actual, value),
    "greater_than": _is_greater,
    "less_than": lambda actual, value: _is_greater(value, actual),
    "contains": _contains,
    "not_contains": lambda actual, value: not _contains(actual, value),
    "exists": _exists,
    "not_exists": lambda actual, value: not _exists(actual, value),
}
