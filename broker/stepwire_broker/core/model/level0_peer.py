"""Level-0 peers: handlers without a session, of which only their subscription is known, and what each was handed.

A peer says nothing of itself. That it is there, what it runs and whether it is well is what we believe, from what we
gave it and from what came back; these structs are that belief, and level0.py is what is done with it.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct

EXPIRED_REMEMBERED_MAX: Final = 4_096


class Level0Peer(Struct, weakref=False, eq=False):
    """One subscription of `steps`. What is for it begins with its own `to`, and nobody else receives that."""

    to: str  # <epoch>.<number>, never given twice
    worker: str  # what its deliveries are recorded under
    since_wall: int
    since_mono: int
    settled_mono: int  # from then on its own PUB can reach us
    heard_mono: int  # when it last answered; before that, when it came
    turn: int = 0  # of the hand-overs of all peers: when it last had one
    holds: dict[str, "Handout"] = {}  # by batch id: handed to it, not answered, and its lease not over
    doubted: bool = False  # it let a lease expire and has not answered since
    draining: bool = False
    gone: bool = False  # its subscription is no more; what it was handed it may still answer
    completed: int = 0
    failed: int = 0


class Handout(Struct, weakref=False, eq=False):
    """One batch, sent once. It is over when all of it is answered, or its lease ends."""

    id: str
    peer: Level0Peer | None  # None: handed over before this broker started
    items: list[tuple[int, int]]  # step_id and delivery of what is not answered
    lease_ms: int
    body: bytes = b""
    due_mono: int = 0  # from its release on: when the lease ends
    over: bool = False


class Level0(Struct):
    """All of level 0 that this broker's core knows."""

    started_mono: int
    allows: Callable[[str], bool]  # may this handler_class go to level 0?
    peers: dict[str, Level0Peer] = {}  # by `to`
    handouts: dict[str, Handout] = {}  # by batch id
    expired: OrderedDict[str, Level0Peer] = OrderedDict()  # by batch id: who let it expire
    numbered: int = 0
    turns: int = 0
