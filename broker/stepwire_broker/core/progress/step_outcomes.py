"""The outcomes of a run of a step: completed, failed, undelivered, held or cancelled.

The caller decides the outcome. These functions record the outcome and its consequences for the step and its task.
"""

from typing import Final
from zlib import crc32

from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.answers.error_texts import described
from stepwire_broker.core.answers.reason_codes import describe
from stepwire_broker.core.definitions import retry
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import RETRY_COUNTED, STOPPED, Step, Task
from stepwire_broker.core.model.states import DISPATCHED, HELD
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import RetryDue

from .deliveries import remove_delivery
from .dependents import advance
from .readiness import enqueue
from .task_outcome import update_attention


def complete(state: BrokerState, step: Step, delivery: int, output: bytes, now: Now, run_ms: int | None = None) -> None:
    """Complete a step with the output of this delivery."""
    task = step.task
    remove_delivery(state, step)
    if step.retry is RETRY_COUNTED:
        allowance.retried(state, step, now)
    step.output = output
    state.record(task, facts.Completed(now.wall, step.position, delivery, len(output), crc32(output), run_ms))
    state.counters.completed += 1
    state.hold_bytes(task, len(output))
    state.outbox.lanes[task.lane].bytes += len(output)
    if len(output) > state.settings.limits.resident_payload_bytes:
        state.large.append((state.outbox.lanes[task.lane], state.outbox.lanes[task.lane].handed + 1, step))
    advance(state, step, now)


def fail(
    state: BrokerState,
    step: Step,
    error: ErrorDetail,
    now: Now,
    *,
    retryable: bool = True,
    reported: bool = False,
    retry_after_ms: int | None = None,
    run_ms: int | None = None,
) -> None:
    """End an attempt that failed: retry the step later, or fail it.

    `reported`: the handler reported the failure, which is final for at_most_once. `run_ms`: the duration of the run, if
    its worker reported it.
    """
    task, definition = step.task, step.definition
    remove_delivery(state, step)
    code = error.code or "failed"
    step.error = facts.encode(error)
    again = retryable and step.attempt < definition.retry_limit and not task.cancelling and step.state in _HAS_RUN
    if step.at_most_once and reported and not definition.retry_reported_failures:
        again = False
    if again:
        _back_off(state, step, error, retry_after_ms, now, run_ms)
    elif task.cancelling and step.state is DISPATCHED:
        state.record(task, facts.StepCancelled(now.wall, step.position, "task_cancelled"))
        advance(state, step, now)
    else:
        state.record(task, facts.Failed(now.wall, step.position, step.delivery, code, run_ms, _message(error)))
        state.counters.failed += 1
        advance(state, step, now)


_HAS_RUN: Final = frozenset({DISPATCHED, HELD})


def _message(error: ErrorDetail) -> str:
    return described(error.code, error.message, facts.MESSAGE_CHARACTERS_MAX)


def _back_off(
    state: BrokerState, step: Step, error: ErrorDetail, retry_after_ms: int | None, now: Now, run_ms: int | None
) -> None:
    """Schedule the next attempt: after the pause that the handler named, or else after the step's back-off."""
    task, definition = step.task, step.definition
    pause_ms = retry_after_ms
    if pause_ms is None:
        unit = retry.unit_of(task.uid, definition.name, step.attempt)
        pause_ms = retry.delay_ms(definition.backoff, step.attempt, unit)
    code, until = error.code or "failed", now.wall + pause_ms
    state.record(task, facts.BackedOff(now.wall, step.position, step.delivery, code, until, run_ms, _message(error)))
    state.timers.set(now.mono + pause_ms, RetryDue(step, step.not_before_ms))
    state.counters.retried += 1
    allowance.will_retry(state, step, named=retry_after_ms is not None, now=now)
    update_attention(state, task, now)


def fail_for(state: BrokerState, step: Step, code: str, now: Now, *, retryable: bool = False) -> None:
    """Fail a step for a reason of the broker's own: `code` is a reason code."""
    fail(state, step, ErrorDetail(message=describe(code), code=code, category="broker"), now, retryable=retryable)


def undeliver(state: BrokerState, step: Step, code: str, now: Now, *, lost: bool = False, avoid: bool = True) -> None:
    """Make a step ready again that its worker will not start. `avoid`: prefer other workers."""
    task = step.task
    if avoid and step.worker is not None:
        step.avoid = {*(step.avoid or ()), step.worker}
    remove_delivery(state, step)
    state.record(task, facts.Undelivered(now.wall, step.position, step.delivery, code, lost))
    state.counters.redelivered += 1
    if task.cancelling:
        cancel_step(state, step, "task_cancelled", now)
        return
    # The queue timeout limits the time to the first start: it no longer applies to a step that may have started.
    never_started = step.started_ms is None and not step.lost_sessions
    timeout_ms = step.definition.queue_timeout_ms if never_started else None
    if timeout_ms is not None and step.ready_ms is not None and now.wall >= step.ready_ms + timeout_ms:
        fail_for(state, step, "queue_timeout", now)
    elif step.lost_sessions >= state.settings.bus.lost_sessions_max:
        fail_for(state, step, "worker_lost", now)
    else:
        enqueue(state, step)


def hold(
    state: BrokerState,
    step: Step,
    code: str,
    now: Now,
    *,
    error: ErrorDetail | None = None,
    run_ms: int | None = None,
) -> None:
    """Hold a step that may have run and must not run twice, or fail it if the workflow says so (`on_unknown`).

    `error` and `run_ms`: what the worker reported about the run.
    """
    if step.definition.on_unknown == "fail":
        fail_for(state, step, code, now)
        return
    remove_delivery(state, step)
    message = _message(error or ErrorDetail(message=describe(code), code=code))
    state.record(step.task, facts.Held(now.wall, step.position, step.delivery, code, run_ms, message))
    state.counters.held += 1
    update_attention(state, step.task, now)


def hold_restored(state: BrokerState, task: Task, now: Now) -> int:
    """Hold the at_most_once steps of a task restored from a backup, and return the number of steps held.

    A step that is not final in the backup, in any state, may have started after the backup was made.
    """
    unsure = [s for s in task.steps if s.at_most_once and not s.is_final and s.state is not HELD]
    for step in unsure:
        state.record(task, facts.Restored(now.wall, step.position))
    if unsure:
        update_attention(state, task, now)
    return len(unsure)


def lost_outcome(state: BrokerState, step: Step, now: Now, *, is_stopped: bool = False) -> None:
    """Hold or retry a step whose run is given up without an outcome. `is_stopped`: its worker is asked to stop the run
    now. After that, or after an earlier cancel, a reported failure does not decide an at_most_once step."""
    unknown_outcome(state, step, STOPPED if is_stopped or step.cancel is not None else "outcome_unknown", now)


def unknown_outcome(
    state: BrokerState,
    step: Step,
    code: str,
    now: Now,
    *,
    error: ErrorDetail | None = None,
    run_ms: int | None = None,
) -> None:
    """Retry a step that may have run, or hold it if it must not run twice.

    `error` and `run_ms`: what the worker reported about the run.
    """
    if step.state is HELD:
        return
    if not step.at_most_once:
        fail_for(state, step, code, now, retryable=True)
    elif step.granted:
        hold(state, step, code, now, error=error, run_ms=run_ms)
    else:
        undeliver(state, step, code, now)


def cancel_step(state: BrokerState, step: Step, code: str, now: Now) -> None:
    """Cancel a step that is not final, for the reason `code`."""
    remove_delivery(state, step)
    state.record(step.task, facts.StepCancelled(now.wall, step.position, code))
    advance(state, step, now)
