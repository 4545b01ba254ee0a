"""The contents of a database, counted for its operator."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.routing.level0_handlers import KIND as OFFERED
from stepwire_broker.core.routing.runtime_rules import KIND as RULE

from .retention import LAST_RUN, kept_ms
from .stored_state import StoredState

MADE: Final = "backup"  # in `meta` of a backup and of a restored database: the time of the backup
RESTORED: Final = "restored"  # in `meta`: the time and the source of the restore
COPIED: Final = "copied"  # in `meta` of a file: when and where it was copied to, so that no broker starts on it


class Contents(Struct, frozen=True, kw_only=True):
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


def contents(state: StoredState, kept: RetentionSettings, now_ms: int) -> dict[str, Any]:
    """Return the members of Contents. Open tasks and steps are counted row by row: one second for a million steps. The
    caller has begun a moment."""
    open_ids = state.open_task_ids
    oldest = state.select(
        f"SELECT id, created_ms FROM tasks WHERE id IN ({open_ids}) ORDER BY created_ms, id LIMIT 1"  # noqa: S608
    )
    made = note(state, MADE)
    return {
        "deployment": value(state, "deployment") or "",
        "brokers": dict(state.select("SELECT id, epoch FROM brokers ORDER BY id")),
        "tasks": dict(state.select(TASKS.format(open_ids=open_ids))),
        "open_steps": dict(state.select(OPEN_STEPS.format(open_ids=open_ids))),
        "held_steps": count(state, "attention WHERE kind = 'held'"),
        "oldest_open_task": oldest[0][0] if oldest else None,
        "oldest_open_since_ms": oldest[0][1] if oldest else None,
        "expired_tasks": expired(state, kept, now_ms),
        "parked": count(state, "parked"),
        "rules": count(state, f"controls WHERE kind = '{RULE}'"),
        "offered_handlers": count(state, f"controls WHERE kind = '{OFFERED}'"),
        "last_prune": note(state, LAST_RUN),
        "last_backup_ms": None if made is None else made["made_ms"],
        "restored": note(state, RESTORED),
    }


# Open and ended tasks are each counted from their own index.
TASKS: Final = """
SELECT state, CAST(sum(n) AS BIGINT) FROM (
 SELECT state, count(*) AS n FROM tasks WHERE id IN ({open_ids}) GROUP BY state
 UNION ALL SELECT state, count(*) FROM tasks WHERE finished_ms IS NOT NULL GROUP BY state
) AS counted GROUP BY state ORDER BY state
"""
OPEN_STEPS: Final = "SELECT state, count(*) FROM steps WHERE task_id IN ({open_ids}) GROUP BY state ORDER BY state"


def expired(state: StoredState, kept: RetentionSettings, now_ms: int) -> int:
    """Return the number of ended tasks whose retention time is over."""
    return sum(
        count(state, f"tasks WHERE state = '{task_state}' AND finished_ms < {now_ms - ms:d}")
        for task_state, ms in kept_ms(kept).items()
    )


def count(state: StoredState, rows: str) -> int:
    ((number,),) = state.select(f"SELECT count(*) FROM {rows}")  # noqa: S608
    return int(number)


def value(state: StoredState, name: str) -> str | None:
    """Return a value of `meta`."""
    rows = state.select(f"SELECT value FROM meta WHERE name = '{name}'")  # noqa: S608
    return str(rows[0][0]) if rows else None


def note(state: StoredState, name: str) -> dict[str, Any] | None:
    """Return a value of `meta` that is a JSON object."""
    text = value(state, name)
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
