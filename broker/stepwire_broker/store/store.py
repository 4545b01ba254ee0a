"""The store keeps the broker's state. `put` queues a group, whose outcome is reported; a query returns a future. The
store has no policy: the core decides about writes and reads.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Concatenate, Final, ParamSpec, TypeVar

from stepwire_broker.core.definitions.settings import DatabaseSettings, RetentionSettings
from stepwire_broker.core.model.commit_group import CommitGroup

from .lane import Faults, Lane, Report
from .ports import Cleaning, Database, OpenDatabase
from .queries import Queries
from .retention import Retention
from .sqlite.database import open_database as open_sqlite
from .urls import scheme_of

P = ParamSpec("P")
T = TypeVar("T")

ADAPTERS: Final[dict[str, OpenDatabase]] = {"sqlite": open_sqlite}  # by the scheme of the URL


def open_store(settings: DatabaseSettings, broker_id: str, *, lease_ms: int, wall_ms: int, entropy: int) -> "Store":
    """Lock, check and migrate the database of `settings.url`, and begin a new epoch in it. `entropy` is 128 random
    bits. Raises StoreRefused, which names the remedy, when the database cannot be used."""
    open_database = ADAPTERS[scheme_of(settings.url)]
    return Store(open_database(settings, broker_id, lease_ms=lease_ms, wall_ms=wall_ms, entropy=entropy))


class Store:
    """The open database of one broker, until `close`."""

    def __init__(self, database: Database) -> None:
        self.opened = database.opened
        self._database = database
        self._readers = database.readers
        self._lane: Lane | None = None
        self._retention: Retention | None = None
        self._is_all_written: bool | None = None  # what `close` returned

    def start(self, report: Report, faults: Faults | None = None, retention: RetentionSettings | None = None) -> None:
        """Begin to write groups and to remove old rows. The writer's thread calls `report` with each outcome."""
        assert self._lane is None, "the store was started before"
        self._retention = None if retention is None else Retention(self._database.pruning, retention)
        (lane,) = self.opened.lanes
        self._lane = Lane(lane, self._database.writer, report, faults, self._retention)
        self._lane.start()

    def prune(self) -> None:
        """Remove old tasks now, rather than within a minute."""
        assert self._lane is not None, "the store was not started"
        if self._retention is not None:
            self._retention.ask()
            self._lane.look()

    def clean(self, work: Callable[[Cleaning], T]) -> Future[T]:
        """Do work of erasures on the file between two groups, in the writer's thread. Groups wait meanwhile."""
        assert self._lane is not None, "the store was not started"
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work(self._database.cleaning))
            except Exception as error:
                future.set_exception(error)
                raise  # the lane decides whether the database is broken

        self._lane.aside(run)
        return future

    def put(self, group: CommitGroup) -> None:
        """Queue a group. Groups are written in order. Never waits."""
        assert self._lane is not None, "the store was not started"
        self._lane.put(group)

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
            if self._lane is None:
                self._database.writer.close()
                self._is_all_written = True
            else:
                self._is_all_written = self._lane.close(timeout_s)
            self._database.release()
        return self._is_all_written
