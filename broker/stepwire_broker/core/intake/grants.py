"""Changed grants: they apply at once to open sessions, and a principal that lost its grant is mute.

Steps that a mute session may still run wait for the end of its lease, because nothing proves that its worker has
stopped. Only an operator can state that the worker is dead.
"""

from stepwire_broker.core.model.events import GrantsChanged, Now
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.model.principal import Rights, compile_grants
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import authority
from stepwire_broker.core.workers.loss import bury
from stepwire_broker.core.workers.replies import send_reset


def on_grants_changed(state: BrokerState, event: GrantsChanged, now: Now) -> None:
    state.principals = compile_grants(event.grants)
    state.offer_cache.clear()
    for session in list(state.sessions.values()):
        _review(state, session, now)
        if session.rights is None and session.principal in event.declared_dead:
            bury(state, session, now)
    for peer in state.level0.peers.values():
        rights = authority.rights_of(state, peer.principal)
        peer.rights = rights if rights is not None and rights.grant.level0 else None
    all_rights = (*state.principals.values(), *state.token_rights.values())
    state.split_namespaces(any(not rights.is_for_all_namespaces for rights in all_rights))


def _review(state: BrokerState, session: WorkerSession, now: Now) -> None:
    """Give the session its principal's new rights. If it has none, tell its worker, and send it nothing more."""
    had_rights = session.rights is not None
    session.rights = _rights_for(state, session)
    if had_rights and session.rights is None:
        send_reset(state, session.worker, session.k, "unauthorized", now)


def _rights_for(state: BrokerState, session: WorkerSession) -> Rights | None:
    rights = authority.rights_of(state, session.principal)
    return rights if rights is not None and rights.allows_worker(session.worker.partition(":")[0]) else None
