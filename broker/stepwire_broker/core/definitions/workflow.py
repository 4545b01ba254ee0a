"""A workflow: steps and what each depends on. From a document, through validation, to the form the core runs."""

import hashlib
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs
from stepwire_protocol import strict_json
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.limits import INTEGER_MAX
from stepwire_protocol.messages import EMPTY_OBJECT, DeliveryMode

from . import fields
from .document_problems import DocumentProblem, InvalidWorkflow, Path, ProblemCollector, Where, shown
from .settings import LimitSettings
from .stored_rows import StoredWorkflow
from .trigger_rules import TriggerRule

__all__ = [
    "BackoffPolicy",
    "DocumentProblem",
    "InvalidWorkflow",
    "StepDefinition",
    "Workflow",
    "read_workflow",
    "stored_workflow",
]

NAMESPACE_DEFAULT: Final = "default"
VERSION_DEFAULT: Final = "1"
DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 16
RETRY_LIMIT_DEFAULT: Final = 3
RETRIES_MAX: Final = 10_000
TIMEOUT_DEFAULT_MS: Final = 30_000
PRIORITY_MAX: Final = 100
CYCLE_STEPS_SHOWN: Final = 10

Mapping: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]  # (member, path); a path begins with context or results
OnUnknown: TypeAlias = Literal["hold", "fail"]


class BackoffPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The pause before the next attempt. `jitter: full` draws it evenly between nothing and the whole."""

    kind: Literal["exponential", "constant"] = "exponential"
    base_ms: int = 1_000
    max_ms: int = 300_000
    jitter: Literal["full", "none"] = "full"


class StepDefinition(Struct, frozen=True, kw_only=True):
    """One step of a workflow, every default filled in and every name resolved to an index."""

    index: int
    name: str
    handler_class: str
    depends_on: tuple[int, ...] = ()
    dependents: tuple[int, ...] = ()
    handler_config: Raw = EMPTY_OBJECT
    delivery_mode: DeliveryMode = "at_least_once"
    on_unknown: OnUnknown = "hold"
    retry_limit: int = RETRY_LIMIT_DEFAULT  # retries after the first try
    retry_reported_failures: bool = False
    backoff: BackoffPolicy = BackoffPolicy()
    timeout_ms: int = TIMEOUT_DEFAULT_MS  # one run, from its start
    queue_timeout_ms: int | None = None
    deadline_ms: int | None = None  # all attempts together, from the first time it was ready
    priority: int = 0
    trigger_rule: TriggerRule | None = None
    allow_failure: bool = False
    input: Mapping | None = None
    worker_selector: dict[str, str] | Literal["local"] | None = None


class Workflow(Struct, frozen=True, kw_only=True):
    """The compiled definition that tasks run. Immutable: (namespace, name, version) never changes its content."""

    id: int  # the database's; 0 before it is stored
    namespace: str
    name: str
    version: str
    steps: tuple[StepDefinition, ...]
    by_name: dict[str, int]
    roots: tuple[int, ...]  # the steps that depend on nothing: ready at once
    last: tuple[int, ...]  # the steps nothing depends on: their outputs are the task's result
    deadline_ms: int | None = None
    output: Mapping | None = None
    digest: str  # of the document's meaning: the same content applied again is the same digest
    document: bytes  # the definition as JSON, as stored: defaults left out, durations in milliseconds
    warnings: tuple[DocumentProblem, ...] = ()  # of its reading: what is allowed, and probably not meant

    def with_id(self, number: int) -> "Workflow":
        """The same definition, as the database knows it."""
        return structs.replace(self, id=number)


_LIMITS: Final = LimitSettings()
_UNBOUND: Final = LimitSettings(steps_per_workflow=INTEGER_MAX, edges_per_workflow=INTEGER_MAX)


def read_workflow(document: object, where: Where | None = None, limits: LimitSettings = _LIMITS) -> Workflow:
    """A plain document (of YAML or JSON) as the workflow that it defines, with id 0.

    Raises InvalidWorkflow with everything that is wrong. `where` tells the file and line of a path.
    """
    report = ProblemCollector(where)
    if not isinstance(document, dict):
        report.say((), f"the document is {shown(document)}, not a map with a name and steps")
        raise report.refusal()
    if _is_deeper(document, DEPTH_MAX):
        report.say((), f"the nesting is deeper than {DEPTH_MAX}")
        raise report.refusal()
    head = fields.members(document, WORKFLOW_READERS, (), report)
    if document.get("name") is None:
        report.say((), "it has no name")
    if document.get("steps") in (None, []):
        report.say((), "it has no steps")
    steps = _read_steps(head.pop("steps", []), report, limits)
    by_name = {step.members["name"]: i for i, step in enumerate(steps) if "name" in step.members}
    output = None
    if "output" in head:
        output = fields.resolved_mapping(head["output"], by_name, "a step of this workflow", ("output",), report)
    _settle_selectors(head, steps, report)
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
        digest=hashlib.sha256(_encode_sorted(stored)).hexdigest(),
        document=encoded,
        warnings=tuple(report.warnings),
    )


def stored_workflow(row: StoredWorkflow) -> Workflow:
    """The workflow of a row of the database: exactly what was applied. Today's limits do not bind it."""
    workflow = read_workflow(msgspec.json.decode(row.document), limits=_UNBOUND)
    return structs.replace(workflow, id=row.id, warnings=())


# -- the members ------------------------------------------------------------------------------------------------------


def read_backoff(value: Any, path: Path, report: ProblemCollector) -> BackoffPolicy | None:
    if not isinstance(value, dict):
        report.say(path, f"it is {shown(value)}, not a map like {{kind: exponential, base_ms: 1000, max_ms: 300000}}")
        return None
    backoff = BackoffPolicy(**fields.members(value, BACKOFF_READERS, path, report))
    if backoff.max_ms < backoff.base_ms:
        report.say(path, f"max_ms is {backoff.max_ms}, less than base_ms, which is {backoff.base_ms}")
    return backoff


BACKOFF_READERS: Final[dict[str, fields.Reader]] = {
    "kind": fields.OneOf(("exponential", "constant")),
    "base_ms": fields.pause_ms,
    "max_ms": fields.pause_ms,
    "jitter": fields.OneOf(("full", "none")),
}

WORKFLOW_READERS: Final[dict[str, fields.Reader]] = {
    "name": fields.workflow_name,
    "namespace": fields.namespace,
    "version": fields.version,
    "description": fields.text,
    "deadline_ms": fields.duration_ms,
    "worker_selector": fields.selector,
    "steps": fields.any_list,
    "output": fields.mapping,
}

# In the order in which they are stored. `trigger_rule` and `input` name steps, so they are only looked at here.
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


class _Step(Struct):
    """A step on its way: its members as they were read, and what only the other steps could tell."""

    members: dict[str, Any]
    needs: tuple[int, ...] = ()
    rule: TriggerRule | None = None
    input: Mapping | None = None
    config: Raw = EMPTY_OBJECT


def _read_steps(written: list[Any], report: ProblemCollector, limits: LimitSettings) -> list[_Step]:
    if len(written) > limits.steps_per_workflow:
        report.say(("steps",), f"there are {len(written)} steps, at most {limits.steps_per_workflow}")
        raise report.refusal()
    steps = [_Step(_read_step(each, ("steps", i), report)) for i, each in enumerate(written)]
    by_name = _names(steps, report)
    for i, step in enumerate(steps):
        step.needs = _needs(step, i, by_name, report)
    edges = sum(len(step.needs) for step in steps)
    if edges > limits.edges_per_workflow:
        report.say(("steps",), f"depends_on names {edges} steps in all, at most {limits.edges_per_workflow}")
    for cycle in _cycles([step.needs for step in steps]):
        report.say(("steps", cycle[0], "depends_on"), _drawn([steps[i].members["name"] for i in cycle]))
    for i, step in enumerate(steps):
        _resolve(step, ("steps", i), steps, report)
        _check_retries(step, ("steps", i), report)
    return steps


def _read_step(written: Any, path: Path, report: ProblemCollector) -> dict[str, Any]:
    if not isinstance(written, dict):
        report.say(path, f"it is {shown(written)}, not a map with name and handler_class")
        return {}
    for key in ("name", "handler_class"):
        if written.get(key) is None:
            report.say(path, f"it has no {key}")
    return fields.members(written, STEP_READERS, path, report)


def _names(steps: list[_Step], report: ProblemCollector) -> dict[str, int]:
    by_name: dict[str, int] = {}
    for i, step in enumerate(steps):
        name = step.members.get("name")
        if name in by_name:
            report.say(("steps", i, "name"), f"{name!r} is the name of steps[{by_name[name]}] already")
        elif name is not None:
            by_name[name] = i
    return by_name


def _needs(step: _Step, index: int, by_name: dict[str, int], report: ProblemCollector) -> tuple[int, ...]:
    """The steps it depends on, without those that are reported here."""
    needs: dict[int, None] = {}  # as a set that keeps its order
    for k, name in enumerate(step.members.get("depends_on", ())):
        path = ("steps", index, "depends_on", k)
        needed = by_name.get(name)
        if name == step.members.get("name"):
            report.say(path, "a step cannot depend on itself")
        elif needed is None:
            report.say(path, f"{shown(name)} is not a step of this workflow{report.meant(name, by_name.keys())}")
        elif needed in needs:
            report.say(path, f"{name!r} stands twice")
        else:
            needs[needed] = None
    return tuple(needs)


def _cycles(needs: list[tuple[int, ...]]) -> Iterator[list[int]]:
    """One cycle of each knot: steps of which each depends on the next. Linear in steps and edges, no recursion."""
    waits = [len(each) for each in needs]
    dependents: list[list[int]] = [[] for _ in needs]
    for step, each in enumerate(needs):
        for needed in each:
            dependents[needed].append(step)
    free = [step for step, count in enumerate(waits) if count == 0]
    while free:
        for dependent in dependents[free.pop()]:
            waits[dependent] -= 1
            if waits[dependent] == 0:
                free.append(dependent)
    # What is left waits for something that is left: walking back along that must come round.
    walked_from: dict[int, int] = {}
    for start in (step for step, count in enumerate(waits) if count):
        walk: list[int] = []
        step = start
        while step not in walked_from:
            walked_from[step] = start
            walk.append(step)
            step = next(needed for needed in needs[step] if waits[needed])
        if walked_from[step] == start:
            yield walk[walk.index(step) :]


def _drawn(cycle: list[str]) -> str:
    """`a needs b, which needs c, which needs a`"""
    omitted = len(cycle) - CYCLE_STEPS_SHOWN
    shown_names = cycle if omitted <= 0 else [*cycle[:CYCLE_STEPS_SHOWN], f"({omitted} more)"]
    first, *others = [*shown_names, cycle[0]]
    return f"the steps wait for each other: {first} needs " + ", which needs ".join(others)


def _resolve(step: _Step, path: Path, steps: list[_Step], report: ProblemCollector) -> None:
    """Its rule and its input may speak of the steps that it depends on directly, and of no others."""
    needed = {steps[i].members["name"]: i for i in step.needs}
    if "trigger_rule" in step.members:
        step.rule = fields.trigger_rule(step.members["trigger_rule"], needed, (*path, "trigger_rule"), report)
    if "input" in step.members:
        whose = "in this step's depends_on"
        step.input = fields.resolved_mapping(step.members["input"], needed, whose, (*path, "input"), report)
    if "handler_config" in step.members:
        step.config = _payload(step.members["handler_config"], (*path, "handler_config"), report)


def _payload(value: dict[str, Any], path: Path, report: ProblemCollector) -> Raw:
    try:
        encoded = msgspec.json.encode(value)
        strict_json.parse(encoded, DOCUMENT_BYTES_MAX)
        return Raw(encoded)
    except InvalidMessage as refusal:
        report.say(path, refusal.message)
    except (TypeError, ValueError, RecursionError) as error:
        report.say(path, f"it cannot be said in JSON: {error}")
    return EMPTY_OBJECT


def _check_retries(step: _Step, path: Path, report: ProblemCollector) -> None:
    written = step.members.get("retry_limit", 0)
    if written > 0 and _retry_limit_default(step) == 0:
        report.say(
            (*path, "retry_limit"),
            f"it is {written}, but an at_most_once step is not tried again; leave it out, or say "
            "retry_reported_failures: true if a failure that its handler reports means that nothing happened",
        )


def _retry_limit_default(step: _Step) -> int:
    """A failure that an at_most_once handler reports is a verdict, unless the author of the workflow says otherwise."""
    is_tried_once = step.members.get("delivery_mode") == "at_most_once"
    return 0 if is_tried_once and not step.members.get("retry_reported_failures") else RETRY_LIMIT_DEFAULT


def _settle_selectors(head: dict[str, Any], steps: list[_Step], report: ProblemCollector) -> None:
    """An empty map asks for no labels; that says something only where the workflow asks for some."""
    if not head.get("worker_selector"):
        head.pop("worker_selector", None)
    for i, step in enumerate(steps):
        own = step.members.get("worker_selector")
        if own == {} and "worker_selector" not in head:
            del step.members["worker_selector"]
        elif isinstance(own, dict) and own and head.get("worker_selector") == "local":
            report.say(
                ("steps", i, "worker_selector"),
                "the workflow's worker_selector is local, where no worker has labels; remove one of the two",
            )


def _warn(head: dict[str, Any], steps: list[_Step], report: ProblemCollector) -> None:
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
                    report.warn(("steps", i, key), "it means something only for an at_most_once step")


# -- the stored and the running form ----------------------------------------------------------------------------------


def _stored_form(head: dict[str, Any], steps: list[_Step]) -> dict[str, Any]:
    """What the document means, said in one way: known order, no defaults, milliseconds."""
    head["steps"] = [
        {
            key: step.members[key]
            for key in STEP_READERS
            if key in step.members and step.members[key] != _default_of(key, step)
        }
        for step in steps
    ]
    return {key: head[key] for key in WORKFLOW_READERS if key in head and head[key] != _HEAD_DEFAULTS.get(key)}


_HEAD_DEFAULTS: Final = {"namespace": NAMESPACE_DEFAULT, "version": VERSION_DEFAULT, "description": ""}
_STEP_DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in structs.fields(StepDefinition) if not field.required
} | {"depends_on": [], "handler_config": {}, "description": ""}


def _default_of(key: str, step: _Step) -> Any:
    return _retry_limit_default(step) if key == "retry_limit" else _STEP_DEFAULTS.get(key)


_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode


def _encoded(document: dict[str, Any], report: ProblemCollector) -> bytes:
    try:
        encoded = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        if not report.problems:
            report.say((), f"it cannot be said in JSON: {error}")
        return b""
    if len(encoded) > DOCUMENT_BYTES_MAX and not report.problems:
        report.say((), f"it has {len(encoded)} bytes, at most {DOCUMENT_BYTES_MAX}")
    return encoded


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


def _compile(steps: list[_Step], selector: dict[str, str] | Literal["local"] | None) -> tuple[StepDefinition, ...]:
    dependents: list[list[int]] = [[] for _ in steps]
    for i, step in enumerate(steps):
        for needed in step.needs:
            dependents[needed].append(i)
    return tuple(
        StepDefinition(
            index=i,
            depends_on=step.needs,
            dependents=tuple(dependents[i]),
            handler_config=step.config,
            retry_limit=step.members.get("retry_limit", _retry_limit_default(step)),
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
