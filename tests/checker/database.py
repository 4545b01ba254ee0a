"""The database, which is judged. It is read once, in one state, one task at a time."""

import sqlite3
import time
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from .language import read_story
from .plans import Plan, read_plan
from .story import Fact, StepStory, TaskStory

_decode: Final = msgspec.json.Decoder(list[Fact]).decode


class TaskRow(NamedTuple):
    id: int
    uid: str
    workflow_id: int
    namespace: str
    key: str | None
    state: str
    attention: str | None
    cancelling: int
    created_ms: int
    finished_ms: int | None


class StepRow(NamedTuple):
    id: int
    task_id: int
    position: int
    name: str
    handler_class: str
    state: str
    attempt: int
    delivery: int
    accept_from: int
    batch_id: str | None
    worker: str | None
    granted: int
    lost_sessions: int
    ready_ms: int | None
    dispatched_ms: int | None
    started_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    run_ms: int | None
    reason: str | None
    key_number: int
    output_bytes: int
    output: str | None


class HistoryRow(NamedTuple):
    task_id: int
    lane_id: int
    seq: int
    position: int
    facts: str


class Case(Struct):
    """Everything about one task."""

    task: TaskRow
    steps: list[StepRow]
    story: TaskStory
    plan: Plan
    rows: list[tuple[int, list[Fact]]]  # its history: sequence of the group, facts
    lane_id: int
    # computed once, used by many rules
    runs: list[tuple[StepStory, list[Any]]] | None = None
    given: list[tuple[StepStory, list[Any]]] | None = None

    def pairs(self) -> Iterator[tuple[StepRow, StepStory]]:
        """Every step that has both a row and a position in the workflow."""
        stories = self.story.steps
        return ((row, stories[row.position]) for row in self.steps if 0 <= row.position < len(stories))

    def output_of(self, index: int) -> str | None:
        return next((row.output for row in self.steps if row.position == index), None)


class Lane(NamedTuple):
    id: int
    seq: int


class Database:
    """One state of the database, even while a broker continues to write."""

    def __init__(self, path: Path, kept_ms: int | None = None) -> None:
        """`kept_ms`: an ended task may be removed after this time; None: no task is removed."""
        self.kept_ms = kept_ms
        self.seen_at_wall_ns = time.time_ns()
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        self._connection.execute("PRAGMA cache_size = -65536")
        self._connection.execute("BEGIN")
        self.plans = {
            number: read_plan(number, document)
            for number, document in self._connection.execute("SELECT id, document FROM workflows")
        }
        self.lanes = {row[0]: Lane(*row) for row in self._connection.execute("SELECT id, seq FROM lanes")}
        self.keys: dict[tuple[str, str], int] = {
            (namespace, key): task_id
            for namespace, key, task_id in self._connection.execute("SELECT namespace, key, task_id FROM keys")
        }
        self.parked: list[tuple[int | None, str, str, bytes]] = self._connection.execute(
            "SELECT task_id, code, source, body FROM parked"
        ).fetchall()
        self._batches: dict[int, dict[tuple[int, str], int]] = {}  # by task: the delivery, by step and batch
        self.workflow_documents = dict(self._connection.execute("SELECT id, document FROM workflows"))

        note = self._connection.execute("SELECT value FROM meta WHERE name = 'pruning'").fetchone()
        self.going: set[int] = (
            set() if note is None else set(msgspec.json.decode(note[0]))
        )  # tasks whose removal is under way

    def close(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()

    def delivery_in(self, step_id: int, batch_id: str) -> int:
        """Return the delivery of the step in this batch; 0: none."""
        row = self._connection.execute("SELECT task_id, position FROM steps WHERE id = ?", (step_id,)).fetchone()
        if row is None:
            return 0
        task_id, position = row
        if task_id not in self._batches:
            dispatched = {}
            for (facts,) in self._connection.execute("SELECT facts FROM history WHERE task_id = ?", (task_id,)):
                for fact in _decode(facts):
                    if fact[0] == "dispatched":
                        dispatched[fact[2], fact[5]] = int(fact[3])
            self._batches[task_id] = dispatched
        return self._batches[task_id].get((position, batch_id), 0)

    def damage(self) -> Iterator[str]:
        """Yield the damage that the database finds itself: pages, indexes, references, declared conditions."""
        execute = self._connection.execute
        yield from (text for (text,) in execute("PRAGMA integrity_check") if text != "ok")
        yield from (f"a row of {row[0]} refers to a missing row: {row}" for row in execute("PRAGMA foreign_key_check"))
        # SQLite's own check tests declared conditions only with write access.
        for table, sql in execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%CHECK (%'"):
            for condition in _checks(sql):
                (count,) = execute(f"SELECT count(*) FROM {table} WHERE NOT ({condition})").fetchone()  # noqa: S608
                if count:
                    yield f"{count} rows of {table} violate their condition: {condition}"

    def strangers(self) -> list[str]:
        """Rows that belong to no task."""
        return [
            f"{what} {task_id}, which does not exist"
            for what, query in _STRANGERS.items()
            for (task_id,) in self._connection.execute(query)
            if task_id not in self.going
        ]

    def history_gaps(self) -> Iterator[str]:
        """A group's rows are numbered from 0 without gaps, and no group is later than its lane."""
        for lane_id, seq, count, last in self._connection.execute(
            "SELECT lane_id, seq, count(*), max(position) FROM history GROUP BY lane_id, seq"
        ):
            if last + 1 != count and self.kept_ms is None:
                yield f"group {seq} of lane {lane_id} has {count} rows, the last of them number {last}"
            lane = self.lanes.get(lane_id)
            if lane is None or seq > lane.seq:
                yield f"group {seq} of lane {lane_id} exists, and the lane is at {lane and lane.seq}"

    def cases(self) -> Iterator[Case]:
        """Yield every task, in order of ids."""
        steps = _Grouped(self._select(StepRow, "steps", "task_id, position"))
        history = _Grouped(self._select(HistoryRow, "history", "task_id, lane_id, seq, position"))
        for row in self._select(TaskRow, "tasks", "id"):
            plan = self.plans.get(row.workflow_id)
            rows = history.of(row.id)
            if plan is None or row.id in self.going:
                continue  # the check of references reports it, or the task is being removed
            facts = [(h.seq, _decode(h.facts)) for h in rows]
            yield Case(row, steps.of(row.id), read_story(plan, facts), plan, facts, rows[0].lane_id if rows else 0)

    def _select(self, row: Any, table: str, order: str) -> Iterator[Any]:
        rows = self._connection.execute(f"SELECT {', '.join(row._fields)} FROM {table} ORDER BY {order}")  # noqa: S608
        return map(row._make, rows)


_STRANGERS: Final = {
    f"a row of {table} of task": f"SELECT DISTINCT task_id FROM {table} WHERE task_id NOT IN (SELECT id FROM tasks)"  # noqa: S608
    for table in ("steps", "history", "keys")
}
_STRANGERS["a standard error of step"] = "SELECT id FROM step_stderr WHERE id NOT IN (SELECT id FROM steps)"


def _checks(sql: str) -> Iterator[str]:
    """Yield the conditions in a table's declaration."""
    for part in sql.split("CHECK (")[1:]:
        depth = 1
        for end, character in enumerate(part):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                yield part[:end]
                break


class _Grouped:
    """Rows in order of `task_id`, read in that order."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._groups = groupby(rows, key=attrgetter("task_id"))
        self._next = next(self._groups, None)

    def of(self, task_id: int) -> list[Any]:
        while self._next is not None and self._next[0] < task_id:
            self._next = next(self._groups, None)
        if self._next is None or self._next[0] != task_id:
            return []
        rows = list(self._next[1])
        self._next = next(self._groups, None)
        return rows
