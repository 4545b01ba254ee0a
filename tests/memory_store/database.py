"""A database in memory as the store opens it: the same tables for every start, as a file would hold them."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from stepwire_broker.core.definitions.stored_rows import Opened
from stepwire_broker.store.lane import Rows
from stepwire_broker.store.ports import IDS_AT_START

from .pruning import MemoryPruning
from .queries import MemoryQueries
from .tables import OrderRow, Tables
from .writer import MemoryWriter

P = ParamSpec("P")
T = TypeVar("T")

KEPT_MS = 3_600_000


def begin_epoch(tables: Tables, broker_id: str, lease_ms: int, entropy: int, *, is_shared: bool = False) -> Opened:
    """Begin a new epoch, which fences every writer of an earlier one."""
    tables.broker = broker_id
    tables.deployment = tables.deployment or f"{entropy:032x}"
    lease_ms_before, tables.lease_ms = tables.lease_ms, max(tables.lease_ms, lease_ms)
    tables.epoch += 1
    ids = {lane: tables.reserve_ids(lane, IDS_AT_START) for lane in tables.seqs}
    queries = MemoryQueries(tables)
    counts = queries.open_counts()
    return Opened(
        deployment=tables.deployment,
        epoch=tables.epoch,
        ids=ids,
        blocks={number: block.lane for number, block in tables.blocks.items()},
        lanes=dict(tables.seqs),
        lease_ms_before=lease_ms_before,
        workflows=list(tables.workflows.values()),
        open_tasks=counts.tasks,
        open_steps=counts.steps,
        controls=queries.controls(),
        revision=queries.controls_revision(),
        is_shared=is_shared,
    )


class MemoryDatabase:
    """The port `Database` of store/ports.py over Tables."""

    def __init__(self, tables: Tables, opened: Opened, refuses: Callable[[Rows], None] | None = None) -> None:
        self.opened = opened
        self.file = None
        writer = MemoryWriter(tables, opened.epoch, refuses)
        self.writers = dict.fromkeys(opened.lanes, writer)
        self.readers = MemoryReaders(tables)
        self.orders = MemoryOrders(tables) if opened.is_shared else None
        self.pruning = {lane: MemoryPruning(tables, writer) for lane in opened.lanes}
        self.cleaning: Any = None  # these tables have no file

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
