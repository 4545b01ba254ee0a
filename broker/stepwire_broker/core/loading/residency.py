"""Loading stored tasks into memory.

Tasks are loaded in pages, by priority and age over all namespaces, when memory has space and a worker offers the
handlers that they wait for. A command loads the task that it names.
"""

from typing import Any, Final

import msgspec

from stepwire_broker.core import takers
from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.decision import LoadById, LoadPage
from stepwire_broker.core.commit.id_blocks import block_of
from stepwire_broker.core.commit.loads import AnyLoad, CommandLoad, PageLoad
from stepwire_broker.core.commit.own_lane import OwnLane
from stepwire_broker.core.commit.wants import handlers_in
from stepwire_broker.core.definitions.stored_rows import Loaded, StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.intake.commands import ResolveStep
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.apply import counted
from stepwire_broker.core.model.commit_group import Parked
from stepwire_broker.core.model.events import Command, Now, ReportResult
from stepwire_broker.core.model.live import Delivery, Step, Task
from stepwire_broker.core.model.states import (
    DISPATCHED,
    READY,
    RETRY_WAIT,
    STEP_FINAL,
    TASK_FINAL,
    WAITING,
    StepState,
    TaskState,
)
from stepwire_broker.core.model.worker_session import died_with
from stepwire_broker.core.progress.dependents import decide_again
from stepwire_broker.core.progress.readiness import await_retry, start, watch_deadline
from stepwire_broker.core.progress.step_outcomes import fail_for
from stepwire_broker.core.progress.stored_tasks import PAGE_TASKS
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import PageDue, QueueLimit, TaskDeadline
from stepwire_broker.core.workers import level0
from stepwire_broker.core.workers.holding import ask_soon
from stepwire_broker.core.workers.loss import lost

from .eviction import FAR_OFF_MS, is_full, make_room, room

PAGE_PAUSE_MS: Final = 1_000  # before the next read when a page was empty

_earlier: Final = msgspec.json.Decoder(list[Delivery]).decode


# -- loading ----------------------------------------------------------------------------------------------------------


def keep_loading(state: BrokerState, now: Now) -> None:
    """Read the next pages if memory has space and stored tasks may exist.

    What former owners had in memory is read lane by lane, several lanes at once: all of it was to run now. The other
    stored tasks compete by priority and age over all lanes, so they are read one page at a time.
    """
    if state.unloaded <= 0 or state.draining or now.mono < state.page_after_mono:
        return
    lanes = [lane for lane in state.lanes.values() if _is_left_behind(lane) and not lane.is_loading]
    at_once = max(1, state.settings.database.pool_size - 1)  # one reader stays free for requests
    if not lanes:
        if not state.pages and not any(lane.is_loading for lane in state.lanes.values()):
            _read_page(state, list(state.lanes.values()), now)
        return
    for lane in lanes:
        if len(state.pages) >= at_once or not _read_page(state, [lane], now):
            return


def _is_left_behind(lane: OwnLane) -> bool:
    """True if tasks that the former owner had in memory may not be loaded yet."""
    return lane.left_behind is not None and lane.unloaded > 0


def _read_page(state: BrokerState, lanes: list[OwnLane], now: Now) -> bool:
    """Read the next page of these lanes. False: memory has no space for one."""
    free = room(state) - sum(state.pages.values())
    if free <= 0 or is_full(state):
        if not state.pages:
            state.waits_for_room = True
            make_room(state, now)
            _read_later(state, now)
        return False
    request = state.next_read()
    limit = state.pages[request] = min(PAGE_TASKS, free)
    left_behind = {lane.number: lane.left_behind for lane in lanes}
    state.loads[request] = PageLoad(limit, set(left_behind))
    for lane in lanes:
        lane.is_loading = True
        lane.stored_since_page = False
    wants = [wants for wants in sorted(state.wants) if _may_be_dispatched(state, wants, now)]
    state.decision.reads.append(LoadPage(request, limit, wants, left_behind))
    return True


def _may_be_dispatched(state: BrokerState, wants: str, now: Now) -> bool:
    return any(
        takers.is_offered(state, name) and not allowance.is_shut(state, name, FAR_OFF_MS, now)
        for name in handlers_in(wants)
    )


def _read_later(state: BrokerState, now: Now) -> None:
    state.page_after_mono = now.mono + PAGE_PAUSE_MS
    state.timers.set(state.page_after_mono, PageDue())


def on_page(state: BrokerState, loaded: Loaded, request: int, load: PageLoad, now: Now) -> None:
    """Load a page. A page that is not full held every stored task that could run."""
    _page_ended(state, request, load)
    state.wants.update(loaded.wants)
    for number, left_behind in loaded.left_behind:
        if number not in load.gone_lanes:
            state.lanes[number].left_behind = left_behind
    for number in load.lanes - load.gone_lanes:
        lane = state.lanes[number]
        lane.stored_may_run = len(loaded.tasks) == load.limit or lane.stored_since_page
    insert(state, loaded, load, now)
    if not loaded.tasks and not any(_is_left_behind(lane) for lane in state.lanes.values()):
        _read_later(state, now)


def on_page_failed(state: BrokerState, request: int, load: PageLoad, now: Now) -> None:
    """Read the page again after a pause."""
    _page_ended(state, request, load)
    _read_later(state, now)


def _page_ended(state: BrokerState, request: int, load: PageLoad) -> None:
    del state.pages[request]
    for number in load.lanes - load.gone_lanes:
        state.lanes[number].is_loading = False


def of_own_lanes(state: BrokerState, loaded: Loaded, load: AnyLoad) -> Loaded:
    """Return the tasks that this broker owns and has owned since the read began. Note the lanes of the others: it did
    not know the blocks of their ids yet."""
    others = {row.id for row in loaded.tasks if row.lane not in state.outbox.lanes or row.lane in load.gone_lanes}
    if not others:
        return loaded
    for row in loaded.tasks:
        if row.id in others:
            state.blocks[block_of(row.id)] = row.lane
    return loaded._replace(
        tasks=[row for row in loaded.tasks if row.id not in others],
        steps=[row for row in loaded.steps if row.task_id not in others],
    )


def insert(state: BrokerState, loaded: Loaded, load: AnyLoad, now: Now) -> None:
    """Add tasks from the database to memory."""
    loaded = of_own_lanes(state, loaded, load)
    steps = iter(loaded.steps)
    undecided = {task_id for submission in state.undecided.values() for task_id in submission.ids}
    for row in loaded.tasks:
        workflow = state.workflows[row.workflow_id]
        rows = [next(steps) for _ in workflow.steps]
        if row.id in state.tasks or row.id in load.gone or TaskState(row.state) in TASK_FINAL:
            if row.finished_ms is not None and state.rejected.pop(row.id, None) is not None:
                state.count_unloaded(row.lane, -1)
            continue
        if row.id in undecided:
            continue  # the read saw a commit whose outcome has not arrived yet
        task = restored(workflow, row, rows)
        refused = state.rejected.pop(row.id, None)
        if refused is not None:
            state.count_open(task.lane, task.namespace, task.open)
        admit(state, task, now, is_stored=bool(row.stored))
        state.count_unloaded(task.lane, -1)
        if refused is not None:
            _blame(state, task, *refused, now)


def _blame(state: BrokerState, task: Task, culprits: frozenset[int], error: str, now: Now) -> None:
    """Fail the steps whose outcome the database refused to store.

    The task was reloaded in its stored state before, by this read or by another.
    """
    for step in task.steps:
        if step.id in culprits and step.state not in STEP_FINAL and step.batch_id is not None:
            lane = state.outbox.touch(task.lane)
            body = facts.encode({"error": error})
            lane.parked.append(Parked(now.wall, task.id, step.id, "unstorable", "result", body))
            fail_for(state, step, "unstorable", now)


def restored(workflow: Workflow, row: StoredTask, rows: list[StoredStep]) -> Task:
    """Build the live form of stored rows."""
    task = Task(
        id=row.id,
        uid=row.uid,
        workflow=workflow,
        lane=row.lane,
        namespace=row.namespace,
        key=row.key,
        state=TaskState(row.state),
        priority=row.priority,
        context=None if row.context is None else row.context.encode(),
        context_bytes=row.context_bytes,
        created_ms=row.created_ms,
        labels=None if row.labels is None else row.labels.encode(),
        attention=row.attention,
        cancelling=bool(row.cancelling),
        finished_ms=row.finished_ms,
        deadline_ms=row.deadline_ms,
    )
    task.steps = [_restored_step(task, r) for r in rows]
    counted(task)
    task.resident_bytes = (len(task.context) if task.context is not None else 0) + sum(
        len(s.output) for s in task.steps if s.output is not None
    )
    return task


_STATES: Final = {str(s): s for s in StepState}


def _restored_step(task: Task, r: StoredStep) -> Step:
    step = Step(r.id, task, r.position, task.workflow.steps[r.position], _STATES[r.state])
    if r.delivery or r.accept_from or r.state != "waiting":
        step.attempt = r.attempt
        step.delivery = r.delivery
        step.accept_from = r.accept_from
        step.batch_id = r.batch_id
        step.worker = r.worker
        step.granted = bool(r.granted)
        step.lost_sessions = r.lost_sessions
        step.ready_ms = r.ready_ms
        step.dispatched_ms = r.dispatched_ms
        step.started_ms = r.started_ms
        step.not_before_ms = r.not_before_ms
        step.finished_ms = r.finished_ms
        step.deadline_ms = r.deadline_ms
        step.run_ms = r.run_ms
        step.error = None if r.error is None else r.error.encode()
        step.reason = r.reason
        step.earlier = None if r.earlier is None else _earlier(r.earlier)
        step.handle = r.handle
        step.output = None if r.output is None else r.output.encode()
        step.output_bytes = r.output_bytes
    step.key_number = r.key_number
    return step


def admit(state: BrokerState, task: Task, now: Now, *, is_stored: bool) -> None:
    """Put a task in memory and continue its timers, its back-offs and the deliveries that workers may still hold."""
    state.tasks[task.id] = task
    state.resident_bytes += task.resident_bytes
    if is_stored:
        task.dirty = True
        state.outbox.mark(task)  # a task in memory is not marked as stored
    if task.state is TaskState.PENDING:
        state.record(task, facts.Activated(now.wall))
    if task.deadline_ms is not None:
        state.timers.set(now.mono + max(0, task.deadline_ms - now.wall), TaskDeadline(task, task.deadline_ms))
    for step in task.steps:
        state.steps[step.id] = step
        if step.state is READY:
            start(state, step, now)
        elif step.state is RETRY_WAIT:
            await_retry(state, step, now)
        elif step.state is DISPATCHED:
            assert step.worker is not None
            if step.at_level0:
                level0.recover(state, step, now)
            elif died_with(step.worker, state.identity.broker, state.identity.epoch):
                lost(state, step, now, suspicious=False)
                watch_deadline(state, step, now)
            else:
                state.recovered.setdefault(step.worker, {})[step.id] = step
                step.cancel = "task_cancelled" if task.cancelling else None
                session = state.sessions.get(step.worker)
                if session is not None:
                    ask_soon(state, session)
            if step.definition.queue_timeout_ms is not None and step.ready_ms is not None:
                due_ms = step.ready_ms + step.definition.queue_timeout_ms - now.wall
                state.timers.set(now.mono + max(0, due_ms), QueueLimit(step, step.ready_ms))
        elif step.state is WAITING and step.waits == 0 and step.definition.depends_on:
            decide_again(state, step, now)
        if step.state in (RETRY_WAIT, DISPATCHED):
            watch_deadline(state, step, now)
    if state.recovered and state.safe_due_mono is None:
        state.await_safety(now.mono)


def admit_final(state: BrokerState, task: Task) -> None:
    """Put a task that has ended in memory for a command that may reopen it. `leave_if_final` removes it otherwise."""
    state.tasks[task.id] = task
    state.resident_bytes += task.resident_bytes
    for step in task.steps:
        state.steps[step.id] = step


def leave_if_final(state: BrokerState, task: Task) -> None:
    """Remove a task that has ended and has nothing to write: a command loaded it and did not reopen it."""
    lane = state.outbox.lanes[task.lane]
    if task.state in TASK_FINAL and task.steps and task.id not in lane.dirty and task not in lane.in_flight:
        state.drop(task)


# -- by name ----------------------------------------------------------------------------------------------------------


def load_for(state: BrokerState, task_id: int, command: Command) -> None:
    """Load the task that a command names, then handle the command again."""
    request = state.next_read()
    state.loads[request] = CommandLoad(command)
    state.decision.reads.append(LoadById(request, [task_id]))


def not_found(command: Any) -> CommandRefused:
    if isinstance(command, ResolveStep):
        return CommandRefused("not_found", f"there is no step {command.step_id}", Hint(HintCode.LIST_HELD_STEPS))
    if isinstance(command, ReportResult):
        return CommandRefused("not_found", f"there is no step {command.step_id}")
    return CommandRefused("not_found", f"there is no task {command.task_id}", Hint(HintCode.LIST_TASKS))
