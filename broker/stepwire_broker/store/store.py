"""The store: where the broker's state lies, behind four calls. Groups go in by `put` and come back as outcomes; reads
come back as futures. It has no policy: what is written and what is read is decided elsewhere.
"""

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from msgspec import Struct

from stepwire_broker.core.definitions.settings import DatabaseSettings, RetentionSettings
from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
from stepwire_broker.core.intake.routing_rules import KEPT_AS
from stepwire_broker.core.model.commit_group import CommitGroup

from . import queries, sqlite
from .lane import Faults, Lane, Report
from .migrate import migrate
from .reader import Readers
from .retention import Retention
from .sqlite_writes import SqliteWriter, reserve_ids

T = TypeVar("T")

LANE: Final = 0  # SQLite has one writer, so one lane
ID_BLOCK: Final = 10_000  # numbers for tasks and steps that a start takes; unused ones are never used


class Opened(Struct, frozen=True):
    """What the database said at the start: all that the core begins from."""

    deployment: str  # 32 hex digits, drawn when the database was created
    epoch: int  # of this start, and of no other start of any broker on this database
    ids: tuple[int, int]  # numbers for tasks and steps, first and last
    lanes: dict[int, int]  # the last committed sequence of each
    lease_ms_before: int  # the lease that workers may still be counting on; 0 when there was no broker before
    workflows: list[StoredWorkflow]
    open_tasks: int
    open_steps: int
    rules: str | None = None  # of routing, set while a broker ran, as JSON


class Store:
    """One broker's hold on its database, from `open` to `close`."""

    opened: Opened

    def __init__(self, lock: sqlite.Lock, writer: SqliteWriter, readers: Readers, opened: Opened) -> None:
        self.opened = opened
        self._lock = lock
        self._writer = writer
        self._readers = readers
        self._lane: Lane | None = None
        self._retention: Retention | None = None
        self._finished: bool | None = None  # what close said

    @classmethod
    def open(cls, settings: DatabaseSettings, broker_id: str, *, lease_ms: int, wall_ms: int, entropy: int) -> "Store":
        """Lock, check and migrate the database, and begin a new epoch in it. `entropy` is 128 random bits. Raises
        StoreRefused with what to do when it cannot be used."""
        path = sqlite.path_of(settings.url).absolute()  # whatever becomes of the working directory
        lock = sqlite.prepare(path)
        try:
            connection = sqlite.open_writer(path)
            try:
                migrate(connection)
                lane_id, opened = begin_epoch(connection, broker_id, lease_ms, wall_ms, entropy)
                writer = SqliteWriter(connection, path, lane_id, opened.epoch)
                readers = Readers(path, settings.pool_size)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise
        return cls(lock, writer, readers, opened)

    def start(self, report: Report, faults: Faults | None = None, retention: RetentionSettings | None = None) -> None:
        """From here on groups are written, and what is too old is removed. `report` is called with each outcome, in the
        writer's thread."""
        assert self._lane is None, "the store was started before"
        self._retention = None if retention is None else Retention(self._writer, retention)
        self._lane = Lane(LANE, self._writer, report, faults, self._retention)
        self._lane.start()

    def prune(self) -> None:
        """Look now for what is too old, rather than within a minute."""
        assert self._lane is not None, "the store was not started"
        if self._retention is not None:
            self._retention.ask()
            self._lane.look()

    def put(self, group: CommitGroup) -> None:
        """Have it written, after what was put before. Never waits."""
        assert self._lane is not None, "the store was not started"
        self._lane.put(group)

    def read(self, query: Callable[..., T], *args: Any) -> Future[T]:
        """`query(connection, *args)` on a read-only connection: see queries.py."""
        return self._readers.read(query, *args)

    def read_at_once(self, query: Callable[..., T], *args: Any) -> T | None:
        """The same here and now, for a few rows that were written a moment ago. None rather than wait for a lock."""
        return self._readers.read_at_once(query, *args)

    def close(self, timeout_s: float) -> bool:
        """Write what was put, for at most so long, and let go of the database. False: not all of it could be written,
        and of that nobody was told that it was."""
        if self._finished is None:
            self._readers.close()
            if self._lane is None:
                self._writer.close()
                self._finished = True
            else:
                self._finished = self._lane.close(timeout_s)
            self._lock.release()
        return self._finished


def begin_epoch(
    connection: sqlite3.Connection, broker_id: str, lease_ms: int, wall_ms: int, entropy: int
) -> tuple[int, Opened]:
    """A new epoch, in one transaction: whatever a former run of this broker still has under way is fenced by it."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO meta (name, value) VALUES ('deployment', ?), ('created_ms', ?) ON CONFLICT (name) DO NOTHING",
        (f"{entropy:032x}", str(wall_ms)),
    )
    connection.execute("INSERT INTO sequences (name, next) VALUES ('ids', 1) ON CONFLICT (name) DO NOTHING")
    before = connection.execute("SELECT lease_ms FROM brokers WHERE id = ?", (broker_id,)).fetchone()
    connection.execute(
        "INSERT INTO brokers (id, epoch, lease_until_ms, lease_ms) "
        "VALUES (?, (SELECT coalesce(max(epoch), 0) + 1 FROM brokers), 0, ?) "
        "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, lease_ms = max(lease_ms, excluded.lease_ms)",
        (broker_id, lease_ms),
    )
    connection.execute(
        "INSERT INTO lanes (broker, lane, epoch, seq) SELECT id, ?, epoch, 0 FROM brokers WHERE id = ? "
        "ON CONFLICT (broker, lane) DO UPDATE SET epoch = excluded.epoch",
        (LANE, broker_id),
    )
    ids = reserve_ids(connection, ID_BLOCK)
    connection.execute("COMMIT")
    (deployment,) = connection.execute("SELECT value FROM meta WHERE name = 'deployment'").fetchone()
    lane_id, epoch, seq = connection.execute(
        "SELECT id, epoch, seq FROM lanes WHERE broker = ? AND lane = ?", (broker_id, LANE)
    ).fetchone()
    counts = queries.open_counts(connection)
    rules = connection.execute("SELECT value FROM meta WHERE name = ?", (KEPT_AS,)).fetchone()
    return lane_id, Opened(
        deployment=deployment,
        epoch=epoch,
        ids=ids,
        lanes={LANE: seq},
        lease_ms_before=0 if before is None else before[0],
        workflows=queries.workflows(connection),
        open_tasks=counts.tasks,
        open_steps=counts.steps,
        rules=None if rules is None else rules[0],
    )
