"""The rows that a store returns to people and programs outside the core, and the filters that select them.

The core loads other rows: see core/definitions/stored_rows.py.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from stepwire_broker.core.definitions.stored_rows import StoredStep, StoredTask
from stepwire_broker.core.model.states import TaskState

# -- tasks ------------------------------------------------------------------------------------------------------------


TASK_STATES: Final = tuple(map(str, TaskState))
ATTENTION_STATES: Final = ("held", "failed")  # of steps: they are listed from the table `attention`


class AuditFilter(NamedTuple):
    """Which rows of `audit` to read: of one lane, with numbers from `first` to before `before`."""

    lane: int
    first: int
    before: int
    limit: int
    principal: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class ListPoint(NamedTuple):
    """A place in a list. Ids of different lanes are not in the order of time, so lists are ordered by time and id."""

    at_ms: int
    id: int


class TaskFilter(NamedTuple):
    """A member that is None filters nothing. `before`: the point of the last task of the previous page. `first`: the
    last point that is read."""

    state: str | None = None
    namespace: str | None = None
    workflow: str | None = None
    label: tuple[str, str] | None = None
    key: str | None = None  # the idempotency key
    namespaces: tuple[str, ...] | None = None  # only tasks in one of these
    since_ms: int | None = None
    before: ListPoint | None = None
    limit: int = 50
    first: ListPoint | None = None


class TaskRow(NamedTuple):
    id: int
    uid: str
    workflow_id: int
    namespace: str
    workflow: str
    version: str
    key: str | None
    state: str
    attention: str | None
    cancelling: int
    priority: int
    labels: str | None
    context_bytes: int
    created_ms: int
    finished_ms: int | None
    deadline_ms: int | None

    @property
    def point(self) -> ListPoint:
        return ListPoint(self.created_ms, self.id)


class SettledTask(NamedTuple):
    """A task for which a client need not wait any longer."""

    id: int
    state: str
    attention: str | None


class OpenCounts(NamedTuple):
    """Open tasks of a lane, and by namespace their open steps. `limits.max_open_steps` and quotas limit these steps."""

    tasks: int
    steps: dict[str, int]  # no namespace without open steps is here


NO_TASKS: Final = OpenCounts(0, {})


def counts_by_lane(rows: Iterable[tuple[int, str, int, int]]) -> dict[int, OpenCounts]:
    """Rows of lane, namespace, open tasks and their open steps."""
    counts: dict[int, OpenCounts] = {}
    for lane, namespace, tasks, steps in rows:
        before = counts.get(lane, NO_TASKS)
        counts[lane] = OpenCounts(before.tasks + tasks, before.steps | ({namespace: steps} if steps else {}))
    return counts


# -- steps ------------------------------------------------------------------------------------------------------------


class StepFilter(NamedTuple):
    """`handler_class` may be a pattern. `before`: the point of the last step of the previous page. `first`: the last
    point that is read."""

    state: str | None = None
    handler_class: str | None = None
    namespaces: tuple[str, ...] | None = None  # only steps of tasks in one of these
    before: ListPoint | None = None
    limit: int = 50
    first: ListPoint | None = None


class StepRow(NamedTuple):
    id: int
    task_id: int
    position: int
    name: str
    handler_class: str
    state: str
    attempt: int
    delivery: int
    worker: str | None
    granted: int
    lost_sessions: int
    ready_ms: int | None
    dispatched_ms: int | None
    started_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    deadline_ms: int | None
    run_ms: int | None
    error: str | None
    reason: str | None
    key_number: int
    output: str | None  # JSON text; also None where a list leaves it out
    output_bytes: int
    workflow_id: int
    listed_ms: int  # when its task was created; in a list of held or failed steps, since when the step is

    @property
    def point(self) -> ListPoint:
        return ListPoint(self.listed_ms, self.id)


class TaskOfStep(NamedTuple):
    task_id: int
    state: str  # the task's


class TaskRecord(NamedTuple):
    """A whole task. Outputs beyond the limit of bytes are left out. Payloads are JSON text."""

    task: TaskRow
    context: str
    steps: list[StepRow]


# -- workflows --------------------------------------------------------------------------------------------------------


class WorkflowRow(NamedTuple):
    """A version of a workflow, without its document."""

    id: int
    namespace: str
    name: str
    version: str
    created_ms: int
    active: int


# -- history ----------------------------------------------------------------------------------------------------------


class HistoryCursor(NamedTuple):
    """A position in a lane's history. (0, 0) is before every row: sequences begin at 1."""

    seq: int = 0
    position: int = 0


class LaneRow(NamedTuple):
    id: int
    owner: str | None  # the broker that writes it
    owner_epoch: int | None
    epoch: int
    seq: int


class HistoryItem(NamedTuple):
    lane_id: int
    seq: int
    position: int
    task_id: int
    at_ms: int
    facts: str


class EventRow(NamedTuple):
    """A history row with the workflow of its task, which the row's events name."""

    lane_id: int
    seq: int
    position: int
    task_id: int
    facts: str
    workflow_id: int | None  # None when the task has been removed since
    first_step_id: int | None  # None when its steps have been removed since


class TaskWithHistory(NamedTuple):
    task: StoredTask
    steps: list[StoredStep]
    history: list[bytes]  # its facts, in order


# -- refused input ----------------------------------------------------------------------------------------------------


class ParkedRow(NamedTuple):
    id: int
    at_ms: int
    task_id: int | None
    step_id: int | None
    code: str
    source: str
    body: bytes
