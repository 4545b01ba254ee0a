"""How a task gets on: a step becomes ready, completes, fails, waits to be tried again, is held; and what follows.

Whoever calls these has decided that it happens. Here stands what it means for the steps after it, for the task, and
for whoever waits.
"""

from typing import Final
from zlib import crc32

from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.definitions import retry, trigger_rules
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.answers import Done
from stepwire_broker.core.model.apply import held, outputs
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import RETRY_COUNTED, Step, Task, WorkerSession
from stepwire_broker.core.model.reason_codes import describe
from stepwire_broker.core.model.states import (
    CANCELLED,
    COMPLETED,
    DISPATCHED,
    FAILED,
    HELD,
    READY,
    RETRY_WAIT,
    TASK_FINAL,
    WAITING,
    TaskState,
)
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import QueueLimit, RetryDue, StepDeadline


def make_ready(state: BrokerState, step: Step, now: Now) -> None:
    """Everything before it is final, or its back-off is over."""
    state.record(step.task, facts.Readied(now.wall, step.position))
    if step.definition.queue_timeout_ms is not None:
        state.timers.set(now.mono + step.definition.queue_timeout_ms, QueueLimit(step, step.ready_ms))
    watch_deadline(state, step, now)
    if step.task.attention is not None:
        _notice(state, step.task, now)
    enqueue(state, step)


def watch_deadline(state: BrokerState, step: Step, now: Now) -> None:
    """From when it is in memory its deadline is the monotonic clock's, whatever is done to the other one."""
    if step.deadline_ms is not None and not step.is_final:
        if step.deadline_mono is None:
            step.deadline_mono = now.mono + max(0, step.deadline_ms - now.wall)
        state.timers.set(step.deadline_mono, StepDeadline(step, step.deadline_ms))


def enqueue(state: BrokerState, step: Step) -> None:
    if step.state is READY and step.task.state is TaskState.RUNNING:
        state.ready.put(step)


def complete(state: BrokerState, step: Step, delivery: int, output: bytes, now: Now) -> None:
    task = step.task
    let_go(state, step)
    if step.retry is RETRY_COUNTED:
        allowance.retried(state, step, now)
    step.output = output
    state.record(task, facts.Completed(now.wall, step.position, delivery, len(output), crc32(output)))
    state.counters.completed += 1
    state.hold_bytes(task, len(output))
    state.outbox.lanes[task.lane].bytes += len(output)
    if len(output) > state.settings.limits.resident_payload_bytes:
        state.large.append((state.outbox.lanes[task.lane], state.outbox.lanes[task.lane].handed + 1, step))
    _after(state, step, now)


def fail(
    state: BrokerState,
    step: Step,
    error: ErrorDetail,
    now: Now,
    *,
    retryable: bool = True,
    reported: bool = False,
    retry_after_ms: int | None = None,
) -> None:
    """An attempt failed. `reported`: its handler said so, which for at_most_once is a verdict."""
    task, definition = step.task, step.definition
    let_go(state, step)
    code = error.code or "failed"
    step.error = facts.encode(error)
    again = retryable and step.attempt < definition.retry_limit and not task.cancelling and step.state in _HAS_RUN
    if step.at_most_once and reported and not definition.retry_reported_failures:
        again = False
    if again:
        pause_ms = retry_after_ms
        if pause_ms is None:
            unit = retry.unit_of(task.uid, definition.name, step.attempt)
            pause_ms = retry.delay_ms(definition.backoff, step.attempt, unit)
        state.record(task, facts.BackedOff(now.wall, step.position, step.delivery, code, now.wall + pause_ms))
        state.timers.set(now.mono + pause_ms, RetryDue(step, step.not_before_ms))
        state.counters.retried += 1
        allowance.will_retry(state, step, named=retry_after_ms is not None, now=now)
        _notice(state, task, now)
    elif task.cancelling and step.state is DISPATCHED:
        state.record(task, facts.StepCancelled(now.wall, step.position, "task_cancelled"))
        _after(state, step, now)
    else:
        state.record(task, facts.Failed(now.wall, step.position, step.delivery, code))
        state.counters.failed += 1
        _after(state, step, now)


_HAS_RUN: Final = frozenset({DISPATCHED, HELD})


def fail_for(state: BrokerState, step: Step, code: str, now: Now, *, retryable: bool = False) -> None:
    """The broker's own verdict, in its own words."""
    fail(state, step, ErrorDetail(message=describe(code), code=code, category="broker"), now, retryable=retryable)


def undeliver(state: BrokerState, step: Step, code: str, now: Now, *, lost: bool = False, avoid: bool = True) -> None:
    """Its delivery came to nothing, and the worker will not start it: it waits for another."""
    task = step.task
    if avoid and step.worker is not None:
        step.avoid = {*(step.avoid or ()), step.worker}
    let_go(state, step)
    state.record(task, facts.Undelivered(now.wall, step.position, step.delivery, code, lost))
    state.counters.redelivered += 1
    if task.cancelling:
        cancel_step(state, step, "task_cancelled", now)
        return
    # It can have waited too long only if no delivery of it ever started.
    never_started = step.started_ms is None and not step.lost_sessions
    timeout_ms = step.definition.queue_timeout_ms if never_started else None
    if timeout_ms is not None and step.ready_ms is not None and now.wall >= step.ready_ms + timeout_ms:
        fail_for(state, step, "queue_timeout", now)
    elif step.lost_sessions >= state.settings.bus.lost_sessions_max:
        fail_for(state, step, "worker_lost", now)
    else:
        enqueue(state, step)


def hold(state: BrokerState, step: Step, code: str, now: Now) -> None:
    """It was allowed to start and nobody knows what became of it. An operator decides, or the workflow did."""
    if step.definition.on_unknown == "fail":
        fail_for(state, step, code, now)
        return
    let_go(state, step)
    state.record(step.task, facts.Held(now.wall, step.position, step.delivery, code))
    state.counters.held += 1
    _notice(state, step.task, now)


def hold_restored(state: BrokerState, task: Task, now: Now) -> int:
    """Its rows come from a backup: what must never start twice, and is not over there, may have started since, whatever
    it waited for. How many steps are held for that."""
    unsure = [s for s in task.steps if s.at_most_once and not s.is_final and s.state is not HELD]
    for step in unsure:
        state.record(task, facts.Restored(now.wall, step.position))
    if unsure:
        _notice(state, task, now)
    return len(unsure)


def unknown_outcome(state: BrokerState, step: Step, code: str, now: Now) -> None:
    """It may have run. Run it again, unless it must never run twice."""
    if step.state is HELD:
        return
    if not step.at_most_once:
        fail_for(state, step, code, now, retryable=True)
    elif step.granted:
        hold(state, step, code, now)
    else:
        undeliver(state, step, code, now)


def cancel_step(state: BrokerState, step: Step, code: str, now: Now) -> None:
    let_go(state, step)
    state.record(step.task, facts.StepCancelled(now.wall, step.position, code))
    _after(state, step, now)


def let_go(state: BrokerState, step: Step) -> None:
    """No session holds it any more, as far as we are concerned."""
    session = step.session
    if session is not None:
        session.deliveries.pop(step.id, None)
        session.asking.discard(step.id)
        session.suspects -= step.is_suspect
        step.session = None
    elif step.worker is not None and state.recovered:
        of_worker = state.recovered.get(step.worker)
        if of_worker is not None and of_worker.pop(step.id, None) is not None and not of_worker:
            del state.recovered[step.worker]
    if state.guards.probes:
        allowance.gave_up(state, step)
    step.batch = None
    step.seen = step.cancel = step.progress = None


def discard(state: BrokerState, task: Task, now: Now) -> None:
    """What the database refused of it was never so: it leaves memory, and nothing that rests on it is said."""
    task.rejected = True
    unsent = [b for s in state.sessions.values() for b in s.unanswered_batches.values() if not b.released]
    for batch in [b for b in unsent if any(step.task is task for step in b.steps)]:
        # It never leaves; the others in it go into another.
        batch.answered = True
        del batch.session.unanswered_batches[batch.id]
        batch.session.unanswered -= len(batch.steps)
        for step in batch.steps:
            if step.task is not task and step.batch is batch:
                undeliver(state, step, "unstorable", now, avoid=False)
    for step in task.steps:
        let_go(state, step)
    state.outbox.withdraw(task)
    state.open_steps -= task.open
    state.drop(task)


def hand_to(step: Step, session: WorkerSession) -> None:
    """This session holds its current delivery."""
    step.session = session
    session.deliveries[step.id] = step
    session.suspects += step.is_suspect


def _after(state: BrokerState, step: Step, now: Now) -> None:
    """A step is final: what depends on it may run now, or never; and the task may be over."""
    task = step.task
    if state.shadows.of_step:
        copies.real_ended(state, step, now)
    final = [step]
    while final:
        for index in final.pop().definition.dependents:
            dependent = task.steps[index]
            dependent.waits -= 1
            if dependent.waits == 0 and dependent.state is WAITING and not _decide(state, dependent, now):
                final.append(dependent)
    if task.open == 0:
        end(state, task, now)
    else:
        _notice(state, task, now)


def _decide(state: BrokerState, step: Step, now: Now) -> bool:
    """It waits for nothing any more. False when it is final at once."""
    task, definition = step.task, step.definition
    if task.cancelling:
        state.record(task, facts.StepCancelled(now.wall, step.position, "task_cancelled"))
        return False
    if definition.trigger_rule is None:
        runs = all(task.steps[i].state is COMPLETED for i in definition.depends_on)
    else:
        missing = _missing_payloads(step)
        if missing:
            state.undecided_steps.append(step)
            return True
        runs = trigger_rules.evaluate(
            definition.trigger_rule,
            [s.state for s in task.steps],
            step.payload_context or task.context or b"{}",
            step.fetched_outputs or outputs(task),
        )
    if runs:
        make_ready(state, step, now)
        return True
    state.record(task, facts.Skipped(now.wall, step.position))
    return False


def wait_again(state: BrokerState, step: Step, now: Now) -> None:
    """It was held, and may run after all: once everything before it is final, which after a restore it may not be."""
    if step.waits:
        _notice(state, step.task, now)
    else:
        decide_again(state, step, now)


def decide_again(state: BrokerState, step: Step, now: Now) -> None:
    """What its rule compares has been fetched."""
    if step.state is WAITING and step.waits == 0 and not _decide(state, step, now):
        _after(state, step, now)


def _missing_payloads(step: Step) -> bool:
    """Does its rule compare something that is too large to be in memory?"""
    assert step.definition.trigger_rule is not None
    task = step.task
    if not trigger_rules.needs_payloads(step.definition.trigger_rule):
        return False
    if task.context is None and step.payload_context is None:
        return True
    return step.fetched_outputs is None and any(
        task.steps[i].state is COMPLETED and task.steps[i].output is None for i in step.definition.depends_on
    )


def _notice(state: BrokerState, task: Task, now: Now) -> None:
    """Does the rest of the task hang on a held step?"""
    if task.state in TASK_FINAL:
        return
    attention = "held" if task.moving == 0 and task.open and held(task) else None
    if attention != task.attention:
        state.record(task, facts.Noticed(now.wall, attention))
        if attention:
            _wake(state, task)


def end(state: BrokerState, task: Task, now: Now) -> None:
    """Every step is final."""
    failed = any(s.state is FAILED and not s.definition.allow_failure for s in task.steps)
    cancelled = any(s.state is CANCELLED for s in task.steps)
    if task.cancelling and cancelled:
        how = TaskState.CANCELLED
    elif failed:
        how = TaskState.FAILED
    else:
        how = TaskState.COMPLETED
    if task.attention is not None:
        state.record(task, facts.Noticed(now.wall, None))
    state.record(task, facts.TaskEnded(now.wall, how))
    _wake(state, task)


def _wake(state: BrokerState, task: Task) -> None:
    for request in state.waiters.pop(task.id, ()):
        if state.asked.pop(request, None) is not None:
            state.answer(request, Done(task.id, task.state, task.attention), task, awaits=True)


def await_retry(state: BrokerState, step: Step, now: Now) -> None:
    """A step that was stored in its back-off."""
    assert step.not_before_ms is not None
    # It was dispatched before now, whatever the wall clock says.
    left_ms = step.not_before_ms - max(now.wall, step.dispatched_ms or 0)
    if left_ms <= 0:
        make_ready(state, step, now)
    else:
        state.timers.set(now.mono + left_ms, RetryDue(step, step.not_before_ms))


def expire_retry(state: BrokerState, step: Step, not_before_ms: int | None, now: Now) -> None:
    """A back-off is over. Timers run by the monotonic clock, whatever the wall clock says meanwhile."""
    if step.state is RETRY_WAIT and step.not_before_ms == not_before_ms and step.task.steps:
        make_ready(state, step, now)
