"""The store keeps the broker's state. `put` queues a group, whose outcome is reported; a query returns a future. The
store has no policy: the core decides about writes and reads.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Concatenate, Final, ParamSpec, TypeVar

from stepwire_broker.core.definitions.settings import BrokerSettings, DatabaseSettings, RetentionSettings
from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.model.commit_group import CommitGroup

from .errors import StoreRefused
from .lane import Faults, Lane, LaneWriter, Report
from .ports import Cleaning, Database, OpenDatabase
from .queries import Queries
from .retention import PruneStatements, Retention
from .sqlite.database import open_database as open_sqlite
from .sqlite.opening import path_of
from .urls import POSTGRESQL, SQLITE, scheme_of

P = ParamSpec("P")
T = TypeVar("T")


def _postgresql() -> OpenDatabase:
    from .postgres.database import open_database  # loads the driver, which few brokers need

    return open_database


ADAPTERS: Final[dict[str, Callable[[], OpenDatabase]]] = {SQLITE: lambda: open_sqlite, POSTGRESQL: _postgresql}


def check_settings(settings: DatabaseSettings) -> None:
    """Refuse settings that lead to no database, without a connection. Raises StoreRefused."""
    if scheme_of(settings.url) == SQLITE:
        path_of(settings.url)
        return
    from .postgres.address import read_address
    from .postgres.listening import read_listen_address
    from .postgres.schema import read_schema_name

    read_address(settings.url)
    read_schema_name(settings.schema)
    read_listen_address(settings)


def check_server(settings: DatabaseSettings) -> str | None:
    """Connect, and check what a start checks. Returns a description of the server; None if the database has none.
    Raises StoreRefused."""
    if scheme_of(settings.url) == SQLITE:
        return None
    from .postgres.database import check

    return check(settings)


def open_store(
    settings: DatabaseSettings,
    broker_id: str,
    *,
    lease_ms: int,
    broker_lease_ms: int = BrokerSettings().lease_ms,
    wall_ms: int,
    entropy: int,
) -> "Store":
    """Lock, check and migrate the database of `settings.url`, and begin a new epoch in it. Raises StoreRefused, which
    names the remedy, when the database cannot be used.

    `lease_ms`: of workers; `broker_lease_ms`: of this broker, where several share the database. `entropy` is 128 random
    bits.
    """
    open_database = ADAPTERS[scheme_of(settings.url)]()
    return Store(
        open_database(
            settings,
            broker_id,
            lease_ms=lease_ms,
            broker_lease_ms=broker_lease_ms,
            wall_ms=wall_ms,
            entropy=entropy,
        )
    )


class Store:
    """The open database of one broker, until `close`."""

    def __init__(self, database: Database) -> None:
        self.opened = database.opened
        self.file = database.file
        self.cluster = database.cluster  # None: no other broker can use this database
        self._database = database
        self._readers = database.readers
        self.orders = database.orders
        self._lanes: dict[int, Lane] = {}
        self._ended: list[Lane] = []  # their threads may still wait for the database
        self._retention: dict[int, Retention] = {}
        self._open: Callable[[int, LaneWriter, PruneStatements], None] | None = None  # once the store has started
        self._is_all_written: bool | None = None  # what `close` returned

    def start(self, report: Report, faults: Faults | None = None, retention: RetentionSettings | None = None) -> None:
        """Begin to write groups and to remove old rows. The writers' threads call `report` with each outcome."""
        assert self._open is None, "the store was started before"

        def open_lane(number: int, writer: LaneWriter, pruning: PruneStatements) -> None:
            if retention is not None:
                self._retention[number] = Retention(pruning, retention)
            lane = self._lanes[number] = Lane(number, writer, report, faults, self._retention.get(number))
            lane.start()

        self._open = open_lane
        for number, writer in self._database.writers.items():
            open_lane(number, writer, self._database.pruning[number])

    def open_lane(self, taken: TakenLane) -> None:
        """Begin to write groups of a lane that this broker has taken."""
        assert self._open is not None, "the store was not started"
        self._open(taken.lane, *self._database.open_lane(taken))

    def close_lane(self, lane: int) -> None:
        """Write no further group of this lane, and report no further outcome of it. Does not wait for its thread."""
        self._retention.pop(lane, None)
        ended = self._lanes.pop(lane)
        ended.abandon()
        self._ended = [each for each in self._ended if each.is_alive] + [ended]

    def prune(self) -> None:
        """Remove old tasks now, rather than within a minute."""
        assert self._open is not None, "the store was not started"
        for number, retention in self._retention.items():
            retention.ask()
            self._lanes[number].look()

    def clean(self, work: Callable[[Cleaning], T]) -> Future[T]:
        """Do work of erasures on the file between two groups, in a writer's thread. Its groups wait meanwhile."""
        assert self._open is not None, "the store was not started"
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work(self._database.cleaning))
            except Exception as error:
                future.set_exception(error)
                raise  # the lane decides whether the database is broken

        if self._lanes:
            self._lanes[min(self._lanes)].aside(run)
        else:
            future.set_exception(StoreRefused("the broker owns no lane of the database now"))
        return future

    def put(self, group: CommitGroup) -> None:
        """Queue a group. The groups of a lane are written in order. Never waits."""
        self._lanes[group.lane].put(group)

    def read(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `query(queries, …)` in a reader's thread: see queries.py."""
        return self._readers.read(query, *args, **kwargs)

    def scan(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a query that may read many rows, in a thread that no other read waits for."""
        return self._readers.scan(query, *args, **kwargs)

    def read_at_once(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a query in the caller's thread, for a few rows written a moment ago. None if a lock would delay it."""
        return self._readers.read_at_once(query, *args, **kwargs)

    def lost(self) -> str | None:
        """Return why the database is no longer the one that was opened; None while it is. A store without writes has
        no other way to notice."""
        return self._database.lost()

    def close(self, timeout_s: float) -> bool:
        """Write the queued groups, for at most `timeout_s`, and release the database. False: at least one group could
        not be written, and its outcome was not reported."""
        if self._is_all_written is None:
            self._readers.close()
            if self.orders is not None:
                self.orders.close()
            if self._open is None:
                for writer in self._database.writers.values():
                    writer.close()
            until_s = time.monotonic() + timeout_s
            for lane in self._lanes.values():
                lane.end()
            are_written = [lane.close(max(0.0, until_s - time.monotonic())) for lane in self._lanes.values()]
            self._is_all_written = all(are_written)
            for lane in self._ended:
                lane.close(max(0.0, until_s - time.monotonic()))
            self._database.release()
        return self._is_all_written
