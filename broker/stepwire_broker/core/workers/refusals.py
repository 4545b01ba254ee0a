"""Messages of the bus that could not be read. Each is counted, and its sender is answered if known."""

from stepwire_protocol import topics

from stepwire_broker.core.commit.decision import Complaint
from stepwire_broker.core.model.events import FrameRefused, MessageIgnored, MessageRefused, Now
from stepwire_broker.core.state import BrokerState

from .replies import refuse


def on_message_refused(state: BrokerState, event: MessageRefused, now: Now) -> None:
    """Answer the worker that sent the message, and log its fault. A sender without a readable id is only logged."""
    if event.worker is not None:
        refuse(state, event.worker, event.code, event.message, event.kind, event.rid)
        return
    state.counters.count_refused(event.code)
    sender = None if event.topic == topics.RESULTS and event.kind is None else ""
    state.decision.complaints.append(Complaint(event.code, event.message, sender, event.kind))


def on_message_ignored(state: BrokerState, event: MessageIgnored, now: Now) -> None:
    state.counters.ignored += 1


def on_frame_refused(state: BrokerState, event: FrameRefused, now: Now) -> None:
    """Count the frame. Its sender is unknown and cannot be answered."""
    state.counters.count_refused(event.code)
