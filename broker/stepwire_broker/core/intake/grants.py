"""Changed grants: they apply at once to open sessions, and a principal that lost its grant is mute.

Steps that a mute session may still run wait for the end of its lease, because nothing proves that its worker has
stopped. Only an operator can state that the worker is dead.
"""

from collections.abc import Mapping
from hashlib import sha256

from msgspec.json import encode

from stepwire_broker.core.model.commit_group import AuditNew
from stepwire_broker.core.model.events import GrantsChanged, Now
from stepwire_broker.core.model.live import WorkerSession
from stepwire_broker.core.model.principal import BUILT_IN, PROCESS, Grant, Rights, compile_grants
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import authority
from stepwire_broker.core.workers.loss import bury
from stepwire_broker.core.workers.replies import send_reset


def on_grants_changed(state: BrokerState, event: GrantsChanged, now: Now) -> None:
    before = {name: rights.grant for name, rights in state.principals.items()}
    state.principals = compile_grants(event.grants)
    if state.grants_known:
        _audit(state, before, {grant.principal: grant for grant in event.grants}, now)
    state.grants_known = True
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


def _audit(state: BrokerState, before: Mapping[str, Grant], after: Mapping[str, Grant], now: Now) -> None:
    """Record each changed principal. A file has no author, so the rows name the process, which has noticed it."""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        grant = new or old
        if old == new or grant is None or name in BUILT_IN:
            continue
        action = "grant_added" if old is None else "grant_revoked" if new is None else "grant_changed"
        detail = {"handlers": len(grant.handlers), "sha256": sha256(repr(grant).encode()).hexdigest()}
        row = AuditNew(
            now.wall, PROCESS, "file", action, f"principal {name}", "", encode(detail).decode(), "done", None
        )
        state.write_audit(row)


def _review(state: BrokerState, session: WorkerSession, now: Now) -> None:
    """Give the session its principal's new rights. If it has none, tell its worker, and send it nothing more."""
    had_rights = session.rights is not None
    session.rights = _rights_for(state, session)
    if had_rights and session.rights is None:
        send_reset(state, session.worker, session.k, "unauthorized", now)


def _rights_for(state: BrokerState, session: WorkerSession) -> Rights | None:
    rights = authority.rights_of(state, session.principal)
    return rights if rights is not None and rights.allows_worker(session.worker.partition(":")[0]) else None
