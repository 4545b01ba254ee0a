"""Bringing a database to the schema of this program. Migrations only add; a database of a newer program is refused."""

import sqlite3
from pathlib import Path
from typing import Final

from .errors import StoreRefused

HEAD: Final = "0001"  # the newest of migrations/versions

_SCRIPTS: Final = Path(__file__).parent / "migrations"


def migrate(connection: sqlite3.Connection) -> None:
    """To HEAD, in one transaction. Costs one query when it is there already."""
    now = revision(connection)
    if now == HEAD:
        return
    # Alembic is slow to import, and an ordinary start has nothing to migrate.
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
            f"the database has schema {now!r}, which this program (schema {HEAD!r}) does not know: it was written by a "
            "newer Stepwire. Start that one, or restore a backup of before"
        )
    if now is None and (table := _any_table(connection)):
        raise StoreRefused(
            f"the database holds a table {table!r} that is not Stepwire's: give the broker a database of its own"
        )
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.connect() as transaction:
        transaction.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes["connection"] = transaction
        command.upgrade(config, "head")
        transaction.commit()


def revision(connection: sqlite3.Connection) -> str | None:
    """The schema the database is at; None when it has none yet."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _any_table(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone()
    return None if row is None else str(row[0])
