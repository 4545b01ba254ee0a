"""The store of a seed: rows in memory, or the shipped SQL on SQLite in memory. Both drive the transactions of the
shipped lane, one attempt at a time, and the checkers read `tables`.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from stepwire_broker.core.definitions.stored_rows import Opened, StoredStep, TakenLane
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.model.commit_group import AuditNew, Parked, TaskNew
from stepwire_broker.store import stored_audit
from stepwire_broker.store.lane import Rows, Trouble
from stepwire_broker.store.sqlite.database import begin_epoch
from stepwire_broker.store.sqlite.migrate import migrate
from stepwire_broker.store.sqlite.queries import SqliteQueries
from stepwire_broker.store.sqlite.stored_state import SqliteState
from stepwire_broker.store.sqlite.troubles import trouble_of as sqlite_trouble
from stepwire_broker.store.sqlite.writer import SqliteWriter

from tests.memory_store import database as memory
from tests.memory_store.queries import MemoryQueries
from tests.memory_store.tables import DataRefused, LaneOwner, StoredRow, Tables
from tests.memory_store.writer import CannotWriteNow, MemoryWriter, SyncFailed
from tests.memory_store.writer import trouble_of as memory_trouble

Refuses = Callable[[Rows], None]
OnCommit = Callable[[int, LaneOwner, list[Rows], list[AuditNew]], None]  # with the lane, and its writer's owner
NOWHERE: Final = Path("/nonexistent/state.db")


class MemoryStore:
    is_sqlite = False

    def __init__(self, refuses: Refuses, on_commit: OnCommit, lanes: int = 1) -> None:
        self.tables = Tables(lanes)
        self.queries: Any = MemoryQueries(self.tables)
        self._refuses = refuses
        self._on_commit = on_commit

    def open(self, broker_id: str, lease_ms: int, wall_ms: int, entropy: int) -> tuple[Opened, dict[int, "Observed"]]:
        """Return what the core starts from, and the writer of each lane."""
        opened = memory.begin_epoch(self.tables, broker_id, lease_ms, entropy)
        return opened, {taken.lane: self.writer(taken.lane) for taken in opened.lanes}

    def open_shared(
        self, epoch: int, taken: tuple[TakenLane, ...], members: Members, entropy: int
    ) -> tuple[Opened, dict[int, "Observed"]]:
        """The same for a broker among others, which has taken these lanes."""
        self.tables.deployment = self.tables.deployment or f"{entropy:032x}"
        opened = memory.opened(self.tables, epoch, taken, members, is_shared=True)
        return opened, {lane.lane: self.writer(lane.lane) for lane in taken}

    def writer(self, lane: int, owner: LaneOwner | None = None) -> "Observed":
        """The writer of this owner of the lane; None: of the present one."""
        owner = owner or self.tables.lanes[lane]
        writer = MemoryWriter(self.tables, lane, epoch=owner.epoch)
        return Observed(lane, owner, writer, self._refuses, self._on_commit)

    def differences(self) -> list[str]:
        return []


class SqliteStore:
    """The shipped SQL with the rows in memory as a mirror: both must answer every call alike."""

    is_sqlite = True

    def __init__(self, refuses: Refuses, on_commit: OnCommit) -> None:
        self._memory = MemoryStore(refuses, on_commit)
        self.tables = self._memory.tables
        self.connection = _fresh()
        self.queries: Any = BothQueries(SqliteQueries(self.connection), MemoryQueries(self.tables))
        self._refuses = refuses
        self._on_commit = on_commit

    def open(self, broker_id: str, lease_ms: int, wall_ms: int, entropy: int) -> tuple[Opened, dict[int, "Observed"]]:
        lane, opened = begin_epoch(self.connection, broker_id, lease_ms, wall_ms, entropy)
        expected, beside = self._memory.open(broker_id, lease_ms, wall_ms, entropy)
        if opened != expected:
            raise StoresDiffer(f"opened: {opened}, in memory {expected}")
        writer = BothWriters(SqliteWriter(self.connection, NOWHERE, lane), beside[lane.id].writer)
        owner = self.tables.lanes[lane.id]
        return opened, {lane.id: Observed(lane.id, owner, writer, self._refuses, self._on_commit, sqlite_trouble)}

    def differences(self) -> list[str]:
        """Where SQLite's rows differ from the rows in memory."""
        differences = []
        for name, ours, theirs in (
            ("tasks", _tasks(self.tables), _sqlite_tasks(self.connection)),
            ("steps", _steps(self.tables), _sqlite_steps(self.connection)),
            (
                "stderr",
                [tuple(self.tables.stderr[i]) for i in sorted(self.tables.stderr)],
                _sqlite_stderr(self.connection),
            ),
            ("history", _history(self.tables), _sqlite_history(self.connection)),
            (
                "attention",
                sorted(tuple(row) for row in self.tables.attention.values()),
                self.connection.execute(
                    "SELECT id, task_id, kind, at_ms, handler_class FROM attention ORDER BY id"
                ).fetchall(),
            ),
            (
                "blocks",
                sorted((n, *block) for n, block in self.tables.blocks.items()),
                self.connection.execute("SELECT number, lane, reserved FROM blocks ORDER BY number").fetchall(),
            ),
            ("keys", _keys(self.tables), _sqlite_keys(self.connection)),
            (
                "audit",
                [tuple(row) for row in self.tables.audit],
                [tuple(row) for row in stored_audit.rows(SqliteState(self.connection))],
            ),
        ):
            if ours != theirs:
                wrong = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
                differences.append(f"{name}: {len(ours)} rows in memory, {len(theirs)} in SQLite; {wrong[:1]}")
        return differences


class StoresDiffer(AssertionError):
    """The two stores got the same calls and answered differently."""


class BothWriters:
    """Every call goes to SQLite and to the rows in memory, and must have the same result."""

    def __init__(self, sqlite: SqliteWriter, memory: MemoryWriter) -> None:
        self._sqlite = sqlite
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        on_sqlite, in_memory = getattr(self._sqlite, name), getattr(self._memory, name)

        def both(*args: Any) -> Any:
            try:
                result = on_sqlite(*args)
            except sqlite3.IntegrityError as error:
                try:
                    in_memory(*args)
                except DataRefused:
                    raise error from None
                raise StoresDiffer(f"{name}: SQLite refused what memory accepts: {error}") from error
            expected = in_memory(*args)
            if result != expected:
                raise StoresDiffer(f"{name}{args}: {result}, in memory {expected}")
            return result

        self.__dict__[name] = both
        return both


class BothQueries:
    """Every question goes to both, and must have the same answer."""

    def __init__(self, sqlite: SqliteQueries, memory: MemoryQueries) -> None:
        self._sqlite = sqlite
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        on_sqlite, in_memory = getattr(self._sqlite, name), getattr(self._memory, name)

        def both(*args: Any) -> Any:
            result, expected = on_sqlite(*args), in_memory(*args)
            if result != expected:
                raise StoresDiffer(f"{name}{args}: {result}, in memory {expected}")
            return result

        self.__dict__[name] = both
        return both


class Observed:
    """A writer that reports each committed row at the instant it is durable, and whose database may fail."""

    def __init__(
        self, lane: int, owner: LaneOwner, writer: Any, refuses: Refuses, on_commit: OnCommit, trouble: Any = None
    ) -> None:
        self._lane = lane
        self.owner = self._owner = owner
        self.writer = self._writer = writer
        self._refuses = refuses
        self._on_commit = on_commit
        self._trouble = trouble or writer.trouble
        self._rows: list[Rows] = []
        self._audit: list[AuditNew] = []
        self._marks: list[tuple[int, int]] = []
        self._parked: list[Parked] = []

    def __getattr__(self, name: str) -> Any:
        attribute = self.__dict__[name] = getattr(self._writer, name)
        return attribute

    def begin(self) -> None:
        self._rows, self._audit, self._marks = [], [], []
        self._writer.begin()

    def savepoint(self) -> None:
        self._marks.append((len(self._rows), len(self._audit)))
        self._writer.savepoint()

    def release(self) -> None:
        self._marks.pop()
        self._writer.release()

    def undo(self) -> None:
        rows, audit_rows = self._marks.pop()
        del self._rows[rows:], self._audit[audit_rows:]
        self._writer.undo()

    def write(self, rows: Rows) -> None:
        self._refuses(rows)
        self._writer.write(rows)
        self._rows.append(rows)

    def add_audit(self, new: Sequence[AuditNew]) -> None:
        self._writer.add_audit(new)
        self._audit += new

    def commit(self) -> None:
        self._writer.commit()
        rows, self._rows = self._rows, []
        audit_rows, self._audit = self._audit, []
        self._on_commit(self._lane, self._owner, rows, audit_rows)

    def trouble(self, error: Exception) -> Trouble:
        if isinstance(error, DataRefused | CannotWriteNow | SyncFailed):
            return memory_trouble(error)
        if isinstance(error, sqlite3.Error | UnicodeError | OverflowError):
            trouble: Trouble = self._trouble(error)
            return trouble
        raise error  # a fault of the simulation, not the database's


_template: list[sqlite3.Connection] = []


def _fresh() -> sqlite3.Connection:
    """A migrated database in memory: a copy of a template, because migrating is slow."""
    if not _template:
        first = sqlite3.connect(":memory:", isolation_level=None)
        migrate(first)
        _template.append(first)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _template[0].backup(connection)
    connection.execute("PRAGMA foreign_keys=ON")
    return connection


def _tasks(t: Tables) -> list[Any]:
    return [tuple(v.decode() if isinstance(v, bytes) else v for v in t.tasks[i]) for i in sorted(t.tasks)]


def _steps(t: Tables) -> list[Any]:
    rows: list[StoredRow] = [t.steps[i] for i in sorted(t.steps)]
    return [(*row.stored, row.name, row.handler_class) for row in rows]


def _history(t: Tables) -> list[Any]:
    return [(row.task_id, row.at_ms, row.facts.decode()) for row in t.log]


def _keys(t: Tables) -> list[Any]:
    return sorted((*name, owner.digest, owner.task_id) for name, owner in t.keys.items())


def _sqlite_keys(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT namespace, key, digest, task_id FROM keys ORDER BY namespace, key").fetchall()


def _sqlite_tasks(connection: sqlite3.Connection) -> list[Any]:
    columns = ", ".join(TaskNew._fields)
    return connection.execute(f"SELECT {columns} FROM tasks ORDER BY id").fetchall()  # noqa: S608


def _sqlite_steps(connection: sqlite3.Connection) -> list[Any]:
    columns = ", ".join(StoredStep._fields)
    return connection.execute(f"SELECT {columns}, name, handler_class FROM steps ORDER BY id").fetchall()  # noqa: S608


def _sqlite_history(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT task_id, at_ms, facts FROM history ORDER BY lane_id, seq, position").fetchall()


def _sqlite_stderr(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT id, delivery, text FROM step_stderr ORDER BY id").fetchall()
