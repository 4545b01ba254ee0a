"""Submissions of tasks and workflows: checked against the limits, and stored whole or not at all.

The insert, in the transaction that stores the task, decides which task owns an idempotency key. Until then a task with
a key is only in this module's memory, and none of its steps is dispatched. A task without a key begins at once: its
first dispatch is in the same transaction. A single task on an idle lane also begins at once, because nearly every key
is new and the client then waits for one commit less. If the key belongs to an earlier task, every decision for the
new task is undone before any message about it is sent.
"""

from typing import Final

from msgspec import Struct

from stepwire_broker.core.answers.answers import CommandRefused, TasksSubmitted
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.commit_group import HistoryRow, Key, Submission, SubmissionOutcome
from stepwire_broker.core.model.events import NewTask, Now, SubmitTasks
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.progress.discard import discard
from stepwire_broker.core.progress.new_task import CreatedTask, TaskIds, begin, new_task
from stepwire_broker.core.progress.stored_tasks import note_stored, room_for_new, without_worker
from stepwire_broker.core.state import BrokerState

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
    """A submission whose insert is not committed yet."""

    request: int
    tasks: list[Task]  # the tasks that go into memory if they own their keys
    stored_only: list[tuple[int, int, str | None]]  # task id, number of steps, wants: memory has no space for them
    ids: list[int]
    admitted: bool  # the tasks are in memory already, because the insert is expected to succeed
    at: Now


def intake_refused(state: BrokerState) -> CommandRefused | None:
    """Refuse new work while the broker stops, the database cannot store it, or too many writes wait."""
    if state.draining:
        return CommandRefused(
            "draining",
            "the broker is stopping and accepts nothing new",
            Hint(HintCode.WAIT_FOR_BROKER),
            RETRY_LATER_MS,
        )
    if state.stalled is not None:
        return CommandRefused(
            state.stalled,
            f"nothing can be stored now: {_STALLED[state.stalled]}",
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
            f"{state.open_steps} steps are open and this submission adds {steps}; the limit is "
            f"{state.settings.limits.max_open_steps}",
            Hint(HintCode.WAIT_FOR_OPEN_STEPS),
            RETRY_LATER_MS,
        )
    numbers = steps + len(event.tasks)
    reserve_numbers(state, numbers)
    if refused is None and state.next_id + numbers - 1 > state.last_id:
        refused = CommandRefused("overloaded", "new ids are being reserved", Hint(HintCode.SEND_AGAIN), RETRY_SOON_MS)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    _store(state, event, workflows, now)


def reserve_numbers(state: BrokerState, numbers: int) -> None:
    """Reserve the next block of ids before the current block is used up."""
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
    """Build the tasks and put their rows in the next transaction of one lane."""
    lane_id = state.lane_of_next()
    lane = state.outbox.lanes[lane_id]
    is_alone = len(event.tasks) == 1 and lane.is_idle and not lane.is_open
    at_once = is_alone or not any(new.key is not None for new in event.tasks)
    submission = Submission(event.request, [], [], [], [])
    undecided = Undecided(event.request, [], [], [], at_once, now)
    state.outbox.touch(lane_id)
    room = room_for_new(state)
    room_for_idle = room - state.settings.limits.max_active_tasks // 2
    idle = without_worker(state, workflows) if room_for_idle < len(workflows) else frozenset()
    uid = event.entropy
    for new, workflow in zip(event.tasks, workflows, strict=True):
        ids = _next_ids(state, workflow, uid, lane_id)
        uid += 1
        created = new_task(
            workflow,
            new.context,
            key=new.key,
            priority=new.priority,
            labels=new.labels,
            deadline_ms=new.deadline_ms,
            ids=ids,
            owner=state.outbox.owner,
            in_memory=len(undecided.tasks) < (room_for_idle if workflow.id in idle else room),
            now=now,
        )
        if new.key is not None:
            submission.keys.append(Key(new.namespace, new.key, new.digest, ids.task))
        _add(submission, undecided, created, now)
        lane.bytes += len(new.context) + _ROW_BYTES * (1 + len(created.steps))
        state.open_steps += len(created.steps)
    state.reserved_tasks += len(undecided.tasks)
    lane.submissions.append(submission)
    state.undecided[event.request] = undecided
    if at_once:
        for task in undecided.tasks:
            state.outbox.mark(task)
            begin(state, task, now)


_ROW_BYTES: Final = 200  # estimated size of a new row in memory until it is written


def _next_ids(state: BrokerState, workflow: Workflow, uid: int, lane_id: int) -> TaskIds:
    ids = TaskIds(state.next_id, state.next_id + 1, f"{uid & _UID_MASK:032x}", lane_id)
    state.next_id = ids.first_step + len(workflow.steps)
    return ids


_UID_MASK: Final = 2**128 - 1


def _add(submission: Submission, undecided: Undecided, created: CreatedTask, now: Now) -> None:
    """Add a task to its submission. The outbox writes the first facts of a task that begins at once."""
    row, task = created.row, created.live
    submission.tasks.append(row)
    submission.steps.extend(created.steps)
    undecided.ids.append(row.id)
    if task is None:
        undecided.stored_only.append((row.id, len(created.steps), row.wants))
    else:
        undecided.tasks.append(task)
    if task is not None and undecided.admitted:
        task.facts = created.facts
    else:
        submission.history.append(HistoryRow(row.id, now.wall, facts.encode(created.facts)))


def on_decided(state: BrokerState, outcome: SubmissionOutcome, now: Now) -> None:
    """Finish a submission whose insert was committed or refused: the owner of each key is known now."""
    undecided: Undecided = state.undecided.pop(outcome.request)
    state.reserved_tasks -= len(undecided.tasks)
    if outcome.conflict is not None or outcome.failed is not None:
        _undo(state, undecided, now)
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
            _undo_task(state, task, undecided.admitted, now)
        elif not undecided.admitted:
            # Times count from the submission, even if the wall clock was changed during the commit.
            begin(state, task, undecided.at)
    state.counters.submitted += len(undecided.ids) - len(outcome.existing)
    existing = outcome.existing
    for task_id, steps, _ in undecided.stored_only:
        if task_id in existing:
            state.open_steps -= steps
    note_stored(state, (wants for task_id, _, wants in undecided.stored_only if task_id not in existing))
    state.answer(
        outcome.request,
        TasksSubmitted(
            [existing.get(task_id, task_id) for task_id in undecided.ids],
            [task_id not in existing for task_id in undecided.ids],
        ),
    )


def _undo(state: BrokerState, undecided: Undecided, now: Now) -> None:
    for task in undecided.tasks:
        _undo_task(state, task, undecided.admitted, now)
    for _, steps, _ in undecided.stored_only:
        state.open_steps -= steps


def _undo_task(state: BrokerState, task: Task, admitted: bool, now: Now) -> None:
    if admitted:
        discard(state, task, now)
    else:
        state.open_steps -= len(task.steps)
