"""Trigger rules: what they say of every value there can be."""

from typing import Any

import msgspec
import pytest
from stepwire_broker.core.definitions.trigger_rules import (
    Compare,
    DependencyEnded,
    Every,
    Nothing,
    Some,
    TriggerRule,
    evaluate,
    needs_payloads,
)
from stepwire_broker.core.model.states import StepState

CONTEXT: dict[str, Any] = {
    "amount": 120,
    "rate": 1.0,
    "region": "eu-west",
    "tags": ["new", 7, {"a": 1}, True],
    "user": {"name": "Ada", "admin": True, "left": None},
    "0": "zero",
}
OUTPUT: dict[str, Any] = {"total": 42, "lines": [{"sku": "x"}, {"sku": "y"}]}
STATES = [StepState.COMPLETED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED]


def holds(rule: TriggerRule) -> bool:
    return evaluate(rule, STATES, msgspec.json.encode(CONTEXT), {0: msgspec.json.encode(OUTPUT)})


def compare(path: str, op: Any, value: Any = None) -> Compare:
    return Compare("context", None, tuple(path.split(".")), op, value)


@pytest.mark.parametrize(
    ("path", "op", "value", "expected"),
    [
        ("amount", "equals", 120, True),
        ("amount", "equals", 120.0, True),
        ("amount", "equals", "120", False),
        ("rate", "equals", 1, True),
        ("rate", "equals", True, False),
        ("user.admin", "equals", True, True),
        ("user.admin", "equals", 1, False),
        ("user.left", "equals", None, True),
        ("user.gone", "equals", None, False),
        ("user", "equals", {"left": None, "admin": True, "name": "Ada"}, True),
        ("user", "equals", {"left": None, "admin": 1, "name": "Ada"}, False),
        ("tags", "equals", ["new", 7, {"a": 1}, True], True),
        ("tags", "equals", ["new", 7, {"a": True}, True], False),
        ("tags", "equals", ["new"], False),
        ("region", "not_equals", "us", True),
        ("region", "not_equals", "eu-west", False),
        ("gone", "not_equals", "x", True),
        ("amount", "greater_than", 100, True),
        ("amount", "greater_than", 120, False),
        ("amount", "greater_than", "100", False),
        ("amount", "less_than", 120.5, True),
        ("amount", "less_than", 120, False),
        ("region", "greater_than", "eu", True),
        ("region", "less_than", "us", True),
        ("user.admin", "greater_than", 0, False),
        ("user.left", "less_than", 1, False),
        ("gone", "less_than", 1, False),
        ("gone", "greater_than", 1, False),
        ("region", "contains", "west", True),
        ("region", "contains", "east", False),
        ("region", "contains", 1, False),
        ("tags", "contains", 7, True),
        ("tags", "contains", 1, False),
        ("tags", "contains", {"a": 1}, True),
        ("user", "contains", "name", True),
        ("user", "contains", "Ada", False),
        ("amount", "contains", 1, False),
        ("gone", "contains", "x", False),
        ("tags", "not_contains", "old", True),
        ("tags", "not_contains", "new", False),
        ("gone", "not_contains", "x", True),
        ("user.left", "exists", None, True),
        ("user.gone", "exists", None, False),
        ("user.gone", "not_exists", None, True),
        ("amount.deeper", "exists", None, False),
        ("tags.1", "equals", 7, True),
        ("tags.2.a", "equals", 1, True),
        ("tags.4", "exists", None, False),
        ("tags.-1", "exists", None, False),
        ("tags.٣", "exists", None, False),
        ("0", "equals", "zero", True),
    ],
)
def test_a_comparison_is_evaluated_as(path: str, op: str, value: Any, expected: bool) -> None:
    assert holds(compare(path, op, value)) is expected


def test_a_whole_output_and_its_parts_can_be_compared() -> None:
    assert holds(Compare("result", 0, ("lines", "1", "sku"), "equals", "y"))
    assert holds(Compare("result", 0, (), "contains", "total"))


def test_paths_into_a_missing_output_lead_nowhere() -> None:
    assert not holds(Compare("result", 1, (), "exists"))
    assert not holds(Compare("result", 1, ("total",), "equals", None))
    assert holds(Compare("result", 1, ("total",), "not_exists"))


@pytest.mark.parametrize(
    ("state", "step", "expected"),
    [
        ("completed", 0, True),
        ("failed", 0, False),
        ("failed", 1, True),
        ("skipped", 2, True),
        ("failed", 3, False),
        ("completed", 3, False),
    ],
)
def test_a_rule_compares_the_end_of_a_dependency(state: Any, step: int, expected: bool) -> None:
    assert holds(DependencyEnded(state, step)) is expected


YES, NO = DependencyEnded("completed", 0), DependencyEnded("failed", 0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Every((YES, YES)), True),
        (Every((YES, NO)), False),
        (Some((NO, YES)), True),
        (Some((NO, NO)), False),
        (Nothing((NO, NO)), True),
        (Nothing((NO, YES)), False),
        (Every((Some((NO, YES)), Nothing((NO,)))), True),
        (Nothing((Every((YES, YES)),)), False),
    ],
)
def test_all_any_and_none_combine_their_rules(rule: TriggerRule, expected: bool) -> None:
    assert holds(rule) is expected


def test_a_payload_is_decoded_only_when_a_comparison_needs_it() -> None:
    unreadable = b"\xff"
    assert evaluate(Some((YES, compare("amount", "exists"))), STATES, unreadable, {})
    assert not evaluate(Every((NO, Compare("result", 0, ("x",), "exists"))), STATES, unreadable, {0: unreadable})


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (YES, False),
        (Every((YES, Some((NO, YES)))), False),
        (compare("a", "exists"), True),
        (Every((YES, Nothing((YES, compare("a", "exists"))))), True),
    ],
)
def test_only_a_comparison_needs_payloads(rule: TriggerRule, expected: bool) -> None:
    assert needs_payloads(rule) is expected
