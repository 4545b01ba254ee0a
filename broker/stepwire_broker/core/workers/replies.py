"""Answers that are sent at once: to messages of unknown sessions, and to refused messages."""

from typing import Final

from stepwire_protocol import topics
from stepwire_protocol.messages import ResetCode

from stepwire_broker.core import letters
from stepwire_broker.core.commit.decision import Complaint, ToWorker, WorkerFlaps
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.state import FLAPPING_REMEMBERED_MAX, BrokerState

FLAPS_WITHIN_MS: Final = 10_000
FLAPS_MIN: Final = 5  # resets of one worker within that time


def session_of(state: BrokerState, worker: str, session_id: str, now: Now) -> WorkerSession | None:
    """Return the session that a message names. If this broker does not have it, answer the sender and return None."""
    session = state.sessions.get(worker)
    if session is not None and session.id == session_id and not session.expired:
        return session
    turn_away(state, worker, session_id, now)
    return None


def turn_away(state: BrokerState, worker: str, session_id: str | None, now: Now) -> None:
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
        has_expired = k <= state.dead_k.get(worker, 0) or (session is not None and session.expired)
        send_reset(state, worker, k, "expired" if has_expired else "unknown_session", now)


def send_here(state: BrokerState, worker: str) -> None:
    state.decision.sends.append(ToWorker(topics.to_worker(worker), letters.here(state.identity)))


def send_reset(state: BrokerState, worker: str, k: int, code: ResetCode, now: Now) -> None:
    state.decision.sends.append(ToWorker(topics.to_worker(worker), letters.reset(state.identity, k, code)))
    if code != "shutdown":
        _count_reset(state, worker, code, now)


def _count_reset(state: BrokerState, worker: str, code: ResetCode, now: Now) -> None:
    """Report a worker that is reset again and again, at most once in FLAPS_WITHIN_MS."""
    since_mono, resets = state.flapping.pop(worker, (now.mono, 0))
    if now.mono - since_mono > FLAPS_WITHIN_MS:
        since_mono, resets = now.mono, 0
    resets += 1
    state.flapping[worker] = (since_mono, resets)
    if len(state.flapping) > FLAPPING_REMEMBERED_MAX:
        state.flapping.popitem(last=False)
    if resets == FLAPS_MIN:
        state.decision.worker_news.append(WorkerFlaps(worker, code, resets, max(1, now.mono - since_mono)))


def refuse(state: BrokerState, worker: str, code: str, message: str, kind: str | None, rid: int | None = None) -> None:
    """Count a refused message, send the reason to its sender, and log it."""
    state.counters.count_refused(code)
    state.decision.complaints.append(Complaint(code, message, worker, kind, state.principal))
    refused = letters.refused(state.identity, code, message, kind, rid)
    state.decision.sends.append(ToWorker(topics.to_worker(worker), refused))
