"""How each operation keeps a token within its namespaces.

A token with `namespaces=shop` reads and changes only these. For all others each operation answers as for something that
does not exist. The rule of an operation decides where that is checked; an operation without a rule refuses such tokens.
"""

import enum
from typing import Final

from stepwire_broker.core.answers.hints import Hint, HintCode

from .http_problems import HttpProblem, not_found


class NamespaceRule(enum.Enum):
    FREE = "free"  # the answer is about no namespace
    OF_TASK = "of_task"  # the path names a task, whose namespace is checked before the handler is called
    OF_STEP = "of_step"  # the path names a step, likewise
    NAMED = "named"  # the handler checks the namespace that the query or the body names: `HttpCall.enter_namespace`
    FILTERED = "filtered"  # the handler leaves out what is in other namespaces: `HttpCall.namespaces`
    OF_WORKER = "of_worker"  # the grant of the token's workers has the namespaces
    WHOLE = "whole"  # the operation is about all namespaces, so it exists only for tokens without namespaces


_OTHERS: Final[dict[tuple[str, str], NamespaceRule]] = {
    ("POST", "/v1/tasks"): NamespaceRule.NAMED,
    ("POST", "/v1/tasks/batch"): NamespaceRule.NAMED,
    ("GET", "/v1/tasks"): NamespaceRule.FILTERED,
    ("GET", "/v1/steps"): NamespaceRule.FILTERED,
    ("GET", "/v1/events"): NamespaceRule.FILTERED,
    ("POST", "/v1/workflows"): NamespaceRule.NAMED,
    ("GET", "/v1/workflows"): NamespaceRule.FILTERED,
    ("GET", "/v1/workflows/{name}"): NamespaceRule.NAMED,
    ("POST", "/v1/workflows/{name}/activate"): NamespaceRule.NAMED,
    ("GET", "/v1/route"): NamespaceRule.NAMED,
    **{
        ("POST", f"/v1/worker/{call}"): NamespaceRule.OF_WORKER
        for call in ("lease", "heartbeat", "start", "results", "bye")
    },
    ("GET", "/openapi.json"): NamespaceRule.FREE,
    ("GET", "/readyz"): NamespaceRule.FREE,
    ("GET", "/livez"): NamespaceRule.FREE,
    # Workers, executors, rules, breakers, the bus and the metrics serve all namespaces together.
    ("GET", "/health/orchestration"): NamespaceRule.WHOLE,
    ("GET", "/v1/workers"): NamespaceRule.WHOLE,
    ("POST", "/v1/workers/{worker}/drain"): NamespaceRule.WHOLE,
    ("GET", "/v1/executors"): NamespaceRule.WHOLE,
    ("GET", "/v1/executors/{executor}"): NamespaceRule.WHOLE,
    ("POST", "/v1/executors/{executor}/pause"): NamespaceRule.WHOLE,
    ("POST", "/v1/executors/{executor}/resume"): NamespaceRule.WHOLE,
    ("GET", "/v1/rules"): NamespaceRule.WHOLE,
    ("POST", "/v1/rules"): NamespaceRule.WHOLE,
    ("POST", "/v1/rules/remove"): NamespaceRule.WHOLE,
    ("GET", "/v1/shadows"): NamespaceRule.WHOLE,
    ("GET", "/v1/breakers"): NamespaceRule.WHOLE,
    ("POST", "/v1/breakers/{handler_class}"): NamespaceRule.WHOLE,
    ("GET", "/v1/backlog"): NamespaceRule.WHOLE,
    ("GET", "/v1/brokers"): NamespaceRule.WHOLE,
    ("GET", "/v1/lanes"): NamespaceRule.WHOLE,
    ("POST", "/v1/lanes/{lane}/move"): NamespaceRule.WHOLE,
    ("POST", "/v1/database/prune"): NamespaceRule.WHOLE,
    ("POST", "/v1/database/backups"): NamespaceRule.WHOLE,
    ("POST", "/v1/database/finish-erasures"): NamespaceRule.WHOLE,
    ("GET", "/v1/audit"): NamespaceRule.WHOLE,
    ("GET", "/v1/audit/head"): NamespaceRule.WHOLE,
    ("GET", "/v1/tap"): NamespaceRule.WHOLE,
    ("GET", "/metrics"): NamespaceRule.WHOLE,
}


def declared_rule(method: str, path: str) -> NamespaceRule | None:
    """The rule of an operation, or None for an operation that has none."""
    if "{task_id}" in path:
        return NamespaceRule.OF_TASK
    if "{step_id}" in path:
        return NamespaceRule.OF_STEP
    return _OTHERS.get((method, path))


def rule_of(method: str, path: str) -> NamespaceRule:
    return declared_rule(method, path) or NamespaceRule.WHOLE


def whole_only(path: str) -> HttpProblem:
    """The answer of an operation that exists only for tokens without namespaces."""
    return not_found(
        f"{path[:200]} for a token with `namespaces`: it is about all namespaces", "use a token without `namespaces`"
    )


def no_such_task(task_id: int) -> HttpProblem:
    return not_found(f"task {task_id}", Hint(HintCode.LIST_TASKS))


def no_such_step(step_id: int, *, is_command: bool = False) -> HttpProblem:
    return not_found(f"step {step_id}", Hint(HintCode.LIST_HELD_STEPS if is_command else HintCode.LIST_TASKS))
