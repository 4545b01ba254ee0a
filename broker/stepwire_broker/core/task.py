"""Live tasks and their steps, and the one way they change: `apply(task, fact)`.

These objects are the core's own, changed in place. They are not tracked by the cyclic collector (a large heap would
stop the loop for hundreds of milliseconds), so whoever drops a task calls `unlink`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from . import facts
from .facts import Fact
from .states import (
    COMPLETED,
    DISPATCHED,
    HELD,
    READY,
    RETRY_WAIT,
    STEP_FINAL,
    STEP_TRANSITIONS,
    TASK_TRANSITIONS,
    WAITING,
    StepState,
    TaskState,
)
from .workflow import StepDefinition, Workflow

if TYPE_CHECKING:
    from .routing import Route
    from .session import Batch, WorkerSession

# What of a step has to be written when the group closes.
DIRTY_DISPATCHED: Final = 1
DIRTY_COMPLETED: Final = 2
DIRTY_CHANGED: Final = 4
DIRTY_OUTPUT: Final = 8


EARLIER_MAX: Final = 32  # of so many a late result is still taken
LEVEL0: Final = "level0."  # what such a worker's name begins with; no worker can call itself so
RETRY_COUNTED: Final = "counted"  # it was handed out, and the budget knows of it
RETRY_NAMED: Final = "named"  # its handler said when it is to be tried again
RESTORED: Final = "restored"  # the reason of a step that is held since its database was


class Delivery(NamedTuple):
    """An earlier hand-over of a step that a late result may still name."""

    number: int
    batch_id: str
    worker: str
    granted: bool


class Step(Struct, gc=False, weakref=False, eq=False):
    # what is stored
    id: int
    task: "Task"
    definition: StepDefinition
    state: StepState = WAITING
    attempt: int = 0  # failures charged to it
    delivery: int = 0  # hand-overs: the fence
    accept_from: int = 0  # results of earlier deliveries are history, not news
    batch_id: str | None = None
    worker: str | None = None
    granted: bool = False
    lost_sessions: int = 0
    ready_ms: int | None = None
    dispatched_ms: int | None = None
    started_ms: int | None = None
    not_before_ms: int | None = None
    finished_ms: int | None = None
    deadline_ms: int | None = None
    error: bytes | None = None
    reason: str | None = None
    key_number: int = 0
    earlier: list[Delivery] | None = None
    output: bytes | None = None  # None also when it is too large to stay resident
    output_bytes: int = 0
    # what is only known now
    waits: int = 0  # dependencies that are not final
    deadline_mono: int | None = None
    dirty: int = 0
    queued: bool = False  # stands in the ready queue
    route: "Route | None" = None  # where it stands there, or stood when it was handed out
    session: "WorkerSession | None" = None  # that holds the current delivery
    batch: "Batch | None" = None
    seen: str | None = None  # what the worker last said of it: queued, asking, running, done
    cancel: str | None = None  # the worker was told to stop it, for this reason
    avoid: set[str] | None = None  # workers that gave it back or lost it: only if no other can
    payload_context: bytes | None = None  # fetched for its next dispatch or for its rule, and let go after it
    fetched_outputs: dict[int, bytes] | None = None
    progress: tuple[float, float | None, str | None] | None = None
    rests_until_ms: int | None = None  # it may leave memory until then, whoever offers its handler
    retry: str | None = None  # of its next attempt: RETRY_COUNTED, RETRY_NAMED; None: its handler's budget decides

    @property
    def is_final(self) -> bool:
        return self.state in STEP_FINAL

    @property
    def at_most_once(self) -> bool:
        return self.definition.delivery_mode == "at_most_once"

    @property
    def at_level0(self) -> bool:
        """Its latest delivery went to a handler without a session: nobody tells that of it, or hears it say, anything
        but its result."""
        return self.worker is not None and self.worker.startswith(LEVEL0)

    @property
    def is_suspect(self) -> bool:
        """Two sessions died with it: it may be what kills them."""
        return self.lost_sessions >= 2


class Task(Struct, gc=False, weakref=False, eq=False):
    id: int
    uid: str
    workflow: Workflow
    lane: int
    namespace: str
    key: str | None
    state: TaskState
    priority: int
    context: bytes | None
    context_bytes: int
    created_ms: int
    labels: bytes | None = None
    attention: str | None = None
    cancelling: bool = False
    finished_ms: int | None = None
    deadline_ms: int | None = None
    steps: list[Step] = []
    # counts of its steps, kept by apply
    open: int = 0  # not final
    moving: int = 0  # ready, dispatched or retry_wait: something can still happen by itself
    dispatched: int = 0
    # what is only known now
    facts: list[Fact] = []  # since the group opened
    dirty_steps: list[Step] = []  # those whose rows have to be written
    dirty: bool = False  # its own row has to be written
    evicting: bool = False
    rejected: bool = False  # the database refused its rows: nothing decided on them may be said
    resident_bytes: int = 0


def unlink(task: Task) -> None:
    """Break the cycle between a task and its steps, which nobody else would collect."""
    task.steps = []


_MOVING: Final = frozenset({READY, DISPATCHED, RETRY_WAIT})


def apply(task: Task, fact: Fact) -> None:
    """The only way a task changes. A transition that is not in the table is a broken invariant and raises."""
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


class _Move(Struct, frozen=True):
    """A transition, and what it does to its task's counts."""

    after: StepState
    moving: int
    dispatched: int
    open: int


_MOVES: Final[dict[type[Any], dict[StepState, _Move]]] = {
    kind: {
        before: _Move(
            after,
            (after in _MOVING) - (before in _MOVING),
            (after is DISPATCHED) - (before is DISPATCHED),
            (before in STEP_FINAL) - (after in STEP_FINAL),
        )
        for before, after in moves.items()
    }
    for kind, moves in STEP_TRANSITIONS.items()
}


def _left(step: Step) -> None:
    """The current delivery is no longer the step's: a late success of it is still welcome."""
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
    step.reason = None
    if fact.delivery == 1 and step.deadline_ms is None and step.accept_from == 0:
        # The hot row says all of it; what `readied` wanted written in the same group is in it.
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
    # It keeps its place in the queue: ready_ms stays.
    _left(step)
    step.reason = fact.code
    step.lost_sessions += fact.lost


def _completed(step: Step, fact: facts.Completed) -> None:
    step.output_bytes = fact.output_bytes
    step.finished_ms = fact.at
    step.batch_id = step.not_before_ms = step.reason = step.earlier = None
    if step.error is not None or step.granted:
        step.error = None
        step.dirty |= DIRTY_CHANGED
    step.dirty |= DIRTY_COMPLETED


def _backed_off(step: Step, fact: facts.BackedOff) -> None:
    if step.batch_id is not None:
        _left(step)
    step.attempt += 1
    step.not_before_ms = fact.until
    step.reason = fact.code
    step.dirty |= DIRTY_CHANGED


def _failed(step: Step, fact: facts.Failed) -> None:
    step.finished_ms = fact.at
    step.reason = fact.code
    step.batch_id = step.not_before_ms = step.earlier = None
    step.dirty |= DIRTY_CHANGED


def _held(step: Step, fact: facts.Held) -> None:
    # It keeps its batch_id: a result of this very delivery still decides it.
    step.reason = fact.code
    step.dirty |= DIRTY_CHANGED


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
    step.batch_id = step.ready_ms = step.not_before_ms = step.finished_ms = step.started_ms = None
    step.deadline_ms = step.deadline_mono = step.error = step.reason = step.earlier = None
    step.granted = False
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


def _ended(task: Task, fact: facts.Ended) -> None:
    assert task.state in TASK_TRANSITIONS[facts.Ended]
    task.state = TaskState(fact.state)
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
    facts.Ended: _ended,
}


def counted(task: Task) -> None:
    """Set the counts of a task whose steps were just read from somewhere."""
    task.open = sum(s.state not in STEP_FINAL for s in task.steps)
    task.moving = sum(s.state in _MOVING for s in task.steps)
    task.dispatched = sum(s.state is DISPATCHED for s in task.steps)
    for step in task.steps:
        step.waits = sum(task.steps[i].state not in STEP_FINAL for i in step.definition.depends_on)


def held(task: Task) -> int:
    return sum(s.state is HELD for s in task.steps)


def outputs(task: Task) -> dict[int, bytes]:
    """The resident outputs of its completed steps, by position."""
    return {s.definition.index: s.output for s in task.steps if s.state is COMPLETED and s.output is not None}
