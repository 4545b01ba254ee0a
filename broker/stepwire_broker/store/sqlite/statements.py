"""The writer's statements for many rows at once.

Many rows go to the database in one call, because the driver releases the GIL at every call and at every row it steps
over. Next to a busy loop, the driver then waits a whole switch interval for the GIL. Three methods were measured: one
call per row, one JSON parameter, many bound rows. Bound rows took the least CPU at every group size, and their calls
hold the GIL only while values are bound.

A statement exists in a few sizes. The last statement of a list is filled up with rows of NONE, which match no row of a
table. (NULL would match no row either, but the driver takes more than twice as long to bind it.)
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

from stepwire_broker.core.model.commit_group import (
    Key,
    Parked,
    StepChanged,
    StepNew,
    StepOutput,
    StepStderr,
    TaskChanged,
    TaskNew,
)
from stepwire_broker.store.audit_chain import AuditRow

NONE: Final = -1
ROWS_MAX: Final = 256  # in one statement: larger statements exceed the processor's cache and take longer per row


class Many:
    """One statement for many rows."""

    def __init__(
        self, columns: int, text: Callable[[str], str], padded: Callable[[str], str], *, is_id_last_in_one: bool = False
    ) -> None:
        self._columns = columns
        self._is_id_last_in_one = is_id_last_in_one
        self._text = text
        self._padded = padded
        self._texts: dict[tuple[int, bool], str] = {}

    def run(self, execute: Callable[[str, Sequence[Any]], sqlite3.Cursor], rows: Sequence[tuple[Any, ...]]) -> int:
        """Run the statement for all rows. Returns the number of rows that the database changed."""
        changed = 0
        for start in range(0, len(rows), ROWS_MAX):
            part = rows[start : start + ROWS_MAX]
            count = len(part)
            size = _size_for(count)
            values = [*chain.from_iterable(part), *(NONE,) * ((size - count) * self._columns)]
            if size == 1 and self._is_id_last_in_one:
                values.append(values.pop(0))
            changed += execute(self._statement(size, size > count), values).rowcount
        return changed

    def _statement(self, size: int, is_padded: bool) -> str:
        text = self._texts.get((size, is_padded))
        if text is None:
            values = ",".join(["(" + ",".join("?" * self._columns) + ")"] * size)
            text = self._texts[size, is_padded] = (self._padded if is_padded else self._text)(values)
        return text


def _size_for(count: int) -> int:
    """Return a power of two, or three quarters of one: on average an eighth of the rows are padding."""
    size = 1 << (count - 1).bit_length()
    return size - size // 4 if count <= size - size // 4 else size


REMOVED: Final = "removed"  # the kind of the row of `controls` that is set when a row of the kind `name` is removed
SET_CONTROL: Final = (
    "INSERT INTO controls (kind, name, value, position, revision) "
    "VALUES (?, ?, ?, ?, (SELECT coalesce(max(revision), 0) + 1 FROM controls)) ON CONFLICT (kind, name) DO UPDATE "
    "SET value = excluded.value, position = excluded.position, revision = excluded.revision"
)


def _insert(table: str, columns: Sequence[str], on_conflict: str = "") -> Many:
    into = f"INSERT INTO {table} ({', '.join(columns)})"
    return Many(
        len(columns),
        lambda values: f"{into} VALUES {values} {on_conflict}",
        lambda values: f"{into} SELECT * FROM (VALUES {values}) WHERE column1 <> {NONE} {on_conflict}",  # noqa: S608
    )


def _update(table: str, columns: Sequence[str], *fixed: str) -> Many:
    """Set the fixed columns and all others except the first, which is the row's id."""
    assignments = ", ".join([*(f"{c} = v.{c}" for c in columns[1:]), *fixed])
    alone = ", ".join([*(f"{c} = ?" for c in columns[1:]), *fixed])
    one = f"UPDATE {table} SET {alone} WHERE id = ?"  # noqa: S608

    def text(values: str) -> str:
        if values.count("(") == 1:
            return one  # without a table of values to build and join: half the time
        return (
            f"WITH v ({', '.join(columns)}) AS (VALUES {values}) "  # noqa: S608
            f"UPDATE {table} SET {assignments} FROM v WHERE {table}.id = v.id"
        )

    return Many(len(columns), text, text, is_id_last_in_one=True)


def _delete(table: str, columns: Sequence[str]) -> Many:
    def text(values: str) -> str:
        return f"DELETE FROM {table} WHERE ({', '.join(columns)}) IN (VALUES {values})"  # noqa: S608

    return Many(len(columns), text, text)


TASKS_NEW: Final = _insert("tasks", TaskNew._fields)
STEPS_NEW: Final = _insert("steps", StepNew._fields)
STEPS_DISPATCHED: Final = _update(
    "steps", ("id", "delivery", "batch_id", "worker", "ready_ms", "dispatched_ms"), "state = 'dispatched'"
)
STEPS_COMPLETED: Final = _update(
    "steps",
    ("id", "output", "output_bytes", "finished_ms", "run_ms"),
    "state = 'completed'",
    "batch_id = NULL",
    "not_before_ms = NULL",
    "reason = NULL",
    "earlier = NULL",
)
STEPS_CHANGED: Final = _update("steps", StepChanged._fields)
STEPS_OUTPUT: Final = _update("steps", StepOutput._fields)
STEPS_STDERR: Final = _insert(
    "step_stderr",
    StepStderr._fields,
    "ON CONFLICT (id) DO UPDATE SET delivery = excluded.delivery, text = excluded.text",
)
TASKS_CHANGED: Final = _update("tasks", TaskChanged._fields)
ATTENTION: Final = _insert(
    "attention",
    ("id", "task_id", "kind", "at_ms", "handler_class", "lane"),
    "ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at_ms = excluded.at_ms",
)
END_ATTENTION: Final = _delete("attention", ("id",))
HISTORY: Final = _insert("history", ("lane_id", "seq", "position", "task_id", "at_ms", "facts"))
PARKED: Final = _insert("parked", Parked._fields)
AUDIT: Final = _insert("audit", AuditRow._fields)
MOVE_AUDIT_END: Final = (
    "INSERT INTO audit_chains (lane, n, hash, cut_n, cut_hash) VALUES (?, ?, ?, 0, ?) "
    "ON CONFLICT (lane) DO UPDATE SET n = excluded.n, hash = excluded.hash"
)
CLAIM: Final = _insert("keys", Key._fields, "ON CONFLICT (namespace, key) DO NOTHING")
RELEASE: Final = _delete("keys", ("namespace", "key", "task_id"))
