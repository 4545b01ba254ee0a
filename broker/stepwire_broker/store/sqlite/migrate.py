"""Migrate a database to the schema of this program. Migrations only add; a database of a newer program is refused.

A new database is made at once from schema.sql, which is the result of all migrations. `python -m
stepwire_broker.store.sqlite.migrations` writes that file, and a test keeps the two equal.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from stepwire_broker.store.errors import StoreRefused

HEAD: Final = "0005"  # the newest of migrations/versions

_SCRIPTS: Final = Path(__file__).parent / "migrations"
SCHEMA: Final = Path(__file__).with_name("schema.sql")


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the database to HEAD, in one transaction. A database at HEAD costs one query."""
    now = revision(connection)
    if now == HEAD:
        return
    if now is None and (table := _any_table(connection)):
        raise StoreRefused(
            f"the database holds a table {table!r} that is not Stepwire's: give the broker its own database"
        )
    if now is None:
        _create(connection)
    else:
        upgrade(connection, now)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in SCHEMA.read_text(encoding="utf-8").split(";\n")[:-1]:
            connection.execute(statement)
        connection.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (HEAD,))
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def upgrade(connection: sqlite3.Connection, now: str | None, to: str = "head") -> None:
    """Run the migrations. Alembic is slow to import, and an ordinary start has nothing to migrate."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if now is not None and now not in known:
        raise StoreRefused(
            f"the database has schema {now!r}, which this program (schema {HEAD!r}) does not know: the database was "
            "written by a newer Stepwire. Start that version, or restore a backup from before the upgrade"
        )
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    connection.execute("PRAGMA foreign_keys=OFF")  # while tables are replaced; no effect inside a transaction
    with engine.connect() as transaction:
        transaction.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = transaction
        command.upgrade(config, to)
        transaction.commit()
    connection.execute("PRAGMA foreign_keys=ON")


def revision(connection: sqlite3.Connection) -> str | None:
    """Return the schema version of the database; None for an empty database."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _any_table(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone()
    return None if row is None else str(row[0])


def schema() -> str:
    """Return the statements that create the result of all migrations."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        upgrade(connection, None)
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
        return "".join(f"{sql};\n" for (sql,) in rows)
