"""The erasure of a task in SQLite's SQL: see store/erasure.py. Runs inside the transaction of the fact `Erased`."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.commit import scrubbing
from stepwire_broker.core.model.commit_group import TaskErased
from stepwire_broker.store.erasure import FRAME_CODES, names_a_step, text_of

Execute = Callable[..., sqlite3.Cursor]

UNVERIFIED: Final = "unverified_erasures"  # in `meta`: the number of erasures since the file was last searched
_COUNT: Final = (
    "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) "
    "DO UPDATE SET value = CAST(CAST(value AS INTEGER) + CAST(excluded.value AS INTEGER) AS TEXT)"
)


def erase(execute: Execute, erasures: Sequence[TaskErased]) -> None:
    """Erase these tasks. Pages that become free are zeroed: by default only pages that are written anyway are."""
    execute("PRAGMA secure_delete=ON").fetchall()
    try:
        for task_id, at_ms in erasures:
            _erase(execute, task_id, text_of(at_ms))
        execute(_COUNT, (UNVERIFIED, str(len(erasures))))
    finally:
        execute("PRAGMA secure_delete=FAST").fetchall()


def _erase(execute: Execute, task_id: int, marker: str) -> None:
    values = {"task": task_id, "marker": marker, "size": len(marker)}
    step_ids = {row[0] for row in execute("SELECT id FROM steps WHERE task_id = ?", (task_id,))}
    for statement in _STATEMENTS:
        execute(statement, values)
    reasons = execute("SELECT DISTINCT reason FROM steps WHERE task_id = :task AND reason IS NOT NULL", values)
    for (reason,) in reasons.fetchall():
        if erasing.code(reason) != reason:
            execute(
                "UPDATE steps SET reason = ? WHERE task_id = ? AND reason = ?", (erasing.code(reason), task_id, reason)
            )
    _erase_frames(execute, step_ids, marker)
    _erase_history(execute, task_id)


_STATEMENTS: Final = (
    # Before the task loses its key.
    "DELETE FROM keys WHERE task_id = :task AND (namespace, key) = "
    "(SELECT namespace, key FROM tasks WHERE id = :task AND key IS NOT NULL)",
    "UPDATE tasks SET key = NULL, labels = :marker, context = :marker, context_bytes = :size WHERE id = :task",
    "UPDATE steps SET output = :marker, output_bytes = :size WHERE task_id = :task AND output IS NOT NULL",
    "UPDATE steps SET error = :marker WHERE task_id = :task AND error IS NOT NULL",
    "UPDATE step_stderr SET text = :marker WHERE id IN (SELECT id FROM steps WHERE task_id = :task)",
    "UPDATE parked SET body = CAST(:marker AS BLOB) WHERE task_id = :task "
    "OR step_id IN (SELECT id FROM steps WHERE task_id = :task)",
)


def _erase_frames(execute: Execute, step_ids: set[int], marker: str) -> None:
    """Erase the frames parked for other tasks that also hold a step of this task. There are few, if any."""
    marks = ",".join("?" * len(FRAME_CODES))
    frames = execute(f"SELECT id, body FROM parked WHERE code IN ({marks})", FRAME_CODES)  # noqa: S608
    found = [parked_id for parked_id, body in frames if names_a_step(body, step_ids)]
    for parked_id in found:
        execute("UPDATE parked SET body = CAST(? AS BLOB) WHERE id = ?", (marker, parked_id))


def _erase_history(execute: Execute, task_id: int) -> None:
    rows = execute(
        "SELECT lane_id, seq, position, CAST(facts AS BLOB) FROM history WHERE task_id = ?", (task_id,)
    ).fetchall()
    for lane_id, seq, position, facts in rows:
        scrubbed = scrubbing.scrubbed(facts)
        if scrubbed != facts:
            execute(
                "UPDATE history SET facts = ? WHERE lane_id = ? AND seq = ? AND position = ?",
                (scrubbed.decode(), lane_id, seq, position),
            )


def unverified(execute: Execute) -> int:
    row = execute("SELECT CAST(value AS INTEGER) FROM meta WHERE name = ?", (UNVERIFIED,)).fetchone()
    return 0 if row is None else int(row[0])


def are_verified(execute: Execute, count: int) -> None:
    execute(_COUNT, (UNVERIFIED, str(-count)))
