"""Stop a step at its worker."""

from stepwire_protocol.messages import CancelReason

from stepwire_broker.core import letters
from stepwire_broker.core.commit.outbox import SendMessage
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.state import BrokerState


def request_stop(state: BrokerState, step: Step, reason: CancelReason) -> None:
    """Send the step's worker a cancel, and again after each heartbeat that still lists the step."""
    if step.at_level0:
        return  # a level-0 handler receives no cancel, so its result counts as usual
    step.cancel = reason
    if step.session is not None:
        send_cancel(state, step.session, [(step.id, step.delivery)], reason)


def send_cancel(state: BrokerState, session: WorkerSession, items: list[tuple[int, int]], reason: CancelReason) -> None:
    state.outbox.send(SendMessage(session, letters.cancel(state.identity, session, items, reason)))
