"""A database in memory as the store opens it: the same tables for every start, as a file would hold them."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.core.membership.members import Members
from stepwire_broker.store.lane import Rows
from stepwire_broker.store.ports import IDS_AT_START
from stepwire_broker.store.rows import NO_TASKS

from .pruning import MemoryPruning
from .queries import MemoryQueries
from .tables import OrderRow, Tables
from .writer import MemoryWriter

P = ParamSpec("P")
T = TypeVar("T")

KEPT_MS = 3_600_000


def begin_epoch(
    tables: Tables,
    broker_id: str,
    lease_ms: int,
    entropy: int,
    *,
    is_shared: bool = False,
) -> Opened:
    """Begin a new epoch and take all lanes, which fences every writer of an earlier epoch."""
    own = tables.lanes.keys()
    tables.deployment = tables.deployment or f"{entropy:032x}"
    lease_ms_before, tables.lease_ms = tables.lease_ms, max(tables.lease_ms, lease_ms)
    tables.epochs += 1
    for lane in own:
        tables.take(lane, broker_id, tables.epochs)
    taken = tuple(taken_lane(tables, lane, lease_ms_before) for lane in own)
    return opened(tables, tables.epochs, taken, is_shared=is_shared)


def opened(
    tables: Tables, epoch: int, taken: tuple[TakenLane, ...], members: Members | None = None, *, is_shared: bool
) -> Opened:
    """Return what the core starts from."""
    return Opened(
        deployment=tables.deployment,
        epoch=epoch,
        blocks={number: block.lane for number, block in tables.blocks.items()},
        lanes=taken,
        workflows=list(tables.workflows.values()),
        controls=MemoryQueries(tables).controls(),
        revision=MemoryQueries(tables).controls_revision() if is_shared else 0,
        is_shared=is_shared,
        members=members,
    )


def taken_lane(tables: Tables, lane: int, lease_ms: int, ids: tuple[int, int] | None = None) -> TakenLane:
    """Read what a broker needs that begins to own this lane. Without `ids`, reserve some."""
    ids = ids or tables.reserve_ids(lane, IDS_AT_START)
    counts = MemoryQueries(tables).open_counts().get(lane, NO_TASKS)
    blocks = tuple(number for number, block in tables.blocks.items() if block.lane == lane)
    epoch, end = tables.lanes[lane].epoch, tables.seqs[lane]
    return TakenLane(lane, epoch, end, ids, counts.tasks, counts.steps, lease_ms, blocks)


class MemoryDatabase:
    """The port `Database` of store/ports.py over Tables."""

    def __init__(self, tables: Tables, opened: Opened, refuses: Callable[[Rows], None] | None = None) -> None:
        self.opened = opened
        self.file = None
        own = [taken.lane for taken in opened.lanes]
        self.writers = {lane: MemoryWriter(tables, lane, refuses) for lane in own}
        self.readers = MemoryReaders(tables)
        self.orders = MemoryOrders(tables) if opened.is_shared else None
        self.pruning = {lane: MemoryPruning(tables, writer) for lane, writer in self.writers.items()}
        self._tables = tables
        self._refuses = refuses
        self.cleaning: Any = None  # these tables have no file
        self.cluster: Any = None

    def open_lane(self, taken: TakenLane) -> tuple[MemoryWriter, MemoryPruning]:
        writer = MemoryWriter(self._tables, taken.lane, self._refuses)
        return writer, MemoryPruning(self._tables, writer)

    def lost(self) -> None:
        return None

    def release(self) -> None:
        pass


class MemoryOrders:
    """The port `Orders` of store/ports.py. An order is stored at once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, lane: int, request: str) -> Future[int]:
        orders = self._tables.orders
        number = max(orders, default=0) + 1
        until_ms = self._tables.now_ms() - KEPT_MS
        for old in [n for n, row in orders.items() if row.asked_ms < until_ms]:
            del orders[old]
        orders[number] = OrderRow(lane, self._tables.now_ms(), request, None)
        future: Future[int] = Future()
        future.set_result(number)
        return future

    def close(self) -> None:
        pass


class MemoryReaders:
    """The port `Readers` of store/ports.py. A query runs at once, in the caller's thread."""

    def __init__(self, tables: Tables) -> None:
        self._queries = MemoryQueries(tables)

    def read(self, query: Callable[Concatenate[MemoryQueries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(query(self._queries, *args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    scan = read

    def read_at_once(
        self, query: Callable[Concatenate[MemoryQueries, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        return query(self._queries, *args, **kwargs)

    def close(self) -> None:
        pass
