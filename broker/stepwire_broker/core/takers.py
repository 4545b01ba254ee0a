"""Who can take a ready step now, and why the others cannot.

Dispatch to workers and to level 0, shadow copies, loading and `stepwire why` all decide by this module, so that no two
of them can disagree. An obstacle is lasting (it ends with the session, or when rules change) or passing (it ends by
itself or with a result). The sessions without a lasting obstacle are cached for each route.
"""

from enum import StrEnum
from typing import Final

from .model.events import Now
from .model.level0_peer import Level0Peer
from .model.live import WorkerSession
from .model.targets import BUS, LOCAL, Route
from .state import BrokerState


class Obstacle(StrEnum):
    """Why a session or a level-0 peer cannot take a step now. If several apply, the first of them is given."""

    # lasting
    OTHER_EXECUTOR = "other_executor"  # the step goes to another executor
    NOT_OFFERED = "not_offered"  # the handler is not offered
    UNKNOWN_HANDLER = "unknown_handler"  # the handler is offered, but the worker refused a step because of it
    LABELS = "labels"  # a required label is missing, or the worker is one of a canary that the step is not part of
    NOT_ALLOWED = "not_allowed"  # level 0 gets at_most_once steps only with bus.level0.at_most_once
    SESSIONS_FIRST = "sessions_first"  # level 0 gets nothing that a worker with a session can take
    # passing
    DRAINING = "draining"  # the worker takes nothing new
    STUCK = "stuck"  # every run of the worker is past its timeout
    MUTED = "muted"  # the worker does not answer its batches
    PAUSED = "paused"  # an operator paused the executor
    NO_CREDIT = "no_credit"  # the worker has no room; a level-0 peer holds a batch
    HAS_SUSPECT = "has_suspect"  # the step goes alone, and the worker holds another step that goes alone
    SETTLING = "settling"  # the PUB socket of a new level-0 peer may not reach this broker yet
    DOUBTED = "doubted"  # a level-0 peer that let a lease expire gets no at_most_once step


LEAVING: Final = frozenset({Obstacle.DRAINING, Obstacle.STUCK, Obstacle.MUTED})


def can_be_taken(state: BrokerState, route: Route) -> bool:
    """Can a step of this route be taken by anything connected, now or once there is room?"""
    return bool(offering(state, route)) or level0_serves(state, route)


def is_offered(state: BrokerState, handler_class: str) -> bool:
    """Does anything connected offer this handler, whatever its executor and labels?"""
    return level0_offers(state, handler_class) or any(
        knows_handler(session, handler_class) for session in state.sessions.values()
    )


# -- workers with a session -------------------------------------------------------------------------------------------


def takers(state: BrokerState, route: Route) -> list[WorkerSession]:
    """The sessions that can take a step of this route now."""
    return [session for session in offering(state, route) if passing_obstacle(session, route) is None]


def offering(state: BrokerState, route: Route) -> list[WorkerSession]:
    """The sessions that can take a step of this route once they have room for it."""
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
    """Does the worker offer this handler, and has it never refused a step because it does not know it?"""
    return session.offers(handler_class) and handler_class not in session.unknown


# -- level 0 ----------------------------------------------------------------------------------------------------------


def level0_serves(state: BrokerState, route: Route) -> bool:
    """Can a step of this route be taken by level 0, now or once a peer is free?"""
    return bool(state.level0.peers) and level0_obstacle(state, route) is None


def level0_offers(state: BrokerState, handler_class: str) -> bool:
    """Is there a level-0 peer, and may this handler run at level 0?"""
    return bool(state.level0.peers) and state.level0.allows(handler_class)


def level0_obstacle(state: BrokerState, route: Route) -> Obstacle | None:
    """The lasting obstacle of all level-0 peers: they offer the same handlers, because they cannot be distinguished."""
    target = route.target
    if target.executor != BUS and (target.executor != LOCAL or state.router.bus_is_distributed):
        return Obstacle.OTHER_EXECUTOR
    if not state.level0.allows(route.handler_class):
        return Obstacle.NOT_OFFERED
    if target.selector:
        return Obstacle.LABELS
    if route.is_at_most_once and not state.settings.bus.level0.at_most_once:
        return Obstacle.NOT_ALLOWED
    return None if all(session.draining for session in offering(state, route)) else Obstacle.SESSIONS_FIRST


def peer_obstacle(peer: Level0Peer, route: Route, now: Now) -> Obstacle | None:
    """The passing obstacle of one level-0 peer."""
    if peer.draining:
        return Obstacle.DRAINING
    if peer.holds:
        return Obstacle.NO_CREDIT
    if now.mono < peer.settled_mono:
        return Obstacle.SETTLING
    return Obstacle.DOUBTED if peer.doubted and route.is_at_most_once else None


def is_free(peer: Level0Peer, now: Now) -> bool:
    """Can this level-0 peer be handed a batch now?"""
    return not peer.holds and not peer.draining and now.mono >= peer.settled_mono
