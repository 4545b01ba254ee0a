"""What clients bring: workflows and tasks. Checked against the limits, stored whole or not at all, live at once.

Who wins an idempotency key is decided by the insert, in the transaction that stores the task. Until that is known a
task with a key is in nobody's memory but here, and nothing of it is dispatched; a task without a key goes on at once,
its first dispatch in the same transaction. So does a task that comes alone to an idle lane: nearly every key is new,
and whoever waits for it waits for one commit less. If its key is an old one, what was decided of it is taken back
before anything of it has left.
"""

from typing import Final

from msgspec import Struct

from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.answers import Applied, CommandRefused, RefusedCode, TasksSubmitted
from stepwire_broker.core.model.commit_group import (
    HistoryRow,
    Key,
    StepNew,
    Submission,
    SubmissionOutcome,
    TaskNew,
    WorkflowNew,
    WorkflowOutcome,
)
from stepwire_broker.core.model.events import ActivateWorkflow, ApplyWorkflow, NewTask, Now, SubmitTasks
from stepwire_broker.core.model.hints import Hint, HintCode
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import READY, WAITING, StepState, TaskState
from stepwire_broker.core.progress.progress import discard, enqueue, watch_deadline
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import QueueLimit, TaskDeadline

ID_BLOCK: Final = 1 << 20
RETRY_SOON_MS: Final = 200
RETRY_LATER_MS: Final = 1_000

_STALLED: Final[dict[str, str]] = {
    "database_locked": "another process holds the database",
    "disk_full": "the disk is full",
    "database_read_only": "the database cannot be written",
    "database_unavailable": "the database does not answer",
}


class Undecided(Struct):
    """A submission whose insert is not committed."""

    request: int
    tasks: list[Task]  # those that go into memory if they win
    stored_only: list[tuple[int, int, str | None]]  # task id, steps, wants: the active set had no room
    ids: list[int]
    admitted: bool  # those tasks are in memory already: the insert is expected to succeed
    at: Now


def intake_refused(state: BrokerState) -> CommandRefused | None:
    """May anything new be accepted now?"""
    if state.draining:
        return CommandRefused(
            "draining",
            "this broker is stopping and accepts nothing new",
            Hint(HintCode.WAIT_FOR_BROKER),
            RETRY_LATER_MS,
        )
    if state.stalled is not None:
        code: RefusedCode = state.stalled  # type: ignore[assignment]
        return CommandRefused(
            code,
            f"nothing can be stored now: {_STALLED.get(state.stalled, state.stalled)}",
            Hint(HintCode.WAIT_FOR_DATABASE),
            RETRY_LATER_MS,
        )
    if state.outbox.bytes_waiting > state.settings.limits.uncommitted_bytes // 2:
        return CommandRefused("overloaded", "the database is behind", Hint(HintCode.SEND_AGAIN), RETRY_SOON_MS)
    return None


def on_submit(state: BrokerState, event: SubmitTasks, now: Now) -> None:
    refused = intake_refused(state)
    workflows: list[Workflow] = []
    steps = 0
    if refused is None:
        for number, new in enumerate(event.tasks):
            workflow = _workflow_of(state, new)
            if workflow is None:
                refused = _no_such_workflow(new, number, len(event.tasks))
                break
            if not state.router.has_distributed and (missing := state.router.refusal(workflow)) is not None:
                refused = no_executor(workflow, missing)
                break
            workflows.append(workflow)
            steps += len(workflow.steps)
    if refused is None and state.open_steps + steps > state.settings.limits.max_open_steps:
        refused = CommandRefused(
            "too_many_open_steps",
            f"{state.open_steps} steps are open and {steps} would come; the limit is "
            f"{state.settings.limits.max_open_steps}",
            Hint(HintCode.WAIT_FOR_OPEN_STEPS),
            RETRY_LATER_MS,
        )
    numbers = steps + len(event.tasks)
    keep_numbers(state, numbers)
    if refused is None and state.next_id + numbers - 1 > state.last_id:
        refused = CommandRefused(
            "overloaded", "new numbers are being reserved", Hint(HintCode.SEND_AGAIN), RETRY_SOON_MS
        )
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    _store(state, event, workflows, now)


def keep_numbers(state: BrokerState, numbers: int) -> None:
    """Ask for the next block of ids before this one is used up."""
    if not state.ids_asked and state.last_id - state.next_id - numbers < ID_BLOCK // 2:
        state.ids_asked = True
        state.outbox.touch(min(state.outbox.lanes)).reserve_ids = max(ID_BLOCK, 2 * numbers)


def _workflow_of(state: BrokerState, new: NewTask) -> Workflow | None:
    if new.version is None:
        return state.active.get((new.namespace, new.workflow))
    return state.versions.get((new.namespace, new.workflow, new.version))


def _no_such_workflow(new: NewTask, number: int, count: int) -> CommandRefused:
    version = f" version {new.version}" if new.version is not None else ""
    where = f"tasks[{number}]: " if count > 1 else ""
    return CommandRefused(
        "not_found",
        f"{where}there is no workflow {new.namespace}/{new.workflow}{version}",
        Hint(HintCode.APPLY_WORKFLOW),
    )


def no_executor(workflow: Workflow, missing: str) -> CommandRefused:
    return CommandRefused(
        "no_executor",
        f"{workflow.namespace}/{workflow.name}: {missing}",
        Hint(HintCode.CONFIGURE_EXECUTOR),
    )


def _store(state: BrokerState, event: SubmitTasks, workflows: list[Workflow], now: Now) -> None:
    limits = state.settings.limits
    owner = state.outbox.owner
    submission = Submission(event.request, [], [], [], [])
    number = state.lane_of_next()
    lane = state.outbox.lanes[number]
    is_alone = len(event.tasks) == 1 and lane.is_idle and not lane.is_open
    at_once = is_alone or not any(new.key is not None for new in event.tasks)
    undecided = Undecided(event.request, [], [], [], at_once, now)
    state.outbox.touch(number)
    room = limits.max_active_tasks - len(state.tasks) - state.reserved_tasks
    if state.unloaded or state.resident_bytes > limits.active_bytes:
        # Who came before and is not loaded yet has the better right to memory.
        room = 0
    opening: list[list[facts.Fact]] = []
    uid = event.entropy
    next_id = state.next_id
    wall = now.wall
    for new, workflow in zip(event.tasks, workflows, strict=True):
        task_id = next_id
        first_step_id = task_id + 1
        next_id = first_step_id + len(workflow.steps)
        uid_text = f"{uid & _UID_MASK:032x}"
        uid += 1
        fits = len(undecided.tasks) < room
        deadline_ms = new.deadline_ms if new.deadline_ms is not None else workflow.deadline_ms
        deadline_at = None if deadline_ms is None else wall + deadline_ms
        task_state = TaskState.RUNNING if fits else TaskState.PENDING
        roots = workflow.roots
        wants = None if fits else workflow.steps[roots[0]].handler_class
        submission.tasks.append(
            TaskNew(
                id=task_id,
                uid=uid_text,
                workflow_id=workflow.id,
                lane=number,
                namespace=workflow.namespace,
                key=new.key,
                state=task_state,
                attention=None,
                cancelling=False,
                priority=new.priority,
                labels=new.labels,
                context=new.context,
                context_bytes=len(new.context),
                created_ms=wall,
                finished_ms=None,
                deadline_ms=deadline_at,
                owner=owner.broker,
                owner_epoch=owner.epoch if fits else 0,
                wake_ms=deadline_at if not fits else None,
                wants=wants,
            )
        )
        submission.steps.extend(
            [
                StepNew(
                    first_step_id + d.index,
                    task_id,
                    d.index,
                    d.name,
                    d.handler_class,
                    _WAITING if d.depends_on else _READY,
                    None if d.depends_on else wall,
                )
                for d in workflow.steps
            ]
        )
        if new.key is not None:
            submission.keys.append(Key(new.namespace, new.key, new.digest, task_id))
        first = [facts.Submitted(wall, workflow.id, uid_text, task_state, first_step_id), *_readied(workflow, wall)]
        if fits and at_once:
            opening.append(first)
        else:
            submission.history.append(HistoryRow(task_id, wall, facts.encode(first)))
        lane.bytes += len(new.context) + _ROW_BYTES * (1 + len(workflow.steps))
        undecided.ids.append(task_id)
        if fits:
            task = _live(new, workflow, task_id, first_step_id, uid_text, number, deadline_at, now)
            undecided.tasks.append(task)
        else:
            undecided.stored_only.append((task_id, len(workflow.steps), wants))
    state.next_id = next_id
    state.open_steps += next_id - undecided.ids[0] - len(undecided.ids)
    state.reserved_tasks += len(undecided.tasks)
    lane.submissions.append(submission)
    state.undecided[event.request] = undecided
    if at_once:
        for task, first in zip(undecided.tasks, opening, strict=True):
            task.facts = first
            state.outbox.mark(task)
            _admit(state, task, now)


_UID_MASK: Final = 2**128 - 1
_ROW_BYTES: Final = 200  # about what a new row holds in memory until it is written
_WAITING: Final = str(WAITING)
_READY: Final = str(READY)


def _readied(workflow: Workflow, wall: int) -> list[facts.Fact]:
    return [facts.Readied(wall, index) for index in workflow.roots]


def _live(
    new: NewTask,
    workflow: Workflow,
    task_id: int,
    first_step_id: int,
    uid: str,
    lane: int,
    deadline_at: int | None,
    now: Now,
) -> Task:
    task = Task(
        id=task_id,
        uid=uid,
        workflow=workflow,
        lane=lane,
        namespace=workflow.namespace,
        key=new.key,
        state=TaskState.RUNNING,
        priority=new.priority,
        context=new.context,
        context_bytes=len(new.context),
        created_ms=now.wall,
        labels=new.labels,
        deadline_ms=deadline_at,
        resident_bytes=len(new.context),
    )
    ready: StepState = READY
    task.steps = [
        Step(first_step_id + d.index, task, d.index, d, WAITING, waits=len(d.depends_on))
        if d.depends_on
        else Step(first_step_id + d.index, task, d.index, d, ready, ready_ms=now.wall)
        for d in workflow.steps
    ]
    task.open = len(task.steps)
    task.moving = len(workflow.roots)
    return task


def _admit(state: BrokerState, task: Task, now: Now) -> None:
    """It is in memory from here on, and its first steps may be dispatched."""
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


def start(state: BrokerState, step: Step, now: Now) -> None:
    """A step that is stored as ready: its timers, and its place in the queue."""
    definition = step.definition
    if definition.deadline_ms is not None and step.deadline_ms is None and step.ready_ms is not None:
        step.deadline_ms = step.ready_ms + definition.deadline_ms
    watch_deadline(state, step, now)
    if definition.queue_timeout_ms is not None and step.ready_ms is not None:
        due = now.mono + step.ready_ms + definition.queue_timeout_ms - now.wall
        state.timers.set(due, QueueLimit(step, step.ready_ms))
    enqueue(state, step)


def on_decided(state: BrokerState, outcome: SubmissionOutcome, now: Now) -> None:
    """The insert is committed, or was refused: who has which key is known now."""
    undecided: Undecided = state.undecided.pop(outcome.request)
    state.reserved_tasks -= len(undecided.tasks)
    if outcome.conflict is not None or outcome.failed is not None:
        _take_back(state, undecided, now)
        if outcome.conflict is not None:
            refused = CommandRefused(
                "key_conflict",
                f"the idempotency key {outcome.conflict!r} belongs to another submission",
                Hint(HintCode.USE_NEW_KEY),
            )
        else:
            refused = CommandRefused("refused_by_database", f"the database refused the data: {outcome.failed}")
        state.refuse_now(outcome.request, refused)
        return
    for task in undecided.tasks:
        if task.id in outcome.existing:
            _take_back_task(state, task, undecided.admitted, now)
        elif not undecided.admitted:
            # Its times count from the submission, whatever was done to the wall clock while it was committed.
            _admit(state, task, undecided.at)
    state.counters.submitted += len(undecided.ids) - len(outcome.existing)
    for task_id, steps, wants in undecided.stored_only:
        if task_id in outcome.existing:
            state.open_steps -= steps
        else:
            state.unloaded += 1
            if wants is not None:
                state.wants.add(wants)
    existing = outcome.existing
    state.answer(
        outcome.request,
        TasksSubmitted(
            [existing.get(task_id, task_id) for task_id in undecided.ids],
            [task_id not in existing for task_id in undecided.ids],
        ),
    )


def _take_back(state: BrokerState, undecided: Undecided, now: Now) -> None:
    for task in undecided.tasks:
        _take_back_task(state, task, undecided.admitted, now)
    for _, steps, _ in undecided.stored_only:
        state.open_steps -= steps


def _take_back_task(state: BrokerState, task: Task, admitted: bool, now: Now) -> None:
    if admitted:
        discard(state, task, now)
    else:
        state.open_steps -= len(task.steps)


# -- workflows --------------------------------------------------------------------------------------------------------


def on_apply(state: BrokerState, event: ApplyWorkflow, now: Now) -> None:
    refused = intake_refused(state)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    workflow = event.workflow
    lane = state.outbox.touch(min(state.outbox.lanes))
    lane.workflows.append(
        WorkflowNew(
            event.request,
            workflow.namespace,
            workflow.name,
            workflow.version,
            workflow.digest,
            workflow.document,
            now.wall,
            event.activate,
        )
    )
    lane.bytes += len(workflow.document)
    state.undecided_workflows[event.request] = event


def on_applied(state: BrokerState, outcome: WorkflowOutcome, now: Now) -> None:
    event = state.undecided_workflows.pop(outcome.request)
    workflow = event.workflow
    if outcome.failed is not None:
        state.refuse_now(
            outcome.request,
            CommandRefused("refused_by_database", f"the database refused the definition: {outcome.failed}"),
        )
        return
    if outcome.conflict:
        state.refuse_now(
            outcome.request,
            CommandRefused(
                "version_conflict",
                f"{workflow.namespace}::{workflow.name} version {workflow.version} exists with other content",
                Hint(HintCode.USE_NEW_VERSION),
            ),
        )
        return
    # Applying a version that is there changes nothing, also not which version is active.
    know(state, workflow.with_id(outcome.workflow_id), event.activate and outcome.created)
    state.answer(
        outcome.request,
        Applied(outcome.workflow_id, workflow.namespace, workflow.name, workflow.version, outcome.created),
    )


def know(state: BrokerState, workflow: Workflow, active: bool) -> None:
    """This workflow can be run from here on."""
    known = state.workflows.setdefault(workflow.id, workflow)
    state.versions[(workflow.namespace, workflow.name, workflow.version)] = known
    if active:
        state.active[(workflow.namespace, workflow.name)] = known


def on_activate(state: BrokerState, event: ActivateWorkflow, now: Now) -> None:
    workflow = state.versions.get((event.namespace, event.name, event.version))
    refused = intake_refused(state)
    if refused is None and workflow is None:
        refused = CommandRefused(
            "not_found", f"there is no workflow {event.namespace}/{event.name} version {event.version}"
        )
    if refused is not None or workflow is None:
        state.refuse_now(event.request, refused or CommandRefused("not_found", "no such workflow"))
        return
    state.outbox.touch(min(state.outbox.lanes)).activations.append((event.request, workflow.id))
    know(state, workflow, active=True)
    state.answer(event.request, Applied(workflow.id, workflow.namespace, workflow.name, workflow.version, False))
