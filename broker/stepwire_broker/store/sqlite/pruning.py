"""Retention's statements in SQLite's SQL, and an operator's commands on a database that no broker has open."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.states import STEP_FINAL, TaskState
from stepwire_broker.store.errors import StoreRefused
from stepwire_broker.store.retention import EndedStep, EndedTask, OldAudit, ParkedInput, Pruned, Removed, Retention

from . import opening
from .migrate import HEAD, revision
from .reading import Reading
from .writer import PAGES_A_GROUP, ROWS_A_PAGE, OwnedLane, SqliteWriter

PARTLY_REMOVED: Final = "pruning"  # in `meta`: the tasks that are removed in part, as JSON


class SqlitePruning:
    """The port `PruneStatements` of store/retention.py, on the connection of the writer."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer
        self._execute = writer.execute
        self._read = Reading(writer.connection)

    # -- the transaction ----------------------------------------------------------------------------------------------

    def remove_whole(self, before_ms: Mapping[TaskState, int], without: Collection[int], steps: int) -> Removed:
        """Remove nothing: a statement costs no trip here, so slices are as fast."""
        return Removed()

    def begin(self) -> None:
        self._writer.begin()

    def commit(self) -> None:
        self._writer.commit()

    def abandon(self) -> None:
        self._writer.abandon()

    def rest(self, rows: int) -> None:
        self._writer.count_pages(PAGES_A_GROUP + rows // ROWS_A_PAGE)

    # -- tasks --------------------------------------------------------------------------------------------------------

    def oldest_ended_ms(self, state: str) -> int | None:
        (at_ms,) = self._execute(
            "SELECT min(finished_ms) FROM tasks WHERE state = ? AND finished_ms IS NOT NULL", (state,)
        ).fetchone()
        return None if at_ms is None else int(at_ms)

    def ended_tasks(self, state: str, before_ms: int, without: Collection[int], limit: int) -> list[EndedTask]:
        return self._read.rows(
            EndedTask,
            """
            SELECT id, context_bytes,
             coalesce(1 + (SELECT max(position) FROM steps WHERE task_id = tasks.id), 0) FROM tasks
            WHERE state = :state AND finished_ms < :before_ms
             AND id NOT IN (SELECT value FROM json_each(:without))
            ORDER BY finished_ms LIMIT :limit
            """,
            {"state": state, "before_ms": before_ms, "without": _json(without), "limit": limit},
        )

    def steps_of(self, task_ids: Collection[int], limit: int) -> list[EndedStep]:
        return self._read.rows(
            EndedStep,
            """
            SELECT id, output_bytes + coalesce((SELECT length(text) FROM step_stderr WHERE id = steps.id), 0),
             task_id, state FROM steps
            WHERE task_id IN (SELECT value FROM json_each(:ids)) LIMIT :limit
            """,
            {"ids": _json(task_ids), "limit": limit},
        )

    def task_not_over(self, task_ids: Collection[int]) -> int | None:
        row = self._execute(
            "SELECT task_id FROM steps WHERE task_id IN (SELECT value FROM json_each(?)) "
            "AND state NOT IN (SELECT value FROM json_each(?)) LIMIT 1",
            (_json(task_ids), _json(STEP_FINAL)),
        ).fetchone()
        return None if row is None else int(row[0])

    def remove_steps(self, step_ids: Collection[int]) -> int:
        self._remove("DELETE FROM step_stderr WHERE id IN (SELECT value FROM json_each(?))", step_ids)
        self._remove("DELETE FROM attention WHERE id IN (SELECT value FROM json_each(?))", step_ids)
        return self._remove("DELETE FROM steps WHERE id IN (SELECT value FROM json_each(?))", step_ids)

    def remove_history(self, task_ids: Collection[int], limit: int) -> int:
        return self._remove(
            """
            DELETE FROM history WHERE (lane_id, seq, position) IN (
             SELECT lane_id, seq, position FROM history WHERE task_id IN (SELECT value FROM json_each(?)) LIMIT ?)
            """,
            task_ids,
            limit,
        )

    def remove_keys(self, task_ids: Collection[int]) -> int:
        return self._remove(
            """
            DELETE FROM keys WHERE (namespace, key) IN (
             SELECT namespace, key FROM tasks WHERE id IN (SELECT value FROM json_each(?)) AND key IS NOT NULL)
             AND task_id IN (SELECT value FROM json_each(?))
            """,
            task_ids,
            _json(task_ids),
        )

    def remove_tasks(self, task_ids: Collection[int]) -> int:
        self._remove("DELETE FROM attention WHERE id IN (SELECT value FROM json_each(?))", task_ids)
        return self._remove("DELETE FROM tasks WHERE id IN (SELECT value FROM json_each(?))", task_ids)

    # -- refused input ------------------------------------------------------------------------------------------------

    def newest_parked(self) -> int | None:
        (last,) = self._execute("SELECT max(id) FROM parked").fetchone()
        return None if last is None else int(last)

    def parked_until(self, last_id: int, before_ms: int, limit: int) -> list[ParkedInput]:
        return self._read.rows(
            ParkedInput,
            "SELECT id, length(body) FROM parked WHERE id <= :last_id OR at_ms < :before_ms ORDER BY id LIMIT :limit",
            {"last_id": last_id, "before_ms": before_ms, "limit": limit},
        )

    def newest_parked_sizes(self, limit: int) -> list[ParkedInput]:
        return self._read.rows(
            ParkedInput, "SELECT id, length(body) FROM parked ORDER BY id DESC LIMIT :limit", {"limit": limit}
        )

    def remove_parked(self, ids: Collection[int]) -> int:
        return self._remove("DELETE FROM parked WHERE id IN (SELECT value FROM json_each(?))", ids)

    # -- the audit ----------------------------------------------------------------------------------------------------

    def first_audit(self, limit: int) -> list[OldAudit]:
        lanes = self._execute("SELECT lane FROM audit_chains ORDER BY lane").fetchall()
        select = "SELECT lane, n, at_ms, hash FROM audit WHERE lane = :lane ORDER BY n LIMIT :limit"
        return [row for (lane,) in lanes for row in self._read.rows(OldAudit, select, {"lane": lane, "limit": limit})]

    def cut_audit(self, last: OldAudit) -> int:
        self._execute("UPDATE audit_chains SET cut_n = ?, cut_hash = ? WHERE lane = ?", (last.n, last.hash, last.lane))
        return self._execute("DELETE FROM audit WHERE lane = ? AND n <= ?", (last.lane, last.n)).rowcount

    # -- notes --------------------------------------------------------------------------------------------------------

    def partly_removed(self) -> set[int]:
        row = self._execute("SELECT value FROM meta WHERE name = ?", (PARTLY_REMOVED,)).fetchone()
        return set() if row is None else set(msgspec.json.decode(row[0], type=list[int]))

    def note_partly_removed(self, task_ids: Collection[int]) -> None:
        if task_ids:
            self.note(PARTLY_REMOVED, _json(task_ids))
        else:
            self._execute("DELETE FROM meta WHERE name = ?", (PARTLY_REMOVED,))

    def forbid_changes(self, task_ids: Collection[int]) -> None:
        self._writer.partly_removed = frozenset(task_ids)

    def note(self, name: str, value: str) -> None:
        self._execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def _remove(self, statement: str, ids: Collection[int], *values: Any) -> int:
        return self._execute(statement, (_json(ids), *values)).rowcount


# -- without a broker -------------------------------------------------------------------------------------------------


def prune_now(path: Path, settings: RetentionSettings, progress: Callable[[Pruned], object]) -> Pruned:
    """Prune completely in the caller's thread, while no broker has the database open."""
    lock = opening.lock(path)
    try:
        connection = opening.open_writer(path)
        try:
            schema = revision(connection)
            if schema != HEAD:
                raise StoreRefused(
                    f"{path} has schema {schema!r}, and this program works on {HEAD!r}: `serve` upgrades it"
                )
            retention = Retention(SqlitePruning(SqliteWriter(connection, path, OwnedLane(0, 0, 0))), settings)
            while (run := retention.work()) is None:
                progress(retention.so_far)
            return run
        finally:
            connection.close()
    finally:
        lock.release()


def compact(path: Path) -> None:
    """Rewrite the whole file, to return its free space to the file system, while no broker has it open."""
    lock = opening.lock(path)
    try:
        connection = opening.open_writer(path)
        try:
            connection.execute("VACUUM")
        except sqlite3.Error as error:
            raise opening.refused(path, error) from error
        finally:
            connection.close()
    finally:
        lock.release()


def _json(values: Iterable[Any]) -> str:
    return msgspec.json.encode(sorted(values)).decode()
