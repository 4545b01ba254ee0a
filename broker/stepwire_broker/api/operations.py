"""The operations of the API: the table from which /openapi.json and the reference are generated.

A test checks that every route is in the table. A fuzz test checks that the table declares every answer.
"""

from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from stepwire_protocol import limits, messages, polling

from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.definitions.settings import RuleSettings
from stepwire_broker.erasures import Finished
from stepwire_broker.operator_commands import COMMANDS, NothingBody, OperatorCommand, ResolveBody
from stepwire_broker.stages import requests

from . import reading, tasks
from .audit import AuditHeads, AuditPage, BackupBody
from .backlog import HANDLERS_MAX, SLOTS_MAX, BacklogDocument
from .breakers import BreakerList
from .brokers import BrokerList, LaneList
from .database import Pruning
from .documents import (
    Created,
    CreatedBatch,
    StepDetail,
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
from .enumerations import STREAM_KINDS
from .events import EventDocument, EventPage
from .executors import ExecutorDocument, ExecutorList
from .health import Alive, Readiness
from .openapi_schemas import REFERENCE
from .orchestration import OrchestrationHealth
from .routing import RouteDocument, RuleList, ShadowList
from .tap import TapMessage
from .workers import WorkerList


def _shape(
    name: str, of: type[msgspec.Struct], /, *, is_open: bool = False, needs: tuple[str, ...] = (), **instead: Any
) -> type[msgspec.Struct]:
    """A type for the schema of `of`. A schema cannot contain a default of raw JSON, so such a member becomes optional.

    `instead` replaces the types of members that the code checks itself. `is_open`: unknown members are ignored.
    """
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
    namespace = {"__doc__": of.__doc__} if is_open else {}
    return msgspec.defstruct(
        name,
        fields,
        namespace=namespace,
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

CreatedTask: Final = _shape("Created", Created, is_open=True, task=TaskDocument | UnsetType)
BODY_OF_COMMAND: Final[dict[type[msgspec.Struct], Any]] = {  # where the type itself has no schema, or another name
    ResolveBody: _shape("ResolveBody", ResolveBody),
    RuleSettings: _shape("RuleBody", RuleSettings),
}

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
    description: str


class Text(NamedTuple):
    """An answer that is not a JSON document."""

    content_type: str
    description: str


class Events(NamedTuple):
    """Server-sent events; the data of each event has this type."""

    of: type[msgspec.Struct]


class Operation(NamedTuple):
    id: str  # of the operation in /openapi.json; generated clients name their functions after it
    scope: Scope | None  # the scope that the token needs; None: the operation needs no token
    summary: str
    answers: dict[int, Any]
    problems: tuple[int, ...] = ()
    query: tuple[str, ...] = ()
    required: tuple[str, ...] = ()  # of the query
    headers: tuple[str, ...] = ()
    body: Any = None
    is_body_needed: bool = False
    body_types: tuple[str, ...] = ("application/json",)
    also: tuple[Scope, ...] = ()  # scopes that the token needs besides `scope`

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Every scope that the token needs."""
        return () if self.scope is None else (self.scope, *self.also)


ID: Final = {"type": "integer", "format": "int64", "minimum": 0, "maximum": limits.INTEGER_MAX}
CURSOR: Final = Parameter(
    {"type": "string", "pattern": r"^[0-9]{1,16}\.[0-9]{1,16}$"}, "`next_cursor` of the previous page."
)
POSITION: Final = {
    "type": "string",
    "pattern": r"^(0|[0-9]{1,15}(\.[0-9]{1,15}){3}(,[0-9]{1,15}(\.[0-9]{1,15}){3})*)$",
}

IN_PATH: Final[dict[str, Parameter]] = {
    "task_id": Parameter(ID, "The task's number."),
    "step_id": Parameter(ID, "The step's number. Tasks and steps are numbered in one sequence."),
    "name": Parameter({"type": "string"}, "The name of a step or a workflow."),
    "executor": Parameter({"type": "string"}, "The executor's key."),
    "handler_class": Parameter({"type": "string"}, "The handler's name in workflows and workers."),
    "worker": Parameter({"type": "string"}, "The worker's name in `GET /v1/workers`."),
    "lane": Parameter(ID, "The lane's number in `GET /v1/lanes`."),
}
IN_QUERY: Final[dict[str, Parameter]] = {
    "state": Parameter({"$ref": REFERENCE.format(name="TaskState")}, "Only tasks in this state."),
    "step_state": Parameter({"$ref": REFERENCE.format(name="StepState")}, "Only steps in this state."),
    "namespace": Parameter({"type": "string"}, "The workflow's namespace."),
    "workflow": Parameter({"type": "string"}, "Only tasks, or their events, of this workflow."),
    "version": Parameter({"type": "string"}, "The workflow's version; by default the active one."),
    "handler_class": Parameter({"type": "string"}, "Only steps of this handler; may be a pattern."),
    "label": Parameter({"type": "string", "pattern": "^[^=]+=.*$"}, "Only tasks with this label: `region=eu`."),
    "idempotency_key": Parameter(
        {"type": "string"}, "Only the task with this idempotency key: at most one per namespace."
    ),
    "since": Parameter({"type": "string", "format": "date-time"}, "Only tasks submitted at this time or later."),
    "limit": Parameter(
        {"type": "integer", "format": "int32", "minimum": 1, "maximum": reading.LIMIT_MAX}, "Maximum number of items."
    ),
    "cursor": CURSOR,
    "position": Parameter(POSITION, "`next_cursor` of the previous page."),
    "path": Parameter(
        {"type": "string", "pattern": "^[^:]+(?:::[^:]+){2,}$"},
        "The step's path: `namespace::workflow::step`; a namespace may itself contain `::`.",
    ),
    "worker_selector": Parameter(
        {"type": "string", "pattern": r"^(local|[^=,]+=[^,]*(,[^=,]+=[^,]*)*)$"},
        "The step's own selector: `local`, or labels like `gpu=true,region=eu`.",
    ),
    "wait_ms": Parameter(
        {"type": "integer", "format": "int32", "minimum": 0, "maximum": tasks.WAIT_MS_MAX},
        "Wait until the task has ended or depends on a held step, for at most this time in milliseconds.",
    ),
    "activate": Parameter(
        {"type": "boolean"}, "Whether tasks that name no version use this one from now on; by default `true`."
    ),
    "task_id": Parameter({**ID, "minimum": 1}, "Only events of this task."),
    "kind": Parameter(
        {"type": "string"},
        f"Only these kinds, separated by commas: {', '.join(STREAM_KINDS)}. Without `kind`: all except `progress`.",
    ),
    "after": Parameter(
        POSITION, "Begin after the event with this `id`. `0`: at the first stored event. Default: with new events."
    ),
    "topic": Parameter({"type": "string"}, "Only topics that match; `*` matches any characters."),
    "principal": Parameter({"type": "string"}, "Only rows of this principal: a token's name."),
    "action": Parameter({"type": "string"}, "Only rows of this action: `retry_task`."),
    "target": Parameter({"type": "string"}, "Only rows about this target: `task 7`."),
    "outcome": Parameter({"type": "string"}, "Only rows with this outcome: `done`, `unchanged`, `refused`."),
    "since_audit": Parameter({"type": "string", "format": "date-time"}, "Only rows of this time or later."),
    "until": Parameter({"type": "string", "format": "date-time"}, "Only rows from before this time."),
    "audit_cursor": Parameter(
        {"type": "string", "pattern": r"^[0-9]{1,16}\.[0-9]{1,16}$"}, "`next_cursor` of the previous page."
    ),
    "handlers": Parameter(
        {"type": "string", "pattern": rf"^[^,]+(,[^,]+){{0,{HANDLERS_MAX - 1}}}$"},
        "The handlers that the workers offer: names or patterns, separated by commas. Default: `**`, all handlers.",
    ),
    "labels": Parameter(
        {"type": "string", "pattern": "^([^=,]+=[^,]*(,[^=,]+=[^,]*)*)?$"},
        "The labels of the workers, like `gpu=true,region=eu`. Default: none.",
    ),
    "slots": Parameter(
        {"type": "integer", "format": "int32", "minimum": 1, "maximum": SLOTS_MAX},
        "The slots of one worker. Default: the mean of the connected workers of this kind, or 1.",
    ),
    "task": Parameter({**ID, "minimum": 1}, "Only messages that name this task or one of its steps."),
}
RENAMED: Final = {
    "step_state": "state",
    "handlers": "handler_class",
    "position": "cursor",
    "since_audit": "since",
    "audit_cursor": "cursor",
}  # parameters whose name has another meaning elsewhere
IN_HEADER: Final[dict[str, Parameter]] = {
    "Idempotency-Key": Parameter(
        {"type": "string", "pattern": KEY_PATTERN}, "Submissions with the same key create only one task."
    ),
    "Last-Event-ID": Parameter(POSITION, "Replaces `after`; browsers send it when they reconnect."),
}

ANY_REQUEST: Final = (400, 401, 403, 429, 500, 503)  # access control, an invalid query, a limit, a fault of the broker
_BODY: Final = (408, 413, 415)
_SUBMISSION: Final = (*_BODY, 404, 409, 422, 429)
_POLLING: Final = (*_BODY, 404, 409, 421, 429)
_STEP_STATES: Final = ("step_state", "handler_class", "limit", "cursor")


def _of_command(command: "OperatorCommand[Any, Any, Any]") -> Operation:
    verb, *words = command.name.split("_")
    return Operation(
        verb + "".join(word.capitalize() for word in words),
        command.scope,
        command.summary,
        {200: command.response},
        (*_BODY, *command.refusals),
        body=None if command.body is NothingBody else BODY_OF_COMMAND.get(command.body, command.body),
        is_body_needed=command.is_body_needed,
    )


def _by_resource(operations: dict[tuple[str, str], Operation]) -> dict[tuple[str, str], Operation]:
    """Group the operations by resource (`/v1/tasks`). Resources are in the order of their first operation."""
    resources = list(dict.fromkeys(_resource(path) for _, path in operations))
    return dict(sorted(operations.items(), key=lambda item: resources.index(_resource(item[0][1]))))


def _resource(path: str) -> str:
    return "/".join(path.split("/")[:3])


OPERATIONS: Final[dict[tuple[str, str], Operation]] = _by_resource(
    {
        ("POST", "/v1/tasks"): Operation(
            "submitTask",
            Scope.SUBMIT,
            "Submit a task. 200 if a task with its idempotency key exists already. With `wait_ms`, which also needs"
            " the scope `read`, wait until the task has ended or depends on a held step, for at most this time; the"
            " answer then contains the task.",
            {201: CreatedTask, 200: CreatedTask},
            _SUBMISSION,
            query=("wait_ms",),
            headers=("Idempotency-Key",),
            body=TaskBody,
            is_body_needed=True,
        ),
        ("POST", "/v1/tasks/batch"): Operation(
            "submitTasks",
            Scope.SUBMIT,
            "Submit all of these tasks, or none. 200 if all of them exist already, by their idempotency keys.",
            {201: CreatedBatch, 200: CreatedBatch},
            _SUBMISSION,
            headers=("Idempotency-Key",),
            body=BatchBody,
            is_body_needed=True,
        ),
        ("GET", "/v1/tasks"): Operation(
            "listTasks",
            Scope.READ,
            "List tasks, the newest first.",
            {200: TaskPage},
            query=("state", "namespace", "workflow", "label", "idempotency_key", "since", "limit", "cursor"),
        ),
        ("GET", "/v1/tasks/{task_id}"): Operation(
            "getTask", Scope.READ, "Show a task with its steps.", {200: TaskDocument}, (404,), query=("wait_ms",)
        ),
        ("GET", "/v1/tasks/{task_id}/why"): Operation(
            "explainTask",
            Scope.READ,
            "Explain in one sentence why the task has not ended, or how.",
            {200: TaskReason},
            (404,),
        ),
        ("GET", "/v1/tasks/{task_id}/steps/{name}"): Operation(
            "getTaskStep", Scope.READ, "Show a step by its name.", {200: StepDetail}, (404,)
        ),
        ("GET", "/v1/tasks/{task_id}/steps/{name}/why"): Operation(
            "explainStep",
            Scope.READ,
            "Explain in one sentence why the step is in its state.",
            {200: StepReason},
            (404,),
        ),
        ("GET", "/v1/tasks/{task_id}/events"): Operation(
            "listTaskEvents",
            Scope.READ,
            "List the events of a task, the oldest first.",
            {200: EventPage},
            (404,),
            query=("limit", "position"),
        ),
        ("GET", "/v1/events"): Operation(
            "streamEvents",
            Scope.READ,
            "Stream the events of tasks and steps as they are committed: each once, in order, also across restarts."
            " Progress is that of this broker's tasks.",
            {200: Events(EventDocument)},
            (410, 429),
            query=("task_id", "namespace", "workflow", "kind", "after"),
            headers=("Last-Event-ID",),
        ),
        ("GET", "/v1/steps"): Operation(
            "listSteps", Scope.READ, "List steps of all tasks, the newest first.", {200: StepPage}, query=_STEP_STATES
        ),
        ("GET", "/v1/steps/{step_id}"): Operation(
            "getStep",
            Scope.READ,
            "Show a step with its attempts; with the scope `inspect`, also its output and its standard error.",
            {200: StepDetail},
            (404,),
        ),
        ("POST", "/v1/workflows"): Operation(
            "applyWorkflow",
            Scope.ADMIN,
            "Apply a workflow. 200 if this version exists already with the same content.",
            {201: WorkflowApplied, 200: WorkflowApplied},
            _SUBMISSION,
            query=("activate",),
            body=dict[str, Any],
            is_body_needed=True,
            body_types=("application/json", "application/yaml"),
        ),
        ("GET", "/v1/workflows"): Operation(
            "listWorkflows",
            Scope.READ,
            "List every version of every workflow, without the documents.",
            {200: WorkflowPage},
            query=("namespace",),
        ),
        ("GET", "/v1/workflows/{name}"): Operation(
            "getWorkflow",
            Scope.READ,
            "Show a workflow with its document.",
            {200: WorkflowDocument},
            (404,),
            query=("namespace", "version"),
        ),
        ("POST", "/v1/workflows/{name}/activate"): Operation(
            "activateWorkflow",
            Scope.ADMIN,
            "Activate a version: tasks that name no version use it from now on.",
            {200: WorkflowActivated},
            (404, 409, 422, 429),
            query=("namespace", "version"),
            required=("version",),
        ),
        ("GET", "/v1/workers"): Operation("listWorkers", Scope.READ, "List the live workers.", {200: WorkerList}),
        ("POST", "/v1/worker/lease"): Operation(
            "leaseSteps",
            Scope.WORK,
            "Wait for steps to run, as a worker without ZeroMQ. Opens or continues a session. See protocol/SPEC.md.",
            {200: Leased},
            _POLLING,
            body=polling.LeaseCall,
            is_body_needed=True,
        ),
        ("POST", "/v1/worker/heartbeat"): Operation(
            "sendHeartbeat",
            Scope.WORK,
            "Renew the worker's lease. The answer lists the steps to stop.",
            {200: polling.HeartbeatAnswer},
            _POLLING,
            body=polling.HeartbeatCall,
            is_body_needed=True,
        ),
        ("POST", "/v1/worker/start"): Operation(
            "startSteps",
            Scope.WORK,
            "Ask whether these at_most_once steps may run. 409 `not_granted`: none of them may.",
            {200: polling.StartAnswer},
            _POLLING,
            body=polling.StartCall,
            is_body_needed=True,
        ),
        ("POST", "/v1/worker/results"): Operation(
            "reportResults",
            Scope.WORK,
            "Report the results of steps. The answer is sent after the commit; a report may be sent again.",
            {200: polling.ResultsAnswer},
            _POLLING,
            body=ResultsCall,
            is_body_needed=True,
        ),
        ("POST", "/v1/worker/bye"): Operation(
            "endSession",
            Scope.WORK,
            "End the worker's session, now or when it holds no step.",
            {200: polling.ByeAnswer},
            _POLLING,
            body=polling.ByeCall,
            is_body_needed=True,
        ),
        ("GET", "/v1/executors"): Operation(
            "listExecutors", Scope.READ, "List the executors with their state and counts.", {200: ExecutorList}
        ),
        ("GET", "/v1/executors/{executor}"): Operation(
            "getExecutor", Scope.READ, "Show an executor.", {200: ExecutorDocument}, (404,)
        ),
        ("GET", "/v1/route"): Operation(
            "explainRoute",
            Scope.READ,
            "Show the executor for a step with this path, the rule that decides, and a rule that nearly matches.",
            {200: RouteDocument},
            query=("path", "worker_selector"),
            required=("path",),
        ),
        ("GET", "/v1/rules"): Operation(
            "listRules", Scope.READ, "List the routing rules in their order.", {200: RuleList}
        ),
        ("GET", "/v1/shadows"): Operation(
            "listShadows", Scope.READ, "Show the comparisons of shadow copies with their steps.", {200: ShadowList}
        ),
        ("GET", "/v1/breakers"): Operation(
            "listBreakers",
            Scope.READ,
            "List the breakers and retry budgets of handlers that failed recently.",
            {200: BreakerList},
        ),
        ("GET", "/v1/backlog"): Operation(
            "getBacklog",
            Scope.METRICS,
            "Show how much work waits for workers of a kind, and how many of them it needs: what an autoscaler reads.",
            {200: BacklogDocument},
            query=("handlers", "labels", "slots"),
        ),
        ("GET", "/v1/brokers"): Operation(
            "listBrokers",
            Scope.READ,
            "List the brokers of the deployment, and the lanes that each owns.",
            {200: BrokerList},
        ),
        ("GET", "/v1/lanes"): Operation("listLanes", Scope.READ, "List the lanes with their owners.", {200: LaneList}),
        ("POST", "/v1/database/prune"): Operation(
            "pruneDatabase",
            Scope.ADMIN,
            "Remove tasks whose retention time is over, at once. Other brokers remove those of their lanes within a"
            " minute.",
            {202: Pruning},
        ),
        ("POST", "/v1/database/finish-erasures"): Operation(
            "finishErasures",
            Scope.ADMIN,
            "End a run of erasures: move the write-ahead log into the database file, search the file for words of the"
            " erased payloads, and rewrite the file if any is left.",
            {200: Finished},
        ),
        ("POST", "/v1/database/backups"): Operation(
            "recordBackup",
            Scope.ADMIN,
            "Record in the audit that a backup will be made. The answer is the end of the audit's chains.",
            {200: AuditHeads},
            (*_BODY, 429),
            body=BackupBody,
            is_body_needed=True,
        ),
        ("GET", "/v1/audit"): Operation(
            "listAudit",
            Scope.OPERATE,
            "List the rows of the audit, the newest first.",
            {200: AuditPage},
            query=("principal", "action", "target", "outcome", "since_audit", "until", "limit", "audit_cursor"),
        ),
        ("GET", "/v1/audit/head"): Operation(
            "getAuditHead",
            Scope.READ,
            "Show the last row of each of the audit's chains. A stored copy proves later that no row was changed.",
            {200: AuditHeads},
        ),
        ("GET", "/v1/tap"): Operation(
            "streamBusMessages",
            Scope.OPERATE,
            "Stream every message of the bus.",
            {200: Events(TapMessage)},
            (404, 429),
            query=("topic", "task"),
            also=(Scope.INSPECT,),
        ),
        **{("POST", command.path): _of_command(command) for command in COMMANDS},
        ("GET", "/metrics"): Operation(
            "getMetrics",
            Scope.METRICS,
            "Metrics for Prometheus.",
            {200: Text("text/plain", "See docs/reference/metrics.md.")},
        ),
        ("GET", "/openapi.json"): Operation("getOpenapi", Scope.READ, "This document.", {200: dict[str, Any]}),
        ("GET", "/health/orchestration"): Operation(
            "getOrchestrationHealth",
            Scope.READ,
            "Show the health of the stages, of their members and of the database under them.",
            {200: OrchestrationHealth},
        ),
        ("GET", "/readyz"): Operation(
            "checkReadiness", Scope.READ, "Check whether the broker accepts work.", {200: Readiness, 503: Readiness}
        ),
        ("GET", "/livez"): Operation(
            "checkLiveness",
            None,
            "Check whether the event loop runs. The only route that needs no token.",
            {200: Alive},
        ),
    }
)
