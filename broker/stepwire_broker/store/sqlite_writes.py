"""The lane's SQL on SQLite, for Python's own driver.

Many rows go to the database in one call: the driver lets go of the GIL at every call and every row it steps over, and
beside a busy loop it waits a whole switch interval to get it back. Of the three ways (one call a row, one JSON
parameter, many bound rows) bound rows took the least CPU at every group size measured, and their calls hold the GIL
only while values are bound. A statement comes in some sizes; what is left of the last one is filled up with rows of
NONE, which no row of a table matches. (NULL would do, but the driver takes more than twice as long over it.)
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from stepwire_broker.core.model.commit_group import (
    CommitGroup,
    HistoryRow,
    Key,
    Parked,
    StepChanged,
    StepNew,
    StepOutput,
    TaskChanged,
    TaskNew,
    WorkflowNew,
)

from . import sqlite
from .keys import KeyOwner, Name
from .lane import Rows, StoredDigest, Trouble

NONE: Final = -1
ROWS_MAX: Final = 256  # in one statement: larger ones fall out of the processor's cache and are slower a row
CHECKPOINT_PAGES: Final = 8_192  # about 32 MB of write-ahead log
PAGE_BYTES: Final = 4_096
FRAME_BYTES: Final = PAGE_BYTES + 24  # a page in the log
PAGES_AHEAD: Final = 256  # the log is made longer so long before its end is reached
PAGES_A_GROUP: Final = 10
ROWS_A_PAGE: Final = 8  # 15 were measured with ordinary rows

TASK_NEW: Final = tuple(TaskNew._fields)
TASK_CHANGED: Final = tuple(TaskChanged._fields)
STEP_NEW: Final = tuple(StepNew._fields)
STEP_CHANGED: Final = tuple(StepChanged._fields)


class Many:
    """One statement for many rows."""

    def __init__(self, columns: int, text: Callable[[str], str], padded: Callable[[str], str]) -> None:
        self._columns = columns
        self._text = text
        self._padded = padded
        self._texts: dict[tuple[int, bool], str] = {}

    def run(self, execute: Callable[[str, Sequence[Any]], sqlite3.Cursor], rows: Sequence[tuple[Any, ...]]) -> int:
        """How many rows the database changed."""
        changed = 0
        for start in range(0, len(rows), ROWS_MAX):
            part = rows[start : start + ROWS_MAX]
            count = len(part)
            size = _size_for(count)
            values = [*chain.from_iterable(part), *(NONE,) * ((size - count) * self._columns)]
            changed += execute(self._statement(size, size > count), values).rowcount
        return changed

    def _statement(self, size: int, is_padded: bool) -> str:
        text = self._texts.get((size, is_padded))
        if text is None:
            values = ",".join(["(" + ",".join("?" * self._columns) + ")"] * size)
            text = self._texts[size, is_padded] = (self._padded if is_padded else self._text)(values)
        return text


def _size_for(count: int) -> int:
    """A power of two, or three quarters of one: an eighth is filled up on the average."""
    size = 1 << (count - 1).bit_length()
    return size - size // 4 if count <= size - size // 4 else size


def _insert(table: str, columns: Sequence[str], on_conflict: str = "") -> Many:
    into = f"INSERT INTO {table} ({', '.join(columns)})"
    return Many(
        len(columns),
        lambda values: f"{into} VALUES {values} {on_conflict}",
        lambda values: f"{into} SELECT * FROM (VALUES {values}) WHERE column1 <> {NONE} {on_conflict}",  # noqa: S608
    )


def _update(table: str, columns: Sequence[str], *fixed: str) -> Many:
    """Set all but the first column, which is the row's id, and what is fixed."""
    assignments = ", ".join([*(f"{c} = v.{c}" for c in columns[1:]), *fixed])
    numbered = ", ".join([*(f"{c} = ?{n}" for n, c in enumerate(columns[1:], 2)), *fixed])
    one = f"UPDATE {table} SET {numbered} WHERE id = ?1"  # noqa: S608

    def text(values: str) -> str:
        if values.count("(") == 1:
            return one  # no table of values to be laid out and joined: half the time
        return (
            f"WITH v ({', '.join(columns)}) AS (VALUES {values}) "  # noqa: S608
            f"UPDATE {table} SET {assignments} FROM v WHERE {table}.id = v.id"
        )

    return Many(len(columns), text, text)


TASKS_NEW: Final = _insert("tasks", TASK_NEW)
STEPS_NEW: Final = _insert("steps", STEP_NEW)
STEPS_DISPATCHED: Final = _update(
    "steps", ("id", "delivery", "batch_id", "worker", "ready_ms", "dispatched_ms"), "state = 'dispatched'"
)
STEPS_COMPLETED: Final = _update(
    "steps",
    ("id", "output", "output_bytes", "finished_ms"),
    "state = 'completed'",
    "batch_id = NULL",
    "not_before_ms = NULL",
    "reason = NULL",
    "earlier = NULL",
)
STEPS_CHANGED: Final = _update("steps", STEP_CHANGED)
STEPS_OUTPUT: Final = _update("steps", StepOutput._fields)
TASKS_CHANGED: Final = _update("tasks", TASK_CHANGED)
HISTORY: Final = _insert("history", ("lane_id", "seq", "position", "task_id", "at_ms", "facts"))
PARKED: Final = _insert("parked", Parked._fields)
CLAIM: Final = _insert("keys", Key._fields, "ON CONFLICT (namespace, key) DO NOTHING")
RELEASE: Final = Many(
    3,
    lambda values: f"DELETE FROM keys WHERE (namespace, key, task_id) IN (VALUES {values})",  # noqa: S608
    lambda values: f"DELETE FROM keys WHERE (namespace, key, task_id) IN (VALUES {values})",  # noqa: S608
)


class SqliteWriter:
    """The lane's Writer on the one connection that writes and checkpoints."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lane_id: int, epoch: int) -> None:
        self._connection = connection
        self._execute = self.execute = connection.execute
        self.going: set[int] = set()  # tasks that are partly removed: nothing may happen to them any more
        self._path = path
        self._file = _identity(path)
        self._lane_id = lane_id
        self._epoch = epoch
        self._seq = 0
        self._position = 0
        self._pages = 0  # of the log, since the last checkpoint
        self._pages_laid_out = 0
        self._lay_out()

    # -- the transaction ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        if _identity(self._path) != self._file:
            raise FileReplaced(
                f"{self._path} is not the file any more that this broker opened: it was moved or replaced"
            )
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._execute("COMMIT")

    def abandon(self) -> None:
        # A full disk or a failed read has rolled the transaction back already.
        if self._connection.in_transaction:
            try:
                self._execute("ROLLBACK")
            except sqlite3.Error:
                pass

    def advance(self, seq: int) -> bool:
        self._seq, self._position = seq, 0
        moved = self._execute(
            "UPDATE lanes SET seq = ? WHERE id = ? AND epoch = ? AND seq = ?",
            (seq, self._lane_id, self._epoch, seq - 1),
        )
        return moved.rowcount == 1

    def position(self) -> int | None:
        row = self._execute("SELECT seq FROM lanes WHERE id = ? AND epoch = ?", (self._lane_id, self._epoch)).fetchone()
        return None if row is None else int(row[0])

    def savepoint(self) -> None:
        self._execute("SAVEPOINT piece")

    def release(self) -> None:
        self._execute("RELEASE piece")

    def undo(self) -> None:
        self._execute("ROLLBACK TO piece")
        self._execute("RELEASE piece")

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write(self, rows: Rows) -> None:
        """Outputs come before the state that needs them and go after the state that does not."""
        run = self._execute
        if rows.tasks_new:
            TASKS_NEW.run(run, [_task_new(row) for row in rows.tasks_new])
        if rows.steps_new:
            STEPS_NEW.run(run, [(a, b, c, d, e, STATE[f], g) for a, b, c, d, e, f, g in rows.steps_new])
        if rows.steps_dispatched:
            STEPS_DISPATCHED.run(run, rows.steps_dispatched)
        if rows.steps_completed:
            STEPS_COMPLETED.run(run, [(a, b.decode(), c, d) for a, b, c, d in rows.steps_completed])
        kept = [(a, b.decode(), c) for a, b, c in rows.steps_output if b is not None]
        if kept:
            STEPS_OUTPUT.run(run, kept)
        if rows.steps_changed:
            STEPS_CHANGED.run(run, [_step_changed(row) for row in rows.steps_changed])
        if len(kept) < len(rows.steps_output):
            STEPS_OUTPUT.run(run, [row for row in rows.steps_output if row.output is None])
        if rows.tasks_changed:
            self._change_tasks(rows.tasks_changed)
        if rows.history:
            self._write_history(rows.history)

    def _change_tasks(self, changed: Sequence[TaskChanged]) -> None:
        """A task that was removed since somebody read it cannot be changed, and nothing may be said as if it were."""
        before = self._connection.total_changes
        TASKS_CHANGED.run(self._execute, [_task_changed(row) for row in changed])
        is_complete = self._connection.total_changes - before == len(changed)
        if not is_complete or (self.going and not self.going.isdisjoint(row.id for row in changed)):
            raise TaskIsGone("a task was removed from the database before this could be written of it")

    def _write_history(self, history: Sequence[HistoryRow]) -> None:
        lane_id, seq, first = self._lane_id, self._seq, self._position
        self._position += len(history)
        HISTORY.run(
            self._execute,
            [(lane_id, seq, i, a, b, c.decode()) for i, (a, b, c) in enumerate(history, first)],
        )

    def keep(self, name: str, value: str) -> None:
        self._execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def park(self, parked: Sequence[Parked]) -> None:
        """What was refused once must not be refused here: names are made writable, bodies are bytes."""
        PARKED.run(self._execute, [row._replace(source=_safe(row.source), code=_safe(row.code)) for row in parked])

    def claim_keys(self, claims: Sequence[Key]) -> int:
        return CLAIM.run(self._execute, claims)

    def key_owners(self, claims: Sequence[Key]) -> dict[Name, KeyOwner]:
        owners: dict[Name, KeyOwner] = {}
        for start in range(0, len(claims), ROWS_MAX):
            part = claims[start : start + ROWS_MAX]
            values = ",".join(["(?,?)"] * len(part))
            found = self._execute(
                f"SELECT namespace, key, digest, task_id FROM keys WHERE (namespace, key) IN (VALUES {values})",  # noqa: S608
                [*chain.from_iterable((key.namespace, key.key) for key in part)],
            )
            owners.update(((a, b), KeyOwner(c, d)) for a, b, c, d in found)
        return owners

    def release_keys(self, claims: Sequence[Key]) -> None:
        RELEASE.run(self._execute, [(key.namespace, key.key, key.task_id) for key in claims])

    def add_workflow(self, new: WorkflowNew) -> bool:
        return bool(
            self._execute(
                "INSERT INTO workflows (namespace, name, version, digest, document, created_ms, active) "
                "VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT (namespace, name, version) DO NOTHING",
                (new.namespace, new.name, new.version, new.digest, new.document.decode(), new.created_ms),
            ).rowcount
        )

    def find_workflow(self, namespace: str, name: str, version: str) -> StoredDigest:
        return StoredDigest(
            *self._execute(
                "SELECT id, digest FROM workflows WHERE namespace = ? AND name = ? AND version = ?",
                (namespace, name, version),
            ).fetchone()
        )

    def activate(self, workflow_id: int) -> None:
        self._execute(
            "UPDATE workflows SET active = 0 WHERE active = 1 AND id <> ?1 "
            "AND (namespace, name) = (SELECT namespace, name FROM workflows WHERE id = ?1)",
            (workflow_id,),
        )
        self._execute("UPDATE workflows SET active = 1 WHERE id = ?", (workflow_id,))

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for start in range(0, len(step_ids), ROWS_MAX):
            part = step_ids[start : start + ROWS_MAX]
            marks = ",".join("?" * len(part))
            found.update(self._execute(f"SELECT id, task_id FROM steps WHERE id IN ({marks})", part))  # noqa: S608
        return found

    def reserve_ids(self, count: int) -> tuple[int, int]:
        return reserve_ids(self._connection, count)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def trouble(self, error: Exception) -> Trouble:
        return trouble(error)

    def rest(self, group: CommitGroup) -> None:
        """Checkpoint where an error shows and nobody waits for an outcome. SQLite's own, inside COMMIT, stands behind
        it at twice the size, and keeps its errors to itself."""
        self.count_pages(_pages_of(group))

    def count_pages(self, pages: int) -> None:
        self._pages += pages
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        elif self._pages > self._pages_laid_out - PAGES_AHEAD:
            self._lay_out()

    def _lay_out(self) -> None:
        length = sqlite.lay_out_log(self._path)
        self._pages_laid_out = length // FRAME_BYTES if length else CHECKPOINT_PAGES + PAGES_AHEAD

    def close(self) -> None:
        """Of the last connection: SQLite moves the whole log into the database."""
        self._connection.close()


def reserve_ids(connection: sqlite3.Connection, count: int) -> tuple[int, int]:
    connection.execute("UPDATE sequences SET next = next + ? WHERE name = 'ids'", (count,))
    (after,) = connection.execute("SELECT next FROM sequences WHERE name = 'ids'").fetchone()
    return after - count, after - 1


class TaskIsGone(Exception):
    """It was over, and was removed."""


class FileReplaced(Exception):
    """What is written now would be gone with the last process that has the file open."""


BROKEN_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_FSYNC,  # what was written before is in doubt, and a second fsync would not say so
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_CORRUPTFS,
        sqlite3.SQLITE_IOERR_DATA,
        sqlite3.SQLITE_READONLY_DBMOVED,
    }
)
PASSING: Final = {
    sqlite3.SQLITE_BUSY: "database_locked",
    sqlite3.SQLITE_LOCKED: "database_locked",
    sqlite3.SQLITE_PROTOCOL: "database_locked",
    sqlite3.SQLITE_FULL: "disk_full",
    sqlite3.SQLITE_READONLY: "database_read_only",
    sqlite3.SQLITE_CANTOPEN: "database_unavailable",
    sqlite3.SQLITE_IOERR: "database_unavailable",
    sqlite3.SQLITE_NOMEM: "database_unavailable",
    sqlite3.SQLITE_INTERRUPT: "database_unavailable",
    sqlite3.SQLITE_PERM: "database_unavailable",
}
PASSING_EXTENDED: Final = {sqlite3.SQLITE_IOERR_SHMSIZE: "disk_full"}
DATA: Final = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)


UNSTORABLE: Final = (UnicodeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError, TaskIsGone)


def trouble(error: Exception) -> Trouble:
    """What is not named here is a fault of this program or of the database's schema, and stops the lane: it would be
    the same again tomorrow, and it is nobody's data."""
    text = f"{type(error).__name__}: {error}"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # The driver could not even bind it (no such number, no such text, no such type), or it has no row to go to.
        is_data = isinstance(error, UNSTORABLE)
        return Trouble("data" if is_data else "broken", "", text)
    text = f"{error} ({getattr(error, 'sqlite_errorname', code)})"
    primary = code & 0xFF
    if code in BROKEN_CODES:
        return Trouble("broken", "", text)
    if primary in DATA:
        return Trouble("data", "", text)
    passing = PASSING_EXTENDED.get(code) or PASSING.get(primary)
    return Trouble("passing", passing, text) if passing else Trouble("broken", "", text)


class _Plain(dict[str, str]):
    """An enum's text as a plain string: the driver takes four times as long over anything that is only like one."""

    def __missing__(self, value: str) -> str:
        self[str(value)] = plain = str.__str__(value)
        return plain


STATE: Final = _Plain()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _task_new(row: TaskNew) -> tuple[Any, ...]:
    return (
        *row[:6],
        STATE[row.state],
        row.attention,
        int(row.cancelling),
        row.priority,
        _text(row.labels),
        row.context.decode(),
        row.context_bytes,
        *row[13:],
    )


def _task_changed(row: TaskChanged) -> tuple[Any, ...]:
    task_id, state, attention, cancelling, *rest = row
    return (task_id, STATE[state], attention, int(cancelling), *rest)


def _step_changed(row: StepChanged) -> tuple[Any, ...]:
    return (
        row.id,
        STATE[row.state],
        *row[2:7],
        int(row.granted),
        *row[8:15],
        _text(row.error),
        row.reason,
        row.key_number,
        _text(row.earlier),
    )


def _safe(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _pages_of(group: CommitGroup) -> int:
    """How many pages of log a group makes, rather more than less: a lone row makes a handful, many share theirs."""
    lists: Iterable[Sequence[Any]] = (
        group.steps_dispatched,
        group.steps_completed,
        group.steps_changed,
        group.tasks_changed,
        group.history,
    )
    rows = sum(map(len, lists)) + sum(len(s.steps) for s in group.submissions)
    return PAGES_A_GROUP + rows // ROWS_A_PAGE + group.bytes // PAGE_BYTES
