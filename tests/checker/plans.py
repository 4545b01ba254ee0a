"""The plan of a task: its workflow's document, as far as a judge needs it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec


class StepPlan(NamedTuple):
    """One step of the workflow's document."""

    name: str
    handler_class: str
    depends_on: tuple[int, ...]
    is_once: bool  # delivery_mode at_most_once
    on_unknown: str
    retry_limit: int
    retry_reported_failures: bool
    timeout_ms: int
    allow_failure: bool
    rule: dict[str, Any] | None


class Plan(NamedTuple):
    id: int
    steps: tuple[StepPlan, ...]
    by_name: dict[str, int]


def read_plan(number: int, document: str | bytes) -> Plan:
    steps = msgspec.json.decode(document)["steps"]
    by_name = {step["name"]: i for i, step in enumerate(steps)}
    return Plan(number, tuple(_step_plan(step, by_name) for step in steps), by_name)


def _step_plan(step: dict[str, Any], by_name: dict[str, int]) -> StepPlan:
    is_once = step.get("delivery_mode") == "at_most_once"
    retries_reported = bool(step.get("retry_reported_failures", False))
    return StepPlan(
        name=step["name"],
        handler_class=step["handler_class"],
        depends_on=tuple(sorted({by_name[name] for name in step.get("depends_on", ())})),
        is_once=is_once,
        on_unknown=step.get("on_unknown", "hold"),
        retry_limit=step.get("retry_limit", 0 if is_once and not retries_reported else 3),
        retry_reported_failures=retries_reported,
        timeout_ms=step.get("timeout_ms", 30_000),
        allow_failure=bool(step.get("allow_failure", False)),
        rule=step.get("trigger_rule"),
    )


def holds(rule: dict[str, Any], plan: Plan, states: Sequence[str]) -> bool | None:
    """Evaluate a trigger rule over the states of steps. None: the rule compares values, which are not read here."""
    for kind in ("completed", "failed", "skipped"):
        if kind in rule:
            return states[plan.by_name[rule[kind]]] == kind
    for kind, decides in (("all", False), ("any", True), ("none", True)):
        if kind in rule:
            verdicts = [holds(each, plan, states) for each in rule[kind]]
            verdict: bool | None = decides
            if decides not in verdicts:
                verdict = None if None in verdicts else not decides
            return verdict if kind != "none" or verdict is None else not verdict
    return None
