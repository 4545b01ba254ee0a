"""The sessions and peers that can take a ready step now, and the obstacles of the others.

Dispatch to workers and to level 0, shadow copies, loading and `stepwire why` all use this module, so that they cannot
disagree. A lasting obstacle ends with the session or with a change of rules. A passing obstacle ends by itself or with
a result. The sessions without a lasting obstacle are cached for each route.
"""

from enum import StrEnum
from typing import Final

from .model.events import Now
from .model.level0_peer import Level0Peer
from .model.live import WorkerSession
from .model.targets import BUS, LOCAL, Route
from .state import BrokerState


class Obstacle(StrEnum):
    """Why a session or a level-0 peer cannot take a step now. If several apply, the first is returned."""

    # lasting
    OTHER_EXECUTOR = "other_executor"  # the step goes to another executor
    NOT_OFFERED = "not_offered"  # the handler is not offered
    UNKNOWN_HANDLER = "unknown_handler"  # the worker or the level-0 peer refused a step because of its handler
    RESERVED = "reserved"  # a worker has offered the handler, and no setting names it for level 0
    OUTSIDE_GRANT = "outside_grant"  # the grant of the worker's principal does not allow the handler or the namespace
    TOO_SMALL = "too_small"  # the worker accepts no message as large as the step needs
    LABELS = "labels"  # a required label is missing, or the worker is one of a canary that the step is not part of
    NOT_ALLOWED = "not_allowed"  # level 0 gets at_most_once steps only with bus.level0.at_most_once
    SESSIONS_FIRST = "sessions_first"  # level 0 gets nothing that a worker with a session can take
    # passing
    DRAINING = "draining"  # the worker takes nothing new
    STUCK = "stuck"  # every run of the worker is past its timeout
    MUTED = "muted"  # the worker does not answer its batches
    PAUSED = "paused"  # an operator paused the executor
    NO_CREDIT = "no_credit"  # the worker offers no credit; a level-0 peer holds a batch
    HAS_SUSPECT = "has_suspect"  # the step goes alone, and the worker holds another step that goes alone
    SETTLING = "settling"  # the PUB socket of a new level-0 peer may not reach this broker yet
    DOUBTED = "doubted"  # a level-0 peer that let a lease expire gets no at_most_once step


LEAVING: Final = frozenset({Obstacle.DRAINING, Obstacle.STUCK, Obstacle.MUTED})


def can_be_taken(state: BrokerState, route: Route) -> bool:
    """True if a connected worker or level-0 peer can take a step of this route, now or once it has credit."""
    return bool(offering(state, route)) or level0_serves(state, route)


def is_offered(state: BrokerState, handler_class: str) -> bool:
    """True if a connected worker or level-0 peer offers this handler, with any executor and any labels."""
    return level0_offers(state, handler_class) or any(
        knows_handler(session, handler_class) for session in state.sessions.values()
    )


def could_dispatch(state: BrokerState, now: Now) -> bool:
    """True if a ready step could be dispatched now: a session or a level-0 peer is free for it, and no guard keeps it
    back."""
    guards = state.guards
    peers = [peer for peer in state.level0.peers.values() if is_free(peer, now)]
    for route, _, _ in state.ready.oldest():
        if route.handler_class in guards.barred or (guards.bounds_retries and route.is_held_to_budget):
            continue
        if takers(state, route):
            return True
        if any(peer_obstacle(peer, route, now) is None for peer in peers) and level0_obstacle(state, route) is None:
            return True
    return False


# -- workers with a session -------------------------------------------------------------------------------------------


def takers(state: BrokerState, route: Route) -> list[WorkerSession]:
    """Return the sessions that can take a step of this route now."""
    return [session for session in offering(state, route) if passing_obstacle(session, route) is None]


def offering(state: BrokerState, route: Route) -> list[WorkerSession]:
    """Return the sessions that can take a step of this route once their passing obstacles end."""
    cached = state.offer_cache.get(route)
    if cached is None:
        cached = [session for session in state.sessions.values() if lasting_obstacle(session, route) is None]
        state.offer_cache[route] = cached
    return cached


def lasting_obstacle(session: WorkerSession, route: Route) -> Obstacle | None:
    target, handler_class = route.target, route.handler_class
    if not target.is_executor_of(session):
        return Obstacle.OTHER_EXECUTOR
    if not session.offers(handler_class):
        return Obstacle.NOT_OFFERED
    if not knows_handler(session, handler_class):
        return Obstacle.UNKNOWN_HANDLER
    if session.rights is None or not session.rights.allows(handler_class, route.namespace):
        return Obstacle.OUTSIDE_GRANT
    if session.max_message_bytes < route.message_bytes:
        return Obstacle.TOO_SMALL
    return None if target.labels_match(session) else Obstacle.LABELS


def passing_obstacle(session: WorkerSession, route: Route) -> Obstacle | None:
    if session.credit > 0:
        return Obstacle.HAS_SUSPECT if route.goes_alone and session.suspects else None
    if session.draining:
        return Obstacle.DRAINING
    if session.stuck:
        return Obstacle.STUCK
    if session.muted:
        return Obstacle.MUTED
    return Obstacle.NO_CREDIT if session.of.paused_wall is None else Obstacle.PAUSED


def knows_handler(session: WorkerSession, handler_class: str) -> bool:
    """True if the worker offers this handler and has never refused a step of it as unknown."""
    return session.offers(handler_class) and handler_class not in session.unknown


# -- level 0 ----------------------------------------------------------------------------------------------------------


def level0_serves(state: BrokerState, route: Route) -> bool:
    """True if level 0 can take a step of this route, now or once a peer is free."""
    return _a_peer_may_know(state, route.handler_class, route.namespace) and level0_obstacle(state, route) is None


def level0_offers(state: BrokerState, handler_class: str) -> bool:
    """True if this handler may run at level 0, and a peer exists that has not refused it as unknown."""
    return _a_peer_may_know(state, handler_class) and state.level0_handlers.allows(handler_class)


def _a_peer_may_know(state: BrokerState, handler_class: str, namespace: str | None = None) -> bool:
    return any(
        handler_class not in peer.unknown and peer.may_run(handler_class, namespace)
        for peer in state.level0.peers.values()
    )


def level0_obstacle(state: BrokerState, route: Route) -> Obstacle | None:
    """Return the lasting obstacle that all level-0 peers have: they share the settings, and none of them has labels."""
    target = route.target
    if target.executor != BUS and (target.executor != LOCAL or state.router.bus_is_distributed):
        return Obstacle.OTHER_EXECUTOR
    if not state.level0_handlers.allows(route.handler_class):
        is_reserved = state.level0_handlers.reserved_by(route.handler_class) is not None
        return Obstacle.RESERVED if is_reserved else Obstacle.NOT_OFFERED
    if target.selector:
        return Obstacle.LABELS
    if route.is_at_most_once and not state.settings.bus.level0.at_most_once:
        return Obstacle.NOT_ALLOWED
    return None if all(session.draining for session in offering(state, route)) else Obstacle.SESSIONS_FIRST


def peer_obstacle(peer: Level0Peer, route: Route, now: Now) -> Obstacle | None:
    """Return the obstacle of one level-0 peer for a step of this route that level 0 may take."""
    if route.handler_class in peer.unknown:
        return Obstacle.UNKNOWN_HANDLER
    if not peer.may_run(route.handler_class, route.namespace):
        return Obstacle.OUTSIDE_GRANT
    obstacle = _peer_obstacle(peer, now)
    return Obstacle.DOUBTED if obstacle is None and peer.doubted and route.is_at_most_once else obstacle


def is_free(peer: Level0Peer, now: Now) -> bool:
    """True if this level-0 peer can be handed a batch now."""
    return _peer_obstacle(peer, now) is None


def _peer_obstacle(peer: Level0Peer, now: Now) -> Obstacle | None:
    if peer.draining:
        return Obstacle.DRAINING
    if peer.holds:
        return Obstacle.NO_CREDIT
    return Obstacle.SETTLING if now.mono < peer.settled_mono else None
