"""Is the database what it should be? To SQLite, all rows are good that fit their tables; here every task's history is
replayed and compared with its rows, and what refers to something else has to find it.

It reads beside a running broker, on a connection that can only read. Each page of tasks is read as of one moment.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from stepwire_broker.core.commit.history import CannotReplay, differences, replay
from stepwire_broker.core.definitions.document_problems import InvalidWorkflow
from stepwire_broker.core.definitions.workflow import Workflow, stored_workflow

from . import queries
from .queries import Connection, TaskWithHistory

PAGE_TASKS: Final = 200
FINDINGS_MAX: Final = 100  # after so many nobody needs another one to know
OUTPUT_BYTES_MAX: Final = 64 * 1024  # a larger one is read by itself

Progress: TypeAlias = Callable[[int, int], object]  # tasks that are done, of how many


class Checked(Struct, frozen=True):
    """What was looked at, and a sentence for everything that is wrong."""

    tasks: int
    tasks_replayed: int
    findings: list[str]
    is_cut: bool  # there may be more findings than these


def check(connection: Connection, sample: int | None, progress: Progress) -> Checked:
    """All of it, or the rows and references and the histories of `sample` tasks drawn at random."""
    found: list[str] = []
    tasks = replayed = 0
    try:
        (tasks,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
        total = tasks if sample is None else min(sample, tasks)
        progress(0, total)
        for finding in _findings(connection, None if total == tasks else total):
            if isinstance(finding, str):
                found.append(finding)
            else:
                replayed += finding
                progress(min(replayed, total), total)
            if len(found) == FINDINGS_MAX:
                break
    except sqlite3.DatabaseError as error:
        found.append(f"SQLite could not go on: {error}")
    return Checked(tasks, replayed, found, len(found) >= FINDINGS_MAX)


def _findings(connection: Connection, sample: int | None) -> Iterator[str | int]:
    """Sentences, and how many more tasks are done."""
    yield from _integrity(connection)
    yield from _constraints(connection)
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} refers to a row of {parent} that is not there"
    for select, sentence in REFERENCES:
        for values in connection.execute(f"{select} LIMIT ?", (FINDINGS_MAX,)).fetchall():
            yield sentence.format(*values)
    workflows: dict[int, Workflow] = {}
    yield from _read_workflows(connection, workflows)
    for task_ids in _pages(connection, sample):
        page = queries.tasks_with_history(connection, task_ids, OUTPUT_BYTES_MAX)
        if any(task.task.workflow_id not in workflows for task in page):
            yield from _read_workflows(connection, workflows)  # applied since
        for task in page:
            yield from _of_task(connection, workflows, task)
        yield len(task_ids)


def _integrity(connection: Connection) -> Iterator[str]:
    """SQLite's own: pages, indexes, NOT NULL and types."""
    for (said,) in connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})"):
        if said != "ok":
            yield f"SQLite says: {said}"


def _constraints(connection: Connection) -> Iterator[str]:
    """The CHECKs of the schema. SQLite does not even read them on a connection that can only read."""
    from sqlalchemy import CheckConstraint

    from .tables import metadata

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
        "the idempotency key {1!r} of {0} belongs to task {2}, which is not there or does not have it",
    ),
    (
        "SELECT id, key FROM tasks WHERE key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM keys "
        "WHERE keys.namespace = tasks.namespace AND keys.key = tasks.key AND keys.task_id = tasks.id)",
        "task {0} has the idempotency key {1!r}, which belongs to no task or to another one",
    ),
    (
        "SELECT DISTINCT task_id FROM history WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = history.task_id)",
        "there is a history of task {0}, which is not there",
    ),
    (
        "SELECT lane_id, last, seq FROM (SELECT lane_id, max(history.seq) AS last FROM history GROUP BY lane_id) "
        "LEFT JOIN lanes ON lanes.id = lane_id WHERE seq IS NULL OR last > seq",
        "the history of lane {0} goes to {1}, and the lane itself to {2}",
    ),
    (
        "SELECT next, (SELECT max(id) FROM tasks), (SELECT max(id) FROM steps) FROM sequences WHERE name = 'ids' "
        "AND next <= max(coalesce((SELECT max(id) FROM tasks), 0), coalesce((SELECT max(id) FROM steps), 0))",
        "the next number is {0}, and there are task {1} and step {2} already",
    ),
    (
        "SELECT 'deployment' WHERE NOT EXISTS (SELECT 1 FROM meta WHERE name = 'deployment' AND length(value) = 32)",
        "the database has no {0} identity: workers could not know it again",
    ),
)


def _read_workflows(connection: Connection, workflows: dict[int, Workflow]) -> Iterator[str]:
    for row in queries.workflows(connection):
        if row.id not in workflows:
            try:
                workflows[row.id] = stored_workflow(row)
            except InvalidWorkflow as error:
                yield f"workflow {row.namespace}::{row.name} {row.version} cannot be read: {error}"


def _pages(connection: Connection, sample: int | None) -> Iterator[list[int]]:
    """Task ids: all of them in order, or some."""
    if sample is None:
        after = 0
        while task_ids := _task_ids(connection, after, PAGE_TASKS):
            yield task_ids
            after = task_ids[-1]
        return
    first, last = connection.execute("SELECT min(id), max(id) FROM tasks").fetchone()
    chosen: set[int] = set()
    for _ in range(20 * sample):  # the same ones come again when there are few
        chosen.update(_task_ids(connection, random.randrange(first - 1, last), 1))
        if len(chosen) == sample:
            break
    ordered = sorted(chosen)
    for start in range(0, len(ordered), PAGE_TASKS):
        yield ordered[start : start + PAGE_TASKS]


def _task_ids(connection: Connection, after: int, limit: int) -> list[int]:
    return [
        row[0] for row in connection.execute("SELECT id FROM tasks WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
    ]


def _of_task(connection: Connection, workflows: Mapping[int, Workflow], found: TaskWithHistory) -> Iterator[str]:
    task, rows, history = found
    workflow = workflows.get(task.workflow_id)
    if workflow is None:
        return  # said above
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


def _output(connection: Connection, step_id: int) -> str | None:
    output = queries.load_payloads(connection, [], [step_id]).outputs.get(step_id)
    return None if output is None else output.decode()


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value) if isinstance(value, str) else str(value)
