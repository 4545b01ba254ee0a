"""A new task: its rows, its first facts and, when it goes into memory at once, its live form and its timers."""

from typing import Final

from msgspec import Struct

from stepwire_broker.core.commit.outbox import AT_ONCE_MS
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.commit_group import StepNew, TaskNew, rank_ms
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.facts import Fact, Readied, Submitted
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import READY, WAITING, StepState, TaskState
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import TaskDeadline

from .readiness import start
from .stored_tasks import wants_of_new


class TaskIds(Struct, frozen=True, gc=False):
    """The numbers of a new task. Its steps have consecutive ids, in the order of the workflow."""

    task: int
    first_step: int
    uid: str
    lane: int


class CreatedTask(Struct, frozen=True, gc=False):
    row: TaskNew
    steps: list[StepNew]
    facts: list[Fact]
    live: Task | None  # None: the task is only stored, and loaded later


def new_task(
    workflow: Workflow,
    context: bytes,
    *,
    key: str | None,
    priority: int,
    labels: bytes | None,
    deadline_ms: int | None,
    ids: TaskIds,
    in_memory: bool,
    now: Now,
) -> CreatedTask:
    """Build a task of this workflow. Without `deadline_ms` the workflow's own deadline applies."""
    wall = now.wall
    if deadline_ms is None:
        deadline_ms = workflow.deadline_ms
    deadline_at = None if deadline_ms is None else wall + deadline_ms
    state = TaskState.RUNNING if in_memory else TaskState.PENDING
    wants = None if in_memory else wants_of_new(workflow)
    row = TaskNew(
        id=ids.task,
        uid=ids.uid,
        workflow_id=workflow.id,
        lane=ids.lane,
        namespace=workflow.namespace,
        key=key,
        state=state,
        attention=None,
        cancelling=False,
        priority=priority,
        labels=labels,
        context=context,
        context_bytes=len(context),
        created_ms=wall,
        finished_ms=None,
        deadline_ms=deadline_at,
        rank_ms=rank_ms(wall, priority),
        stored=not in_memory,
        wake_ms=None if in_memory else AT_ONCE_MS if wants is None else deadline_at,
        wants=wants,
    )
    first_facts: list[Fact] = [
        Submitted(wall, workflow.id, ids.uid, state, ids.first_step),
        *[Readied(wall, index) for index in workflow.roots],
    ]
    return CreatedTask(
        row, _step_rows(workflow, ids, wall), first_facts, _live(workflow, row, ids, wall) if in_memory else None
    )


def _step_rows(workflow: Workflow, ids: TaskIds, wall: int) -> list[StepNew]:
    return [
        StepNew(
            ids.first_step + d.index,
            ids.task,
            d.index,
            d.name,
            d.handler_class,
            _WAITING if d.depends_on else _READY,
            None if d.depends_on else wall,
        )
        for d in workflow.steps
    ]


_WAITING: Final = str(WAITING)
_READY: Final = str(READY)


def _live(workflow: Workflow, row: TaskNew, ids: TaskIds, wall: int) -> Task:
    task = Task(
        id=row.id,
        uid=row.uid,
        workflow=workflow,
        lane=row.lane,
        namespace=row.namespace,
        key=row.key,
        state=TaskState.RUNNING,
        priority=row.priority,
        context=row.context,
        context_bytes=row.context_bytes,
        created_ms=wall,
        labels=row.labels,
        deadline_ms=row.deadline_ms,
        resident_bytes=row.context_bytes,
    )
    ready: StepState = READY
    first = ids.first_step
    task.steps = [
        Step(first + d.index, task, d.index, d, WAITING, waits=len(d.depends_on))
        if d.depends_on
        else Step(first + d.index, task, d.index, d, ready, ready_ms=wall)
        for d in workflow.steps
    ]
    task.open = len(task.steps)
    task.moving = len(workflow.roots)
    return task


def begin(state: BrokerState, task: Task, now: Now) -> None:
    """Put a new task in memory, set its timers, and let its first steps be dispatched."""
    state.tasks[task.id] = task
    state.resident_bytes += task.resident_bytes
    if task.context is not None and task.context_bytes > state.settings.limits.resident_payload_bytes:
        state.large_contexts.append((state.outbox.lanes[task.lane], state.outbox.lanes[task.lane].handed + 1, task))
    steps = state.steps
    for step in task.steps:
        steps[step.id] = step
    if task.deadline_ms is not None:
        state.timers.set(now.mono + task.deadline_ms - now.wall, TaskDeadline(task, task.deadline_ms))
    for index in task.workflow.roots:
        start(state, task.steps[index], now)
