"""A commit group: the rows that one transaction of one lane writes, and the outcome of the transaction.

Every row is absolute (the value, never a change to a value), so that a group can be written again when its commit is
in doubt. Payloads (contexts, outputs, errors, documents, facts) are JSON bytes.
"""

from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct


def rank_ms(created_ms: int, priority: int) -> int:
    """Return one number that orders tasks by priority, the highest first, and then by age."""
    return created_ms - (priority << 40)


class TaskNew(NamedTuple):
    """INSERT into tasks."""

    id: int
    uid: str  # 32 hex digits, never reused in any deployment
    workflow_id: int
    lane: int
    namespace: str
    key: str | None  # the submission's idempotency key
    state: str
    attention: str | None
    cancelling: bool
    priority: int
    labels: bytes | None
    context: bytes
    context_bytes: int
    created_ms: int  # all times: UTC milliseconds
    finished_ms: int | None
    deadline_ms: int | None
    rank_ms: int  # the loader reads the lowest first: see `rank_ms`
    stored: bool  # in no broker's memory, until `wake_ms` or until a worker offers what it wants
    wake_ms: int | None  # stored tasks: when the loader must load them
    wants: str | None  # stored tasks: the handlers of the steps that wait for dispatch


class TaskChanged(NamedTuple):
    """UPDATE tasks, every column that can change."""

    id: int
    state: str
    attention: str | None
    cancelling: bool
    finished_ms: int | None
    deadline_ms: int | None
    stored: bool
    wake_ms: int | None
    wants: str | None


class StepNew(NamedTuple):
    """INSERT into steps."""

    id: int
    task_id: int
    position: int
    name: str
    handler_class: str
    state: str
    ready_ms: int | None


class StepDispatched(NamedTuple):
    """UPDATE steps, the hot shape: a first, plain delivery of a step."""

    id: int
    delivery: int
    batch_id: str
    worker: str
    ready_ms: int | None
    dispatched_ms: int


class StepCompleted(NamedTuple):
    """UPDATE steps, the hot shape: state becomes completed, batch_id, not_before_ms, reason and earlier become NULL.
    `handle` stays as it is."""

    id: int
    output: bytes
    output_bytes: int
    finished_ms: int
    run_ms: int | None


class StepChanged(NamedTuple):
    """UPDATE steps, every column that can change except `output`, which only StepCompleted and StepOutput write."""

    id: int
    state: str
    attempt: int
    delivery: int
    accept_from: int
    batch_id: str | None
    worker: str | None
    granted: bool
    lost_sessions: int
    ready_ms: int | None
    dispatched_ms: int | None
    started_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    deadline_ms: int | None
    run_ms: int | None
    error: bytes | None
    reason: str | None  # the code that explains the state
    key_number: int  # 0, or the number of times an operator asked for a new key
    earlier: bytes | None  # earlier deliveries a late result may still name: [[delivery, batch_id, worker, granted], …]
    handle: str | None  # the executor's name of a run that outlives the broker; null for our executors


class StepOutput(NamedTuple):
    """UPDATE steps, output only: None when a step is run again."""

    id: int
    output: bytes | None
    output_bytes: int


class StepStderr(NamedTuple):
    """UPSERT into step_stderr: the end of the standard error of a step's latest run that reported any."""

    id: int  # the step's
    delivery: int
    text: str


class AttentionChanged(NamedTuple):
    """UPSERT into attention: what an operator may have to look at."""

    id: int  # of the step, or of the task for its own attention
    task_id: int
    kind: str | None  # None: DELETE the row
    at_ms: int  # since when
    handler_class: str | None  # of the step


class TaskErased(NamedTuple):
    """Replace the payloads in all rows of a task, in whatever table: see store/erasure.py."""

    task_id: int
    at_ms: int


class HistoryRow(NamedTuple):
    """INSERT into history: the facts of one task in this group, in order."""

    task_id: int
    at_ms: int
    facts: bytes


class Parked(NamedTuple):
    """INSERT into parked: input that was accepted and then refused, with its bytes, for inspection."""

    at_ms: int
    task_id: int | None
    step_id: int | None
    code: str
    source: str  # who sent it
    body: bytes


class WorkflowNew(NamedTuple):
    """INSERT into workflows unless (namespace, name, version) exists."""

    request: int
    namespace: str
    name: str
    version: str
    digest: str
    document: bytes
    created_ms: int
    activate: bool  # the newest applied version is the default


class ControlChanged(NamedTuple):
    """UPSERT into controls: a value that operators or workers set at run time. `value` None: DELETE the row."""

    kind: str
    name: str  # unique for its kind
    value: str | None
    position: int  # among the rows of its kind, where they have an order


class AuditNew(NamedTuple):
    """INSERT into audit. The writer gives the row its lane, its number and its hash, and an application of a workflow
    its outcome."""

    at_ms: int
    principal: str  # who acted
    via: str  # how the principal was identified
    action: str
    target: str  # `task 7`, `rule shop::**`, …
    reason: str
    detail: str  # a JSON object of ids, counts and digests
    outcome: str
    request_id: str | None
    part: "AuditPart" = None


# The part of the group that has the row's effect: they are written or refused together. None: the row itself is all.
AuditPart: TypeAlias = tuple[Literal["task", "request", "control"], int | str] | None


class OrderAnswer(NamedTuple):
    """UPDATE orders: the answer to a command that another broker stored for the owner of this lane. The answer is
    written in the transaction of the command's effect, and only if the order has no answer."""

    id: int
    answer: str  # JSON
    part: AuditPart = None  # the part of the group that has the effect


class Key(NamedTuple):
    """An idempotency key of a submission. The first task that is inserted with the key owns it."""

    namespace: str
    key: str
    digest: bytes  # of the submission: the same key with another digest is a conflict
    task_id: int


class Submission(NamedTuple):
    """Tasks that are stored together or not at all. If a key exists with another digest, no task is stored. If a key
    exists with the same digest, only its task is left out, with the steps and the history."""

    request: int
    keys: list[Key]
    tasks: list[TaskNew]
    steps: list[StepNew]
    history: list[HistoryRow]


class CommitGroup(Struct):
    """One transaction of one lane."""

    lane: int
    seq: int
    submissions: list[Submission] = []
    workflows: list[WorkflowNew] = []
    activations: list[tuple[int, int]] = []  # (request, workflow_id)
    controls: list[ControlChanged] = []
    steps_dispatched: list[StepDispatched] = []
    steps_completed: list[StepCompleted] = []
    steps_changed: list[StepChanged] = []
    steps_output: list[StepOutput] = []
    steps_stderr: list[StepStderr] = []
    tasks_changed: list[TaskChanged] = []
    history: list[HistoryRow] = []
    attention: list[AttentionChanged] = []
    erasures: list[TaskErased] = []  # after all other rows
    parked: list[Parked] = []
    audit: list[AuditNew] = []
    orders_answered: list[OrderAnswer] = []
    reserve_ids: int = 0  # the number of further ids to reserve for tasks and steps
    unused_ids: tuple[int, int] | None = None  # reserved ids to return, from the first to the last
    bytes: int = 0  # an estimate of its size in memory


class KeyConflict(NamedTuple):
    """An idempotency key that belongs to a task with other content."""

    key: str
    task_id: int | None  # None: the other task is in the same submission, so it is not stored


class SubmissionOutcome(NamedTuple):
    request: int
    existing: dict[int, int]  # assigned task_id → the task that already has its key
    conflict: KeyConflict | None
    failed: str | None = None  # the database's error when it refused the data


class WorkflowOutcome(NamedTuple):
    request: int
    workflow_id: int
    created: bool
    conflict: bool
    failed: str | None = None  # the database's error when it refused the data


class Rejected(NamedTuple):
    """A task whose rows in this group the database refused because of a data error. None of the rows was written."""

    task_id: int
    error: str


class Committed(Struct, frozen=True):
    """The group is durable."""

    lane: int
    seq: int
    submissions: list[SubmissionOutcome] = []
    workflows: list[WorkflowOutcome] = []
    rejected: list[Rejected] = []
    ids: tuple[int, int] | None = None  # the reserved numbers, first and last


StallCode: TypeAlias = Literal["database_locked", "disk_full", "database_read_only", "database_unavailable"]


class Stalled(Struct, frozen=True):
    """The group could not be written and is being retried: locked, full, read-only or unreachable."""

    lane: int
    seq: int
    code: StallCode
    error: str


class LaneLost(Struct, frozen=True):
    """Another broker owns this lane now. This broker must no longer write or send anything for it."""

    lane: int


class LostCommits(Struct, frozen=True):
    """The lane ends before a group that was committed. Whatever the broker answered about it may be untrue now."""

    lane: int
    error: str


class Broken(Struct, frozen=True):
    """The disk failed to sync, or the database is corrupt: the broker stops and acknowledges nothing."""

    lane: int
    error: str


Outcome: TypeAlias = Committed | Stalled | LaneLost | LostCommits | Broken
