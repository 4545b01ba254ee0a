"""The versions of the tables. A migration only adds, so that programs of the version before go on next to it.

The tables name the oldest version whose programs may run on them. `stepwire db upgrade` runs migrations; a broker makes
the tables of an empty schema, and never changes tables.
"""

from typing import Final, NamedTuple

from stepwire_broker.store.errors import StoreRefused

from .connecting import PostgresConnection

FIRST: Final = "0001"
SCHEMA: Final = "schema"  # in `meta`: the version of the tables
SERVES_FROM: Final = "serves_from"  # in `meta`: the oldest version whose programs may run on the tables
LOCK_S: Final = 5  # a migration that waits longer for a table's lock is given up, because groups wait behind it


class Migration(NamedTuple):
    version: str
    serves_from: str
    statements: str  # the search_path is the schema


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


def statements_after(version: str) -> str:
    """Return the statements of the migrations after this version, and of their notes. The caller runs them in one
    transaction, whose search_path is the schema."""
    missing = [migration for migration in MIGRATIONS if migration.version > version]
    return "\n".join([migration.statements.strip() for migration in missing] + [_notes()]) + "\n"


def migrate(connection: PostgresConnection, schema: str, *, changes: bool = True) -> Versions:
    """Run the missing migrations in one transaction. Returns the versions before."""
    with connection.transaction():
        # The lock is the transaction's: a pooler may give the next transaction to another client.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('stepwire-schema ' || %s, 0))", (schema,))
        connection.execute(f"SET LOCAL search_path TO {schema}".encode())
        connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_S}s'".encode())
        before = stored(connection)
        if before.schema < known().schema and changes:
            connection.execute(statements_after(before.schema).encode())
    return before


def _notes() -> str:
    versions = known()
    return (
        f"INSERT INTO meta (name, value) VALUES ('{SCHEMA}', '{versions.schema}'), "  # noqa: S608
        f"('{SERVES_FROM}', '{versions.serves_from}') ON CONFLICT (name) DO UPDATE SET value = excluded.value;"
    )
