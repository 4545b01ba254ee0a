"""The tables of the store: made in an empty schema, with a fixed number of lanes."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from stepwire_broker.store.errors import StoreRefused
from stepwire_broker.store.ports import LANE

from . import migrating
from .connecting import PostgresConnection

LANES: Final = 8
LANES_MAX: Final = 64
ACCEPTED_LOSS: Final = "accepted_loss"  # in `meta`: the last `db accept-loss`, as JSON
NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

TABLES: Final = (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")


def read_schema_name(name: str) -> str:
    """Check a schema's name. Names are written into statements without quotes."""
    if not NAME.fullmatch(name) or name.startswith("pg_"):
        raise StoreRefused(
            f"database.schema is {name!r}: it needs lower-case letters, digits and underscores, at most 63, a letter "
            "or an underscore first, and not the prefix pg_"
        )
    return name


def create_tables(connection: PostgresConnection, schema: str, lanes: int = LANES, first: int = LANE) -> None:
    """Make the schema if it is missing, and its tables and lanes, in one transaction. Of two brokers that start at the
    same instant, the second waits for the first and changes nothing."""
    with connection.transaction():
        # The lock is the transaction's: a pooler may give the next transaction to another client.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('stepwire-schema ' || %s, 0))", (schema,))
        if has_tables(connection, schema):
            return
        has_schema = connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() != (None,)
        connection.execute(creation(schema, lanes, first, with_schema=not has_schema).encode())


def creation(schema: str, lanes: int = LANES, first: int = LANE, *, with_schema: bool = True) -> str:
    """Return the statements that make the tables. The caller runs them in one transaction."""
    parts = [
        f"CREATE SCHEMA {schema};" if with_schema else "",
        f"SET LOCAL search_path TO {schema};",
        TABLES.rstrip(),
        f"INSERT INTO lanes (id) SELECT generate_series({first}, {first + lanes - 1});",
        migrating.creation_after_first().rstrip(),
        _FIRST_COMMITS,
    ]
    return "\n".join(part for part in parts if part) + "\n"


# The fence appends seq after seq - 1: the first group of a lane has 1.
_FIRST_COMMITS: Final = (
    "INSERT INTO commits (lane, seq, epoch) SELECT id, 0, 0 FROM lanes "
    "WHERE NOT EXISTS (SELECT 1 FROM commits WHERE lane = lanes.id);"
)


def add_lanes(connection: PostgresConnection, schema: str, lanes: int) -> int:
    """Add lanes up to this number. Returns the number before."""
    with connection.transaction():
        connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
        connection.execute("LOCK TABLE lanes IN SHARE ROW EXCLUSIVE MODE")
        row = connection.execute("SELECT count(*), max(id) FROM lanes").fetchone()
        before, last = (0, 0) if row is None else (int(row[0]), int(row[1]))
        connection.execute(
            "INSERT INTO lanes (id) SELECT generate_series(%s::int, %s::int)", (last + 1, last + lanes - before)
        )
        connection.execute(_FIRST_COMMITS.encode())
    return before


def has_tables(connection: PostgresConnection, schema: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (f"{schema}.lanes",)).fetchone()
    return row is not None and row[0] is not None


def check_tables(connection: PostgresConnection, schema: str, lanes: int, *, may_be_interrupted: bool = False) -> None:
    """Refuse tables of another version of the program, and another number of lanes than the settings name."""
    with connection.transaction():
        connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
        versions = migrating.stored(connection)
        count = connection.execute("SELECT count(*) FROM lanes").fetchone()
        loss = connection.execute("SELECT value FROM meta WHERE name = %s", (ACCEPTED_LOSS,)).fetchone()
    migrating.refuse_version(schema, versions)
    is_complete = loss is None or msgspec.json.decode(loss[0], type=dict[str, Any])["is_complete"]
    if not is_complete and not may_be_interrupted:
        raise StoreRefused(f"`stepwire db accept-loss` on the schema {schema} was interrupted: run it again")
    made = 0 if count is None else int(count[0])
    if made != lanes:
        remedy = f"set database.lanes: {made}" + ("" if made > lanes else f", or run `stepwire db lanes {lanes}`")
        raise StoreRefused(f"database.lanes is {lanes}, and the schema {schema} has {made} lanes: {remedy}")
