"""Loading and eviction: which tasks are in memory, and which only in the database.

Stored tasks are loaded in pages, by priority and age over all namespaces, when there is room and a worker offers the
handlers that they wait for. Payloads too large to stay in memory are fetched for the one dispatch that needs them.
Tasks that wait for something far off leave memory when other tasks could run.
"""

from itertools import islice
from typing import Any, Final

import msgspec

from stepwire_broker.core import takers
from stepwire_broker.core.commit.decision import LoadById, LoadPage
from stepwire_broker.core.commit.loads import CommandLoad, PageLoad
from stepwire_broker.core.commit.outbox import NEVER_MS, resting_place
from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads, StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.dispatch.payloads import fetch_payloads
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.intake.commands import ResolveStep
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.answers import CommandRefused
from stepwire_broker.core.model.apply import counted
from stepwire_broker.core.model.commit_group import Parked
from stepwire_broker.core.model.events import Command, Now
from stepwire_broker.core.model.hints import Hint, HintCode
from stepwire_broker.core.model.live import Delivery, Step, Task
from stepwire_broker.core.model.states import (
    COMPLETED,
    DISPATCHED,
    HELD,
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
from stepwire_broker.core.progress.readiness import await_retry, enqueue, start, watch_deadline
from stepwire_broker.core.progress.step_outcomes import fail_for
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import PageDue, QueueLimit, RecoverySafe, TaskDeadline
from stepwire_broker.core.workers import level0
from stepwire_broker.core.workers.holding import ask_soon
from stepwire_broker.core.workers.loss import lost

PAGE_TASKS: Final = 1_000
PAGE_PAUSE_MS: Final = 1_000  # before the next read when a page was empty
EVICT_TASKS: Final = 2_000  # examined in one pass
SWEEP_AFTER: Final = 10_000
FAR_OFF_MS: Final = 5_000  # a task that waits longer than this may wait in the database
BUDGET_REST_MS: Final = 30_000  # how long a retry that its handler's budget delays waits in the database

_earlier: Final = msgspec.json.Decoder(list[Delivery]).decode


# -- loading ----------------------------------------------------------------------------------------------------------


def keep_loading(state: BrokerState, now: Now) -> None:
    """Read the next page if there is room and stored tasks may exist."""
    if state.page_asked is not None or state.unloaded <= 0 or state.draining or now.mono < state.page_after_mono:
        return
    room = _room(state)
    if room <= 0 or _is_full(state):
        state.waits_for_room = True
        _make_room(state, now)
        _read_later(state, now)
        return
    request = state.next_read()
    state.page_asked = request
    wants = [
        w
        for w in sorted(state.wants)
        if takers.is_offered(state, w) and not allowance.is_shut(state, w, FAR_OFF_MS, now)
    ]
    state.loads[request] = PageLoad()
    state.decision.reads.append(LoadPage(request, min(PAGE_TASKS, room), wants))


def _room(state: BrokerState) -> int:
    return state.settings.limits.max_active_tasks - len(state.tasks) - state.reserved_tasks


def _is_full(state: BrokerState) -> bool:
    """Do the payloads in memory exceed their limit?"""
    return state.resident_bytes > state.settings.limits.active_bytes


def _read_later(state: BrokerState, now: Now) -> None:
    state.page_after_mono = now.mono + PAGE_PAUSE_MS
    state.timers.set(state.page_after_mono, PageDue())


def on_page(state: BrokerState, loaded: Loaded, gone: set[int], now: Now) -> None:
    state.page_asked = None
    state.wants.update(loaded.wants)
    taken = insert(state, loaded, gone, now)
    state.unloaded = max(0, state.unloaded - taken)
    if not loaded.tasks:
        _read_later(state, now)


def insert(state: BrokerState, loaded: Loaded, gone: set[int], now: Now) -> int:
    """Put tasks from the database in memory. The transaction of their next change makes this broker their owner."""
    steps = iter(loaded.steps)
    taken = 0
    undecided = {task_id for submission in state.undecided.values() for task_id in submission.ids}
    for row in loaded.tasks:
        workflow = workflow_of(state, row)
        rows = [next(steps) for _ in workflow.steps]
        if row.id in state.tasks or row.id in gone or TaskState(row.state) in TASK_FINAL:
            if row.finished_ms is not None and state.rejected.pop(row.id, None) is not None:
                taken += 1
            continue
        if row.id in undecided:
            continue  # the read saw a commit whose outcome has not arrived yet
        task = restored(state, row, rows)
        refused = state.rejected.pop(row.id, None)
        if refused is not None:
            state.open_steps += task.open
        admit(state, task, now)
        taken += 1
        if refused is not None:
            _blame(state, task, *refused, now)
    return taken


def _blame(state: BrokerState, task: Task, culprits: frozenset[int], error: str, now: Now) -> None:
    """Fail the steps whose outcome the database refused to store.

    Such a task was loaded again as it was before, whichever read loaded it.
    """
    for step in task.steps:
        if step.id in culprits and step.state not in STEP_FINAL and step.batch_id is not None:
            lane = state.outbox.touch(task.lane)
            body = facts.encode({"error": error})
            lane.parked.append(Parked(now.wall, task.id, step.id, "unstorable", "result", body))
            fail_for(state, step, "unstorable", now)


def workflow_of(state: BrokerState, row: StoredTask) -> Workflow:
    """The workflow of a stored task. Raises KeyError for a workflow that this broker has not read."""
    return state.workflows[row.workflow_id]


def restored(state: BrokerState, row: StoredTask, rows: list[StoredStep]) -> Task:
    """Build the live form of stored rows."""
    workflow = workflow_of(state, row)
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
        step.error = None if r.error is None else r.error.encode()
        step.reason = r.reason
        step.earlier = None if r.earlier is None else _earlier(r.earlier)
        step.handle = r.handle
        step.output = None if r.output is None else r.output.encode()
        step.output_bytes = r.output_bytes
    step.key_number = r.key_number
    return step


def admit(state: BrokerState, task: Task, now: Now) -> None:
    """Put a task in memory and continue its timers, its back-offs and the deliveries that workers may still hold."""
    state.tasks[task.id] = task
    state.resident_bytes += task.resident_bytes
    task.dirty = True
    state.outbox.mark(task)  # the transaction of its first change makes this epoch its owner
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
    if state.recovered and not state.safe_is_due:
        state.safe_is_due = True
        state.timers.set(now.mono, RecoverySafe())


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
    return CommandRefused("not_found", f"there is no task {command.task_id}", Hint(HintCode.LIST_TASKS))


# -- payloads ---------------------------------------------------------------------------------------------------------


def on_payloads(state: BrokerState, payloads: Payloads, steps: list[Step], now: Now) -> None:
    for step in steps:
        if not step.task.steps or step.state not in (READY, WAITING) or step.waits:
            continue
        step.payload_context = payloads.contexts.get(step.task.id)
        fetched = {}
        for index in step.definition.depends_on:
            before = step.task.steps[index]
            if before.state is COMPLETED:
                output = before.output if before.output is not None else payloads.outputs.get(before.id)
                if output is not None:
                    fetched[index] = output
        step.fetched_outputs = fetched
        if step.state is READY:
            enqueue(state, step)
        else:
            decide_again(state, step, now)


def fetch_for_rules(state: BrokerState) -> None:
    """Read the payloads that rules compare and that are too large to stay in memory."""
    steps, state.undecided_steps = state.undecided_steps, []
    fetch_payloads(state, steps)


def let_go_of_large(state: BrokerState) -> None:
    """Remove large payloads from memory: they stayed only until they were durable."""
    keep = []
    for lane, seq, step in state.large:
        if lane.committed < seq:
            keep.append((lane, seq, step))
        elif step.output is not None and step.state is COMPLETED and step.task.steps:
            state.hold_bytes(step.task, -len(step.output))
            step.output = None
    state.large = keep
    keep_contexts = []
    for lane, seq, task in state.large_contexts:
        if lane.committed < seq:
            keep_contexts.append((lane, seq, task))
        elif task.context is not None and task.steps:
            state.hold_bytes(task, -len(task.context))
            task.context = None
    state.large_contexts = keep_contexts


# -- dropping ---------------------------------------------------------------------------------------------------------


def settle(state: BrokerState, wrote: list[Task], dirty: dict[int, Task]) -> None:
    """Remove tasks whose writes are durable and that have ended or are being evicted."""
    for task in wrote:
        if task.id in dirty or not task.steps:
            continue
        if task.state in TASK_FINAL:
            state.remember_ended(task)
            state.drop(task)
        elif task.evicting:
            _, wants = resting_place(task)
            if wants is not None:
                state.wants.add(wants)
            state.unloaded += 1
            state.evicted += 1
            state.drop(task)
    worth_a_read = max(1, min(PAGE_TASKS, state.settings.limits.max_active_tasks // 8))
    if state.waits_for_room and _room(state) >= worth_a_read and not _is_full(state):
        state.waits_for_room = False
        state.page_after_mono = 0
    if state.evicted > SWEEP_AFTER:
        state.evicted = 0
        state.ready.sweep()


def _make_room(state: BrokerState, now: Now) -> None:
    """Evict tasks that wait for something far off, so that they do not starve tasks that could run."""
    examined = list(islice(state.tasks.values(), state.evict_from, state.evict_from + EVICT_TASKS))
    for task in examined:
        if not task.evicting and _is_idle(state, task, now):
            for step in task.steps:
                is_late = step.state is READY and allowance.waits_for_budget(state, step, now)
                step.rests_until_ms = now.wall + BUDGET_REST_MS if is_late else None
            task.evicting = True
            task.dirty = True
            state.outbox.mark(task)
    state.evict_from = state.evict_from + EVICT_TASKS if len(examined) == EVICT_TASKS else 0


def _is_idle(state: BrokerState, task: Task, now: Now) -> bool:
    if task.dirty or task.facts or task.state in TASK_FINAL or task.dispatched or task.id in state.waiters:
        return False
    for step in task.steps:
        if step.state in STEP_FINAL or step.state is HELD or (step.state is WAITING and step.waits):
            continue
        if step.state is RETRY_WAIT and (step.not_before_ms or 0) - now.wall > FAR_OFF_MS:
            continue
        if step.state is READY and (
            task.state is TaskState.PAUSED
            or not takers.can_be_taken(state, state.route_of(step))
            or allowance.is_shut(state, step.definition.handler_class, FAR_OFF_MS, now)
            or allowance.waits_for_budget(state, step, now)
        ):
            continue
        return False
    wake_ms, _ = resting_place(task)
    return wake_ms is None or wake_ms == NEVER_MS or wake_ms - now.wall > FAR_OFF_MS
