"""The state of the database for its operator, read with or without a running broker."""

import sqlite3
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.routing.level0_handlers import KIND as OFFERED
from stepwire_broker.core.routing.runtime_rules import KIND as RULE
from stepwire_broker.store.retention import LAST_RUN, kept_ms

from .backup import MADE
from .migrate import HEAD, revision
from .opening import holder
from .reading import OPEN_TASK_IDS
from .restore import RESTORED


class Status(Struct, frozen=True):
    path: str
    bytes: int
    free_bytes: int  # of those: in empty pages, which are reused
    log_bytes: int  # the write-ahead log
    process: int | None  # the process that writes; 0: its id is unknown
    schema: str
    schema_known: str  # of this program
    deployment: str
    brokers: dict[str, int]  # the epoch of each broker's last start
    tasks: dict[str, int]  # by state
    open_steps: dict[str, int]  # by state, of tasks that have not ended
    held_steps: int
    oldest_open_task: int | None
    oldest_open_since_ms: int | None
    expired_tasks: int  # ended, and past the retention time
    parked: int
    rules: int  # routing rules that were set at run time
    offered_handlers: int  # handlers that workers have offered, of at most 10,000
    last_prune: dict[str, Any] | None
    last_backup_ms: int | None  # of the backup that was restored
    restored: dict[str, Any] | None


def status(connection: sqlite3.Connection, path: Path, kept: RetentionSettings, now_ms: int) -> Status:
    """Read everything as of one moment. Open tasks and steps are counted row by row: one second for a million steps."""
    connection.execute("BEGIN")
    try:
        oldest = connection.execute(OLDEST_OPEN_TASK).fetchone()
        made = _note(connection, MADE)
        return Status(
            path=str(path),
            bytes=_size(path),
            free_bytes=_pragma(connection, "freelist_count") * _pragma(connection, "page_size"),
            log_bytes=_size(Path(f"{path}-wal")),
            process=holder(path),
            schema=revision(connection) or "none",
            schema_known=HEAD,
            deployment=_value(connection, "deployment") or "",
            brokers=dict(connection.execute("SELECT id, epoch FROM brokers ORDER BY id")),
            tasks=dict(connection.execute(TASKS)),
            open_steps=dict(connection.execute(OPEN_STEPS)),
            held_steps=_count(connection, "SELECT count(*) FROM steps WHERE state = 'held'"),
            oldest_open_task=oldest[0],
            oldest_open_since_ms=oldest[1],
            expired_tasks=expired(connection, kept, now_ms),
            parked=_count(connection, "SELECT count(*) FROM parked"),
            rules=_count(connection, CONTROLS, RULE),
            offered_handlers=_count(connection, CONTROLS, OFFERED),
            last_prune=_note(connection, LAST_RUN),
            last_backup_ms=None if made is None else made["made_ms"],
            restored=_note(connection, RESTORED),
        )
    finally:
        connection.execute("COMMIT")


# Open and ended tasks are each counted from their own index.
TASKS: Final = f"""
SELECT state, sum(n) FROM (
 SELECT state, count(*) AS n FROM tasks WHERE id IN ({OPEN_TASK_IDS}) GROUP BY state
 UNION ALL SELECT state, count(*) FROM tasks WHERE finished_ms IS NOT NULL GROUP BY state
) GROUP BY state ORDER BY state
"""  # noqa: S608
OPEN_STEPS: Final = f"""
SELECT steps.state, count(*) FROM ({OPEN_TASK_IDS}) AS open_tasks CROSS JOIN steps ON steps.task_id = open_tasks.id
GROUP BY steps.state ORDER BY steps.state
"""  # noqa: S608
OLDEST_OPEN_TASK: Final = f"SELECT id, min(created_ms) FROM tasks WHERE id IN ({OPEN_TASK_IDS})"  # noqa: S608
CONTROLS: Final = "SELECT count(*) FROM controls WHERE kind = ?"


def expired(connection: sqlite3.Connection, kept: RetentionSettings, now_ms: int) -> int:
    """Return the number of ended tasks whose retention time is over."""
    return sum(
        _count(
            connection,
            "SELECT count(*) FROM tasks WHERE state = ? AND finished_ms < ?",
            str(state),
            now_ms - ms,
        )
        for state, ms in kept_ms(kept).items()
    )


def _count(connection: sqlite3.Connection, select: str, *values: Any) -> int:
    return int(connection.execute(select, values).fetchone()[0])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _value(connection: sqlite3.Connection, name: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _note(connection: sqlite3.Connection, name: str) -> dict[str, Any] | None:
    value = _value(connection, name)
    return None if value is None else msgspec.json.decode(value, type=dict[str, Any])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
