"""Limits of time that have expired: queue timeouts, run timeouts, and deadlines of steps and tasks."""

from typing import Final

from stepwire_protocol import limits

from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import DISPATCHED, READY, RETRY_WAIT, TASK_FINAL
from stepwire_broker.core.progress.step_outcomes import fail_for, lost_outcome, undeliver
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import RunLimit

from .loss import bury
from .stopping import request_stop, send_cancel

CHECK_AGAIN_MS: Final = 1_000


def expire_queue(state: BrokerState, step: Step, ready_ms: int | None, now: Now) -> None:
    """Fail a step that was ready and did not start within its queue_timeout_ms."""
    if step.ready_ms != ready_ms or not step.task.steps:
        return
    if step.state is READY:
        fail_for(state, step, "queue_timeout", now)
    elif step.state is DISPATCHED and step.started_ms is None and not step.granted:
        request_stop(state, step, "superseded")  # a worker that has not started the step refuses it as stale
        if step.at_most_once:
            undeliver(state, step, "superseded", now, avoid=False)  # without a grant the step has not started


def expire_run(state: BrokerState, run: RunLimit, now: Now) -> None:
    """End a run that the worker should have ended at its timeout."""
    step, delivery, due_mono = run.step, run.delivery, run.due_mono
    if step.state is not DISPATCHED or step.delivery != delivery or not step.task.steps:
        return
    session = step.session
    if session is not None and session.has_lease and now.mono < due_mono + state.settings.bus.lease_ms:
        is_silent = session.reported_mono < due_mono - limits.TIMEOUT_GRACE_MS
        if step.seen == "done" or is_silent:
            # The run may have ended in time, and its result may not have arrived: the worker has a lease to send it.
            state.timers.set(now.mono + CHECK_AGAIN_MS, run)
            return
    if session is not None:
        send_cancel(state, session, [(step.id, delivery)], "timeout")
    if step.at_most_once and not step.granted:
        return
    allowance.overdue(state, step, now)
    if step.at_most_once:
        lost_outcome(state, step, now, is_stopped=session is not None)
    else:
        fail_for(state, step, "timeout", now, retryable=True)


def expire_deadline(state: BrokerState, step: Step, deadline_ms: int, now: Now) -> None:
    """Fail a step whose attempts together took longer than its deadline."""
    if step.task.steps and step.deadline_ms == deadline_ms:
        _expire(state, step, "deadline", now)


def expire_task(state: BrokerState, task: Task, deadline_ms: int, now: Now) -> None:
    """Fail the ready, backing-off and dispatched steps of a task whose deadline is over. Later steps may still run."""
    if task.state in TASK_FINAL or task.deadline_ms != deadline_ms:
        return
    for step in [s for s in task.steps if s.state in _UNDER_WAY]:
        _expire(state, step, "task_deadline", now)


_UNDER_WAY: Final = frozenset({READY, RETRY_WAIT, DISPATCHED})


def _expire(state: BrokerState, step: Step, code: str, now: Now) -> None:
    if step.state is DISPATCHED:
        request_stop(state, step, "timeout")
        if step.at_most_once and step.granted:
            lost_outcome(state, step, now)
            return
    if step.state in _UNDER_WAY:
        fail_for(state, step, code, now)


def expire_unstarted(state: BrokerState, step: Step, delivery: int, now: Now) -> None:
    """Take back a step that a worker without heartbeats has not asked to start.

    A worker that has not even accepted the batch is considered dead.
    """
    if not step.task.steps or step.state is not DISPATCHED or step.delivery != delivery or step.granted:
        return
    session, batch = step.session, step.batch
    undeliver(state, step, "unaccepted", now)
    if session is not None and not session.dead and batch is not None and not batch.answered:
        bury(state, session, now)
