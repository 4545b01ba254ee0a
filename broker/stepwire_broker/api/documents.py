"""The bodies of answers, as types: msgspec encodes them, and the OpenAPI document is generated from them.

Contexts, outputs, errors and results are stored as JSON and are sent unchanged. Times are RFC 3339 in UTC with
milliseconds. A member without a value is null. Members with payloads are absent from the answers to a token without the
scope `inspect`; all others are never omitted.
"""

from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType

from stepwire_broker.core.answers.hints import Hint
from stepwire_broker.core.workflow_warnings import WorkflowWarning

from .enumerations import AttemptOutcome, Attention, ReasonCode, StepState, TaskState

NULL: Final = Raw(b"null")
NO_LABELS: Final = Raw(b"{}")


class Created(Struct, frozen=True):
    """`created` is false if a task with the idempotency key existed already. `task` is present if the request had
    `wait_ms`."""

    task_id: int
    state: TaskState
    created: bool
    task: Raw | UnsetType = UNSET


class CreatedBatch(Struct, frozen=True):
    """`task_ids` has the order of the tasks in the request. `created` is the number of new tasks."""

    task_ids: list[int]
    created: int


class WorkflowApplied(Struct, frozen=True):
    workflow_id: int
    namespace: str
    name: str
    version: str
    created: bool
    warnings: list[WorkflowWarning]


class WorkflowActivated(Struct, frozen=True):
    workflow_id: int
    namespace: str
    name: str
    version: str


class WorkflowSummary(Struct, frozen=True):
    workflow_id: int
    namespace: str
    name: str
    version: str
    active: bool
    created_at: str


class WorkflowDocument(WorkflowSummary, frozen=True):
    """`warnings` lists the handlers that no connected worker offers now. Without the scope `inspect`, the steps of
    `document` have no `handler_config`."""

    document: Raw
    warnings: list[WorkflowWarning]


class Reason(Struct, frozen=True):
    """Why a step is in its state. `hint` (for people) and `next` (for programs) describe the next action."""

    code: ReasonCode
    message: str
    since: str | None
    hint: str | None
    next: Hint | None


class TaskReason(Struct, frozen=True):
    """Why a task has not ended, or how it ended. `step` is the step that is the cause; null if the task itself is."""

    task_id: int
    state: TaskState
    code: ReasonCode
    message: str
    since: str | None
    hint: str | None
    next: Hint | None
    step_id: int | None
    step: str | None


class StepReason(Struct, frozen=True):
    """Why a step is in its state."""

    task_id: int
    step_id: int
    step: str
    state: StepState
    code: ReasonCode
    message: str
    since: str | None
    hint: str | None
    next: Hint | None


class ProgressDocument(Struct, frozen=True):
    """The latest progress that a running step reported. It is in the memory of the broker that owns the task. `note`
    has at most 200 characters."""

    done: float
    total: float | None
    note: str | None
    at: str


class StepSummary(Struct, frozen=True, kw_only=True):
    """`attempt` counts failed attempts, so it is 0 during the first attempt; at most `retry_limit` attempts follow the
    first. `deliveries` is the number of times the step was handed to a worker.

    The times are those of the latest delivery. `queue_ms` is the time from `ready_at` to `dispatched_at`. `run_ms` is
    the duration of the run as its worker measured it; without that, of a step that has completed, the time from
    `started_at` to `finished_at`. `started_at` is the start that the worker reported, or `finished_at` minus `run_ms`,
    or for a completed step of which the worker reported neither, `dispatched_at`.

    `error` is the latest error, without its `backtrace`, which only the document of a single step has. In lists,
    `progress` is null for steps of other brokers, and `reason` is the stored one."""

    step_id: int
    task_id: int
    name: str
    handler_class: str
    state: StepState
    attempt: int
    retry_limit: int | None
    deliveries: int
    worker: str | None
    ready_at: str | None
    dispatched_at: str | None
    started_at: str | None
    not_before: str | None
    finished_at: str | None
    queue_ms: int | None
    run_ms: int | None
    progress: ProgressDocument | None
    error: Raw
    reason: Reason | None


class StepDocument(StepSummary, frozen=True, kw_only=True):
    """`output_omitted`: the output is too large for this answer; `GET /v1/steps/{step_id}` returns it. `output` needs
    the scope `inspect`."""

    output: Raw | UnsetType = UNSET
    output_bytes: int
    output_omitted: bool = False


class AttemptDocument(Struct, frozen=True, kw_only=True):
    """One delivery of a step, as the history has it. `attempt` counts the failed attempts before it, and is 0 for the
    first; a delivery that ended `undelivered` is followed by another delivery of the same attempt.

    `outcome` is the kind of the event that ended it: completed, backed_off, failed, held, undelivered or cancelled;
    null while it has not ended. `worker` is null if the step failed while no worker had it."""

    delivery: int
    attempt: int
    worker: str | None
    dispatched_at: str | None
    started_at: str | None
    ended_at: str | None
    run_ms: int | None
    outcome: AttemptOutcome | None
    code: str | None
    message: str | None


class StderrDocument(Struct, frozen=True):
    """The end of what a run wrote to standard error, at most 16 KiB. `delivery` is the delivery of that run."""

    delivery: int
    text: str


class StepDetail(StepDocument, frozen=True, kw_only=True):
    """A single step. `attempts` are its latest 100 deliveries, the oldest first; `attempts_omitted` counts earlier
    ones. `output`, `stderr` and the error's `backtrace` need the scope `inspect`."""

    attempts: list[AttemptDocument]
    attempts_omitted: int
    stderr: StderrDocument | UnsetType | None = UNSET


class CancelDocument(Struct, frozen=True):
    """The request to cancel a task. `by` is the name of the operator's token, or the beginning of its digest."""

    at: str
    reason: str
    by: str | None


class TaskSummary(Struct, frozen=True, kw_only=True):
    """`erased_at`: an operator erased the payloads of the task, which are `{"erased": time in ms}` since then. It has
    no labels and no idempotency key any longer."""

    task_id: int
    namespace: str
    workflow: str
    version: str
    state: TaskState
    attention: Attention | None
    cancelling: bool
    priority: int
    labels: Raw
    erased_at: str | None
    idempotency_key: str | None
    created_at: str
    finished_at: str | None
    deadline_at: str | None


class TaskDocument(TaskSummary, frozen=True, kw_only=True):
    """`result_omitted`: the result is too large for this answer; read the outputs of the steps instead. `cancel`: who
    cancelled the task, and why; null if the task is not cancelled. `context` and `result` need the scope `inspect`."""

    cancel: CancelDocument | None
    context: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    result_omitted: bool = False
    steps: list[StepDocument]


class WorkflowPage(Struct, frozen=True):
    workflows: list[WorkflowSummary]


class TaskPage(Struct, frozen=True):
    """`scanned_to`: the time for searching was over. The page holds the matching tasks that were submitted after this
    time, and perhaps none; `next_cursor` continues the search."""

    tasks: list[TaskSummary]
    next_cursor: str | None
    scanned_to: str | None = None


class StepPage(Struct, frozen=True):
    """The steps of the newest task come first; of `held` and `failed` steps, those that were held or failed last.
    `scanned_to`: the time for searching was over. The page holds the matching steps of tasks that were submitted, or
    the steps that were held or failed, after this time, and perhaps none; `next_cursor` continues the search."""

    steps: list[StepSummary]
    next_cursor: str | None
    scanned_to: str | None = None


def raw_or_null(text: str | None) -> Raw:
    return NULL if text is None else Raw(text.encode())
