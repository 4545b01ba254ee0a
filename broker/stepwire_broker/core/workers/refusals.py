"""Messages of the bus that could not be read, or whose sender may not send them. Each is counted and logged."""

from typing import Any

from stepwire_protocol import topics
from stepwire_protocol.messages import Heartbeat, Hello, ResultsLevel0

from stepwire_broker.core.commit.decision import Complaint
from stepwire_broker.core.model.events import FrameRefused, MessageIgnored, MessageRefused, Now
from stepwire_broker.core.state import BrokerState

from . import authority
from .replies import refuse, send_reset


def on_message_refused(state: BrokerState, event: MessageRefused, now: Now) -> None:
    """Answer the worker that sent the message, and log its fault. A sender without a readable id is only logged, and so
    is one that names the worker of another principal."""
    if event.worker is not None and authority.may_answer(state, state.principal, event.worker):
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


def on_unauthorized(state: BrokerState, message: Any, refusal: authority.Refusal, now: Now) -> None:
    """Count and log a message that its sender may not send. The sender is answered only on an inbox of its own."""
    if isinstance(message, ResultsLevel0):
        state.counters.count_refused(refusal.code)
        complaint = Complaint(refusal.code, refusal.message, None, "results", state.principal)
        state.decision.complaints.append(complaint)
        return
    kind = type(message).__name__.lower()
    if not authority.may_answer(state, state.principal, message.worker):
        state.counters.count_refused(refusal.code)
        complaint = Complaint(refusal.code, refusal.message, message.worker, kind, state.principal)
        state.decision.complaints.append(complaint)
        return
    refuse(state, message.worker, refusal.code, refusal.message, kind)
    k = _number(state, message)
    if k is not None:
        send_reset(state, message.worker, k, "unauthorized", now)


def _number(state: BrokerState, message: Any) -> int | None:
    """Return the number of the session that a hello or a heartbeat names."""
    broker = state.identity.broker
    if isinstance(message, Hello):
        return message.next.get(broker)
    if isinstance(message, Heartbeat):
        session_id = message.sessions.get(broker)
        return None if session_id is None else topics.session_parts(session_id)[1]
    return None
