"""The credit of each broker: how many steps the worker has room for, and how the room is divided.

A worker has its slots, and room for steps that wait: as many as it really finishes in PREFETCH_MS. Short steps then
never run out between two messages, and long steps stay at the broker, where another worker can take them. A declared
prefetch is the least room; a declared prefetch of 0 means that no step waits here. If steps become longer, the room
shrinks, and the worker returns the steps that no longer fit.

Brokers do not know of each other, so the worker divides its capacity among them. Each broker has an equal share,
rounded down. The remainder rotates, so that every broker has its turn even if there are more brokers than capacity.
Idle brokers lend their share to the others, but keep the credit that they already have. The total credit can therefore
reach twice the capacity, and never more. Steps above the capacity wait, and cost only memory.
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

    def of_all(self, now_ms: float) -> dict[str, int]:
        """The member `free` of hello and heartbeat."""
        return {peer.id: self.of(peer, now_ms)[0] for peer in self._brokers}

    def slots_of_all(self, now_ms: float) -> dict[str, int]:
        """The member `slots_free` of hello and heartbeat."""
        return {peer.id: self.of(peer, now_ms)[1] for peer in self._brokers}

    def of(self, peer: BrokerPeer, now_ms: float) -> tuple[int, int]:
        """The members `free` and `slots_free`: the number of further steps, and how many of them would start at
        once."""
        is_closed = self.is_draining or self.is_quiet or self.is_full or peer.is_quiet
        if is_closed or self._outbox.bytes > OUTBOX_BYTES_MAX:
            return 0, 0
        capacity = self._slots + self.room(now_ms)
        if capacity > self._largest:
            self._largest = capacity
        if len(self._brokers) == 1:
            load = self._holdings.load
            return max(0, capacity - load), max(0, self._slots - load)
        live = [p for p in self._brokers if p.session or p is peer]
        claims = [Claim(p.load, not p.load and p.steps_ms + self._idle_after_ms <= now_ms) for p in live]
        index = live.index(peer)
        free = split(capacity, claims, index, self._rotation)
        return free, min(free, split(self._slots, claims, index, self._rotation))

    # -- return -------------------------------------------------------------------------------------------------------

    def watch(self, now_ms: float) -> None:
        """Look for steps that no longer fit, after a while, if more are held than there are slots."""
        if self._holdings.load > self._slots + (self._prefetch or 0):
            self.return_at_ms = min(self.return_at_ms, now_ms + RETURN_EVERY_MS)

    def excess(self, now_ms: float) -> tuple[int, set[BrokerPeer]]:
        """The number of steps that no longer fit, and the brokers that may get them back. Called at `return_at_ms`.

        A broker that still has credit would send the steps again at once, so it gets none back. That is also why steps
        that wait for their handler's concurrency are not returned while they fit into the slots.
        """
        self.return_at_ms = NEVER
        self.watch(now_ms)
        load, room = self._holdings.load, self.room(now_ms)
        fitting, tolerated = self._slots + room, self._slots + RETURN_FACTOR * room
        if len(self._brokers) > 1:  # the credits of several brokers may add up to twice the capacity
            fitting = tolerated = 2 * fitting
        if load <= tolerated:
            return 0, set()
        return load - fitting, {peer for peer in self._brokers if not self.of(peer, now_ms)[0]}


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
