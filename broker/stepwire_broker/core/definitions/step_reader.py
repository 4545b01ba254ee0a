"""The steps of a workflow document: each step's own members first, then members that refer to other steps."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from stepwire_protocol import secret_references, strict_json
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import EMPTY_OBJECT

from stepwire_broker.core.reading.document_problems import Path, ProblemCollector, shown

from . import dependency_cycles, fields
from .settings import LimitSettings
from .step_definition import RETRY_LIMIT_DEFAULT, BackoffPolicy, Mapping
from .trigger_rules import TriggerRule

DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
RETRIES_MAX: Final = 10_000
PRIORITY_MAX: Final = 100


def read_backoff(value: Any, path: Path, report: ProblemCollector) -> BackoffPolicy | None:
    if not isinstance(value, dict):
        report.add(path, f"{shown(value)} is not a map like {{kind: exponential, base_ms: 1000, max_ms: 300000}}")
        return None
    backoff = BackoffPolicy(**fields.members(value, BACKOFF_READERS, path, report))
    if backoff.max_ms < backoff.base_ms:
        report.add(path, f"max_ms is {backoff.max_ms}, less than base_ms, which is {backoff.base_ms}")
    return backoff


BACKOFF_READERS: Final[dict[str, fields.Reader]] = {
    "kind": fields.OneOf(("exponential", "constant")),
    "base_ms": fields.pause_ms,
    "max_ms": fields.pause_ms,
    "jitter": fields.OneOf(("full", "none")),
}

# In the order in which they are stored. `trigger_rule` and `input` name steps, so they are resolved later.
STEP_READERS: Final[dict[str, fields.Reader]] = {
    "name": fields.step_name,
    "handler_class": fields.handler_class,
    "description": fields.text,
    "depends_on": fields.step_names,
    "trigger_rule": fields.any_map,
    "handler_config": fields.any_map,
    "input": fields.mapping,
    "delivery_mode": fields.OneOf(("at_least_once", "at_most_once")),
    "on_unknown": fields.OneOf(("hold", "fail")),
    "retry_limit": fields.Integer(0, RETRIES_MAX),
    "retry_reported_failures": fields.boolean,
    "backoff": read_backoff,
    "timeout_ms": fields.duration_ms,
    "queue_timeout_ms": fields.duration_ms,
    "deadline_ms": fields.duration_ms,
    "priority": fields.Integer(-PRIORITY_MAX, PRIORITY_MAX),
    "worker_selector": fields.selector,
    "allow_failure": fields.boolean,
}


# -- the steps --------------------------------------------------------------------------------------------------------


class WrittenStep(Struct):
    """A step while it is read: its own members, and the members that are resolved against the other steps."""

    members: dict[str, Any]
    needs: tuple[int, ...] = ()
    rule: TriggerRule | None = None
    input: Mapping | None = None
    config: Raw = EMPTY_OBJECT


def read_steps(written: list[Any], report: ProblemCollector, limits: LimitSettings) -> list[WrittenStep]:
    if len(written) > limits.steps_per_workflow:
        report.add(("steps",), f"there are {len(written)} steps, at most {limits.steps_per_workflow}")
        raise report.refusal()
    steps = [WrittenStep(_read_step(each, ("steps", i), report)) for i, each in enumerate(written)]
    by_name = _names(steps, report)
    for i, step in enumerate(steps):
        step.needs = _needs(step, i, by_name, report)
    edges = sum(len(step.needs) for step in steps)
    if edges > limits.edges_per_workflow:
        report.add(("steps",), f"depends_on names {edges} steps in all, at most {limits.edges_per_workflow}")
    for cycle in dependency_cycles.cycles([step.needs for step in steps]):
        report.add(
            ("steps", cycle[0], "depends_on"), dependency_cycles.drawn([steps[i].members["name"] for i in cycle])
        )
    for i, step in enumerate(steps):
        _resolve(step, ("steps", i), steps, report)
        _check_retries(step, ("steps", i), report)
    return steps


def _read_step(written: Any, path: Path, report: ProblemCollector) -> dict[str, Any]:
    if not isinstance(written, dict):
        report.add(path, f"{shown(written)} is not a map with name and handler_class")
        return {}
    for key in ("name", "handler_class"):
        if written.get(key) is None:
            report.add(path, f"the step has no {key}")
    return fields.members(written, STEP_READERS, path, report)


def _names(steps: list[WrittenStep], report: ProblemCollector) -> dict[str, int]:
    by_name: dict[str, int] = {}
    for i, step in enumerate(steps):
        name = step.members.get("name")
        if name in by_name:
            report.add(("steps", i, "name"), f"{name!r} is the name of steps[{by_name[name]}] already")
        elif name is not None:
            by_name[name] = i
    return by_name


def _needs(step: WrittenStep, index: int, by_name: dict[str, int], report: ProblemCollector) -> tuple[int, ...]:
    """The indexes of the step's dependencies; wrong names are reported and left out."""
    needs: dict[int, None] = {}  # as a set that keeps its order
    for k, name in enumerate(step.members.get("depends_on", ())):
        path = ("steps", index, "depends_on", k)
        needed = by_name.get(name)
        if name == step.members.get("name"):
            report.add(path, "a step cannot depend on itself")
        elif needed is None:
            report.add(path, f"{shown(name)} is not a step of this workflow{report.suggestion(name, by_name.keys())}")
        elif needed in needs:
            report.add(path, f"{name!r} is listed twice")
        else:
            needs[needed] = None
    return tuple(needs)


def _resolve(step: WrittenStep, path: Path, steps: list[WrittenStep], report: ProblemCollector) -> None:
    """Resolve the step's rule and input, which may name only its direct dependencies."""
    needed = {steps[i].members["name"]: i for i in step.needs}
    if "trigger_rule" in step.members:
        step.rule = fields.trigger_rule(step.members["trigger_rule"], needed, (*path, "trigger_rule"), report)
    if "input" in step.members:
        whose = "in this step's depends_on"
        step.input = fields.resolved_mapping(step.members["input"], needed, whose, (*path, "input"), report)
    if "handler_config" in step.members:
        for place, fault in secret_references.faults(step.members["handler_config"], (*path, "handler_config")):
            report.add(place, fault)
        step.config = _payload(step.members["handler_config"], (*path, "handler_config"), report)


def _payload(value: dict[str, Any], path: Path, report: ProblemCollector) -> Raw:
    try:
        encoded = msgspec.json.encode(value)
        strict_json.parse(encoded, DOCUMENT_BYTES_MAX)
        return Raw(encoded)
    except InvalidMessage as refusal:
        report.add(path, refusal.message)
    except (TypeError, ValueError, RecursionError) as error:
        report.add(path, f"the value cannot be encoded as JSON: {error}")
    return EMPTY_OBJECT


def _check_retries(step: WrittenStep, path: Path, report: ProblemCollector) -> None:
    written = step.members.get("retry_limit", 0)
    if written > 0 and retry_limit_default(step) == 0:
        report.add(
            (*path, "retry_limit"),
            "an at_most_once step is not retried; remove retry_limit, or set retry_reported_failures: true "
            "if a failure that its handler reports means that nothing happened",
        )


def retry_limit_default(step: WrittenStep) -> int:
    """A failure that an at_most_once handler reports is final, unless the workflow sets retry_reported_failures."""
    is_tried_once = step.members.get("delivery_mode") == "at_most_once"
    return 0 if is_tried_once and not step.members.get("retry_reported_failures") else RETRY_LIMIT_DEFAULT
