"""The credit of each broker: how many steps the worker has room for, and how the room is divided.

A worker has its slots, and room for steps that wait: as many as it really finishes in PREFETCH_MS. Short steps then
never run out between two messages, and long steps stay at the broker, where another worker can take them. A declared
prefetch is the least room; a declared prefetch of 0 means that no step waits here. If steps become longer, the room
shrinks, and the worker returns the steps that no longer fit.

Brokers do not know of each other, so the worker divides its capacity among them. Each broker has an equal share,
rounded down. The remainder rotates, so that every broker has its turn even if there are more brokers than capacity.
An idle broker keeps one place of its share, and lends the rest to the others. Each place is promised to one broker at a
time: it is offered to another one only when its former holder has acknowledged a smaller number (`promises.py`).
"""

from typing import Final, NamedTuple

from stepwire_protocol import limits

from stepwire.actions import NEVER

from .brokers import BrokerPeer, Brokers
from .config import Config
from .holdings import HeldDeliveries
from .outbox import ResultsOutbox

OUTBOX_BYTES_MAX: Final = 64 * 1024 * 1024  # above this, no credit: brokers that send no acks may send no steps
WAITING_MAX: Final = 2_000  # steps for which the observed pace makes room
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024  # the same in bytes
RETURN_EVERY_MS: Final = 20.0  # interval of the search for steps that no longer fit
IDLE_KEEPS: Final = 1  # places that an idle broker does not lend, so that its next step need not wait
RETURN_FACTOR: Final = 2  # steps are returned when this many times the room is in use, so the pace may vary


class Credit:
    """The credit of each broker, and the reasons to offer none."""

    def __init__(self, config: Config, brokers: Brokers, holdings: HeldDeliveries, outbox: ResultsOutbox) -> None:
        self.return_at_ms = NEVER
        self.is_quiet = False  # set by the program: accept no new steps
        self.is_full = False  # the runner accepts no steps at the moment
        self.is_draining = False
        self._slots = config.slots
        self._prefetch = config.prefetch
        self._largest = config.slots + config.queue_max  # the largest capacity that was offered
        self._step_bytes = 0.0  # of a recent step
        self._idle_after_ms = 2 * config.heartbeat_ms
        self._brokers = brokers
        self._holdings = holdings
        self._outbox = outbox
        self._rotation = 0

    def rotate(self) -> None:
        """Give the remainder of the split to the next broker."""
        self._rotation += 1

    def ahead(self, now_ms: float) -> int:
        """The number of steps that are expected to end in PREFETCH_MS, and that may wait, here or in the runner."""
        if self._prefetch == 0:
            return 0
        steps_max = min(WAITING_MAX, WAITING_BYTES_MAX / self._step_bytes if self._step_bytes else WAITING_MAX)
        return int(min(self._holdings.pace.steps_in(limits.PREFETCH_MS, now_ms), steps_max) + 0.5)

    def room(self, now_ms: float) -> int:
        """The number of steps that may wait for a slot."""
        return max(self._prefetch or 0, self.ahead(now_ms))

    def places(self) -> int:
        """The number of further steps that are not refused: the total credit can be twice the capacity."""
        return 2 * self._largest - self._holdings.load

    def note_size(self, step_bytes: float) -> None:
        """Note the size of the steps in a message."""
        self._step_bytes += (step_bytes - self._step_bytes) / 4

    def offer_all(self, n: int, now_ms: float) -> tuple[dict[str, int], dict[str, int]]:
        """The members `free` and `slots_free` of the hello or heartbeat with this number, which promise this credit."""
        offers: list[tuple[str, int, int]] = []
        for peer in self._brokers:
            free, slots_free = self._place(peer, now_ms)
            peer.promises.announce(n, free)
            offers.append((peer.id, free, slots_free))
        return {id: free for id, free, _ in offers}, {id: slots_free for id, _, slots_free in offers}

    def offer(self, peer: BrokerPeer, now_ms: float) -> tuple[int, int]:
        """The members `free` and `slots_free` of another message to this broker, which promises this credit."""
        free, slots_free = self._place(peer, now_ms)
        peer.promises.name(free)
        return free, slots_free

    def moves(self, peer: BrokerPeer) -> bool:
        """True if another broker was held back by promises, and may get places that this one no longer has."""
        return any(other.is_held_back and other.session for other in self._brokers if other is not peer)

    def is_waking(self, peer: BrokerPeer, now_ms: float) -> bool:
        """True if this broker was idle until now, and its share was lent to another one."""
        lends = any(other.session for other in self._brokers if other is not peer)
        return lends and self._is_idle(peer, now_ms)

    def _place(self, peer: BrokerPeer, now_ms: float) -> tuple[int, int]:
        free, slots_free, peer.is_held_back = self._split(peer, now_ms)
        return free, slots_free

    def _split(self, peer: BrokerPeer, now_ms: float) -> tuple[int, int, bool]:
        """The number of further steps, how many of them would start at once, and whether promises to others hold the
        broker back."""
        if self._is_closed(peer):
            return 0, 0, False
        capacity = self._slots + self.room(now_ms)
        if capacity > self._largest:
            self._largest = capacity
        load = self._holdings.load
        if len(self._brokers) == 1:
            return max(0, capacity - load), max(0, self._slots - load), False
        left = min(self._share_left(capacity, peer, now_ms), capacity - load)
        promised = sum(p.promises.promised for p in self._brokers if p.session and p is not peer)
        free = max(0, min(left, capacity - load - promised))
        slots_left = min(self._share_left(self._slots, peer, now_ms), self._slots - load)
        return free, max(0, min(free, slots_left)), free < left

    def _is_closed(self, peer: BrokerPeer) -> bool:
        is_closed = self.is_draining or self.is_quiet or self.is_full or peer.is_quiet
        return is_closed or self._outbox.bytes > OUTBOX_BYTES_MAX

    def _share_left(self, capacity: int, peer: BrokerPeer, now_ms: float) -> int:
        """The part of this broker's share of the capacity that it does not use yet; negative if it uses more."""
        live = [p for p in self._brokers if p.session or p is peer]
        claims = [Claim(p.load, self._is_idle(p, now_ms)) for p in live]
        return split(capacity, claims, live.index(peer), self._rotation)

    def _is_idle(self, peer: BrokerPeer, now_ms: float) -> bool:
        return not peer.load and peer.steps_ms + self._idle_after_ms <= now_ms

    # -- return -------------------------------------------------------------------------------------------------------

    def watch(self, now_ms: float) -> None:
        """Look for steps that no longer fit, after a while, if more are held than there are slots."""
        if self._holdings.load > self._slots + (self._prefetch or 0):
            self.return_at_ms = min(self.return_at_ms, now_ms + RETURN_EVERY_MS)

    def excess(self, now_ms: float) -> tuple[int, set[BrokerPeer]]:
        """The number of steps that no longer fit, and the brokers that may get them back. Called at `return_at_ms`.

        A broker that still has credit would send the steps again at once, so none is returned while some are left. That
        is also why steps that wait for their handler's concurrency are not returned while they fit into the slots. Of
        several brokers, those get steps back that use their whole share.
        """
        self.return_at_ms = NEVER
        self.watch(now_ms)
        load, room = self._holdings.load, self.room(now_ms)
        fitting, tolerated = self._slots + room, self._slots + RETURN_FACTOR * room
        capacity = fitting
        if len(self._brokers) > 1:  # credit that was promised before steps became longer
            fitting = tolerated = 2 * fitting
        if load <= tolerated:
            return 0, set()
        full = {p for p in self._brokers if self._is_closed(p) or self._share_left(capacity, p, now_ms) <= 0}
        return load - fitting, full


class Claim(NamedTuple):
    """The load of one live broker, and whether it is idle."""

    load: int
    is_idle: bool


def split(capacity: int, claims: list[Claim], index: int, rotation: int) -> int:
    """The places of the broker at `index` that it does not use yet; negative if it uses more than its places."""
    mine = claims[index]
    shares = [_share(capacity, len(claims), i, rotation) for i in range(len(claims))]
    places = shares[index]
    borrowers = sum(not claim.is_idle for claim in claims)
    if mine.is_idle and borrowers:
        places = min(places, IDLE_KEEPS)
    elif not mine.is_idle:
        lent = sum(max(0, share - IDLE_KEEPS) for share, claim in zip(shares, claims, strict=True) if claim.is_idle)
        rank = sum(not claim.is_idle for claim in claims[:index])
        places += _share(lent, borrowers, rank, rotation)
    return places - mine.load


def _share(capacity: int, among: int, index: int, rotation: int) -> int:
    whole, rest = divmod(capacity, among)
    return whole + ((index + rotation) % among < rest)
