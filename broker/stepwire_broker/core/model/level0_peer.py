"""Level-0 peers: handlers without a session, of which only their subscription is known, and what each was sent.

A peer reports nothing about itself. Whether it is connected, what it runs and whether it works is an assumption, made
from what it was sent and what it answered. These structs hold that assumption; `level0.py` acts on it.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct

EXPIRED_REMEMBERED_MAX: Final = 4_096


class Level0Peer(Struct, weakref=False, eq=False):
    """One subscription of `steps`. Its messages begin with its own `to`, and no other peer receives them."""

    to: str  # <epoch>.<number>, never used again
    worker: str  # the name that its deliveries are recorded under
    since_wall: int
    since_mono: int
    settled_mono: int  # from then on its own PUB is connected to the broker
    heard_mono: int  # when it last answered; before that, when it subscribed
    turn: int = 0  # the number of its last handout, counted over all peers
    holds: dict[str, "Handout"] = {}  # by batch id: sent to it, not answered, and its lease not over
    doubted: bool = False  # it let a lease expire and has not answered since
    draining: bool = False
    gone: bool = False  # it has unsubscribed; it may still answer what it was sent
    completed: int = 0
    failed: int = 0


class Handout(Struct, weakref=False, eq=False):
    """One batch, sent once. It is over when all of it is answered, or its lease ends."""

    id: str
    peer: Level0Peer | None  # None: sent before this broker started
    items: list[tuple[int, int]]  # step_id and delivery of the steps that are not answered
    lease_ms: int
    body: bytes = b""
    due_mono: int = 0  # when the lease ends; set when the batch is released
    over: bool = False


class Level0(Struct):
    """All level-0 peers and batches of this broker."""

    started_mono: int
    allows: Callable[[str], bool]  # whether steps of this handler_class may go to level 0
    peers: dict[str, Level0Peer] = {}  # by `to`
    handouts: dict[str, Handout] = {}  # by batch id
    expired: OrderedDict[str, Level0Peer] = OrderedDict()  # by batch id: the peer that did not answer it in time
    numbered: int = 0
    turns: int = 0
