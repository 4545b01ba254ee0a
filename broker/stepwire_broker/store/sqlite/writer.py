"""The lane's writer on SQLite: one connection that writes and checkpoints. Each statement writes many rows, see
statements.py.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK, block_of
from stepwire_broker.core.model.commit_group import (
    AttentionChanged,
    AuditNew,
    CommitGroup,
    ControlChanged,
    HistoryRow,
    Key,
    OrderAnswer,
    Parked,
    StepChanged,
    TaskChanged,
    TaskNew,
    WorkflowNew,
)
from stepwire_broker.store.audit_chain import START, AuditHead, linked
from stepwire_broker.store.errors import TaskIsGone
from stepwire_broker.store.keys import KeyOwner, Name
from stepwire_broker.store.lane import NotAdvanced, Rows, StoredDigest, Trouble

from . import erasing, opening
from .statements import (
    ATTENTION,
    AUDIT,
    CLAIM,
    END_ATTENTION,
    HISTORY,
    MOVE_AUDIT_END,
    PARKED,
    RELEASE,
    REMOVED,
    ROWS_MAX,
    SET_CONTROL,
    STEPS_CHANGED,
    STEPS_COMPLETED,
    STEPS_DISPATCHED,
    STEPS_NEW,
    STEPS_OUTPUT,
    STEPS_STDERR,
    TASKS_CHANGED,
    TASKS_NEW,
)
from .troubles import FileReplaced, trouble_of

CHECKPOINT_PAGES: Final = 8_192  # about 32 MB of write-ahead log
PAGE_BYTES: Final = 4_096
FRAME_BYTES: Final = PAGE_BYTES + 24  # a page in the log
PAGES_AHEAD: Final = 256  # the log is lengthened this many pages before its end is reached
PAGES_A_GROUP: Final = 10
ROWS_A_PAGE: Final = 8  # 15 were measured with ordinary rows


class OwnedLane(NamedTuple):
    """A lane, and the fence of its owner."""

    id: int
    epoch: int
    seq: int  # of its last transaction when it was taken


class _OnlyBroker:
    """The part of a writer that serves other brokers. A file has one broker."""

    def answer_orders(self, answers: Sequence[OrderAnswer]) -> None:
        raise AssertionError("a file has no orders")


class SqliteWriter(_OnlyBroker):
    """The port `LaneWriter` of store/lane.py, on the one connection that writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lane: OwnedLane) -> None:
        self.connection = connection
        self._execute = self.execute = connection.execute
        self.partly_removed: frozenset[int] = frozenset()  # tasks that retention is removing: they must not be changed
        self.path = path
        self._file = _identity(path)
        self._lane_id = lane.id
        self._epoch = lane.epoch
        self._seq = 0
        self._position = 0
        self._pages = 0  # written to the log since the last checkpoint
        self._pages_laid_out = 0
        self.lay_out()

    # -- the transaction ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        lost = self.lost()
        if lost is not None:
            raise FileReplaced(lost)
        self._execute("BEGIN IMMEDIATE")

    def lost(self) -> str | None:
        """Return why the path no longer leads to the file that this broker opened; None while it does. Any thread may
        call this method."""
        try:
            identity = _identity(self.path)
        except OSError as error:
            return f"the database file {self.path} cannot be reached: {error.strerror}"
        if identity == self._file:
            return None
        if identity is None:
            directory = self.path.parent
            removed = f"database file {self.path}" if directory.exists() else f"state directory {directory}"
            return f"the {removed} was removed or moved"
        return f"{self.path} is no longer the file that this broker opened: the file was moved or replaced"

    def commit(self) -> None:
        self._execute("COMMIT")

    def abandon(self) -> None:
        # After a full disk or a failed read SQLite has already rolled the transaction back.
        if self.connection.in_transaction:
            try:
                self._execute("ROLLBACK")
            except sqlite3.Error:
                pass

    def advance(self, seq: int) -> None:
        self._seq, self._position = seq, 0
        moved = self._execute(
            "UPDATE lanes SET seq = ? WHERE id = ? AND epoch = ? AND seq = ?",
            (seq, self._lane_id, self._epoch, seq - 1),
        )
        if moved.rowcount != 1:
            raise NotAdvanced

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
        """Write the rows. An output is set before its step is completed, and cleared after its step is reopened."""
        run = self._execute
        if rows.tasks_new:
            TASKS_NEW.run(run, [_task_new(row) for row in rows.tasks_new])
        if rows.steps_new:
            STEPS_NEW.run(run, [(a, b, c, d, e, STATE[f], g) for a, b, c, d, e, f, g in rows.steps_new])
        if rows.steps_dispatched:
            STEPS_DISPATCHED.run(run, rows.steps_dispatched)
        if rows.steps_completed:
            STEPS_COMPLETED.run(run, [(a, b.decode(), c, d, e) for a, b, c, d, e in rows.steps_completed])
        kept = [(a, b.decode(), c) for a, b, c in rows.steps_output if b is not None]
        if kept:
            STEPS_OUTPUT.run(run, kept)
        if rows.steps_changed:
            STEPS_CHANGED.run(run, [_step_changed(row) for row in rows.steps_changed])
        if len(kept) < len(rows.steps_output):
            STEPS_OUTPUT.run(run, [row for row in rows.steps_output if row.output is None])
        if rows.steps_stderr:
            STEPS_STDERR.run(run, rows.steps_stderr)
        if rows.tasks_changed:
            self._change_tasks(rows.tasks_changed)
        if rows.history:
            self._write_history(rows.history)
        if rows.attention:
            _notice(self._execute, self._lane_id, rows.attention)
        if rows.erasures:
            erasing.erase(run, rows.erasures)

    def _change_tasks(self, changed: Sequence[TaskChanged]) -> None:
        """Refuse to change a task that retention removed after it was read, so that no answer reports the change."""
        before = self.connection.total_changes
        TASKS_CHANGED.run(self._execute, [_task_changed(row) for row in changed])
        is_complete = self.connection.total_changes - before == len(changed)
        if not is_complete or not self.partly_removed.isdisjoint(row.id for row in changed):
            raise TaskIsGone("a task was removed from the database before its change was written")

    def _write_history(self, history: Sequence[HistoryRow]) -> None:
        lane_id, seq, first = self._lane_id, self._seq, self._position
        self._position += len(history)
        HISTORY.run(
            self._execute,
            [(lane_id, seq, i, a, b, c.decode()) for i, (a, b, c) in enumerate(history, first)],
        )

    def set_control(self, control: ControlChanged) -> None:
        """The row of a removal is written before the DELETE, so that the highest revision always rises."""
        if control.value is not None:
            self._execute(SET_CONTROL, control)
            return
        self._execute(SET_CONTROL, (REMOVED, control.kind, None, 0))
        self._execute("DELETE FROM controls WHERE kind = ? AND name = ?", (control.kind, control.name))

    def park(self, parked: Sequence[Parked]) -> None:
        """Store refused input. Names are made storable and bodies are bytes, so that the input is not refused again."""
        PARKED.run(self._execute, [row._replace(source=_safe(row.source), code=_safe(row.code)) for row in parked])

    def add_audit(self, new: Sequence[AuditNew]) -> None:
        end = self._execute("SELECT lane, n, hash FROM audit_chains WHERE lane = ?", (self._lane_id,)).fetchone()
        rows = linked(AuditHead(self._lane_id, 0, START) if end is None else AuditHead(*end), new)
        AUDIT.run(self._execute, rows)
        self._execute(MOVE_AUDIT_END, (self._lane_id, rows[-1].n, rows[-1].hash, START))

    def claim_keys(self, claims: Sequence[Key]) -> int:
        return CLAIM.run(self._execute, claims)

    def key_owners(self, claims: Sequence[Key]) -> dict[Name, KeyOwner]:
        owners: dict[Name, KeyOwner] = {}
        for start in range(0, len(claims), ROWS_MAX):
            part = claims[start : start + ROWS_MAX]
            values = ",".join(["(?,?)"] * len(part))
            owner_rows = self._execute(
                f"SELECT namespace, key, digest, task_id FROM keys WHERE (namespace, key) IN (VALUES {values})",  # noqa: S608
                [*chain.from_iterable((key.namespace, key.key) for key in part)],
            )
            owners.update(((a, b), KeyOwner(c, d)) for a, b, c, d in owner_rows)
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
            "UPDATE workflows SET active = 0 WHERE active = 1 AND id <> ? "
            "AND (namespace, name) = (SELECT namespace, name FROM workflows WHERE id = ?)",
            (workflow_id, workflow_id),
        )
        self._execute("UPDATE workflows SET active = 1 WHERE id = ?", (workflow_id,))

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, int]:
        task_ids: dict[int, int] = {}
        for start in range(0, len(step_ids), ROWS_MAX):
            part = step_ids[start : start + ROWS_MAX]
            marks = ",".join("?" * len(part))
            task_ids.update(self._execute(f"SELECT id, task_id FROM steps WHERE id IN ({marks})", part))  # noqa: S608
        return task_ids

    def reserve_ids(self, count: int) -> tuple[int, int]:
        return reserve_ids(self.connection, self._lane_id, count)

    def return_ids(self, first: int, last: int) -> None:
        number = block_of(first)
        before = number * IDS_PER_BLOCK
        self._execute(
            "UPDATE blocks SET reserved = ? WHERE number = ? AND reserved = ?",
            (first - 1 - before, number, last - before),
        )

    # -- trouble ------------------------------------------------------------------------------------------------------

    def trouble(self, error: Exception) -> Trouble:
        return trouble_of(error)

    def rest(self, group: CommitGroup) -> None:
        """Checkpoint when no client waits for an outcome and an error is seen. SQLite's own checkpoint runs inside
        COMMIT at twice the size, and hides its errors."""
        self.count_pages(_pages_of(group))

    def count_pages(self, pages: int) -> None:
        self._pages += pages
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        elif self._pages > self._pages_laid_out - PAGES_AHEAD:
            self.lay_out()

    def lay_out(self) -> None:
        length = opening.lay_out_log(self.path)
        self._pages_laid_out = length // FRAME_BYTES if length else CHECKPOINT_PAGES + PAGES_AHEAD

    def close(self) -> None:
        """Close the connection. SQLite moves the whole log into the database when the last connection closes."""
        self.connection.close()


def reserve_ids(connection: sqlite3.Connection, lane: int, count: int) -> tuple[int, int]:
    """Reserve ids in the lane's last block, or in a new block if they do not fit."""
    place = connection.execute(
        "UPDATE blocks SET reserved = reserved + :count WHERE number = "
        "(SELECT max(number) FROM blocks WHERE lane = :lane) AND reserved + :count <= :most RETURNING number, reserved",
        {"count": count, "lane": lane, "most": IDS_PER_BLOCK},
    ).fetchall()
    if not place:
        place = connection.execute(
            "INSERT INTO blocks (number, lane, reserved) SELECT coalesce(max(number), -1) + 1, ?, ? FROM blocks "
            "RETURNING number, reserved",
            (lane, count),
        ).fetchall()
    ((number, reserved),) = place
    last = number * IDS_PER_BLOCK + reserved
    return last - count + 1, last


def _notice(
    run: Callable[[str, Sequence[Any]], sqlite3.Cursor], lane_id: int, changed: Sequence[AttentionChanged]
) -> None:
    ended = [(row.id,) for row in changed if row.kind is None]
    if ended:
        END_ATTENTION.run(run, ended)
    if len(ended) < len(changed):
        ATTENTION.run(run, [(*row, lane_id) for row in changed if row.kind is not None])


class _Plain(dict[str, str]):
    """Enum members as plain strings: the driver takes four times as long to bind a subclass of str."""

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
        *row[13:17],
        int(row.stored),
        *row[18:],
    )


def _task_changed(row: TaskChanged) -> tuple[Any, ...]:
    task_id, state, attention, cancelling, finished_ms, deadline_ms, stored, wake_ms, wants = row
    return (task_id, STATE[state], attention, int(cancelling), finished_ms, deadline_ms, int(stored), wake_ms, wants)


def _step_changed(row: StepChanged) -> tuple[Any, ...]:
    return (
        row.id,
        STATE[row.state],
        *row[2:7],
        int(row.granted),
        *row[8:16],
        _text(row.error),
        row.reason,
        row.key_number,
        _text(row.earlier),
        row.handle,
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
    """Estimate the number of log pages that a group writes, rather too high than too low. A single row writes several
    pages, and many rows share pages."""
    lists: Iterable[Sequence[Any]] = (
        group.steps_dispatched,
        group.steps_completed,
        group.steps_changed,
        group.tasks_changed,
        group.history,
    )
    rows = sum(map(len, lists)) + sum(len(s.steps) for s in group.submissions)
    return PAGES_A_GROUP + rows // ROWS_A_PAGE + group.bytes // PAGE_BYTES
