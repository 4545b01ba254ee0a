"""Every delivery that this process holds: the list `holding` of heartbeats."""

from collections.abc import Callable

from stepwire_protocol.messages import HeldItem, Item

from .brokers import BrokerPeer
from .deliveries import ASKING, DONE, QUEUED, RUNNING, HeldBatch, HeldDelivery, ResultsMessage
from .pace import Pace
from .slots import Slots
from .tombstones import Tombstones


class HeldDeliveries:
    """The held deliveries by item, from their receipt until their result is acknowledged."""

    def __init__(self, slots: Slots, pace: Pace) -> None:
        self.load = 0  # deliveries that need a slot or have one
        self.pace = pace
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

    def withdraw(self) -> list[HeldDelivery]:
        """All deliveries whose runs have not begun. They never will: the caller must end these deliveries."""
        return [held for held in self._held.values() if held.withdraw()]

    def withdraw_newest(self, count: int, peers: set[BrokerPeer]) -> list[HeldDelivery]:
        """At most `count` deliveries of these brokers whose runs have not begun, the newest first. Not those that ask
        for permission."""
        withdrawn: list[HeldDelivery] = []
        for held in reversed(self._held.values()):
            if len(withdrawn) >= count:
                break
            if (
                held.peer in peers
                and held.state is not ASKING
                and not (held.is_at_most_once and held.state is RUNNING)
                and held.withdraw()
            ):
                withdrawn.append(held)
        return withdrawn

    def of_broker(self, peer: BrokerPeer) -> list[HeldDelivery]:
        return [held for held in self._held.values() if held.peer is peer]

    def report(self, now_ms: float) -> list[HeldItem]:
        """The member `holding` of hello and heartbeat."""
        return [
            (*held.item, state, held.age_ms(now_ms))
            for held in self._held.values()
            if (state := held.reported_state) is not None
        ]

    def add(self, held: HeldDelivery) -> None:
        """Add a delivery that was just received, and put it into the run queue."""
        self._held[held.item] = held
        held.peer.load += 1
        self.load += 1
        held.batch.open += 1
        if self.load == 1:
            self.pace.resume(held.received_ms)
        self._slots.queue(held)

    def finish(self, held: HeldDelivery, now_ms: float) -> None:
        """Record the end of a run. Only its result is kept."""
        held.state = DONE
        held.step = None
        self.pace.count_end(now_ms)
        self._lighten(held, now_ms)
        self._slots.release(held, now_ms)

    def bury(self, held: HeldDelivery, now_ms: float) -> None:
        """Forget the delivery, but keep its tombstone."""
        state, held.state = held.state, None
        if state is None:
            return
        del self._held[held.item]
        self.tombstones.add([held.item], held.peer, held.batch, now_ms)
        if state is DONE:
            held.message = None  # breaks a reference cycle that only the cyclic collector would free
            return
        held.step = None
        self._lighten(held, now_ms)
        if state is ASKING:
            del self._slots.asking[held.item]
        if state is not QUEUED:
            self._slots.release(held, now_ms)

    def bury_acknowledged(self, message: ResultsMessage, now_ms: float) -> None:
        """Forget the deliveries of a results message that its broker has committed: `bury`, for all of them at once."""
        peer, items = message.peer, []
        for held in message.done:
            if held.state is not DONE or held.peer is not peer:
                self.bury(held, now_ms)
                continue
            held.state = held.message = None
            item = held.item
            del self._held[item]
            items.append(item)
        self.tombstones.add(items, peer, message.batch, now_ms)

    def bury_unread(self, peer: BrokerPeer, batch: HeldBatch, items: list[Item], now_ms: float) -> None:
        """Keep tombstones of refused deliveries, so that they do not start if they are received again."""
        self.tombstones.add([item for item in items if item not in self._held], peer, batch, now_ms)

    def move(self, held: HeldDelivery, peer: BrokerPeer) -> None:
        """Change the owner of a delivery to the broker that has adopted it."""
        if held.state is not DONE:
            held.peer.load -= 1
            peer.load += 1
        held.peer = peer
        if held.run is not None:
            held.run.lease = peer.lease  # a run that has not begun now needs the lease of the new owner

    def orphan(self, held: HeldDelivery, now_ms: float) -> None:
        """Let a run end whose broker's database was replaced, but drop its result."""
        del self._held[held.item]
        self._orphans[held.item] = held
        self._lighten(held, now_ms)

    def release_orphan(self, item: Item, now_ms: float) -> None:
        held = self._orphans.pop(item, None)
        if held is not None:
            self._slots.release(held, now_ms)

    def _lighten(self, held: HeldDelivery, now_ms: float) -> None:
        held.peer.load -= 1
        self.load -= 1
        if not self.load:
            self.pace.pause(now_ms)
