"""`apply(task, fact)`, the only function that changes a task."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from stepwire_broker.core.answers import erasing

from . import facts
from .commit_group import AttentionChanged
from .facts import Fact
from .live import (
    DIRTY_CHANGED,
    DIRTY_COMPLETED,
    DIRTY_DISPATCHED,
    DIRTY_OUTPUT,
    EARLIER_MAX,
    RESTORED,
    Delivery,
    Step,
    Task,
)
from .states import (
    COMPLETED,
    DISPATCHED,
    FAILED,
    HELD,
    READY,
    RETRY_WAIT,
    STEP_FINAL,
    STEP_TRANSITIONS,
    TASK_TRANSITIONS,
    StepState,
    TaskState,
)


def unlink(task: Task) -> None:
    """Break the reference cycle between a task and its steps: the garbage collector tracks neither."""
    task.steps = []


_MOVING: Final = frozenset({READY, DISPATCHED, RETRY_WAIT})
_ATTENTION: Final = frozenset({FAILED, HELD})


def apply(task: Task, fact: Fact) -> None:
    """Change the task by this fact. A transition that is not in the table is a broken invariant and raises."""
    kind: Any = type(fact)
    change = _STEP.get(kind)
    if change is None:
        _TASK[kind](task, fact)
        task.dirty = True
        return
    step = task.steps[fact.step]  # type: ignore[union-attr, index]
    move = _MOVES[kind][step.state]
    step.state = move.after
    was_dirty = step.dirty
    change(step, fact)
    if not was_dirty and step.dirty:
        task.dirty_steps.append(step)
    if move.moving:
        task.moving += move.moving
    if move.dispatched:
        task.dispatched += move.dispatched
    if move.open:
        task.open += move.open
    if move.has_attention:
        kind = str(move.after) if move.after in _ATTENTION else None
        _notice(task, AttentionChanged(step.id, task.id, kind, fact.at, step.definition.handler_class))


def _notice(task: Task, row: AttentionChanged) -> None:
    if task.attention_rows is None:
        task.attention_rows = {}
    task.attention_rows[row.id] = row


class _Move(Struct, frozen=True):
    """A transition and its effect on the counts of the task."""

    after: StepState
    moving: int
    dispatched: int
    open: int
    has_attention: bool  # before it or after it, the step needs an operator


_MOVES: Final[dict[type[Any], dict[StepState, _Move]]] = {
    kind: {
        before: _Move(
            after,
            (after in _MOVING) - (before in _MOVING),
            (after is DISPATCHED) - (before is DISPATCHED),
            (before in STEP_FINAL) - (after in STEP_FINAL),
            before in _ATTENTION or after in _ATTENTION,
        )
        for before, after in moves.items()
    }
    for kind, moves in STEP_TRANSITIONS.items()
}


def _left(step: Step) -> None:
    """Make the current delivery an earlier one. A late success of that delivery still completes the step."""
    assert step.batch_id is not None
    assert step.worker is not None
    delivery = Delivery(step.delivery, step.batch_id, step.worker, step.granted)
    step.earlier = [*(step.earlier or ())[1 - EARLIER_MAX :], delivery]
    step.batch_id = None
    step.granted = False
    step.dirty |= DIRTY_CHANGED


def _readied(step: Step, fact: facts.Readied) -> None:
    step.ready_ms = fact.at
    step.not_before_ms = None
    step.reason = None
    if step.deadline_ms is None and step.definition.deadline_ms is not None:
        step.deadline_ms = fact.at + step.definition.deadline_ms
    step.dirty |= DIRTY_CHANGED


def _dispatched(step: Step, fact: facts.Dispatched) -> None:
    step.delivery = fact.delivery
    step.batch_id = fact.batch_id
    step.worker = fact.worker
    step.dispatched_ms = fact.at
    step.started_ms = None
    step.run_ms = None
    step.reason = None
    if fact.delivery == 1 and step.deadline_ms is None and step.accept_from == 0:
        # The short dispatch row also holds every column that `readied` changed in the same group.
        step.dirty = (step.dirty & ~DIRTY_CHANGED) | DIRTY_DISPATCHED
    else:
        step.dirty |= DIRTY_CHANGED


def _granted(step: Step, fact: facts.Granted) -> None:
    step.granted = True
    step.dirty |= DIRTY_CHANGED


def _started(step: Step, fact: facts.Started) -> None:
    step.started_ms = fact.at
    step.dirty |= DIRTY_CHANGED


def _undelivered(step: Step, fact: facts.Undelivered) -> None:
    # `ready_ms` stays, so the step keeps its position in the queue.
    _left(step)
    step.reason = fact.code
    step.lost_sessions += fact.lost


def _completed(step: Step, fact: facts.Completed) -> None:
    step.output_bytes = fact.output_bytes
    step.finished_ms = fact.at
    step.run_ms = fact.run_ms
    step.batch_id = step.not_before_ms = step.reason = step.earlier = None
    if step.error is not None or step.granted:
        step.error = None
        step.dirty |= DIRTY_CHANGED
    step.dirty |= DIRTY_COMPLETED


def _backed_off(step: Step, fact: facts.BackedOff) -> None:
    _ran(step, fact)
    if step.batch_id is not None:
        _left(step)
    step.attempt += 1
    step.not_before_ms = fact.until
    step.reason = fact.code
    step.dirty |= DIRTY_CHANGED


def _failed(step: Step, fact: facts.Failed) -> None:
    _ran(step, fact)
    step.finished_ms = fact.at
    step.reason = fact.code
    step.batch_id = step.not_before_ms = step.earlier = None
    step.dirty |= DIRTY_CHANGED


def _held(step: Step, fact: facts.Held) -> None:
    # `batch_id` stays, because a result of this delivery can still end the step.
    _ran(step, fact)
    step.reason = fact.code
    step.dirty |= DIRTY_CHANGED


def _ran(step: Step, fact: facts.BackedOff | facts.Failed | facts.Held) -> None:
    """Record the duration of a run that failed, and its start if no heartbeat reported it: a short run has none."""
    if fact.run_ms is None:
        return
    step.run_ms = fact.run_ms
    if step.started_ms is None and step.dispatched_ms is not None:
        step.started_ms = max(step.dispatched_ms, fact.at - fact.run_ms)


def _restored(step: Step, fact: facts.Restored) -> None:
    step.reason = RESTORED
    step.not_before_ms = None
    step.dirty |= DIRTY_CHANGED


def _skipped(step: Step, fact: facts.Skipped) -> None:
    step.finished_ms = fact.at
    step.dirty |= DIRTY_CHANGED


def _step_cancelled(step: Step, fact: facts.StepCancelled) -> None:
    step.finished_ms = fact.at
    step.reason = fact.code
    step.batch_id = step.not_before_ms = step.earlier = None
    step.dirty |= DIRTY_CHANGED


def _reopened(step: Step, fact: facts.Reopened) -> None:
    step.attempt = 0
    step.lost_sessions = 0
    step.accept_from = step.delivery + 1
    step.batch_id = step.ready_ms = step.not_before_ms = step.finished_ms = step.started_ms = step.run_ms = None
    step.deadline_ms = step.deadline_mono = step.error = step.reason = step.earlier = None
    step.granted = step.ended_by_command = False
    step.key_number += fact.new_key
    step.output = None
    step.output_bytes = 0
    step.dirty |= DIRTY_CHANGED | DIRTY_OUTPUT


def _submitted(task: Task, fact: facts.Submitted) -> None:
    pass


def _moved(task: Task, fact: facts.TaskFact) -> None:
    after = TASK_TRANSITIONS[type(fact)][task.state]
    assert after is not None
    task.state = after
    if isinstance(fact, facts.TaskReopened):
        task.finished_ms = None
        task.cancelling = False


def _cancel_asked(task: Task, fact: facts.CancelAsked) -> None:
    task.cancelling = True


def _operated(task: Task, fact: facts.Operated) -> None:
    pass


def _noticed(task: Task, fact: facts.Noticed) -> None:
    task.attention = fact.attention
    kind = None if fact.attention is None else f"task_{fact.attention}"
    _notice(task, AttentionChanged(task.id, task.id, kind, fact.at, None))


def _erased(task: Task, fact: facts.Erased) -> None:
    """Replace the payloads in memory. The rows are replaced by the store, in the same transaction."""
    payload = erasing.marker(fact.at)
    task.key = None
    task.labels = task.context = payload
    task.context_bytes = len(payload)
    for step in task.steps:
        if step.output_bytes:
            step.output = payload
            step.output_bytes = len(payload)
        if step.error is not None:
            step.error = payload
        if step.reason is not None:
            step.reason = erasing.code(step.reason)


_BY_VALUE: Final[dict[str, TaskState]] = {state.value: state for state in TaskState}  # faster than TaskState(value)


def _ended(task: Task, fact: facts.TaskEnded) -> None:
    assert task.state in TASK_TRANSITIONS[facts.TaskEnded]
    task.state = _BY_VALUE[fact.state]
    task.finished_ms = fact.at


_STEP: Final[dict[type[Any], Callable[..., None]]] = {
    facts.Readied: _readied,
    facts.Dispatched: _dispatched,
    facts.Granted: _granted,
    facts.Started: _started,
    facts.Undelivered: _undelivered,
    facts.Completed: _completed,
    facts.BackedOff: _backed_off,
    facts.Failed: _failed,
    facts.Held: _held,
    facts.Restored: _restored,
    facts.Skipped: _skipped,
    facts.StepCancelled: _step_cancelled,
    facts.Reopened: _reopened,
}
_TASK: Final[dict[type[facts.TaskFact], Callable[..., None]]] = {
    facts.Submitted: _submitted,
    facts.Activated: _moved,
    facts.Paused: _moved,
    facts.Resumed: _moved,
    facts.CancelAsked: _cancel_asked,
    facts.TaskReopened: _moved,
    facts.Operated: _operated,
    facts.Noticed: _noticed,
    facts.Erased: _erased,
    facts.TaskEnded: _ended,
}


def counted(task: Task) -> None:
    """Set the counts of a task whose steps have just been read from the database."""
    task.open = sum(s.state not in STEP_FINAL for s in task.steps)
    task.moving = sum(s.state in _MOVING for s in task.steps)
    task.dispatched = sum(s.state is DISPATCHED for s in task.steps)
    for step in task.steps:
        step.waits = sum(task.steps[i].state not in STEP_FINAL for i in step.definition.depends_on)


def held(task: Task) -> int:
    return sum(s.state is HELD for s in task.steps)


def outputs(task: Task) -> dict[int, bytes]:
    """Return the outputs in memory of the task's completed steps, by position."""
    return {s.definition.index: s.output for s in task.steps if s.state is COMPLETED and s.output is not None}
