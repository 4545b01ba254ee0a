"""An open SQLite database of a broker: the lock of its file, the writing connection, and the reading connections."""

import sqlite3
from pathlib import Path
from typing import NoReturn

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.store.contents import COPIED, note
from stepwire_broker.store.errors import StoreRefused
from stepwire_broker.store.ports import IDS_AT_START, LANE
from stepwire_broker.store.rows import NO_TASKS

from . import opening
from .cleaning import SqliteCleaning
from .migrate import migrate
from .pruning import SqlitePruning
from .queries import SqliteQueries
from .readers import SqliteReaders
from .stored_state import SqliteState
from .writer import OwnedLane, SqliteWriter, reserve_ids


class SqliteDatabase:
    """The port `Database` of store/ports.py. SQLite has one writer, so it has one lane."""

    def __init__(self, lock: opening.Lock, writer: SqliteWriter, readers: SqliteReaders, opened: Opened) -> None:
        self.opened = opened
        self.file = writer.path
        self.writers = {taken.lane: writer for taken in opened.lanes}
        self.readers = readers
        self.orders = None  # no other broker can use the file
        self.pruning = {taken.lane: SqlitePruning(writer) for taken in opened.lanes}
        self.cleaning = SqliteCleaning(writer)
        self.cluster = None
        self._lock = lock
        self._writer = writer

    def open_lane(self, taken: TakenLane) -> NoReturn:
        raise AssertionError("SQLite has one lane, which every start takes")

    def lost(self) -> str | None:
        return self._writer.lost()

    def release(self) -> None:
        self._lock.release()


def open_database(
    settings: DatabaseSettings, broker_id: str, *, lease_ms: int, broker_lease_ms: int, wall_ms: int, entropy: int
) -> SqliteDatabase:
    """Lock, check and migrate the database, and begin a new epoch in it. Raises StoreRefused."""
    path = opening.path_of(settings.url).absolute()  # stays valid when the working directory changes
    lock = opening.prepare(path)
    try:
        connection = opening.open_writer(path)
        try:
            migrate(connection)
            _refuse_copied(connection, path)
            lane, opened = begin_epoch(connection, broker_id, lease_ms, wall_ms, entropy)
            writer = SqliteWriter(connection, path, lane)
            readers = SqliteReaders(path, settings.pool_size)
        except BaseException:
            connection.close()
            raise
    except BaseException:
        lock.release()
        raise
    return SqliteDatabase(lock, writer, readers, opened)


def _refuse_copied(connection: sqlite3.Connection, path: Path) -> None:
    """Two brokers of one deployment would run the same steps."""
    copied = note(SqliteState(connection), COPIED)
    if copied is not None:
        raise StoreRefused(
            f"{path} was copied to {copied['to']}: set database.url to that database. To return to the file, "
            "restore a backup of it"
        )


def lane_of(connection: sqlite3.Connection) -> OwnedLane:
    """Return the lane that is written. A lane with a lower id is of an earlier schema, and holds only history."""
    return OwnedLane(*connection.execute("SELECT id, epoch, seq FROM lanes ORDER BY id DESC LIMIT 1").fetchone())


def begin_epoch(
    connection: sqlite3.Connection, broker_id: str, lease_ms: int, wall_ms: int, entropy: int
) -> tuple[OwnedLane, Opened]:
    """Begin a new epoch and take the lane, in one transaction. The lane's epoch fences transactions of its earlier
    owners. Returns the lane, and the data from which the core starts."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO meta (name, value) VALUES ('deployment', ?), ('created_ms', ?) ON CONFLICT (name) DO NOTHING",
        (f"{entropy:032x}", str(wall_ms)),
    )
    connection.execute(
        "INSERT INTO lanes (id, epoch, seq) SELECT ?, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM lanes)", (LANE,)
    )
    (lease_ms_before,) = connection.execute(
        "SELECT coalesce(max(lease_ms), 0) FROM brokers WHERE id = ? OR id IN (SELECT owner FROM lanes)", (broker_id,)
    ).fetchone()
    connection.execute(
        "INSERT INTO brokers (id, epoch, lease_until_ms, lease_ms) "
        "VALUES (?, (SELECT coalesce(max(epoch), 0) + 1 FROM brokers), 0, ?) "
        "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, lease_ms = max(lease_ms, excluded.lease_ms)",
        (broker_id, lease_ms),
    )
    connection.execute(
        "UPDATE lanes SET owner = brokers.id, owner_epoch = brokers.epoch, epoch = lanes.epoch + 1 FROM brokers "
        "WHERE brokers.id = ? AND lanes.id = (SELECT max(id) FROM lanes)",
        (broker_id,),
    )
    lane = lane_of(connection)
    ids = reserve_ids(connection, lane.id, IDS_AT_START)
    connection.execute("COMMIT")
    (deployment,) = connection.execute("SELECT value FROM meta WHERE name = 'deployment'").fetchone()
    (epoch,) = connection.execute("SELECT epoch FROM brokers WHERE id = ?", (broker_id,)).fetchone()
    queries = SqliteQueries(connection)
    counts = queries.open_counts().get(lane.id, NO_TASKS)
    blocks = dict(connection.execute("SELECT number, lane FROM blocks").fetchall())
    taken = TakenLane(
        lane=lane.id,
        epoch=lane.epoch,
        end=lane.seq,
        ids=ids,
        open_tasks=counts.tasks,
        open_steps=counts.steps,
        lease_ms=lease_ms_before,
        blocks=tuple(number for number, owner in blocks.items() if owner == lane.id),
    )
    return lane, Opened(
        deployment=deployment,
        epoch=epoch,
        blocks=blocks,
        lanes=(taken,),
        workflows=queries.workflows(),
        controls=queries.controls(),
    )
