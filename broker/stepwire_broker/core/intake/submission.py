"""Submissions of tasks: checked against the limits, and finished when the owner of each idempotency key is known.

The insert, in the transaction that stores the task, decides which task owns a key. If the key belongs to an earlier
task, every decision for the new task is undone before any message about it is sent.
"""

from typing import Final

import msgspec

from stepwire_broker.core.answers.answers import CommandRefused, TasksSubmitted
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK, block_of
from stepwire_broker.core.commit.own_lane import OwnLane
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.membership.cluster_rows import ALL
from stepwire_broker.core.model.commit_group import KeyConflict, StallCode, SubmissionOutcome
from stepwire_broker.core.model.events import NewTask, Now, SubmitTasks
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.progress.discard import discard
from stepwire_broker.core.progress.new_task import begin
from stepwire_broker.core.progress.stored_tasks import note_stored
from stepwire_broker.core.state import BrokerState

from . import quotas, storing
from .storing import Undecided
from .unknown_workflow import unknown_workflow

IDS_RESERVED: Final = 1 << 14  # at a time: a broker that is killed skips at most as many in each lane
WAITING_ROW_BYTES: Final = 200  # estimated size of a task in memory that waits for its ids, without its context
BUILDING_MAX: Final = 8  # large submissions whose tasks are being built
RETRY_SOON_MS: Final = 200
RETRY_LATER_MS: Final = 1_000

_STALLED: Final[dict[StallCode, str]] = {
    "database_locked": "another process holds the database",
    "disk_full": "the disk is full",
    "database_read_only": "the database cannot be written",
    "database_unavailable": "the database does not answer",
}


def intake_refused(state: BrokerState) -> CommandRefused | None:
    """Refuse new work while the broker stops, the database cannot store it, or too many writes wait."""
    if state.draining:
        return CommandRefused(
            "draining",
            "the broker is stopping and accepts nothing new",
            Hint(HintCode.WAIT_FOR_BROKER),
            RETRY_LATER_MS,
        )
    if all(lane.release is not None for lane in state.lanes.values()):
        return no_lane()
    code = state.outbox.stalled
    if code is not None:
        return stalled(code)
    if len(state.building) >= BUILDING_MAX:
        return CommandRefused(
            "overloaded", "other large submissions are being stored", Hint(HintCode.SEND_AGAIN), RETRY_SOON_MS
        )
    if state.outbox.bytes_waiting > state.settings.limits.uncommitted_bytes // 2:
        return CommandRefused("overloaded", "the database is behind", Hint(HintCode.SEND_AGAIN), RETRY_SOON_MS)
    return None


def no_lane() -> CommandRefused:
    text = "the broker owns no lane of the database that takes new tasks"
    return CommandRefused("starting", text, Hint(HintCode.SEND_AGAIN), RETRY_LATER_MS)


def stalled(code: StallCode) -> CommandRefused:
    text = f"nothing can be stored now: {_STALLED[code]}"
    return CommandRefused(code, text, Hint(HintCode.WAIT_FOR_DATABASE), RETRY_LATER_MS)


def on_submit(state: BrokerState, event: SubmitTasks, now: Now) -> None:
    refused = intake_refused(state)
    workflows: list[Workflow] = []
    steps = 0
    if refused is None:
        for number, new in enumerate(event.tasks):
            workflow = _workflow_of(state, new)
            if workflow is None and state.catalogue.look_up(event, state):
                return
            if workflow is None:
                refused = _no_such_workflow(state, new, number, len(event.tasks))
                break
            if new.is_sealed != workflow.is_sealed:
                refused = _wrongly_sealed(workflow, number, len(event.tasks))
                break
            if not state.router.has_distributed and (missing := state.router.refusal(workflow)) is not None:
                refused = no_executor(workflow, missing)
                break
            workflows.append(workflow)
            steps += len(workflow.steps)
    if refused is None and len(workflows) > 1 and steps > state.settings.limits.steps_per_batch:
        refused = CommandRefused(
            "too_large",
            f"the {len(workflows)} tasks of this submission have {steps} steps; the limit of one submission is "
            f"{state.settings.limits.steps_per_batch}",
            Hint(HintCode.SPLIT_SUBMISSION),
        )
    open_steps = state.open_steps + state.open_elsewhere.get(ALL, 0)
    if refused is None and open_steps + steps > state.settings.limits.max_open_steps:
        refused = CommandRefused(
            "too_many_open_steps",
            f"{open_steps} steps are open and this submission adds {steps}; the limit is "
            f"{state.settings.limits.max_open_steps}",
            Hint(HintCode.WAIT_FOR_OPEN_STEPS),
            RETRY_LATER_MS,
        )
    if refused is None and state.quotas:
        refused = quotas.refusal(state, event.tasks, workflows, now)
    numbers = steps + len(event.tasks)
    lane = state.choose_lane(numbers) if state.lanes else None
    if lane is not None:
        reserve_numbers(state, lane, numbers)
        if refused is None and state.lanes[lane].ids.left < numbers:
            if _waits_for_numbers(state, event):
                return
            text = "new ids are being reserved"
            refused = CommandRefused("overloaded", text, Hint(HintCode.SEND_AGAIN), RETRY_SOON_MS)
    if lane is None or refused is not None:
        state.refuse_now(event.request, refused or no_lane())
        return
    quotas.pay(state, workflows, now)
    storing.store(state, event, workflows, lane, now)


def reserve_numbers(state: BrokerState, lane: int, numbers: int) -> None:
    """Reserve further ids of this lane before the reserved ones are used up."""
    own = state.lanes[lane]
    ids = own.ids
    if not ids.is_asked and not state.left and own.release is None and ids.left - 1 - numbers < IDS_RESERVED // 2:
        ids.is_asked = True
        state.outbox.touch(lane).reserve_ids = min(max(IDS_RESERVED, 2 * numbers), IDS_PER_BLOCK)


def _waits_for_numbers(state: BrokerState, event: SubmitTasks) -> bool:
    """Keep a submission until further ids are reserved, which takes one commit. False: too many bytes wait already, or
    no ids will come because the broker stops."""
    size = sum(len(new.context) + WAITING_ROW_BYTES for new in event.tasks)
    if state.left or state.submissions_waiting_bytes + size > state.settings.limits.uncommitted_bytes // 4:
        return False
    state.submissions_waiting.append(event)
    state.submissions_waiting_bytes += size
    return True


def on_numbers(state: BrokerState, lane: int, numbers: tuple[int, int], now: Now) -> None:
    """Use newly reserved ids, after those left in the same block. Then continue the submissions that waited for ids."""
    ids, (first, last) = state.lanes[lane].ids, numbers
    follows = first == ids.last + 1 and block_of(first) == block_of(ids.last)
    ids.next, ids.last, ids.is_asked = ids.next if follows else first, last, False
    state.blocks[block_of(first)] = lane
    waiting, state.submissions_waiting, state.submissions_waiting_bytes = state.submissions_waiting, [], 0
    for event in waiting:
        on_submit(state, event, now)


def return_numbers(state: BrokerState) -> None:
    """Return the unused ids at a planned stop: the next start then continues with the next id. If a reservation is on
    its way, other ids follow the unused ones, and nothing is returned."""
    state.left = True
    for lane in state.lanes.values():
        return_ids(state, lane)


def return_ids(state: BrokerState, lane: OwnLane) -> None:
    ids = lane.ids
    if not ids.is_asked and ids.left:
        state.outbox.touch(lane.number).unused_ids = (ids.next, ids.last)
    ids.next = ids.last + 1


def _workflow_of(state: BrokerState, new: NewTask) -> Workflow | None:
    if new.version is None:
        return state.active.get((new.namespace, new.workflow))
    return state.versions.get((new.namespace, new.workflow, new.version))


def _no_such_workflow(state: BrokerState, new: NewTask, number: int, count: int) -> CommandRefused:
    refused = unknown_workflow(new.namespace, new.workflow, new.version, state.versions)
    return refused if count == 1 else msgspec.structs.replace(refused, message=f"tasks[{number}]: {refused.message}")


def _wrongly_sealed(workflow: Workflow, number: int, count: int) -> CommandRefused:
    name = f"{workflow.namespace}::{workflow.name} {workflow.version}"
    if workflow.is_sealed:
        text = f"the payloads of {name} are sealed, and this context is not: seal it, as `task submit --seal` does"
    else:
        text = f"the context is sealed, and the payloads of {name} are not: its workflow needs `payloads: sealed`"
    return CommandRefused("invalid", text if count == 1 else f"tasks[{number}]: {text}")


def no_executor(workflow: Workflow, missing: str) -> CommandRefused:
    return CommandRefused(
        "no_executor",
        f"{workflow.namespace}::{workflow.name}: {missing}",
        Hint(HintCode.CONFIGURE_EXECUTOR),
    )


def on_decided(state: BrokerState, outcome: SubmissionOutcome, now: Now) -> None:
    """Finish a submission whose insert was committed or refused: the owner of each key is known now."""
    undecided: Undecided = state.undecided.pop(outcome.request)
    state.reserved_tasks -= len(undecided.tasks)
    if outcome.conflict is not None or outcome.failed is not None:
        _undo(state, undecided, now)
        if outcome.conflict is not None:
            refused = _key_conflict(outcome.conflict)
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
    for stored in undecided.stored_only:
        if stored.task_id in existing:
            state.count_open(undecided.lane, stored.namespace, -stored.steps)
    note_stored(
        state, undecided.lane, (stored.wants for stored in undecided.stored_only if stored.task_id not in existing)
    )
    state.answer(
        outcome.request,
        TasksSubmitted(
            [existing.get(task_id, task_id) for task_id in undecided.ids],
            [task_id not in existing for task_id in undecided.ids],
        ),
        lane=undecided.lane,
    )


def _key_conflict(conflict: KeyConflict) -> CommandRefused:
    message = (
        f"two tasks of this submission have the idempotency key {conflict.key!r} and different content"
        if conflict.task_id is None
        else f"the idempotency key {conflict.key!r} belongs to task {conflict.task_id}, which has other content"
    )
    return CommandRefused("key_conflict", message, Hint(HintCode.USE_NEW_KEY))


def _undo(state: BrokerState, undecided: Undecided, now: Now) -> None:
    for task in undecided.tasks:
        _undo_task(state, task, undecided.admitted, now)
    for stored in undecided.stored_only:
        state.count_open(undecided.lane, stored.namespace, -stored.steps)


def _undo_task(state: BrokerState, task: Task, admitted: bool, now: Now) -> None:
    if admitted:
        discard(state, task, now)
    else:
        state.count_open(task.lane, task.namespace, -len(task.steps))
