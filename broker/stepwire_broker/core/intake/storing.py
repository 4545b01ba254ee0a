"""Building the tasks of a submission, and putting their rows in one transaction: stored whole or not at all.

A task with a key waits for its insert: until then it is only in `state.undecided`, and none of its steps is dispatched.
A task without a key begins at once: its first dispatch is in the same transaction. A single task on an idle lane also
begins at once, because nearly every key is new and the client then waits for one commit less.

A large submission is built in slices, one for each turn of the loop, so that one request never stops the broker from
reading its sockets.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.commit_group import HistoryRow, Key, Submission
from stepwire_broker.core.model.events import NewTask, Now, SubmitTasks
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.progress.new_task import CreatedTask, TaskIds, begin, new_task
from stepwire_broker.core.progress.stored_tasks import room_for_new, without_worker
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import SliceDue

SLICE_PAUSE_MS: Final = 1  # in which the loop reads its sockets
_ROW_BYTES: Final = 200  # estimated size of a new row in memory until it is written
_UID_MASK: Final = 2**128 - 1


class StoredOnly(NamedTuple):
    """A new task that is not in memory."""

    task_id: int
    namespace: str
    steps: int
    wants: str | None


class Undecided(Struct):
    """A submission whose insert is not committed yet."""

    request: int
    tasks: list[Task]  # the tasks that go into memory if they own their keys
    stored_only: list[StoredOnly]  # memory has no space for them
    ids: list[int]
    admitted: bool  # the tasks are in memory already, because the insert is expected to succeed
    at: Now
    lane: int


class Building(Struct):
    """A submission whose tasks are being built. Its ids are reserved, and nothing of it is stored."""

    submission: Submission
    undecided: Undecided
    rest: Iterator[tuple[NewTask, Workflow]]
    tasks_left: int
    lane: int
    next_id: int
    entropy: int
    bytes: int = 0


def store(state: BrokerState, event: SubmitTasks, workflows: list[Workflow], lane_id: int, now: Now) -> None:
    """Build the tasks of an accepted submission, now or over several turns, and put their rows in one transaction of
    this lane, which has the ids for them."""
    lane = state.outbox.lanes[lane_id]
    steps = sum(len(workflow.steps) for workflow in workflows)
    is_alone = len(event.tasks) == 1 and lane.is_idle and not lane.is_open
    at_once = is_alone or not any(new.key is not None for new in event.tasks)
    building = Building(
        Submission(event.request, [], [], [], []),
        Undecided(event.request, [], [], [], at_once, now, lane_id),
        zip(event.tasks, workflows, strict=True),
        len(event.tasks),
        lane_id,
        state.lanes[lane_id].ids.take(len(workflows) + steps),
        event.entropy,
    )
    for workflow in workflows:
        state.count_open(lane_id, workflow.namespace, len(workflow.steps))
    _build_on(state, building, now)


def on_slice_timer(state: BrokerState, request: int, now: Now) -> None:
    """Build the next tasks of a large submission, unless its lane was lost meanwhile."""
    building = state.building.pop(request, None)
    if building is not None:
        _build_on(state, building, now)


def _build_on(state: BrokerState, building: Building, now: Now) -> None:
    _build_slice(state, building)
    if building.tasks_left:
        request = building.undecided.request
        state.building[request] = building
        state.timers.set(now.mono + SLICE_PAUSE_MS, SliceDue(request))
    else:
        _put_in_group(state, building)


def _build_slice(state: BrokerState, building: Building) -> None:
    undecided, now = building.undecided, building.undecided.at
    in_memory_before = len(undecided.tasks)
    room = room_for_new(state)
    room_for_idle = room - state.settings.limits.max_active_tasks // 2
    steps_left = state.slice_steps
    can_run: dict[int, bool] = {}
    for new, workflow in building.rest:
        if workflow.id not in can_run:
            can_run[workflow.id] = room_for_idle >= building.tasks_left or not without_worker(state, workflow)
        in_memory = len(undecided.tasks) - in_memory_before < (room if can_run[workflow.id] else room_for_idle)
        _add(building, new, _created(state, building, new, workflow, in_memory), now)
        building.tasks_left -= 1
        steps_left -= len(workflow.steps)
        if steps_left <= 0:
            break
    state.reserved_tasks += len(undecided.tasks) - in_memory_before


def _created(state: BrokerState, building: Building, new: NewTask, workflow: Workflow, in_memory: bool) -> CreatedTask:
    ids = TaskIds(building.next_id, building.next_id + 1, f"{building.entropy & _UID_MASK:032x}", building.lane)
    building.next_id = ids.first_step + len(workflow.steps)
    building.entropy += 1
    return new_task(
        workflow,
        new.context,
        key=new.key,
        priority=new.priority,
        labels=new.labels,
        deadline_ms=new.deadline_ms,
        ids=ids,
        in_memory=in_memory,
        now=building.undecided.at,
    )


def _add(building: Building, new: NewTask, created: CreatedTask, now: Now) -> None:
    """Add a task to its submission. The outbox writes the first facts of a task that begins at once."""
    submission, undecided = building.submission, building.undecided
    row, task = created.row, created.live
    if new.key is not None:
        submission.keys.append(Key(new.namespace, new.key, new.digest, row.id))
    submission.tasks.append(row)
    submission.steps.extend(created.steps)
    undecided.ids.append(row.id)
    building.bytes += len(new.context) + _ROW_BYTES * (1 + len(created.steps))
    if task is None:
        undecided.stored_only.append(StoredOnly(row.id, row.namespace, len(created.steps), row.wants))
    else:
        undecided.tasks.append(task)
    if task is not None and undecided.admitted:
        task.facts = created.facts
    else:
        submission.history.append(HistoryRow(row.id, now.wall, facts.encode(created.facts)))


def _put_in_group(state: BrokerState, building: Building) -> None:
    undecided = building.undecided
    lane = state.outbox.touch(building.lane)
    lane.bytes += building.bytes
    lane.submissions.append(building.submission)
    state.undecided[undecided.request] = undecided
    if undecided.admitted:
        for task in undecided.tasks:
            state.outbox.mark(task)
            # Times count from the submission, even if later turns built some of its tasks.
            begin(state, task, undecided.at)
