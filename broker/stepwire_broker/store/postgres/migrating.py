"""The versions of the tables. A migration only adds, so that programs of the version before go on next to it.

The tables name the oldest version whose programs may run on them. `stepwire db upgrade` runs migrations; a broker makes
the tables of an empty schema, and never changes tables. An index of a large table is built while brokers write it, and
therefore outside of a transaction.
"""

from typing import Final, NamedTuple

from stepwire_broker.store.errors import StoreRefused

from .connecting import PostgresConnection

FIRST: Final = "0001"
SCHEMA: Final = "schema"  # in `meta`: the version of the tables
SERVES_FROM: Final = "serves_from"  # in `meta`: the oldest version whose programs may run on the tables
LOCK_S: Final = 5  # a migration that waits longer for a table's lock is given up, because groups wait behind it


class Index(NamedTuple):
    """An index of a table that may be large: built next to the groups that write the table, which takes minutes."""

    name: str
    on: str  # the table, the columns, and a condition: `tasks (lane, uid) WHERE finished_ms IS NULL`
    is_unique: bool = False


class Migration(NamedTuple):
    """Either statements, which are one transaction, or an index."""

    version: str
    serves_from: str
    statements: str = ""  # the search_path is the schema
    added_index: Index | None = None


# In their order. Names of tables have no schema.
MIGRATIONS: tuple[Migration, ...] = ()


class Versions(NamedTuple):
    schema: str
    serves_from: str


def known() -> Versions:
    """Return the versions of the tables that this program makes."""
    return Versions(*MIGRATIONS[-1][:2]) if MIGRATIONS else Versions(FIRST, FIRST)


def stored(connection: PostgresConnection) -> Versions:
    """Read the versions of the tables. The search_path is the schema."""
    rows = connection.execute("SELECT name, value FROM meta WHERE name IN (%s, %s)", (SCHEMA, SERVES_FROM)).fetchall()
    notes = {str(name): str(value) for name, value in rows}
    version = notes.get(SCHEMA, "unknown")
    return Versions(version, notes.get(SERVES_FROM, version))


def refuse_version(schema: str, found: Versions) -> None:
    """Refuse tables on which this program cannot run."""
    own = known().schema
    if found.schema == own or (own < found.schema and found.serves_from <= own):
        return
    todo = "run `stepwire db upgrade`" if found.schema < own else "run a newer version of Stepwire"
    raise StoreRefused(
        f"the tables in the schema {schema} have version {found.schema}, and this program works on {own}: {todo}"
    )


def creation_after_first() -> str:
    """Return the statements of all migrations, and of their notes, for empty tables."""
    statements = [
        migration.statements.strip() if migration.added_index is None else _create(migration.added_index, "", "")
        for migration in MIGRATIONS
    ]
    return "\n".join([*statements, _notes(known())]) + "\n"


def script_after(version: str, schema: str) -> str:
    """Return the statements of the migrations after this version, for an administrator: transactions, and between them
    the indexes."""
    parts = []
    for migration in _missing(version):
        notes = _notes(Versions(migration.version, migration.serves_from))
        if migration.added_index is not None:
            parts.append(_create(migration.added_index, "CONCURRENTLY IF NOT EXISTS ", f"{schema}."))
        statements = migration.statements.strip()
        parts.append("\n".join(filter(None, ("BEGIN;", _SEARCH.format(schema=schema), statements, notes, "COMMIT;"))))
    return "\n".join(parts) + "\n"


def migrate(connection: PostgresConnection, schema: str, guard: PostgresConnection) -> Versions:
    """Run the missing migrations, one after the other. Each is noted when it is done, so a second call goes on after a
    failure. `guard`: a second connection, whose lock keeps other upgrades out. Returns the versions before."""
    with guard.transaction():
        # The lock is the transaction's: a pooler may give the next transaction to another client. A statement with
        # parameters would leave a snapshot open, for whose end the build of an index waits.
        guard.execute(f"SELECT pg_advisory_xact_lock(hashtextextended('stepwire-schema {schema}', 0))".encode())
        before = read_versions(connection, schema)
        for migration in _missing(before.schema):
            if migration.added_index is not None:
                _build(connection, schema, migration.added_index)
            with connection.transaction():
                connection.execute(_SEARCH.format(schema=schema).encode())
                connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_S}s'".encode())
                versions = Versions(migration.version, migration.serves_from)
                connection.execute(f"{migration.statements}\n{_notes(versions)}".encode())
    return before


def read_versions(connection: PostgresConnection, schema: str) -> Versions:
    with connection.transaction():
        connection.execute(_SEARCH.format(schema=schema).encode())
        return stored(connection)


def _missing(version: str) -> list[Migration]:
    return [migration for migration in MIGRATIONS if migration.version > version]


def _build(connection: PostgresConnection, schema: str, index: Index) -> None:
    """Build an index outside of a transaction. A build that failed leaves an index that is not valid: it is removed."""
    if (is_valid := _is_valid(connection, schema, index)) is False:
        connection.execute(f"DROP INDEX CONCURRENTLY {schema}.{index.name}".encode())
    if not is_valid:
        connection.execute(_create(index, "CONCURRENTLY ", f"{schema}.").encode())


def _is_valid(connection: PostgresConnection, schema: str, index: Index) -> bool | None:
    """Return None if there is no such index."""
    row = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f"{schema}.{index.name}",)
    ).fetchone()
    return None if row is None else bool(row[0])


def _create(index: Index, how: str, prefix: str) -> str:
    """`prefix`: of the table's name. An index is always in the schema of its table."""
    return f"CREATE {'UNIQUE ' if index.is_unique else ''}INDEX {how}{index.name} ON {prefix}{index.on};"


def _notes(versions: Versions) -> str:
    return (
        f"INSERT INTO meta (name, value) VALUES ('{SCHEMA}', '{versions.schema}'), "  # noqa: S608
        f"('{SERVES_FROM}', '{versions.serves_from}') ON CONFLICT (name) DO UPDATE SET value = excluded.value;"
    )


_SEARCH: Final = "SET LOCAL search_path TO {schema};"
