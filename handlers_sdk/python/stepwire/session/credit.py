"""The credit of each broker. Brokers do not know of each other, so the worker divides its capacity among them.

Each broker has an equal share, rounded down. The remainder rotates, so that every broker has its turn even if there are
more brokers than capacity. Idle brokers lend their share to the others, but keep the credit that they already have. The
total credit can therefore reach twice the capacity, and never more. Steps above the capacity wait, and cost only
memory.
"""

from typing import Final, NamedTuple

from .brokers import BrokerPeer, Brokers
from .config import Config
from .holdings import HeldDeliveries
from .outbox import ResultsOutbox

OUTBOX_BYTES_MAX: Final = (
    64 * 1024 * 1024
)  # above this size no credit is offered: brokers that send no acks may send no steps


class Credit:
    """The credit of each broker, and the reasons to offer none."""

    def __init__(self, config: Config, brokers: Brokers, holdings: HeldDeliveries, outbox: ResultsOutbox) -> None:
        self.capacity = config.slots + config.queue_max
        self.is_quiet = False  # set by the program: accept no new steps
        self.is_full = False  # the runner accepts no steps at the moment
        self.is_draining = False
        self._idle_after_ms = 2 * config.heartbeat_ms
        self._brokers = brokers
        self._holdings = holdings
        self._outbox = outbox
        self._rotation = 0

    def rotate(self) -> None:
        """Give the remainder of the split to the next broker."""
        self._rotation += 1

    def room(self) -> int:
        """The number of further steps that are not refused. The total credit can be twice the capacity."""
        return 2 * self.capacity - self._holdings.load

    def of_all(self, now_ms: float) -> dict[str, int]:
        """The member `free` of hello and heartbeat."""
        return {peer.id: self.of(peer, now_ms) for peer in self._brokers}

    def of(self, peer: BrokerPeer, now_ms: float) -> int:
        is_closed = self.is_draining or self.is_quiet or self.is_full or peer.is_quiet
        if is_closed or self._outbox.bytes > OUTBOX_BYTES_MAX:
            return 0
        if len(self._brokers) == 1:
            return max(0, self.capacity - self._holdings.load)
        live = [p for p in self._brokers if p.session or p is peer]
        claims = [Claim(p.load, not p.load and p.steps_ms + self._idle_after_ms <= now_ms) for p in live]
        return split(self.capacity, claims, live.index(peer), self._rotation)


class Claim(NamedTuple):
    """The load of one live broker, and whether it is idle."""

    load: int
    is_idle: bool


def split(capacity: int, claims: list[Claim], index: int, rotation: int) -> int:
    """The credit of the broker at `index`."""
    mine = claims[index]
    if len(claims) == 1:
        return max(0, capacity - mine.load)
    places = _share(capacity, len(claims), index, rotation)
    if not mine.is_idle:
        lent = sum(_share(capacity, len(claims), i, rotation) for i, claim in enumerate(claims) if claim.is_idle)
        borrowers = sum(not claim.is_idle for claim in claims)
        rank = sum(not claim.is_idle for claim in claims[:index])
        places += _share(lent, borrowers, rank, rotation)
    return max(0, places - mine.load)


def _share(capacity: int, among: int, index: int, rotation: int) -> int:
    whole, rest = divmod(capacity, among)
    return whole + ((index + rotation) % among < rest)
