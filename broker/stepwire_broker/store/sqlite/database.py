"""An open SQLite database of a broker: the lock of its file, the writing connection, and the reading connections."""

import sqlite3

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.definitions.stored_rows import Opened
from stepwire_broker.store.ports import ID_BLOCK, LANE

from . import opening
from .cleaning import SqliteCleaning
from .migrate import migrate
from .pruning import SqlitePruning
from .queries import SqliteQueries
from .readers import SqliteReaders
from .writer import SqliteWriter, reserve_ids


class SqliteDatabase:
    """The port `Database` of store/ports.py. SQLite has one writer, so it has one lane."""

    def __init__(self, lock: opening.Lock, writer: SqliteWriter, readers: SqliteReaders, opened: Opened) -> None:
        self.opened = opened
        self.writer = writer
        self.readers = readers
        self.pruning = SqlitePruning(writer)
        self.cleaning = SqliteCleaning(writer)
        self._lock = lock

    def lost(self) -> str | None:
        return self.writer.lost()

    def release(self) -> None:
        self._lock.release()


def open_database(
    settings: DatabaseSettings, broker_id: str, *, lease_ms: int, wall_ms: int, entropy: int
) -> SqliteDatabase:
    """Lock, check and migrate the database, and begin a new epoch in it. Raises StoreRefused."""
    path = opening.path_of(settings.url).absolute()  # stays valid when the working directory changes
    lock = opening.prepare(path)
    try:
        connection = opening.open_writer(path)
        try:
            migrate(connection)
            lane_id, opened = begin_epoch(connection, broker_id, lease_ms, wall_ms, entropy)
            writer = SqliteWriter(connection, path, lane_id, opened.epoch)
            readers = SqliteReaders(path, settings.pool_size)
        except BaseException:
            connection.close()
            raise
    except BaseException:
        lock.release()
        raise
    return SqliteDatabase(lock, writer, readers, opened)


def begin_epoch(
    connection: sqlite3.Connection, broker_id: str, lease_ms: int, wall_ms: int, entropy: int
) -> tuple[int, Opened]:
    """Begin a new epoch, in one transaction. The epoch fences transactions of earlier runs of this broker. Returns the
    lane's id in the database, and the data from which the core starts."""
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
    queries = SqliteQueries(connection)
    counts = queries.open_counts()
    return lane_id, Opened(
        deployment=deployment,
        epoch=epoch,
        ids=ids,
        lanes={LANE: seq},
        lease_ms_before=0 if before is None else before[0],
        workflows=queries.workflows(),
        open_tasks=counts.tasks,
        open_steps=counts.steps,
        controls=queries.controls(),
    )
