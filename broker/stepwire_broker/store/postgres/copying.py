"""The copy of a SQLite database into a schema of PostgreSQL.

The copy is the same deployment: the same ids, history, keys and audit. The file's lanes keep their numbers and their
ends, and the file's blocks of ids stay in their lanes. Tasks of the file therefore stay in the file's lane, and new
tasks go to all lanes. The whole copy is one transaction, which is checked before its COMMIT. The file is marked before
that COMMIT, so that no broker starts on it afterwards: two brokers would run the same steps.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import psycopg
from msgspec import Struct
from sqlalchemy import Table

from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.store.audit_chain import START, AuditHead, command_row, linked
from stepwire_broker.store.checking import Checked
from stepwire_broker.store.checking import check as check_state
from stepwire_broker.store.contents import COPIED, MADE, RESTORED, note
from stepwire_broker.store.errors import NotThere, StoreRefused, WouldReplace
from stepwire_broker.store.sqlite import backup, opening
from stepwire_broker.store.sqlite.erasing import UNVERIFIED
from stepwire_broker.store.sqlite.migrate import HEAD as SQLITE_HEAD
from stepwire_broker.store.sqlite.migrate import revision
from stepwire_broker.store.sqlite.pruning import PARTLY_REMOVED
from stepwire_broker.store.sqlite.stored_state import SqliteState
from stepwire_broker.store.tables import metadata

from .address import PostgresAddress, read_address
from .connecting import PostgresConnection, connect_first
from .database import check
from .migrating import SCHEMA, SERVES_FROM
from .namesake import LEASE_MS
from .reading import PARTLY_REMOVED as PARTLY_REMOVED_OF_LANE
from .refusals import refusals_of
from .schema import check_tables, create_tables, read_schema_name
from .stored_state import PostgresState

Progress: TypeAlias = Callable[[str, int, int], object]  # the name of the work, the amount done, the whole amount

ROWS_A_REPORT: Final = 1_000

# Tables with the same columns in both databases. The rest is written by statements below.
ALIKE: Final = (
    "workflows",
    "tasks",
    "steps",
    "step_stderr",
    "keys",
    "history",
    "attention",
    "parked",
    "audit",
    "audit_chains",
    "controls",
    "blocks",
)
# Tables that are empty in a schema to which a database can be copied.
EMPTY: Final = ("tasks", "history", "workflows", "keys", "audit", "controls", "orders")
BOOLEANS: Final = frozenset({"active", "cancelling", "stored", "granted"})
FOREIGN_TEXTS: Final = frozenset({("step_stderr", "text"), ("parked", "code"), ("parked", "source")})


class CopiedDatabase(Struct, frozen=True):
    file: str
    address: str
    schema: str
    deployment: str
    rows: dict[str, int]  # by table
    lanes: list[int]  # those of the file
    checked: Checked
    took_ms: int


def copy_database(
    file: Path, settings: DatabaseSettings, *, sample: int | None, wall_ms: int, progress: Progress
) -> CopiedDatabase:
    """Copy the database of a file that no broker has open. Replays all histories of the copy, or `sample` of them.
    Raises StoreRefused, and then the schema is as it was."""
    began_s = time.monotonic()
    check(settings)
    address, schema = read_address(settings.url), read_schema_name(settings.schema)
    if not file.exists():
        raise NotThere(f"there is no database {file}")
    lock = opening.lock(file)
    try:
        with closing(backup.open_stored(file)) as source:
            _refuse_source(source, file, settings.lanes)
            with refusals_of(address, "the copy"), closing(connect_first(address, "stepwire: copy")) as connection:
                try:
                    with connection.transaction():
                        rows = _fill(connection, source, schema, settings.lanes, progress)
                        _record(connection, source, file, wall_ms)
                        checked = _check(connection, source, schema, sample, rows, progress)
                        _mark(file, address, schema, wall_ms)
                except psycopg.DatabaseError:
                    _unmark_if_undone(file, connection)
                    raise
            return CopiedDatabase(
                str(file),
                address.shown,
                schema,
                _value(source, "deployment"),
                rows,
                [lane for (lane,) in source.execute("SELECT id FROM lanes ORDER BY id")],
                checked,
                round((time.monotonic() - began_s) * 1000),
            )
    finally:
        lock.release()


def _refuse_source(source: sqlite3.Connection, file: Path, lanes: int) -> None:
    if revision(source) != SQLITE_HEAD:
        raise StoreRefused(
            f"{file} has schema {revision(source)}, and this program copies {SQLITE_HEAD}: let `stepwire serve` "
            "upgrade it first"
        )
    state = SqliteState(source)
    made, restored = note(state, MADE), note(state, RESTORED)
    if made is not None and (restored is None or restored["restored_ms"] < made["made_ms"]):
        raise StoreRefused(
            f"{file} is a backup, and lacks what happened after it was made: run `stepwire db restore` first, "
            "and copy the restored database"
        )
    ((last,),) = state.select("SELECT coalesce(max(id), 0) FROM lanes")
    if last == 0:
        raise StoreRefused(f"no broker has used {file} yet: there is nothing to copy")
    if last > lanes:
        raise StoreRefused(
            f"database.lanes is {lanes}, and {file} has a lane {last}: tasks stay in their lane, so set "
            f"database.lanes: {last} or more"
        )


# -- rows -------------------------------------------------------------------------------------------------------------


def _fill(
    connection: PostgresConnection, source: sqlite3.Connection, schema: str, lanes: int, progress: Progress
) -> dict[str, int]:
    create_tables(connection, schema, lanes)
    check_tables(connection, schema, lanes)
    connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
    connection.execute("LOCK TABLE lanes IN EXCLUSIVE MODE")  # a start that takes lanes waits
    _refuse_used(connection, schema)
    connection.execute("TRUNCATE brokers, blocks")
    rows = {name: _copy_table(connection, source, metadata.tables[name], progress) for name in ALIKE}
    _copy_brokers(connection, source)
    _copy_lanes(connection, source)
    _copy_notes(connection, source)
    for table, column in (("blocks", "number"), ("workflows", "id"), ("parked", "id")):
        connection.execute(
            f"SELECT setval('{table}_{column}_seq', max({column})) FROM {table} HAVING count(*) > 0".encode()  # noqa: S608
        )
    connection.execute("SELECT setval('epochs', max(epoch)) FROM brokers HAVING count(*) > 0")
    for name in (*ALIKE, "lanes", "commits"):
        connection.execute(f"ANALYZE {name}".encode())
    return rows


def _refuse_used(connection: PostgresConnection, schema: str) -> None:
    for name in EMPTY:
        if connection.execute(f"SELECT 1 FROM {name} LIMIT 1".encode()).fetchone():  # noqa: S608
            raise WouldReplace(
                f"the schema {schema} has rows in its table {name}: a database is copied into an empty schema. Name "
                "another one in database.schema"
            )
    row = connection.execute("SELECT owner FROM lanes WHERE owner IS NOT NULL LIMIT 1").fetchone()
    if row is not None:
        raise WouldReplace(
            f"the schema {schema} is in use by the broker {row[0]}: stop that broker, or name another one in "
            "database.schema"
        )


def _copy_table(connection: PostgresConnection, source: sqlite3.Connection, table: Table, progress: Progress) -> int:
    names = [column.name for column in table.columns]
    columns = ", ".join(f'"{name}"' for name in names)
    (total,) = source.execute(f"SELECT count(*) FROM {table.name}").fetchone()  # noqa: S608
    forms = [_form(table.name, name) for name in names]
    title, done = f"rows of {table.name}", 0
    progress(title, 0, total)
    with connection.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN".encode()) as copy:
        for row in source.execute(f"SELECT {columns} FROM {table.name}"):  # noqa: S608
            copy.write_row([_formed(form, value) for form, value in zip(forms, row, strict=True)])
            done += 1
            if done % ROWS_A_REPORT == 0:
                progress(title, done, total)
    progress(title, done, total)
    return done


def _form(table: str, column: str) -> Callable[[Any], Any] | None:
    """Return how a value is stored in PostgreSQL; None: as it is."""
    if column in BOOLEANS:
        return bool
    # A program may write any bytes, and PostgreSQL has no text with U+0000.
    return _without_zeros if (table, column) in FOREIGN_TEXTS else None


def _formed(form: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if form is None or value is None else form(value)


def _without_zeros(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _copy_brokers(connection: PostgresConnection, source: sqlite3.Connection) -> None:
    """A broker that continues under another name waits for the leases of the former owner's workers."""
    rows = source.execute("SELECT id, epoch, lease_ms FROM brokers").fetchall()
    _insert_rows(
        connection,
        "INSERT INTO brokers (id, epoch, beat, lease_ms, worker_lease_ms) VALUES (%s, %s, 0, %s, %s)",
        ((name, epoch, LEASE_MS, worker_lease_ms) for name, epoch, worker_lease_ms in rows),
    )


def _copy_lanes(connection: PostgresConnection, source: sqlite3.Connection) -> None:
    """The fence appends seq after seq - 1: the end of each lane continues."""
    rows = source.execute("SELECT id, owner, owner_epoch, epoch, seq FROM lanes").fetchall()
    _insert_rows(
        connection,
        "UPDATE lanes SET owner = %s, owner_epoch = %s, epoch = %s WHERE id = %s",
        ((owner, owner_epoch, epoch, lane) for lane, owner, owner_epoch, epoch, _ in rows),
    )
    _insert_rows(connection, "DELETE FROM commits WHERE lane = %s", ((row[0],) for row in rows))
    _insert_rows(
        connection,
        "INSERT INTO commits (lane, seq, epoch) VALUES (%s, %s, %s)",
        ((lane, seq, epoch) for lane, _, _, epoch, seq in rows),
    )


def _copy_notes(connection: PostgresConnection, source: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM meta WHERE name NOT IN (%s, %s)", (SCHEMA, SERVES_FROM))
    left_out = (PARTLY_REMOVED, UNVERIFIED, COPIED)
    rows = [row for row in source.execute("SELECT name, value FROM meta") if row[0] not in left_out]
    removed = source.execute("SELECT value FROM meta WHERE name = ?", (PARTLY_REMOVED,)).fetchone()
    if removed is not None:
        rows += _removed_by_lane(source, msgspec.json.decode(removed[0], type=list[int]))
    _insert_rows(connection, "INSERT INTO meta (name, value) VALUES (%s, %s)", rows)


def _removed_by_lane(source: sqlite3.Connection, task_ids: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Retention notes the tasks that it has partly removed for each lane."""
    by_lane: dict[int, list[int]] = {}
    for task_id in task_ids:
        for (lane,) in source.execute("SELECT lane FROM tasks WHERE id = ?", (task_id,)):
            by_lane.setdefault(lane, []).append(task_id)
    for lane, ids in by_lane.items():
        yield f"{PARTLY_REMOVED_OF_LANE} {lane}", msgspec.json.encode(sorted(ids)).decode()


def _insert_rows(connection: PostgresConnection, statement: str, rows: Iterator[Any] | Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(statement.encode(), rows)


# -- the proof --------------------------------------------------------------------------------------------------------


def _record(connection: PostgresConnection, source: sqlite3.Connection, file: Path, wall_ms: int) -> None:
    """Append a row about the copy to the audit of the lane that the file's broker wrote."""
    (lane,) = source.execute("SELECT max(id) FROM lanes").fetchone()
    end = source.execute("SELECT lane, n, hash FROM audit_chains WHERE lane = ?", (lane,)).fetchone()
    head = AuditHead(lane, 0, START) if end is None else AuditHead(*end)
    (row,) = linked(head, [command_row("copy_database", f"file {file.name}", {}, wall_ms)])
    marks = ", ".join(["%s"] * len(row))
    connection.execute(f"INSERT INTO audit ({', '.join(row._fields)}) VALUES ({marks})".encode(), row)  # noqa: S608
    connection.execute(
        "INSERT INTO audit_chains (lane, n, hash, cut_n, cut_hash) VALUES (%s, %s, %s, 0, %s) "
        "ON CONFLICT (lane) DO UPDATE SET n = excluded.n, hash = excluded.hash",
        (lane, row.n, row.hash, START),
    )


def _check(
    connection: PostgresConnection,
    source: sqlite3.Connection,
    schema: str,
    sample: int | None,
    rows: dict[str, int],
    progress: Progress,
) -> Checked:
    """Count the rows, and run the check of `stepwire db check` on the copy, before it is committed."""
    for name, count in rows.items():
        (stored,) = source.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608
        if stored != count:
            raise StoreRefused(f"{count} of {stored} rows of {name} were copied: run `stepwire db check` on the file")
    state = PostgresState(connection, schema, is_in_transaction=True)
    checked = check_state(state, sample, lambda done, total: progress("tasks replayed", done, total))
    if checked.findings:
        raise StoreRefused(
            "nothing was copied, because the check of the copy found faults. Run `stepwire db check` on the file:\n"
            + "\n".join(checked.findings)
        )
    return checked


def _mark(file: Path, address: PostgresAddress, schema: str, wall_ms: int) -> None:
    """From now on a broker refuses to start on the file."""
    with closing(opening.open_writer(file)) as connection:
        backup.note(connection, COPIED, {"copied_ms": wall_ms, "to": f"{address.shown}, schema {schema}"})


def _unmark_if_undone(file: Path, connection: PostgresConnection) -> None:
    """Without a connection the outcome of the COMMIT is unknown, and the mark stays."""
    if not connection.closed:
        with closing(opening.open_writer(file)) as writer:
            writer.execute("DELETE FROM meta WHERE name = ?", (COPIED,))


def _value(source: sqlite3.Connection, name: str) -> str:
    (value,) = source.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return str(value)
