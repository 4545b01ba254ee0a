"""Answers that are sent at once: to messages of unknown sessions, and to refused messages."""

from stepwire_protocol import topics
from stepwire_protocol.messages import ResetCode

from stepwire_broker.core import letters
from stepwire_broker.core.commit.decision import ToWorker
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.state import BrokerState


def session_of(state: BrokerState, worker: str, session_id: str) -> WorkerSession | None:
    """Return the session that a message names. If this broker does not have it, answer the sender and return None."""
    session = state.sessions.get(worker)
    if session is not None and session.id == session_id:
        return session
    turn_away(state, worker, session_id)
    return None


def turn_away(state: BrokerState, worker: str, session_id: str | None) -> None:
    """Answer a worker whose session this broker does not have.

    A session of another epoch was lost with a restart of this broker, so its worker is not reset and sends a hello.
    """
    epoch, k = topics.session_parts(session_id) if session_id is not None else (-1, 0)
    if epoch != state.identity.epoch:
        send_here(state, worker)
        return
    session = state.sessions.get(worker)
    if session is not None and k < session.k:
        state.counters.ignored += 1
    else:
        send_reset(state, worker, k, "unknown_session")


def send_here(state: BrokerState, worker: str) -> None:
    state.decision.sends.append(ToWorker(topics.to_worker(worker), letters.here(state.identity)))


def send_reset(state: BrokerState, worker: str, k: int, code: ResetCode) -> None:
    state.decision.sends.append(ToWorker(topics.to_worker(worker), letters.reset(state.identity, k, code)))


def refuse(state: BrokerState, worker: str, code: str, message: str, kind: str | None, rid: int | None = None) -> None:
    """Count a refused message, and send the reason to its sender."""
    state.counters.count_refused(code)
    refused = letters.refused(state.identity, code, message, kind, rid)
    state.decision.sends.append(ToWorker(topics.to_worker(worker), refused))
