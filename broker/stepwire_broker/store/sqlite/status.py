"""The state of the database for its operator, read with or without a running broker."""

import sqlite3
from pathlib import Path

from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.store.contents import Contents, contents

from .migrate import HEAD, revision
from .opening import holder
from .stored_state import SqliteState


class Status(Contents, frozen=True, kw_only=True):
    path: str
    bytes: int
    free_bytes: int  # of those: in empty pages, which are reused
    log_bytes: int  # the write-ahead log
    process: int | None  # the process that writes; 0: its id is unknown
    schema: str
    schema_known: str  # of this program


def status(connection: sqlite3.Connection, path: Path, kept: RetentionSettings, now_ms: int) -> Status:
    """Read everything as of one moment."""
    state = SqliteState(connection)
    with state.moment():
        return Status(
            path=str(path),
            bytes=_size(path),
            free_bytes=_pragma(connection, "freelist_count") * _pragma(connection, "page_size"),
            log_bytes=_size(Path(f"{path}-wal")),
            process=holder(path),
            schema=revision(connection) or "none",
            schema_known=HEAD,
            **contents(state, kept, now_ms),
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
