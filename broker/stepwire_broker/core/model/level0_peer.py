"""Level-0 peers (handlers without a session, known only by their subscription) and the batches they hold.

A peer reports nothing about itself. The broker infers its load and its health from the batches sent and the answers
received. These structs hold the inferred state.
"""

from collections import OrderedDict
from typing import Final

from msgspec import Struct, field

from .principal import PROCESS, Rights

EXPIRED_REMEMBERED_MAX: Final = 4_096
UNKNOWN_REMEMBERED_MAX: Final = 256  # handlers, for each peer


class Level0Peer(Struct, weakref=False, eq=False):
    """One subscription of `steps`. Messages for this peer begin with its own `to`, so no other peer receives them."""

    to: str  # <epoch>.<number>, never used twice
    worker: str  # the name under which its deliveries are recorded
    since_wall: int
    since_mono: int
    settled_mono: int  # from this time on the peer's PUB socket can reach this broker
    heard_mono: int  # when it last answered, or else when it subscribed
    principal: str = PROCESS
    rights: Rights | None = None  # None: the principal's grant was withdrawn
    turn: int = 0  # number of its latest batch, counted over all peers
    holds: dict[str, "Handout"] = {}  # by batch id: handed out, not answered, and the lease is not over
    doubted: bool = False  # a lease expired, and it has not answered since
    draining: bool = False
    gone: bool = False  # its subscription ended; it may still answer the batch it holds
    unknown: dict[str, None] = {}  # handlers that it answered with `unknown_handler`, the latest last
    is_uniform: bool = False  # it refused a mixed batch as a whole: its batches have steps of one handler only
    completed: int = 0
    failed: int = 0

    @property
    def is_choosy(self) -> bool:
        """True if there are handlers or namespaces whose steps this peer does not get."""
        rights = self.rights
        return bool(self.unknown) or rights is None or not (rights.is_for_all_handlers and rights.is_for_all_namespaces)

    def may_run(self, handler_class: str, namespace: str | None) -> bool:
        return self.rights is not None and self.rights.allows(handler_class, namespace)

    def learn_unknown(self, handler_class: str) -> None:
        """Remember that the peer does not know this handler. Beyond the limit, the peer is asked again about the
        handler that it refused first."""
        self.unknown.pop(handler_class, None)
        self.unknown[handler_class] = None
        if len(self.unknown) > UNKNOWN_REMEMBERED_MAX:
            del self.unknown[next(iter(self.unknown))]


class Handout(Struct, weakref=False, eq=False):
    """One batch, sent once. A handout ends when every step is answered or the lease ends."""

    id: str
    peer: Level0Peer | None  # None: handed out before this broker started
    items: list[tuple[int, int]]  # step_id and delivery of the steps that are not answered
    run_ms: int  # the timeouts of its steps, plus 5 s: the lease, times the number of live brokers
    body: bytes = b""
    due_mono: int = 0  # when the lease ends; set when the batch is sent
    over: bool = False


class Level0(Struct):
    """The broker's state of level 0."""

    peers: dict[str, Level0Peer] = {}  # by `to`
    handouts: dict[str, Handout] = {}  # by batch id
    expired: OrderedDict[str, Level0Peer] = field(
        default_factory=OrderedDict
    )  # by batch id: the peer whose lease expired
    numbered: int = 0
    turns: int = 0
