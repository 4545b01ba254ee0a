"""The statements by which brokers on the tables in memory show that they live, and take and release lanes.

Each call is one statement of the server. A lane whose transaction is between its fence and its COMMIT is locked: a take
passes over it, as SKIP LOCKED does.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from stepwire_broker.core.definitions.stored_rows import TakenLane

from .database import taken_lane
from .tables import BrokerRow, LaneOwner, Tables


class DeadBroker(NamedTuple):
    """A broker as its row was when another one concluded that it is dead."""

    id: str
    epoch: int
    beat: int


class MemoryCluster:
    """One start of a broker, among the others on these tables."""

    def __init__(self, tables: Tables, broker: str, epoch: int) -> None:
        self._tables = tables
        self._broker = broker
        self._epoch = epoch

    def beat(self) -> bool:
        """Show that this start of the broker lives. False: another start has replaced it."""
        row = self._tables.brokers.get(self._broker)
        if row is None or row.epoch != self._epoch:
            return False
        self._tables.brokers[self._broker] = row._replace(beat=row.beat + 1)
        return True

    def take(
        self, most: int, dead: Iterable[DeadBroker] = (), served: Collection[int] = (), only: Collection[int] = ()
    ) -> list[int]:
        """Take lanes that are free, own ones of a former run, and those of dead brokers. Returns their numbers.

        `served`: own lanes that are not taken a second time. `only`: take none but these, if there are any.
        """
        tables = self._tables
        runs = {(each.id, each.epoch) for each in dead if self._is_unchanged(each)}
        taken = []
        for lane, row in sorted(tables.lanes.items()):
            is_free = row.owner is None or (row.owner, row.owner_epoch) in runs
            is_own = row.owner == self._broker and lane not in served
            is_wanted = len(taken) < most and (lane in only or not only)
            if is_wanted and (is_free or is_own) and lane not in tables.locked:
                tables.take(lane, self._broker, self._epoch)
                taken.append(lane)
        return taken

    def _is_unchanged(self, dead: DeadBroker) -> bool:
        """The row of the broker decides: a beat that came before this statement voids it."""
        row = self._tables.brokers.get(dead.id)
        return row is None or (row.epoch, row.beat) == dead[1:] or row.epoch > dead.epoch

    def read_taken(self, lanes: Iterable[int]) -> tuple[TakenLane, ...]:
        """Read what this broker needs of the lanes that it took: a statement of its own, after the take."""
        tables = self._tables
        lease_ms = max((row.worker_lease_ms for row in tables.brokers.values()), default=0)
        own = [lane for lane in lanes if tables.lanes[lane][:2] == (self._broker, self._epoch)]
        return tuple(taken_lane(tables, lane, lease_ms) for lane in own)

    def release(self, lane: int, epoch: int) -> bool:
        """Give a lane up, after its last group. False: another broker has taken it before."""
        row = self._tables.lanes[lane]
        if row.epoch != epoch:
            return False
        self._tables.lanes[lane] = LaneOwner(None, None, epoch + 1)
        return True


def start(tables: Tables, broker: str, epoch: int, lease_ms: int, worker_lease_ms: int) -> MemoryCluster:
    """Write the row of a broker that starts."""
    before = tables.brokers.get(broker)
    longest_ms = worker_lease_ms if before is None else max(worker_lease_ms, before.worker_lease_ms)
    tables.brokers[broker] = BrokerRow(broker, epoch, 0, lease_ms, longest_ms)
    return MemoryCluster(tables, broker, epoch)
