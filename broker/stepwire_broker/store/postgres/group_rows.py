"""The rows of a group: collected as one statement for each list."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from stepwire_broker.core.model.commit_group import (
    AttentionChanged,
    HistoryRow,
    StepChanged,
    StepNew,
    TaskChanged,
    TaskNew,
)
from stepwire_broker.store.errors import TaskIsGone
from stepwire_broker.store.lane import Rows

from . import erasing
from .pipeline import Statement
from .row_lists import rows_of
from .statements import (
    ATTENTION,
    HISTORY,
    STEPS_CHANGED,
    STEPS_COMPLETED,
    STEPS_DISPATCHED,
    STEPS_NEW,
    STEPS_OUTPUT,
    STEPS_STDERR,
    TASKS_CHANGED,
    TASKS_NEW,
    ColdStatements,
    HotStatements,
)
from .trips import Trips

_encode: Final = msgspec.json.Encoder().encode


class GroupRows:
    """Collects the rows of one lane's groups for their next trip."""

    def __init__(self, trips: Trips, schema: str, lane: int) -> None:
        self._trips = trips
        self._lane = lane
        self._hot = HotStatements(schema)
        self._cold = ColdStatements(schema)
        self._erasing = erasing.ErasingStatements(schema)
        self._seq = 0
        self._history_rows = 0
        self._workflows: set[int] = set()  # stored for certain
        self._workflows_seen: set[int] = set()  # in the open transaction
        self.partly_removed: frozenset[int] = frozenset()  # tasks that retention is removing: they must not be changed

    def begin(self, seq: int) -> None:
        self._seq, self._history_rows = seq, 0
        self.undone()

    def undone(self) -> None:
        """Rows of the open transaction were rolled back, so nothing that it checked counts."""
        self._workflows_seen = set()

    def committed(self) -> None:
        self._workflows |= self._workflows_seen

    def write(self, rows: Rows) -> None:
        """Collect the rows. An output is set before its step is completed, and cleared after its step is reopened."""
        hot = self._hot
        if rows.tasks_new:
            self._know_workflows(rows.tasks_new)
            self._rows(hot.tasks_new, TASKS_NEW, [_task_new(row) for row in rows.tasks_new])
        if rows.steps_new:
            self._know_tasks(rows.steps_new, rows.tasks_new)
            self._rows(hot.steps_new, STEPS_NEW, rows.steps_new)
        if rows.steps_dispatched:
            self._rows(hot.steps_dispatched, STEPS_DISPATCHED, rows.steps_dispatched)
        if rows.steps_completed:
            completed = [(a, b.decode(), c, d, e) for a, b, c, d, e in rows.steps_completed]
            self._rows(hot.steps_completed, STEPS_COMPLETED, completed)
        kept = [(a, b.decode(), c) for a, b, c in rows.steps_output if b is not None]
        if kept:
            self._rows(hot.steps_output, STEPS_OUTPUT, kept)
        if rows.steps_changed:
            self._rows(hot.steps_changed, STEPS_CHANGED, [_step_changed(row) for row in rows.steps_changed])
        if len(kept) < len(rows.steps_output):
            self._rows(hot.steps_output, STEPS_OUTPUT, [row for row in rows.steps_output if row.output is None])
        if rows.steps_stderr:
            # A program may write any bytes, and PostgreSQL has no text with U+0000.
            stderr = [(a, b, text.replace("\0", "\N{REPLACEMENT CHARACTER}")) for a, b, text in rows.steps_stderr]
            self._rows(hot.steps_stderr, STEPS_STDERR, stderr)
        if rows.tasks_changed:
            self._change_tasks(rows.tasks_changed)
        if rows.history:
            self._write_history(rows.history)
        if rows.attention:
            self._notice(rows.attention)
        if rows.erasures:
            erasing.erase(self._trips, self._erasing, rows.erasures)

    def _rows(self, statement: Statement, columns: dict[str, str], rows: Sequence[Sequence[Any]], *more: int) -> None:
        self._trips.later(statement, rows_of(columns, rows), *more)

    def _know_workflows(self, tasks: Sequence[TaskNew]) -> None:
        """No foreign key checks these rows. A workflow that was stored before stays stored."""
        new = {task.workflow_id for task in tasks} - self._workflows
        if new:
            self._trips.later(self._cold.assert_workflows, _json(new), len(new))
            self._workflows_seen |= new

    def _know_tasks(self, steps: Sequence[StepNew], tasks: Sequence[TaskNew]) -> None:
        older = {step.task_id for step in steps} - {task.id for task in tasks}
        if older:
            self._trips.later(self._cold.assert_tasks, _json(older), len(older))

    def _change_tasks(self, changed: Sequence[TaskChanged]) -> None:
        """Refuse to change a task that retention removed after it was read, so that no answer reports the change."""
        if not self.partly_removed.isdisjoint(row.id for row in changed):
            raise TaskIsGone("a task was removed from the database before its change was written")
        self._rows(self._hot.tasks_changed, TASKS_CHANGED, changed, len(changed))

    def _notice(self, changed: Sequence[AttentionChanged]) -> None:
        ended = [row.id for row in changed if row.kind is None]
        if ended:
            self._trips.later(self._cold.end_attention, _json(ended))
        if len(ended) < len(changed):
            rows = [(*row, self._lane) for row in changed if row.kind is not None]
            self._rows(self._cold.attention, ATTENTION, rows)

    def _write_history(self, history: Sequence[HistoryRow]) -> None:
        lane, seq, first = self._lane, self._seq, self._history_rows
        self._history_rows += len(history)
        rows = [(lane, seq, i, a, b, c.decode()) for i, (a, b, c) in enumerate(history, first)]
        self._rows(self._hot.history, HISTORY, rows)


def _json(values: Collection[int]) -> bytes:
    return _encode(sorted(values))


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _task_new(row: TaskNew) -> tuple[Any, ...]:
    return (*row[:10], _decoded(row.labels), row.context.decode(), *row[12:])


def _step_changed(row: StepChanged) -> tuple[Any, ...]:
    return (*row[:16], _decoded(row.error), row.reason, row.key_number, _decoded(row.earlier), row.handle)
