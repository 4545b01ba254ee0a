"""The port `Cluster` over the tables in memory: beats, and the statements that take lanes and give them up.

Each statement is one call. A lane whose transaction is between its fence and its COMMIT is locked: a take passes over
it, as SKIP LOCKED does.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace
from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.membership.cluster_rows import (
    Beaten,
    BrokerRow,
    LaneOwner,
    ObservedBroker,
    Presence,
    TakeLanes,
)
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.events import Now

from . import tables as memory
from .database import taken_lane
from .queries import MemoryQueries
from .tables import Tables


class BeatRows(NamedTuple):
    """The answer of the server to a beat."""

    brokers: tuple[BrokerRow, ...]
    lanes: tuple[LaneOwner, ...]
    orders: tuple[int, ...]
    controls_revision: int
    blocks: tuple[tuple[int, int], ...]
    clock_ms: int


class TakenEnd(NamedTuple):
    """A lane that was taken, and the longest lease that its former owner gave to a worker."""

    lane: int
    lease_ms: int


class MemoryCluster:
    """One start of a broker, among the others on these tables. `clocks` are the ones of its host."""

    def __init__(self, tables: Tables, broker: str, epoch: int, lease_ms: int, clocks: Callable[[], Now]) -> None:
        self.lease_ms = lease_ms
        self._tables = tables
        self._broker = broker
        self.epoch = self._epoch = epoch
        self._clocks = clocks
        self.ends_before: dict[int, int] = {}  # by lane: its end when the last take began
        self._block = -1  # the highest number of a block that was reported

    def start(self, version: str, worker_lease_ms: int) -> None:
        """Write the row of this start."""
        brokers, before = self._tables.brokers, self._tables.brokers.get(self._broker)
        longest_ms = worker_lease_ms if before is None else max(worker_lease_ms, before.worker_lease_ms)
        brokers[self._broker] = BrokerRow(
            id=self._broker,
            epoch=self._epoch,
            beat=0,
            lease_ms=self.lease_ms,
            worker_lease_ms=longest_ms,
            version=version,
        )

    # -- beats --------------------------------------------------------------------------------------------------------

    def beat(self, presence: Presence) -> Beaten:
        sent = self._clocks()
        return self.beaten(self.beat_rows(presence), sent, self._clocks())

    def beat_rows(self, presence: Presence) -> BeatRows:
        """Change the row of this start, unless another one has replaced it, and read all rows."""
        tables = self._tables
        row = tables.brokers.get(self._broker)
        if row is not None and row.epoch == self._epoch:
            values = {name: getattr(presence, name) for name in Presence.__struct_fields__}
            tables.brokers[self._broker] = replace(row, beat=row.beat + 1, **values)
        own = [lane for lane, of in tables.lanes.items() if (of.owner, of.owner_epoch) == (self._broker, self._epoch)]
        blocks = [(number, block.lane) for number, block in sorted(tables.blocks.items()) if number > self._block]
        self._block = max((self._block, *(number for number, _ in blocks)))
        open_orders = {order.lane for order in tables.orders.values() if order.answer is None}
        return BeatRows(
            brokers=tuple(tables.brokers[id] for id in sorted(tables.brokers)),
            lanes=tuple(LaneOwner(lane, *of) for lane, of in sorted(tables.lanes.items())),
            orders=tuple(lane for lane in own if lane in open_orders),
            controls_revision=MemoryQueries(tables).controls_revision(),
            blocks=tuple(blocks),
            clock_ms=tables.now_ms(),
        )

    def beaten(self, rows: BeatRows, sent: Now, received: Now) -> Beaten:
        """`sent` and `received` are of the clocks of this host."""
        return Beaten(
            sent_mono=sent.mono,
            received_mono=received.mono,
            brokers=rows.brokers,
            lanes=rows.lanes,
            offset_ms=rows.clock_ms - (sent.wall + received.wall) // 2,
            orders=rows.orders,
            controls_revision=rows.controls_revision,
            blocks=rows.blocks,
        )

    # -- lanes --------------------------------------------------------------------------------------------------------

    def take(self, takes: TakeLanes) -> list[TakenLane]:
        return list(self.read_taken(self.take_rows(takes)))

    def begin_take(self) -> None:
        """Note what the statement that takes lanes would read: its view of the rows is older than its locks."""
        self.ends_before = dict(self._tables.seqs)

    def take_rows(self, takes: TakeLanes) -> list[TakenEnd]:
        """Take lanes that are free, own ones that are not served, and those of dead brokers, one statement."""
        for lane in takes.stuck:
            self._tables.end_blocker(lane)
        runs = {(each.id, each.epoch) for each in takes.dead if self._is_unchanged(each)}
        taken = []
        for lane, row in sorted(self._tables.lanes.items()):
            is_free = row.owner is None or (row.owner, row.owner_epoch) in runs
            is_own = row.owner == self._broker and lane not in takes.served
            if len(taken) < takes.most and (is_free or is_own) and lane not in self._tables.locked:
                taken.append(TakenEnd(lane, self._lease_of(row.owner)))
                self._tables.take(lane, self._broker, self._epoch)
        return taken

    def _is_unchanged(self, dead: ObservedBroker) -> bool:
        """The row of the broker decides: a beat that came before this statement voids it."""
        row = self._tables.brokers.get(dead.id)
        return row is None or (row.epoch, row.beat) == (dead.epoch, dead.beat) or row.epoch > dead.epoch

    def _lease_of(self, owner: str | None) -> int:
        """A lane that was released does not name its former owner."""
        brokers = self._tables.brokers
        rows = [brokers[owner]] if owner in brokers else list(brokers.values())
        return max((row.worker_lease_ms for row in rows), default=0)

    def read_taken(self, taken: Iterable[TakenEnd]) -> tuple[TakenLane, ...]:
        """Read what this broker needs of the lanes that it took: a statement of its own, after the take."""
        tables = self._tables
        own = [each for each in taken if tables.lanes[each.lane][:2] == (self._broker, self._epoch)]
        return tuple(taken_lane(tables, each.lane, each.lease_ms) for each in own)

    def release(self, lane: int, epoch: int, to: str | None = None) -> bool:
        """Give a lane up, after its last group. False: another broker has taken it before."""
        row = self._tables.lanes[lane]
        if row.epoch != epoch:
            return False
        next_owner = None if to is None else self._tables.brokers.get(to)
        if next_owner is not None and next_owner.is_draining:
            next_owner = None
        owner = (None, None) if next_owner is None else (next_owner.id, next_owner.epoch)
        self._tables.lanes[lane] = memory.LaneOwner(*owner, epoch + 1)
        if to is not None and next_owner is not None:
            self._tables.owners.setdefault(lane, []).append((self._tables.true_ms(), to))
        return True

    def leave(self) -> None:
        """Give up every lane that no transaction holds, and note that this broker has ended."""
        tables = self._tables
        for lane, row in tables.lanes.items():
            if (row.owner, row.owner_epoch) == (self._broker, self._epoch) and lane not in tables.locked:
                tables.lanes[lane] = memory.LaneOwner(None, None, row.epoch + 1)
        row_now = tables.brokers.get(self._broker)
        if row_now is not None and row_now.epoch == self._epoch:
            tables.brokers[self._broker] = replace(row_now, is_draining=True)

    def notify(self, notification: Notification) -> None:
        """The simulation delivers notifications itself."""

    def receive(self) -> Notification | None:
        return None

    def stop_receiving(self) -> None:
        pass

    def close(self) -> None:
        pass
