"""The store's ports: the protocols that an adapter implements for a kind of database.

An adapter opens a `Database`. Further protocols are in lane.py (`LaneWriter`), in queries.py (`Queries`) and in
retention.py (`PruneStatements`, the statements that remove old tasks).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.core.membership.cluster_rows import Beaten, Presence, TakeLanes
from stepwire_broker.core.membership.notifications import Notification

from .lane import LaneWriter
from .queries import Queries
from .retention import PruneStatements

P = ParamSpec("P")
T = TypeVar("T")

LANE: Final = 1  # the only lane of a new database with one lane
IDS_AT_START: Final = (
    10_000  # of tasks and steps, that a start reserves in each lane; a broker that is killed skips them
)


class Readers(Protocol):
    """Connections that read in parallel to the writer."""

    def read(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `query(queries, …)` in a reader's thread: one or a few queries, at most a page."""

    def scan(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a query that may read many rows, in a thread that no other read waits for."""

    def read_at_once(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a query in the caller's own thread, for a few rows that were written a moment ago. Such a read needs no
        disk and takes less time than a thread switch. Returns None instead of waiting for a lock."""

    def close(self) -> None:
        """Let running queries finish, and cancel queries that have not begun."""


class Cleaning(Protocol):
    """The statements that end a run of erasures, on the writer's connection."""

    def checkpoint(self) -> bool:
        """Move the whole log into the database, and empty the log. False: a reader needs the log, so try again."""

    def compact(self) -> None:
        """Rewrite the whole database, so that its unused parts hold nothing. Takes seconds for each 100 MB."""

    def unverified(self) -> int:
        """Return the number of erasures since the file was last searched."""

    def are_verified(self, count: int) -> None:
        """Note that this number of erasures were searched for."""


class Cluster(Protocol):
    """The rows by which brokers on one database share its lanes. Every call waits for the database, and raises
    BrokerError if it cannot be reached or refuses the call."""

    lease_ms: int

    def beat(self, presence: Presence) -> Beaten:
        """Change the row of this broker, and read all rows afterwards. Called in one thread."""

    def take(self, takes: TakeLanes) -> list[TakenLane]:
        """Take lanes. A lane whose row a transaction holds is passed over, unless it is stuck: the connection is then
        ended. Called in one thread, which may be another one."""

    def release(self, lane: int, epoch: int, to: str | None = None) -> bool:
        """Give a lane up, so that the broker `to`, or any, may take it. False: it is no longer this broker's. Called in
        the thread of `take`."""

    def leave(self) -> None:
        """Give every lane up, and note that this broker has ended."""

    def notify(self, notification: Notification) -> None:
        """Send a notification to the other brokers. Called in the thread of `beat`."""

    def receive(self) -> Notification | None:
        """Wait for a notification of another broker. None if none can be received, or after `stop_receiving`. After an
        error, the next call connects again. Called in a thread of its own."""

    def stop_receiving(self) -> None:
        """End `receive`. Called in any thread."""

    def close(self) -> None:
        """Close the connection of the beats."""


class Orders(Protocol):
    """Commands that this broker stores for the owners of other lanes."""

    def put(self, lane: int, request: str) -> Future[int]:
        """Store an order. The future has its id when the order is durable. It raises OrderNotStored; after any other
        error the order may be stored. Orders of more than an hour ago are removed."""

    def close(self) -> None: ...


class Database(Protocol):
    """A database that one broker has locked and opened."""

    @property
    def opened(self) -> Opened: ...

    @property
    def file(self) -> Path | None:
        """Return the path of the database's only file; None if a server keeps the database."""

    @property
    def writers(self) -> Mapping[int, LaneWriter]:
        """By lane, of the start."""

    @property
    def readers(self) -> Readers: ...

    @property
    def cleaning(self) -> Cleaning: ...

    @property
    def cluster(self) -> Cluster | None:
        """None: only one broker can use this database."""

    @property
    def pruning(self) -> Mapping[int, PruneStatements]:
        """By lane, of the start."""

    def open_lane(self, taken: TakenLane) -> tuple[LaneWriter, PruneStatements]:
        """Return the writer of a lane that this broker took after its start, and the statements that remove its old
        tasks."""

    @property
    def orders(self) -> Orders | None:
        """None if no other broker can use the database."""

    def lost(self) -> str | None:
        """Return why the database is no longer the one that was opened, for example because its file was removed; None
        while it is. Does not wait."""

    def release(self) -> None:
        """Release the right to write. The caller has closed the writer and the readers."""


class OpenDatabase(Protocol):
    """Opens the database of `settings.url`: locks, checks and migrates it, and begins a new epoch in it."""

    def __call__(
        self,
        settings: DatabaseSettings,
        broker_id: str,
        *,
        lease_ms: int,
        broker_lease_ms: int,
        wall_ms: int,
        entropy: int,
    ) -> Database: ...
