"""The deliveries that this process must not start, or not start again."""

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from stepwire_protocol import limits
from stepwire_protocol.messages import Item

from .brokers import BrokerPeer
from .deliveries import HeldBatch

TOMBSTONES_MAX: Final = 20_000


class Buried(NamedTuple):
    """Deliveries of one batch that ended at the same time."""

    at_ms: float
    peer: BrokerPeer
    batch: HeldBatch
    items: list[Item]


class Tombstones:
    """Remembers deliveries that are over or were refused.

    The number of tombstones may be limited because batch numbers increase within a session. When a tombstone is
    forgotten, the floor of its session rises to its batch number, and unknown batches up to the floor are refused as
    stale. A delivery that was disowned before its receipt has no batch number, so its tombstone is kept for the full
    time.
    """

    def __init__(self) -> None:
        self._received: dict[Item, Buried] = {}
        self._by_age: deque[Buried] = deque()
        self._disowned: OrderedDict[Item, tuple[float, BrokerPeer]] = OrderedDict()

    def __contains__(self, item: Item) -> bool:
        return item in self._received or item in self._disowned

    def add(self, items: list[Item], peer: BrokerPeer, batch: HeldBatch, now_ms: float) -> None:
        if not items:
            return
        buried = Buried(now_ms, peer, batch, items)
        self._received.update(dict.fromkeys(items, buried))
        self._by_age.append(buried)
        while len(self._received) > TOMBSTONES_MAX:
            self.forget_oldest()

    def disown(self, item: Item, peer: BrokerPeer, now_ms: float) -> None:
        """Make sure that this delivery, which may still be under way, never starts here."""
        if item not in self._received:
            self._disowned[item] = (now_ms, peer)

    def sweep(self, now_ms: float) -> None:
        """Forget tombstones that are older than TOMBSTONE_MS."""
        before = now_ms - limits.TOMBSTONE_MS
        while self._by_age and self._by_age[0].at_ms < before:
            self.forget_oldest()
        while self._disowned and next(iter(self._disowned.values()))[0] < before:
            self._disowned.popitem(last=False)

    def forget_broker(self, peer: BrokerPeer) -> None:
        """Forget the tombstones of a broker whose database was replaced, because its ids now belong to other steps."""
        for item in [item for item, buried in self._received.items() if buried.peer is peer]:
            del self._received[item]
        self._by_age = deque(buried for buried in self._by_age if buried.peer is not peer)
        for item in [item for item, (_, owner) in self._disowned.items() if owner is peer]:
            del self._disowned[item]

    def forget_oldest(self) -> None:
        buried = self._by_age.popleft()
        for item in buried.items:
            if self._received.get(item) is buried:  # otherwise it was buried again since
                del self._received[item]
        peer, batch = buried.peer, buried.batch
        if batch.session == peer.session and batch.number > peer.floor:
            peer.floor = batch.number
