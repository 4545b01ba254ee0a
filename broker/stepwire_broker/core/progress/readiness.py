"""Make a step ready: put it in the ready queue, and set the timers that limit its waiting time."""

from typing import Final, assert_never

from stepwire_broker.core.definitions.step_definition import StepKind
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import READY, RETRY_WAIT, RUNNING
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import QueueLimit, RetryDue, StepDeadline

from .task_outcome import update_attention


def make_ready(state: BrokerState, step: Step, now: Now) -> None:
    """Make a step ready: all its dependencies are final and its rule is true, or its back-off is over."""
    state.record(step.task, facts.Readied(now.wall, step.position))
    if step.definition.queue_timeout_ms is not None:
        state.timers.set(now.mono + step.definition.queue_timeout_ms, QueueLimit(step, step.ready_ms))
    watch_deadline(state, step, now)
    if step.task.attention is not None:
        update_attention(state, step.task, now)
    enqueue(state, step)


def start(state: BrokerState, step: Step, now: Now) -> None:
    """Set the timers of a step that is stored as ready, and put the step in the ready queue."""
    definition = step.definition
    if definition.deadline_ms is not None and step.deadline_ms is None and step.ready_ms is not None:
        step.deadline_ms = step.ready_ms + definition.deadline_ms
    watch_deadline(state, step, now)
    if definition.queue_timeout_ms is not None and step.ready_ms is not None:
        due = now.mono + step.ready_ms + definition.queue_timeout_ms - now.wall
        state.timers.set(due, QueueLimit(step, step.ready_ms))
    enqueue(state, step)


def watch_deadline(state: BrokerState, step: Step, now: Now) -> None:
    """Set the deadline's timer. While the step is in memory the monotonic clock decides, so that a change of the wall
    clock neither shortens nor extends it."""
    if step.deadline_ms is not None and not step.is_final:
        if step.deadline_mono is None:
            step.deadline_mono = now.mono + max(0, step.deadline_ms - now.wall)
        state.timers.set(step.deadline_mono, StepDeadline(step, step.deadline_ms))


def enqueue(state: BrokerState, step: Step) -> None:
    """Hand a ready step of a running task to whatever runs its kind; leave any other step as it is."""
    if step.state is READY and step.task.state is RUNNING:
        kind = step.definition.kind
        if kind is _HANDLER:
            state.ready.put(step)
        else:
            assert_never(kind)


_HANDLER: Final = StepKind.HANDLER  # a member of an enum is slow to look up


def await_retry(state: BrokerState, step: Step, now: Now) -> None:
    """Continue the back-off of a step that was stored during it."""
    assert step.not_before_ms is not None
    # The dispatch is in the past, whatever the wall clock shows.
    left_ms = step.not_before_ms - max(now.wall, step.dispatched_ms or 0)
    if left_ms <= 0:
        make_ready(state, step, now)
    else:
        state.timers.set(now.mono + left_ms, RetryDue(step, step.not_before_ms))


def expire_retry(state: BrokerState, step: Step, not_before_ms: int | None, now: Now) -> None:
    """Make a step ready when its back-off timer expires. The monotonic clock decides, not the wall clock."""
    if step.state is RETRY_WAIT and step.not_before_ms == not_before_ms and step.task.steps:
        make_ready(state, step, now)
