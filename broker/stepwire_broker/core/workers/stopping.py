"""Stop a step at its worker, and act when a run exceeds its time."""

from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import CancelReason

from stepwire_broker.core import letters
from stepwire_broker.core.commit.outbox import SendMessage
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.model.states import DISPATCHED
from stepwire_broker.core.progress.progress import fail_for, unknown_outcome
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import RunLimit

CHECK_AGAIN_MS: Final = 1_000


def request_stop(state: BrokerState, step: Step, reason: CancelReason) -> None:
    """Send the step's worker a cancel, and again after each heartbeat that still lists the step."""
    if step.at_level0:
        return  # a level-0 handler receives no cancel, so its result counts as if there were none
    step.cancel = reason
    if step.session is not None:
        send_cancel(state, step.session, [(step.id, step.delivery)], reason)


def send_cancel(state: BrokerState, session: WorkerSession, items: list[tuple[int, int]], reason: CancelReason) -> None:
    state.outbox.send(SendMessage(session, letters.cancel(state.identity, session, items, reason)))


def expire_run(state: BrokerState, run: RunLimit, now: Now) -> None:
    """The worker should have ended this run at its timeout. If it did not, the broker ends it here."""
    step, delivery, due_mono = run.step, run.delivery, run.due_mono
    if step.state is not DISPATCHED or step.delivery != delivery or not step.task.steps:
        return
    session = step.session
    if session is not None and session.has_lease and now.mono < due_mono + state.settings.bus.lease_ms:
        is_silent = session.reported_mono < due_mono - limits.TIMEOUT_GRACE_MS
        if step.seen == "done" or is_silent:
            # The run may have ended in time with its result still on the way: the worker has a lease to send it.
            state.timers.set(now.mono + CHECK_AGAIN_MS, run)
            return
    if session is not None:
        send_cancel(state, session, [(step.id, delivery)], "timeout")
    if step.at_most_once and not step.granted:
        return
    allowance.overdue(state, step, now)
    if step.at_most_once:
        unknown_outcome(state, step, "outcome_unknown", now)
    else:
        fail_for(state, step, "timeout", now, retryable=True)
