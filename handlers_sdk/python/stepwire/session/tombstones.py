"""The deliveries that this process must not start, or not start again."""

from collections import OrderedDict
from typing import Final

from stepwire_protocol import limits
from stepwire_protocol.messages import Item

from .brokers import BrokerPeer
from .deliveries import HeldBatch

TOMBSTONES_MAX: Final = 20_000


class Tombstones:
    """Remembers deliveries that are over or were refused.

    The number of tombstones may be limited because batch numbers increase within a session. When a tombstone is
    forgotten, the floor of its session rises to its batch number, and unknown batches up to the floor are refused as
    stale. A delivery that was disowned before its receipt has no batch number, so its tombstone is kept for the full
    time.
    """

    def __init__(self) -> None:
        self._received: OrderedDict[Item, tuple[float, BrokerPeer, HeldBatch]] = OrderedDict()
        self._disowned: OrderedDict[Item, tuple[float, BrokerPeer]] = OrderedDict()

    def __contains__(self, item: Item) -> bool:
        return item in self._received or item in self._disowned

    def add(self, item: Item, peer: BrokerPeer, batch: HeldBatch, now_ms: float) -> None:
        self._received[item] = (now_ms, peer, batch)
        if len(self._received) > TOMBSTONES_MAX:
            self.forget_oldest()

    def disown(self, item: Item, peer: BrokerPeer, now_ms: float) -> None:
        """Make sure that this delivery, which may still be under way, never starts here."""
        if item not in self._received:
            self._disowned[item] = (now_ms, peer)

    def sweep(self, now_ms: float) -> None:
        """Forget tombstones that are older than TOMBSTONE_MS."""
        before = now_ms - limits.TOMBSTONE_MS
        while self._received and next(iter(self._received.values()))[0] < before:
            self.forget_oldest()
        while self._disowned and next(iter(self._disowned.values()))[0] < before:
            self._disowned.popitem(last=False)

    def forget_broker(self, peer: BrokerPeer) -> None:
        """Forget the tombstones of a broker whose database was replaced, because its ids now belong to other steps."""
        for item in [item for item, entry in self._received.items() if entry[1] is peer]:
            del self._received[item]
        for item in [item for item, (_, owner) in self._disowned.items() if owner is peer]:
            del self._disowned[item]

    def forget_oldest(self) -> None:
        _, (_, peer, batch) = self._received.popitem(last=False)
        if batch.session == peer.session and batch.number > peer.floor:
            peer.floor = batch.number
