"""Every delivery that this process holds: the list `holding` of heartbeats."""

from collections.abc import Callable

from stepwire_protocol.messages import HeldItem, Item

from .brokers import BrokerPeer
from .deliveries import ASKING, DONE, QUEUED, RUNNING, HeldBatch, HeldDelivery
from .slots import Slots
from .tombstones import Tombstones


class HeldDeliveries:
    """The held deliveries by item, from their receipt until their result is acknowledged."""

    def __init__(self, slots: Slots) -> None:
        self.load = 0  # deliveries that need a slot or have one
        self.tombstones = Tombstones()
        self._slots = slots
        self._held: dict[Item, HeldDelivery] = {}
        self._orphans: dict[Item, HeldDelivery] = {}  # still run, for a database that was replaced
        # Called for every step, so they are the methods of the dictionaries.
        self.get: Callable[[Item], HeldDelivery | None] = self._held.get
        self.is_orphan: Callable[[Item], bool] = self._orphans.__contains__

    def __len__(self) -> int:
        return len(self._held)

    def running(self) -> list[HeldDelivery]:
        return [held for held in self._held.values() if held.state is RUNNING]

    def not_started(self) -> list[HeldDelivery]:
        return [held for held in self._held.values() if held.state is QUEUED or held.state is ASKING]

    def of_broker(self, peer: BrokerPeer) -> list[HeldDelivery]:
        return [held for held in self._held.values() if held.peer is peer]

    def report(self, now_ms: float) -> list[HeldItem]:
        """The member `holding` of hello and heartbeat."""
        return [(*held.item, held.state, held.age_ms(now_ms)) for held in self._held.values() if held.state is not None]

    def add(self, held: HeldDelivery) -> None:
        """Add a delivery that was just received, and put it into the run queue."""
        self._held[held.item] = held
        held.peer.load += 1
        self.load += 1
        self._slots.queue(held)

    def finish(self, held: HeldDelivery) -> None:
        """Record the end of a run. Only its result is kept."""
        held.state = DONE
        held.step = None
        self._lighten(held)
        self._slots.release(held)

    def bury(self, held: HeldDelivery, now_ms: float) -> None:
        """Forget the delivery, but keep its tombstone."""
        state, held.state = held.state, None
        if state is None:
            return
        del self._held[held.item]
        self.tombstones.add(held.item, held.peer, held.batch, now_ms)
        if state is DONE:
            held.message = None  # breaks a reference cycle that only the cyclic collector would free
            return
        held.step = None
        self._lighten(held)
        if state is ASKING:
            del self._slots.asking[held.item]
        if state is not QUEUED:
            self._slots.release(held)

    def bury_unread(self, peer: BrokerPeer, batch: HeldBatch, items: list[Item], now_ms: float) -> None:
        """Keep tombstones of refused deliveries, so that they do not start if they are received again."""
        for item in items:
            if item not in self._held:
                self.tombstones.add(item, peer, batch, now_ms)

    def move(self, held: HeldDelivery, peer: BrokerPeer) -> None:
        """Change the owner of a delivery to the broker that has adopted it."""
        if held.state is not DONE:
            held.peer.load -= 1
            peer.load += 1
        held.peer = peer

    def orphan(self, held: HeldDelivery) -> None:
        """Let a run end whose broker's database was replaced, but drop its result."""
        del self._held[held.item]
        self._orphans[held.item] = held
        self._lighten(held)

    def release_orphan(self, item: Item) -> None:
        held = self._orphans.pop(item, None)
        if held is not None:
            self._slots.release(held)

    def _lighten(self, held: HeldDelivery) -> None:
        held.peer.load -= 1
        self.load -= 1
