"""A workflow: from a document, through validation, to the compiled form that tasks run."""

import hashlib
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs
from stepwire_protocol.limits import INTEGER_MAX

from stepwire_broker.core.reading import clear_paths
from stepwire_broker.core.reading.document_problems import (
    DocumentProblem,
    InvalidWorkflow,
    ProblemCollector,
    Where,
    shown,
)
from stepwire_broker.core.reading.literal_secrets import literals

from . import fields
from .missed_failures import MissedFailure, missed_failures
from .settings import LimitSettings
from .step_definition import TIMEOUT_DEFAULT_MS, Mapping, StepDefinition, StepKind
from .step_reader import DOCUMENT_BYTES_MAX, STEP_READERS, WrittenStep, read_steps, retry_limit_default
from .stored_rows import StoredWorkflow

__all__ = ["DocumentProblem", "InvalidWorkflow", "Workflow", "read_workflow", "stored_workflow"]

NAMESPACE_DEFAULT: Final = "default"
VERSION_DEFAULT: Final = "1"
DEPTH_MAX: Final = 16


class Workflow(Struct, frozen=True, kw_only=True):
    """The compiled definition that tasks run. Immutable: (namespace, name, version) never changes its content."""

    id: int  # the database's; 0 before it is stored
    namespace: str
    name: str
    version: str
    steps: tuple[StepDefinition, ...]
    by_name: dict[str, int]
    roots: tuple[int, ...]  # the steps without dependencies: ready at once
    last: tuple[int, ...]  # the steps without dependents: their outputs are the task's result
    deadline_ms: int | None = None
    output: Mapping | None = None
    is_sealed: bool = False  # payloads: sealed. The broker stores only sealed contexts, outputs and errors
    digest: str  # of the stored form: the same content gives the same digest
    document: bytes  # the definition as JSON, as stored: defaults left out, durations in milliseconds
    warnings: tuple[DocumentProblem, ...] = ()  # allowed, but probably a mistake

    def with_id(self, number: int) -> "Workflow":
        """The same definition with its id in the database."""
        return structs.replace(self, id=number)


_LIMITS: Final = LimitSettings()
_UNBOUND: Final = LimitSettings(steps_per_workflow=INTEGER_MAX, edges_per_workflow=INTEGER_MAX)


def read_workflow(document: object, where: Where | None = None, limits: LimitSettings = _LIMITS) -> Workflow:
    """Validate and compile a plain document (of YAML or JSON). The workflow has id 0 until it is stored.

    Raises InvalidWorkflow with all problems. `where` returns the file and line of a path.
    """
    report = ProblemCollector(where)
    head, steps, by_name = _read(document, report, limits)
    output = None
    if "output" in head:
        output = fields.resolved_mapping(head["output"], by_name, "a step of this workflow", ("output",), report)
    _settle_selectors(head, steps, report)
    if head.get("payloads") == "sealed":
        _check_paths(head, steps, report)
    stored = _stored_form(dict(head), steps)
    encoded = _encoded(stored, report)
    if report.problems:
        raise report.refusal()

    _warn(head, steps, report)
    compiled = _compile(steps, head.get("worker_selector"))
    return Workflow(
        id=0,
        namespace=head.get("namespace", NAMESPACE_DEFAULT),
        name=head["name"],
        version=head.get("version", VERSION_DEFAULT),
        steps=compiled,
        by_name=by_name,
        roots=tuple(step.index for step in compiled if not step.depends_on),
        last=tuple(step.index for step in compiled if not step.dependents),
        deadline_ms=head.get("deadline_ms"),
        output=output,
        is_sealed=head.get("payloads") == "sealed",
        digest=hashlib.sha256(_encode_sorted(stored)).hexdigest(),
        document=encoded,
        warnings=tuple(report.warnings),
    )


def stored_workflow(row: StoredWorkflow) -> Workflow:
    """Compile the workflow of a stored row. The limits are not checked, because they may have been lowered since."""
    workflow = read_workflow(msgspec.json.decode(row.document), limits=_UNBOUND)
    return structs.replace(workflow, id=row.id, warnings=())


# -- the members ------------------------------------------------------------------------------------------------------


def _read(
    document: object, report: ProblemCollector, limits: LimitSettings
) -> tuple[dict[str, Any], list[WrittenStep], dict[str, int]]:
    """Return the members of the workflow except `steps`, the steps, and the index of each step's name."""
    if not isinstance(document, dict):
        report.add((), f"the document is {shown(document)}, not a map with a name and steps")
        raise report.refusal()
    if _is_deeper(document, DEPTH_MAX):
        report.add((), f"the nesting is deeper than {DEPTH_MAX}")
        raise report.refusal()
    head = fields.members(document, WORKFLOW_READERS, (), report)
    if document.get("name") is None:
        report.add((), "the workflow has no name")
    if document.get("steps") in (None, []):
        report.add((), "the workflow has no steps")
    steps = read_steps(head.pop("steps", []), report, limits)
    return head, steps, {step.members["name"]: i for i, step in enumerate(steps) if "name" in step.members}


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


WORKFLOW_READERS: Final[dict[str, fields.Reader]] = {
    "name": fields.workflow_name,
    "namespace": fields.namespace,
    "version": fields.version,
    "description": fields.text,
    "deadline_ms": fields.duration_ms,
    "worker_selector": fields.selector,
    "payloads": fields.OneOf(("open", "sealed")),
    "steps": fields.step_list,
    "output": fields.mapping,
}


def _settle_selectors(head: dict[str, Any], steps: list[WrittenStep], report: ProblemCollector) -> None:
    """Drop empty selectors. A step keeps an empty map if the map replaces the workflow's selector."""
    if not head.get("worker_selector"):
        head.pop("worker_selector", None)
    for i, step in enumerate(steps):
        own = step.members.get("worker_selector")
        if own == {} and "worker_selector" not in head:
            del step.members["worker_selector"]
        elif isinstance(own, dict) and own and head.get("worker_selector") == "local":
            report.add(
                ("steps", i, "worker_selector"),
                "the workflow's worker_selector is local, where no worker has labels; remove one of the two",
            )


def _check_paths(head: dict[str, Any], steps: list[WrittenStep], report: ProblemCollector) -> None:
    """Refuse paths into the sealed part of a context or an output, which the broker cannot read."""
    found = [*clear_paths.unreadable(head.get("output"), ("output",))]
    for i, step in enumerate(steps):
        found += clear_paths.unreadable(step.members.get("input"), ("steps", i, "input"))
        found += clear_paths.unreadable_in_rule(step.members.get("trigger_rule"), ("steps", i, "trigger_rule"))
    for path, readable in found:
        report.add(path, f"payloads are sealed, so the broker reads only the member clear, as in {readable}")


def _warn(head: dict[str, Any], steps: list[WrittenStep], report: ProblemCollector) -> None:
    for i, step in enumerate(steps):
        timeout_ms = step.members.get("timeout_ms", TIMEOUT_DEFAULT_MS)
        for key, members, path in (("its", step.members, ("steps", i)), ("the task's", head, ())):
            deadline_ms = members.get("deadline_ms", timeout_ms)
            if deadline_ms < timeout_ms:
                report.warn(
                    (*path, "deadline_ms"),
                    f"{key} deadline_ms of {deadline_ms} can end a run of {step.members['name']} before its "
                    f"timeout_ms of {timeout_ms}",
                )
        if step.members.get("delivery_mode") != "at_most_once":
            for key in ("on_unknown", "retry_reported_failures"):
                if key in step.members:
                    report.warn(("steps", i, key), f"{key} has no effect: the step is not at_most_once")
        for place, name in literals(step.members.get("handler_config"), ("steps", i, "handler_config")):
            report.warn(
                place,
                f"{name} is named like a secret and is written here as it is, so it is stored and shown: write "
                "{$secret: NAME}, and give the value to the worker (STEPWIRE_SECRETS_DIR)",
                code="literal_secret",
            )
    for missed in missed_failures(steps):
        report.warn(("steps", missed.step, "trigger_rule"), _missed_failure(missed, steps), code="missed_failure")


def _missed_failure(missed: MissedFailure, steps: list[WrittenStep]) -> str:
    step, named, failing = (steps[i].members["name"] for i in (missed.step, missed.named, missed.failing))
    remedy = f"{{none: [{{completed: {named}}}]}}"
    if not missed.names_completed:
        remedy = f"{{all: [{{completed: (the step to undo)}}, {remedy}]}}"
    return (
        f"if {failing} fails, {named} is skipped, not failed, and {step} does not run; instead of {{failed: {named}}} "
        f"write {remedy}, or {{none: [{{completed: {named}}}, {{skipped: {named}}}]}} if this is meant"
    )


# -- the stored and the running form ----------------------------------------------------------------------------------


def _stored_form(head: dict[str, Any], steps: list[WrittenStep]) -> dict[str, Any]:
    """The document in its one stored form: known order, defaults left out, durations in milliseconds."""
    head["steps"] = [
        {
            key: step.members[key]
            for key in STEP_READERS
            if key in step.members and step.members[key] != _default_of(key, step)
        }
        for step in steps
    ]
    return {key: head[key] for key in WORKFLOW_READERS if key in head and head[key] != _HEAD_DEFAULTS.get(key)}


_HEAD_DEFAULTS: Final = {
    "namespace": NAMESPACE_DEFAULT,
    "version": VERSION_DEFAULT,
    "description": "",
    "payloads": "open",
}
_STEP_DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in structs.fields(StepDefinition) if not field.required
} | {"depends_on": [], "handler_config": {}, "description": ""}


def _default_of(key: str, step: WrittenStep) -> Any:
    return retry_limit_default(step) if key == "retry_limit" else _STEP_DEFAULTS.get(key)


_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode


def _encoded(document: dict[str, Any], report: ProblemCollector) -> bytes:
    try:
        encoded = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        if not report.problems:
            report.add((), f"the document cannot be encoded as JSON: {error}")
        return b""
    if len(encoded) > DOCUMENT_BYTES_MAX and not report.problems:
        report.add((), f"the document has {len(encoded)} bytes; at most {DOCUMENT_BYTES_MAX} are allowed")
    return encoded


def _compile(
    steps: list[WrittenStep], selector: dict[str, str] | Literal["local"] | None
) -> tuple[StepDefinition, ...]:
    dependents: list[list[int]] = [[] for _ in steps]
    for i, step in enumerate(steps):
        for needed in step.needs:
            dependents[needed].append(i)
    return tuple(
        StepDefinition(
            index=i,
            kind=StepKind.HANDLER,
            depends_on=step.needs,
            dependents=tuple(dependents[i]),
            handler_config=step.config,
            retry_limit=step.members.get("retry_limit", retry_limit_default(step)),
            trigger_rule=step.rule,
            input=step.input,
            worker_selector=step.members.get("worker_selector", selector) or None,
            **{key: step.members[key] for key in _AS_READ if key in step.members},
        )
        for i, step in enumerate(steps)
    )


_AS_READ: Final = (
    "name",
    "handler_class",
    "delivery_mode",
    "on_unknown",
    "retry_reported_failures",
    "backoff",
    "timeout_ms",
    "queue_timeout_ms",
    "deadline_ms",
    "priority",
    "allow_failure",
)
