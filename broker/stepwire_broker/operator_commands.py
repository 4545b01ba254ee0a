"""The commands of operators, one row each. The rows define the API, its OpenAPI page and the embedded broker.

A new command needs its event and handler in the core, a row here, a command of the CLI and a method of the client.
"""

from collections.abc import Callable
from typing import Annotated, Final, Generic, Literal, NamedTuple, TypeVar

from msgspec import Meta, Raw, Struct, structs
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import Name, Text

from .core.answers.answers import Answer, Done
from .core.answers.scopes import Scope
from .core.definitions.settings import LimitSettings, RuleSettings
from .core.guards.allowance import BreakerSet, SetBreaker
from .core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from .core.intake.drain import DrainWorker, Quieted
from .core.intake.erasure import ErasedTask, EraseTask
from .core.intake.routing_rules import Routed, SetRule
from .core.model.events import Command, CommandOfOperator
from .core.model.principal import PROCESS
from .core.model.states import TaskState
from .core.sharing.moving import LaneMoves, MoveLane
from .core.workers.executor_control import ExecutorPaused, PauseExecutor, ResumeExecutor
from .stages.requests import Make, read_body
from .timestamps import rfc3339, rfc3339_or_none

T = TypeVar("T")  # the parameter of the path: a number, a name, or None
B = TypeVar("B", bound=Struct)
A = TypeVar("A", bound=Answer)


class OperatorCommand(NamedTuple, Generic[T, B, A]):
    name: str
    path: str  # of the HTTP route; the method is POST
    scope: Scope
    summary: str
    body: type[B]
    event: Callable[[int, T, B], CommandOfOperator]  # from the request's number, the parameter of the path and the body
    answer: type[A]
    document: Callable[[A], Struct]  # the body of the HTTP response
    response: type[Struct]
    refusals: tuple[int, ...]  # HTTP statuses of the core's refusals
    is_body_needed: bool = False
    has_payload: bool = False  # the body may be as large as a payload
    check: Callable[[B], None] = lambda body: None  # raises InvalidMessage

    def read(self, text: bytes, target: T, limits: LimitSettings, by: str | None = None, via: str = PROCESS) -> Make:
        """Read the command from the text of a request's body. `by`: the name of the operator's token; `via`: how the
        operator was identified. Raises InvalidMessage."""
        body = read_body(text if self.is_body_needed else text or b"{}", self.body, limits.payload_bytes)
        self.check(body)

        def make(request: int) -> Command:
            command = self.event(request, target, body)
            return structs.replace(command, by=by, via=via) if by else command

        return make


# -- bodies of requests -----------------------------------------------------------------------------------------------


class NothingBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The command has no parameters."""


class ReasonBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason` is stored in the task's history."""

    reason: Text = ""


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`again` allows completed at_most_once steps to run a second time. `new_key` gives the steps new idempotency
    keys."""

    from_step: Name | None = None
    again: bool = False
    new_key: bool = False
    reason: Text = ""


class ResolveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a held step. `reason` is stored in the task's history and must not be empty."""

    outcome: Literal["completed", "failed", "retry"]
    reason: Annotated[Text, Meta(min_length=1)]
    output: Raw = Raw(b"")
    message: Text = ""
    new_key: bool = False


class EraseBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason` is stored in the task's history and must not be empty. It stays, so it must name no person."""

    reason: Annotated[Text, Meta(min_length=1)]


class DrainBody(Struct, frozen=True, forbid_unknown_fields=True):
    """With `quit`, the worker ends when it holds no step."""

    quit: bool = False


class BreakerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`auto` returns the breaker to automatic control."""

    state: Literal["open", "closed", "auto"]
    reason: Text = ""


class MoveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`to`: the id of the broker that is to own the lane."""

    to: Name


class RemoveRuleBody(Struct, frozen=True, forbid_unknown_fields=True):
    match: str


# -- bodies of responses ----------------------------------------------------------------------------------------------


class Changed(Struct, frozen=True):
    """The task after the command."""

    task_id: int
    state: TaskState
    attention: str | None


class TaskErasure(Struct, frozen=True):
    """The task after the erasure of its payloads, by this request or by an earlier one."""

    task_id: int
    state: TaskState
    attention: str | None
    erased_at: str


class WorkerDrains(Struct, frozen=True):
    worker: str
    quit: bool


class ExecutorStatus(Struct, frozen=True):
    executor: str
    paused_since: str | None


class LaneMove(Struct, frozen=True):
    """`broker` owns the lane until it may go, and `to` takes it at its next beat."""

    lane: int
    broker: str
    to: str


class BreakerSetting(Struct, frozen=True):
    handler_class: str
    state: Literal["closed", "open"]
    forced: bool


class RuleSet(Struct, frozen=True):
    match: str
    is_set: bool


def _changed(done: Done) -> Changed:
    return Changed(done.task_id, TaskState(done.state), done.attention)


def _executor(answer: ExecutorPaused) -> ExecutorStatus:
    return ExecutorStatus(answer.executor, rfc3339_or_none(answer.since_ms))


def _breaker(answer: BreakerSet) -> BreakerSetting:
    return BreakerSetting(answer.handler_class, "open" if answer.state == "open" else "closed", answer.is_forced)


def _rule(answer: Routed) -> RuleSet:
    return RuleSet(answer.match, answer.is_set)


# -- the table --------------------------------------------------------------------------------------------------------

_STORED: Final = (404, 409, 422, 429)  # refusals of a command whose effect is stored

CANCEL_TASK: Final = OperatorCommand[int, ReasonBody, Done](
    name="cancel_task",
    path="/v1/tasks/{task_id}/cancel",
    scope=Scope.OPERATE,
    summary="Cancel a task: start no further step, and ask workers to stop its running steps.",
    body=ReasonBody,
    event=lambda request, task_id, body: CancelTask(request, task_id, body.reason),
    answer=Done,
    document=_changed,
    response=Changed,
    refusals=_STORED,
)
PAUSE_TASK: Final = OperatorCommand[int, NothingBody, Done](
    name="pause_task",
    path="/v1/tasks/{task_id}/pause",
    scope=Scope.OPERATE,
    summary="Pause a task: start no further step until it is resumed. Running steps may finish.",
    body=NothingBody,
    event=lambda request, task_id, body: PauseTask(request, task_id),
    answer=Done,
    document=_changed,
    response=Changed,
    refusals=_STORED,
)
RESUME_TASK: Final = OperatorCommand[int, NothingBody, Done](
    name="resume_task",
    path="/v1/tasks/{task_id}/resume",
    scope=Scope.OPERATE,
    summary="Resume a paused task.",
    body=NothingBody,
    event=lambda request, task_id, body: ResumeTask(request, task_id),
    answer=Done,
    document=_changed,
    response=Changed,
    refusals=_STORED,
)
RETRY_TASK: Final = OperatorCommand[int, RetryBody, Done](
    name="retry_task",
    path="/v1/tasks/{task_id}/retry",
    scope=Scope.OPERATE,
    summary="Run failed, cancelled and skipped steps again; with `from_step`, that step and all steps after it.",
    body=RetryBody,
    event=lambda request, task_id, body: RetryTask(
        request, task_id, body.from_step, body.again, body.new_key, body.reason
    ),
    answer=Done,
    document=_changed,
    response=Changed,
    refusals=_STORED,
)


def _check_resolution(body: ResolveBody) -> None:
    if body.output and body.outcome != "completed":
        raise InvalidMessage("bad_field", "only the outcome `completed` has an output - at `$.output`")
    if body.message and body.outcome != "failed":
        raise InvalidMessage("bad_field", "only the outcome `failed` has a message - at `$.message`")
    if body.new_key and body.outcome != "retry":
        raise InvalidMessage("bad_field", "only the outcome `retry` can have a new key - at `$.new_key`")
    if body.outcome == "failed" and not body.message:
        raise InvalidMessage("bad_field", "the outcome `failed` needs a message with the cause - at `$.message`")


def _resolve(request: int, step_id: int, body: ResolveBody) -> ResolveStep:
    output = bytes(body.output) if body.output else None
    return ResolveStep(request, step_id, body.outcome, body.reason, output, body.message, body.new_key)


RESOLVE_STEP: Final = OperatorCommand[int, ResolveBody, Done](
    name="resolve_step",
    path="/v1/steps/{step_id}/resolve",
    scope=Scope.OPERATE,
    summary="Set the outcome of a held step.",
    body=ResolveBody,
    event=_resolve,
    answer=Done,
    document=_changed,
    response=Changed,
    refusals=_STORED,
    is_body_needed=True,
    has_payload=True,
    check=_check_resolution,
)
ERASE_TASK: Final = OperatorCommand[int, EraseBody, ErasedTask](
    name="erase_task",
    path="/v1/tasks/{task_id}/erase",
    scope=Scope.ADMIN,
    summary="Erase the payloads of a task that has ended: context, outputs, errors, labels, idempotency key, standard"
    " error and messages. States and times stay. `POST /v1/database/finish-erasures` ends a run of erasures.",
    body=EraseBody,
    event=lambda request, task_id, body: EraseTask(request, task_id, body.reason),
    answer=ErasedTask,
    document=lambda done: TaskErasure(done.task_id, TaskState(done.state), done.attention, rfc3339(done.erased_ms)),
    response=TaskErasure,
    refusals=_STORED,
    is_body_needed=True,
)
DRAIN_WORKER: Final = OperatorCommand[str, DrainBody, Quieted](
    name="drain_worker",
    path="/v1/workers/{worker}/drain",
    scope=Scope.OPERATE,
    summary="Send this worker no further steps; with `quit`, the worker ends when it holds no step.",
    body=DrainBody,
    event=lambda request, worker, body: DrainWorker(request, worker, body.quit),
    answer=Quieted,
    document=lambda answer: WorkerDrains(answer.worker, answer.quit),
    response=WorkerDrains,
    refusals=(404,),
)
PAUSE_EXECUTOR: Final = OperatorCommand[str, NothingBody, ExecutorPaused](
    name="pause_executor",
    path="/v1/executors/{executor}/pause",
    scope=Scope.OPERATE,
    summary="Send this executor no further steps until it is resumed, also after a restart. Its steps stay ready.",
    body=NothingBody,
    event=lambda request, executor, body: PauseExecutor(request, executor),
    answer=ExecutorPaused,
    document=_executor,
    response=ExecutorStatus,
    refusals=(404,),
)
RESUME_EXECUTOR: Final = OperatorCommand[str, NothingBody, ExecutorPaused](
    name="resume_executor",
    path="/v1/executors/{executor}/resume",
    scope=Scope.OPERATE,
    summary="Resume a paused executor.",
    body=NothingBody,
    event=lambda request, executor, body: ResumeExecutor(request, executor),
    answer=ExecutorPaused,
    document=_executor,
    response=ExecutorStatus,
    refusals=(404,),
)
MOVE_LANE: Final = OperatorCommand[int, MoveBody, LaneMoves](
    name="move_lane",
    path="/v1/lanes/{lane}/move",
    scope=Scope.ADMIN,
    summary="Have the owner of a lane give it to another broker, as soon as no step of it waits at a worker. Running"
    " steps go on, and the new owner adopts them.",
    body=MoveBody,
    event=lambda request, lane, body: MoveLane(request, lane, body.to),
    answer=LaneMoves,
    document=lambda answer: LaneMove(answer.lane, answer.owner, answer.to),
    response=LaneMove,
    refusals=(404, 409),
    is_body_needed=True,
)
SET_RULE: Final = OperatorCommand[None, RuleSettings, Routed](
    name="set_rule",
    path="/v1/rules",
    scope=Scope.OPERATE,
    summary="Set a routing rule, which is stored and survives restarts. A rule with the same `match` is replaced, and "
    "a new rule becomes the first one. Steps that were dispatched before are not affected.",
    body=RuleSettings,
    event=lambda request, _, rule: SetRule(request, rule.match, rule),
    answer=Routed,
    document=_rule,
    response=RuleSet,
    refusals=(422,),
    is_body_needed=True,
)
REMOVE_RULE: Final = OperatorCommand[None, RemoveRuleBody, Routed](
    name="remove_rule",
    path="/v1/rules/remove",
    scope=Scope.OPERATE,
    summary="Remove the rule that was set at run time for this `match`; a rule of the configuration applies again.",
    body=RemoveRuleBody,
    event=lambda request, _, body: SetRule(request, body.match, None),
    answer=Routed,
    document=_rule,
    response=RuleSet,
    refusals=(404, 422),
    is_body_needed=True,
)
SET_BREAKER: Final = OperatorCommand[str, BreakerBody, BreakerSet](
    name="set_breaker",
    path="/v1/breakers/{handler_class}",
    scope=Scope.OPERATE,
    summary="Hold a handler's breaker `open` (dispatch no steps) or `closed` (dispatch all steps), or return"
    " it to automatic control (`auto`). The setting lasts until the broker ends.",
    body=BreakerBody,
    event=lambda request, handler_class, body: SetBreaker(request, handler_class, body.state, body.reason),
    answer=BreakerSet,
    document=_breaker,
    response=BreakerSetting,
    refusals=(404, 409, 422),
    is_body_needed=True,
)

COMMANDS: Final[tuple[OperatorCommand, ...]] = (  # type: ignore[type-arg]
    CANCEL_TASK,
    PAUSE_TASK,
    RESUME_TASK,
    RETRY_TASK,
    RESOLVE_STEP,
    ERASE_TASK,
    DRAIN_WORKER,
    PAUSE_EXECUTOR,
    RESUME_EXECUTOR,
    MOVE_LANE,
    SET_RULE,
    REMOVE_RULE,
    SET_BREAKER,
)
