"""The check of a database. SQLite accepts every row that fits its table. This check replays each task's history and
compares it with the task's rows, and looks up every reference.

A broker may run meanwhile, because the check only reads. Each page of tasks is read as of one moment.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from stepwire_broker.core.commit.history import CannotReplay, differences, replay
from stepwire_broker.core.definitions.workflow import Workflow, stored_workflow
from stepwire_broker.core.reading.document_problems import InvalidWorkflow
from stepwire_broker.store.rows import TaskWithHistory

from . import audit
from .queries import SqliteQueries

PAGE_TASKS: Final = 200
FINDINGS_MAX: Final = 100  # the check ends after this many
OUTPUT_BYTES_MAX: Final = 64 * 1024  # a larger output is read by itself

Progress: TypeAlias = Callable[[int, int], object]  # the number of checked tasks, and of all tasks


class Checked(Struct, frozen=True):
    """The numbers of checked tasks, and a sentence for each fault."""

    tasks: int
    tasks_replayed: int
    findings: list[str]
    is_cut: bool  # more findings may exist


def check(connection: sqlite3.Connection, sample: int | None, progress: Progress) -> Checked:
    """Check everything, or the rows, the references and the histories of `sample` tasks drawn at random."""
    findings: list[str] = []
    tasks = replayed = 0
    try:
        (tasks,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
        total = tasks if sample is None else min(sample, tasks)
        progress(0, total)
        for finding in _findings(connection, None if total == tasks else total):
            if isinstance(finding, str):
                findings.append(finding)
            else:
                replayed += finding
                progress(min(replayed, total), total)
            if len(findings) == FINDINGS_MAX:
                break
    except sqlite3.DatabaseError as error:
        findings.append(f"SQLite could not continue: {error}")
    return Checked(tasks, replayed, findings, len(findings) >= FINDINGS_MAX)


def _findings(connection: sqlite3.Connection, sample: int | None) -> Iterator[str | int]:
    """Yield a sentence for each fault, and the number of tasks of each checked page."""
    yield from _integrity(connection)
    yield from _constraints(connection)
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} refers to a row of {parent} that does not exist"
    for select, sentence in REFERENCES:
        for values in connection.execute(f"{select} LIMIT ?", (FINDINGS_MAX,)).fetchall():
            yield sentence.format(*values)
    yield from audit.verify(connection)
    workflows: dict[int, Workflow] = {}
    yield from _read_workflows(connection, workflows)
    for task_ids in _pages(connection, sample):
        page = SqliteQueries(connection).tasks_with_history(task_ids, OUTPUT_BYTES_MAX)
        if any(task.task.workflow_id not in workflows for task in page):
            yield from _read_workflows(connection, workflows)  # applied since
        for task in page:
            yield from _of_task(connection, workflows, task)
        yield len(task_ids)


def _integrity(connection: sqlite3.Connection) -> Iterator[str]:
    """SQLite's own check: pages, indexes, NOT NULL and types."""
    for (finding,) in connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})"):
        if finding != "ok":
            yield f"SQLite reports: {finding}"


def _constraints(connection: sqlite3.Connection) -> Iterator[str]:
    """Evaluate the CHECKs of the schema, which SQLite ignores on a read-only connection."""
    from sqlalchemy import CheckConstraint

    from stepwire_broker.store.tables import metadata

    for table in metadata.sorted_tables:
        key = ", ".join(column.name for column in table.primary_key)
        for constraint in table.constraints:
            if isinstance(constraint, CheckConstraint):
                broken = connection.execute(
                    f"SELECT {key} FROM {table.name} WHERE NOT ({constraint.sqltext}) LIMIT ?",  # noqa: S608
                    (FINDINGS_MAX,),
                ).fetchall()
                for row in broken:
                    which = ", ".join(map(str, row))
                    yield f"row {which} of {table.name} breaks its constraint {constraint.name}"


REFERENCES: Final = (
    (
        "SELECT namespace, key, task_id FROM keys WHERE NOT EXISTS (SELECT 1 FROM tasks "
        "WHERE tasks.id = keys.task_id AND tasks.namespace = keys.namespace AND tasks.key = keys.key)",
        "the idempotency key {1!r} of {0} belongs to task {2}, which does not exist or has another key",
    ),
    (
        "SELECT id, key FROM tasks WHERE key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM keys "
        "WHERE keys.namespace = tasks.namespace AND keys.key = tasks.key AND keys.task_id = tasks.id)",
        "task {0} has the idempotency key {1!r}, which belongs to no task or to another one",
    ),
    (
        "SELECT DISTINCT task_id FROM history WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = history.task_id)",
        "the history has rows of task {0}, which does not exist",
    ),
    (
        "SELECT lane_id, last, seq FROM (SELECT lane_id, max(history.seq) AS last FROM history GROUP BY lane_id) "
        "LEFT JOIN lanes ON lanes.id = lane_id WHERE seq IS NULL OR last > seq",
        "the history of lane {0} ends at sequence {1}, but the lane's row has sequence {2}",
    ),
    (
        "SELECT number, number * 1048576 + reserved, last FROM (SELECT number, reserved, "
        "max(coalesce((SELECT max(id) FROM tasks WHERE id <= (number + 1) * 1048576), 0), "
        "coalesce((SELECT max(id) FROM steps WHERE id <= (number + 1) * 1048576), 0)) AS last FROM blocks) "
        "WHERE last > number * 1048576 + reserved",
        "the last reserved id of block {0} is {1}, but the task or the step {2} already exists",
    ),
    (
        "SELECT id, lane FROM tasks WHERE NOT EXISTS (SELECT 1 FROM blocks "
        "WHERE blocks.number = (tasks.id - 1) / 1048576 AND blocks.lane = tasks.lane)",
        "task {0} is in lane {1}, to which the block of its id does not belong",
    ),
    (
        "SELECT steps.id, task_id FROM steps JOIN tasks ON tasks.id = task_id WHERE NOT EXISTS (SELECT 1 FROM blocks "
        "WHERE blocks.number = (steps.id - 1) / 1048576 AND blocks.lane = tasks.lane)",
        "step {0} is not in a block of ids of the lane of its task {1}",
    ),
    (
        "SELECT id, state FROM steps WHERE state IN ('held', 'failed') AND NOT EXISTS (SELECT 1 FROM attention "
        "WHERE attention.id = steps.id AND kind = state AND attention.task_id = steps.task_id "
        "AND attention.handler_class = steps.handler_class)",
        "step {0} is {1}, and the table of attention does not have it",
    ),
    (
        "SELECT id, attention FROM tasks WHERE attention IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM attention AS noticed WHERE noticed.id = tasks.id "
        "AND kind = 'task_' || tasks.attention AND noticed.lane = tasks.lane)",
        "task {0} has the attention {1!r}, and the table of attention does not have it",
    ),
    (
        "SELECT kind, id FROM attention AS noticed WHERE NOT CASE kind WHEN 'task_held' THEN EXISTS (SELECT 1 "
        "FROM tasks WHERE tasks.id = noticed.id AND tasks.attention = 'held') ELSE EXISTS (SELECT 1 FROM steps "
        "WHERE steps.id = noticed.id AND steps.state = noticed.kind) END",
        "the table of attention has {0} for {1}, which is not in this state",
    ),
    (
        "SELECT kind, name FROM controls WHERE value IS NOT NULL AND NOT json_valid(value)",
        "the control {1!r} of the kind {0} has a value that is not JSON",
    ),
    (
        "SELECT 'deployment' WHERE NOT EXISTS (SELECT 1 FROM meta WHERE name = 'deployment' AND length(value) = 32)",
        "the database has no {0} identity: workers could not recognise it",
    ),
)


def _read_workflows(connection: sqlite3.Connection, workflows: dict[int, Workflow]) -> Iterator[str]:
    for row in SqliteQueries(connection).workflows():
        if row.id not in workflows:
            try:
                workflows[row.id] = stored_workflow(row)
            except InvalidWorkflow as error:
                yield f"workflow {row.namespace}::{row.name} {row.version} cannot be read: {error}"


def _pages(connection: sqlite3.Connection, sample: int | None) -> Iterator[list[int]]:
    """Yield pages of task ids: all tasks in order, or a sample."""
    if sample is None:
        after = 0
        while task_ids := _task_ids(connection, after, PAGE_TASKS):
            yield task_ids
            after = task_ids[-1]
        return
    first, last = connection.execute("SELECT min(id), max(id) FROM tasks").fetchone()
    chosen: set[int] = set()
    for _ in range(20 * sample):  # a draw may repeat a task when there are few
        chosen.update(_task_ids(connection, random.randrange(first - 1, last), 1))  # noqa: S311 - a sample
        if len(chosen) == sample:
            break
    ordered = sorted(chosen)
    for start in range(0, len(ordered), PAGE_TASKS):
        yield ordered[start : start + PAGE_TASKS]


def _task_ids(connection: sqlite3.Connection, after: int, limit: int) -> list[int]:
    return [
        row[0] for row in connection.execute("SELECT id FROM tasks WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
    ]


def _of_task(
    connection: sqlite3.Connection, workflows: Mapping[int, Workflow], record: TaskWithHistory
) -> Iterator[str]:
    task, rows, history = record
    workflow = workflows.get(task.workflow_id)
    if workflow is None:
        return  # already reported
    try:
        replayed = replay(task.id, workflow, history)
    except (CannotReplay, ValueError) as error:
        yield f"the history of task {task.id} cannot be replayed: {error}"
        return
    steps = [
        row._replace(output=_output(connection, row.id)) if row.output is None and row.output_bytes else row
        for row in rows
    ]
    for one in differences(replayed, task, steps):
        where = f"task {one.task_id}" if one.step is None else f"task {one.task_id}, step {one.step}"
        yield f"{where}: {one.what} is {_shown(one.row)}, and {_shown(one.history)} by its history"


def _output(connection: sqlite3.Connection, step_id: int) -> str | None:
    output = SqliteQueries(connection).load_payloads([], [step_id]).outputs.get(step_id)
    return None if output is None else output.decode()


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value) if isinstance(value, str) else str(value)
