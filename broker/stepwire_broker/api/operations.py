"""What each operation of the API takes and answers: the one table that /openapi.json and the reference are drawn from.

A test holds that every route stands here, and a fuzz that every answer is one of those promised here.
"""

from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from stepwire_protocol import limits, messages, polling

from stepwire_broker.core.definitions.settings import RuleSettings
from stepwire_broker.core.model.states import StepState, TaskState
from stepwire_broker.stages import requests

from . import reading, tasks
from .breakers import BreakerList, BreakerPut
from .database import Pruning
from .documents import (
    Changed,
    Created,
    CreatedBatch,
    StepDocument,
    StepPage,
    StepReason,
    TaskDocument,
    TaskPage,
    TaskReason,
    WorkflowActivated,
    WorkflowApplied,
    WorkflowDocument,
    WorkflowPage,
)
from .events import KINDS, EventDocument, EventPage
from .executors import ExecutorDocument, ExecutorList, ExecutorStands
from .health import Alive, Readiness
from .routing import RouteDocument, RuleList, RuleSet, ShadowList
from .tap import TapMessage
from .token import Scope
from .workers import WorkerDrains, WorkerList


def _shape(
    name: str, of: type[msgspec.Struct], /, *, is_open: bool = False, needs: tuple[str, ...] = (), **instead: Any
) -> type[msgspec.Struct]:
    """The same type for its schema: a default that is raw JSON cannot be written there, so it is just optional; and
    `instead` says what the code checks by hand. `is_open`: members that are not known are ignored."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(of):
        kind = instead.get(field.name, field.type)
        if field.name in needs:
            fields.append((field.encode_name, kind))
        elif isinstance(field.default, Raw):
            fields.append((field.encode_name, (Any if kind is Raw else kind) | UnsetType, UNSET))
        elif field.default is not msgspec.NODEFAULT:
            fields.append((field.encode_name, kind, field.default))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append((field.encode_name, kind, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.encode_name, kind))
    said = {"__doc__": of.__doc__} if is_open else {}
    return msgspec.defstruct(
        name,
        fields,
        namespace=said,
        forbid_unknown_fields=not is_open,
        kw_only=True,
        tag_field=of.__struct_config__.tag_field,
        tag=of.__struct_config__.tag,
    )


KEY_PATTERN: Final = rf"^[\x21-\x7e]{{1,{requests.KEY_CHARACTERS_MAX}}}$"

TaskBody: Final = _shape(
    "TaskBody",
    requests.TaskBody,
    context=dict[str, Any],
    idempotency_key=Annotated[str, Meta(pattern=KEY_PATTERN)] | None,
)
BatchBody: Final = _shape("BatchBody", requests.BatchBody, tasks=Annotated[list[TaskBody], Meta(min_length=1)])  # type: ignore[valid-type]
ResolveBody: Final = _shape("ResolveBody", requests.ResolveBody)

CreatedTask: Final = _shape("Created", Created, is_open=True, task=TaskDocument | UnsetType)
RuleBody: Final = _shape("RuleBody", RuleSettings)

StepToRun: Final = _shape("StepToRun", messages.StepRequest, is_open=True)
StepResult: Final = _shape("StepResult", messages.Result, is_open=True, needs=("delivery",), delivery=messages.Id)
Leased: Final = _shape("Leased", polling.Leased, is_open=True, steps=list[StepToRun])  # type: ignore[valid-type]
ResultsCall: Final = _shape(
    "ResultsCall",
    polling.ResultsCall,
    is_open=True,
    results=Annotated[list[StepResult], Meta(min_length=1, max_length=limits.BATCH_ITEMS_MAX)],  # type: ignore[valid-type]
)


class Parameter(NamedTuple):
    schema: dict[str, Any]
    says: str


class Text(NamedTuple):
    """An answer that is no JSON document."""

    content_type: str
    says: str


class Events(NamedTuple):
    """Server-sent events; the data of each is one of these."""

    of: type[msgspec.Struct]


class Operation(NamedTuple):
    scope: Scope | None  # what a token must be allowed; None: asked without one
    says: str
    answers: dict[int, Any]
    problems: tuple[int, ...] = ()
    query: tuple[str, ...] = ()
    required: tuple[str, ...] = ()  # of the query
    headers: tuple[str, ...] = ()
    body: Any = None
    is_body_needed: bool = False
    body_types: tuple[str, ...] = ("application/json",)


ID: Final = {"type": "integer", "minimum": 0, "maximum": limits.INTEGER_MAX}
CURSOR: Final = Parameter({"type": "string", "pattern": "^[0-9]{1,16}$"}, "`next_cursor` of the page before.")
PLACE: Final = {"type": "string", "pattern": r"^(0|[0-9]{1,15}(\.[0-9]{1,15}){3}(,[0-9]{1,15}(\.[0-9]{1,15}){3})*)$"}

IN_PATH: Final[dict[str, Parameter]] = {
    "task_id": Parameter(ID, "The task's number."),
    "step_id": Parameter(ID, "The step's number. Tasks and steps are numbered in one sequence."),
    "name": Parameter({"type": "string"}, "The name of a step or a workflow."),
    "executor": Parameter({"type": "string"}, "The executor's key."),
    "handler_class": Parameter({"type": "string"}, "The handler, as workflows and workers name it."),
    "worker": Parameter({"type": "string"}, "The worker, as `GET /v1/workers` names it."),
}
IN_QUERY: Final[dict[str, Parameter]] = {
    "state": Parameter({"enum": [str(state) for state in TaskState]}, "Only tasks in this state."),
    "step_state": Parameter({"enum": [str(state) for state in StepState]}, "Only steps in this state."),
    "namespace": Parameter({"type": "string"}, "Of the workflow."),
    "workflow": Parameter({"type": "string"}, "Only what is of this workflow."),
    "version": Parameter({"type": "string"}, "Of the workflow; without it the active one."),
    "handler_class": Parameter({"type": "string"}, "Only steps of this handler; may be a pattern."),
    "label": Parameter({"type": "string", "pattern": "^[^=]+=.*$"}, "Only tasks that bear it: `region=eu`."),
    "since": Parameter({"type": "string", "format": "date-time"}, "Only tasks submitted at this time or later."),
    "limit": Parameter({"type": "integer", "minimum": 1, "maximum": reading.LIMIT_MAX}, "Items of the page."),
    "cursor": CURSOR,
    "place": Parameter(PLACE, "`next_cursor` of the page before."),
    "path": Parameter(
        {"type": "string", "pattern": "^[^:]+(?:::[^:]+){2,}$"},
        "Of the step: `namespace::workflow::step`; a namespace may itself hold `::`.",
    ),
    "worker_selector": Parameter(
        {"type": "string", "pattern": r"^(local|[^=,]+=[^,]*(,[^=,]+=[^,]*)*)$"},
        "What the step itself asks for: `local`, or labels like `gpu=true,region=eu`.",
    ),
    "wait_ms": Parameter(
        {"type": "integer", "minimum": 0, "maximum": tasks.WAIT_MS_MAX},
        "Answer when the task has ended, or hangs on a held step, or this time is over.",
    ),
    "activate": Parameter({"enum": ["true", "false"]}, "Tasks that name no version go with this one from now on."),
    "task_id": Parameter({**ID, "minimum": 1}, "Only what is of this task."),
    "kind": Parameter({"type": "string"}, f"Only these kinds, with commas between: {', '.join(KINDS)}."),
    "after": Parameter(PLACE, "Begin after the event of this `id`; `0`: with the first there is; else: now."),
    "topic": Parameter({"type": "string"}, "Only topics like this; `*` stands for any characters."),
    "task": Parameter({**ID, "minimum": 1}, "Only messages that name this task or a step of it."),
}
RENAMED: Final = {"step_state": "state", "place": "cursor"}  # where two operations have one name for two things
IN_HEADER: Final[dict[str, Parameter]] = {
    "Idempotency-Key": Parameter({"type": "string", "pattern": KEY_PATTERN}, "The same key again is the same task."),
    "Last-Event-ID": Parameter(PLACE, "The same as `after`, and stronger: browsers send it when they come back."),
}

GATE: Final = (400, 401, 403, 500, 503)  # what any request may be answered: the gate, a wrong query, a fault of ours
_BODY: Final = (408, 413, 415)
_ORDER: Final = (*_BODY, 404, 409, 422, 429)
_POLLING: Final = (*_BODY, 404, 409, 429)
_STEP_STATES: Final = ("step_state", "handler_class", "limit", "cursor")

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/v1/tasks"): Operation(
        Scope.SUBMIT,
        "Submit a task. 200 when its idempotency key had it already. With `wait_ms`, which needs the scope `read` too,"
        " the answer has the task as it is when it has ended, or hangs on a held step, or the time is over.",
        {201: CreatedTask, 200: CreatedTask},
        _ORDER,
        query=("wait_ms",),
        headers=("Idempotency-Key",),
        body=TaskBody,
        is_body_needed=True,
    ),
    ("POST", "/v1/tasks/batch"): Operation(
        Scope.SUBMIT,
        "Submit tasks, all of them or none. 200 when their keys had all of them already.",
        {201: CreatedBatch, 200: CreatedBatch},
        _ORDER,
        headers=("Idempotency-Key",),
        body=BatchBody,
        is_body_needed=True,
    ),
    ("GET", "/v1/tasks"): Operation(
        Scope.READ,
        "Tasks, the newest first.",
        {200: TaskPage},
        query=("state", "namespace", "workflow", "label", "since", "limit", "cursor"),
    ),
    ("GET", "/v1/tasks/{task_id}"): Operation(
        Scope.READ, "A task with its steps.", {200: TaskDocument}, (404,), query=("wait_ms",)
    ),
    ("POST", "/v1/tasks/{task_id}/cancel"): Operation(
        Scope.OPERATE,
        "Start nothing more of it, and tell what runs to stop.",
        {200: Changed},
        _ORDER,
        body=requests.ReasonBody,
    ),
    ("POST", "/v1/tasks/{task_id}/pause"): Operation(
        Scope.OPERATE,
        "Start nothing more of it until it is resumed; what runs may finish.",
        {200: Changed},
        _ORDER,
        body=requests.NothingBody,
    ),
    ("POST", "/v1/tasks/{task_id}/resume"): Operation(
        Scope.OPERATE, "Go on with a paused task.", {200: Changed}, _ORDER, body=requests.NothingBody
    ),
    ("POST", "/v1/tasks/{task_id}/retry"): Operation(
        Scope.OPERATE,
        "Run failed, cancelled and skipped steps again; with `from_step`, that one and all after it.",
        {200: Changed},
        _ORDER,
        body=requests.RetryBody,
    ),
    ("GET", "/v1/tasks/{task_id}/why"): Operation(
        Scope.READ, "In one sentence: what the task hangs on, or how it ended.", {200: TaskReason}, (404,)
    ),
    ("GET", "/v1/tasks/{task_id}/steps/{name}"): Operation(
        Scope.READ, "A step, by its name.", {200: StepDocument}, (404,)
    ),
    ("GET", "/v1/tasks/{task_id}/steps/{name}/why"): Operation(
        Scope.READ, "In one sentence: why the step stands where it stands.", {200: StepReason}, (404,)
    ),
    ("GET", "/v1/tasks/{task_id}/events"): Operation(
        Scope.READ, "What happened to a task, from its beginning.", {200: EventPage}, (404,), query=("limit", "place")
    ),
    ("GET", "/v1/events"): Operation(
        Scope.READ,
        "What happens to tasks and steps, as it is committed: each event once, in order, also over restarts.",
        {200: Events(EventDocument)},
        (410, 429),
        query=("task_id", "namespace", "workflow", "kind", "after"),
        headers=("Last-Event-ID",),
    ),
    ("GET", "/v1/steps"): Operation(
        Scope.READ, "Steps of all tasks, the newest first.", {200: StepPage}, query=_STEP_STATES
    ),
    ("GET", "/v1/steps/{step_id}"): Operation(Scope.READ, "A step, with its output.", {200: StepDocument}, (404,)),
    ("POST", "/v1/steps/{step_id}/resolve"): Operation(
        Scope.OPERATE, "Say what became of a held step.", {200: Changed}, _ORDER, body=ResolveBody, is_body_needed=True
    ),
    ("POST", "/v1/workflows"): Operation(
        Scope.ADMIN,
        "Apply a workflow. 200 when this version was there already, with the same content.",
        {201: WorkflowApplied, 200: WorkflowApplied},
        _ORDER,
        query=("activate",),
        body=dict[str, Any],
        is_body_needed=True,
        body_types=("application/json", "application/yaml"),
    ),
    ("GET", "/v1/workflows"): Operation(
        Scope.READ,
        "Every version of every workflow, without their documents.",
        {200: WorkflowPage},
        query=("namespace",),
    ),
    ("GET", "/v1/workflows/{name}"): Operation(
        Scope.READ, "A workflow with its document.", {200: WorkflowDocument}, (404,), query=("namespace", "version")
    ),
    ("POST", "/v1/workflows/{name}/activate"): Operation(
        Scope.ADMIN,
        "Tasks that name no version go with this one from now on.",
        {200: WorkflowActivated},
        (404, 409, 422, 429),
        query=("namespace", "version"),
        required=("version",),
    ),
    ("GET", "/v1/workers"): Operation(Scope.READ, "The live workers.", {200: WorkerList}),
    ("POST", "/v1/workers/{worker}/drain"): Operation(
        Scope.OPERATE,
        "Give this worker nothing new; with `quit`, it ends once it holds nothing.",
        {200: WorkerDrains},
        (*_BODY, 404),
        body=requests.DrainBody,
    ),
    ("POST", "/v1/worker/lease"): Operation(
        Scope.WORK,
        "For workers without ZeroMQ: wait for steps to run. Opens a session, or answers in it. See protocol/SPEC.md.",
        {200: Leased},
        _POLLING,
        body=polling.LeaseCall,
        is_body_needed=True,
    ),
    ("POST", "/v1/worker/heartbeat"): Operation(
        Scope.WORK,
        "The worker lives: renews its lease, and hears what is to stop.",
        {200: polling.HeartbeatAnswer},
        _POLLING,
        body=polling.HeartbeatCall,
        is_body_needed=True,
    ),
    ("POST", "/v1/worker/start"): Operation(
        Scope.WORK,
        "May these at_most_once steps run? 409 `not_granted`: none of them.",
        {200: polling.StartAnswer},
        _POLLING,
        body=polling.StartCall,
        is_body_needed=True,
    ),
    ("POST", "/v1/worker/results"): Operation(
        Scope.WORK,
        "What came of steps. Answered when it is committed; may be said again.",
        {200: polling.ResultsAnswer},
        _POLLING,
        body=ResultsCall,
        is_body_needed=True,
    ),
    ("POST", "/v1/worker/bye"): Operation(
        Scope.WORK,
        "The worker goes. Its session ends, now or with what it still holds.",
        {200: polling.ByeAnswer},
        _POLLING,
        body=polling.ByeCall,
        is_body_needed=True,
    ),
    ("GET", "/v1/executors"): Operation(Scope.READ, "Where steps can go, and how it does there.", {200: ExecutorList}),
    ("GET", "/v1/executors/{executor}"): Operation(Scope.READ, "An executor.", {200: ExecutorDocument}, (404,)),
    ("POST", "/v1/executors/{executor}/pause"): Operation(
        Scope.OPERATE,
        "Hand it nothing new until it is resumed, or the broker restarts: its steps stay ready.",
        {200: ExecutorStands},
        (*_BODY, 404),
        body=requests.NothingBody,
    ),
    ("POST", "/v1/executors/{executor}/resume"): Operation(
        Scope.OPERATE, "Go on handing it steps.", {200: ExecutorStands}, (*_BODY, 404), body=requests.NothingBody
    ),
    ("GET", "/v1/route"): Operation(
        Scope.READ,
        "Where a step of this path goes, which rule says so, and which nearly does.",
        {200: RouteDocument},
        query=("path", "worker_selector"),
        required=("path",),
    ),
    ("GET", "/v1/rules"): Operation(Scope.READ, "The rules of routing, in their order.", {200: RuleList}),
    ("POST", "/v1/rules"): Operation(
        Scope.OPERATE,
        "Route by this rule from now on, and after restarts. One with the `match` of another stands in its place; a "
        "new one comes first. What was handed out stays where it is.",
        {200: RuleSet},
        (*_BODY, 422),
        body=RuleBody,
        is_body_needed=True,
    ),
    ("POST", "/v1/rules/remove"): Operation(
        Scope.OPERATE,
        "Forget what was set at run time for this `match`.",
        {200: RuleSet},
        (*_BODY, 404, 422),
        body=requests.RemoveRuleBody,
        is_body_needed=True,
    ),
    ("GET", "/v1/shadows"): Operation(
        Scope.READ, "How the shadows of steps compared with the steps themselves.", {200: ShadowList}
    ),
    ("GET", "/v1/breakers"): Operation(
        Scope.READ,
        "Handlers that failed lately: their breakers, and how many retries of them may go.",
        {200: BreakerList},
    ),
    ("POST", "/v1/breakers/{handler_class}"): Operation(
        Scope.OPERATE,
        "Hand out nothing of this handler (`open`), or everything (`closed`), whatever becomes of it; or leave that to "
        "its breaker again (`auto`). Kept in memory only: until the broker ends.",
        {200: BreakerPut},
        (*_BODY, 404, 409, 422),
        body=requests.BreakerBody,
        is_body_needed=True,
    ),
    ("POST", "/v1/database/prune"): Operation(
        Scope.ADMIN, "Remove now what has been kept for long enough.", {202: Pruning}
    ),
    ("GET", "/v1/tap"): Operation(
        Scope.OPERATE,
        "The messages of the bus, as they pass.",
        {200: Events(TapMessage)},
        (404, 429),
        query=("topic", "task"),
    ),
    ("GET", "/metrics"): Operation(
        Scope.READ, "The metrics, for Prometheus.", {200: Text("text/plain", "See docs/reference/metrics.md.")}
    ),
    ("GET", "/openapi.json"): Operation(Scope.READ, "This document.", {200: dict[str, Any]}),
    ("GET", "/readyz"): Operation(Scope.READ, "May work be sent here?", {200: Readiness, 503: Readiness}),
    ("GET", "/livez"): Operation(None, "Does the loop turn? The one route without a token.", {200: Alive}),
}
