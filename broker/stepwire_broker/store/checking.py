"""The check of a database. A database accepts every row that fits its tables. This check replays each task's history
and compares it with the task's rows, and looks up every reference.

A broker may run meanwhile, because the check only reads. Each page of tasks is read as of one moment.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from stepwire_broker.core.commit.history import CannotReplay, differences, replay
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.workflow import Workflow, stored_workflow
from stepwire_broker.core.reading.document_problems import InvalidWorkflow

from . import stored_audit
from .queries import Queries
from .rows import TaskWithHistory
from .stored_state import StoredState

PAGE_TASKS: Final = 200
FINDINGS_MAX: Final = 100  # the check ends after this many
ROWS_PER_FAULT: Final = 20  # the rows that are named for one fault of references: it must not hide others
OUTPUT_BYTES_MAX: Final = 64 * 1024  # a larger output is read by itself

Progress: TypeAlias = Callable[[int, int], object]  # the number of checked tasks, and of all tasks


class Checked(Struct, frozen=True):
    """The numbers of checked tasks, and a sentence for each fault."""

    tasks: int
    tasks_replayed: int
    findings: list[str]
    is_cut: bool  # more findings may exist


def check(state: StoredState, sample: int | None, progress: Progress) -> Checked:
    """Check everything, or the rows, the references and the histories of `sample` tasks drawn at random."""
    findings: list[str] = []
    tasks = replayed = 0
    try:
        ((tasks,),) = state.select("SELECT count(*) FROM tasks")
        total = tasks if sample is None else min(sample, tasks)
        progress(0, total)
        for finding in _findings(state, None if total == tasks else total):
            if isinstance(finding, str):
                findings.append(finding)
            else:
                replayed += finding
                progress(min(replayed, total), total)
            if len(findings) == FINDINGS_MAX:
                break
    except state.damage as error:
        findings.append(f"{state.name} could not continue: {error}")
    return Checked(tasks, replayed, findings, len(findings) >= FINDINGS_MAX)


def _findings(state: StoredState, sample: int | None) -> Iterator[str | int]:
    """Yield a sentence for each fault, and the number of tasks of each checked page."""
    yield from state.own_faults()
    yield from reference_faults(state, REFERENCES)
    yield from _controls(state)
    yield from stored_audit.verify(state)
    workflows: dict[int, Workflow] = {}
    yield from _read_workflows(state, workflows)
    for task_ids in _pages(state, sample):
        page = state.read(_page(task_ids))
        if any(task.task.workflow_id not in workflows for task in page):
            yield from _read_workflows(state, workflows)  # applied since
        for task in page:
            yield from _of_task(state, workflows, task)
        yield len(task_ids)


def reference_faults(state: StoredState, references: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for select, sentence in references:
        rows = list(state.select(f"{select} LIMIT {ROWS_PER_FAULT + 1}"))
        for values in rows[:ROWS_PER_FAULT]:
            yield sentence.format(*values)
        if len(rows) > ROWS_PER_FAULT:
            yield f"more rows have the same fault as the last {ROWS_PER_FAULT}"


REFERENCES: Final = (
    (
        "SELECT id FROM tasks WHERE NOT EXISTS (SELECT 1 FROM workflows WHERE workflows.id = tasks.workflow_id)",
        "row {0} of tasks refers to a row of workflows that does not exist",
    ),
    (
        "SELECT id FROM steps WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = steps.task_id)",
        "row {0} of steps refers to a row of tasks that does not exist",
    ),
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
        "SELECT number, lane FROM blocks WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.id = blocks.lane)",
        "the block of ids {0} belongs to lane {1}, which does not exist",
    ),
    *(
        (
            f"SELECT number, last_reserved, last_used FROM (SELECT number, number * {IDS_PER_BLOCK} + reserved "  # noqa: S608
            f"AS last_reserved, (SELECT max(id) FROM {table} WHERE id > number * {IDS_PER_BLOCK} "
            f"AND id <= (number + 1) * {IDS_PER_BLOCK}) AS last_used FROM blocks) AS used "
            "WHERE last_used > last_reserved",
            f"the last reserved id of block {{0}} is {{1}}, but the {one} {{2}} already exists",
        )
        for table, one in (("tasks", "task"), ("steps", "step"))
    ),
    (
        "SELECT id, lane FROM tasks WHERE NOT EXISTS (SELECT 1 FROM blocks "  # noqa: S608
        f"WHERE blocks.number = (tasks.id - 1) / {IDS_PER_BLOCK} AND blocks.lane = tasks.lane)",
        "task {0} is in lane {1}, to which the block of its id does not belong",
    ),
    (
        "SELECT steps.id, task_id FROM steps JOIN tasks ON tasks.id = task_id WHERE NOT EXISTS (SELECT 1 FROM blocks "  # noqa: S608
        f"WHERE blocks.number = (steps.id - 1) / {IDS_PER_BLOCK} AND blocks.lane = tasks.lane)",
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
        "SELECT 'deployment' WHERE NOT EXISTS (SELECT 1 FROM meta WHERE name = 'deployment' AND length(value) = 32)",
        "the database has no {0} identity: workers could not recognise it",
    ),
)


def _controls(state: StoredState) -> Iterator[str]:
    for kind, name, value in state.select("SELECT kind, name, value FROM controls WHERE value IS NOT NULL"):
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError:
            yield f"the control {name!r} of the kind {kind} has a value that is not JSON"


def _read_workflows(state: StoredState, workflows: dict[int, Workflow]) -> Iterator[str]:
    for row in state.read(lambda queries: queries.workflows()):
        if row.id not in workflows:
            try:
                workflows[row.id] = stored_workflow(row)
            except InvalidWorkflow as error:
                yield f"workflow {row.namespace}::{row.name} {row.version} cannot be read: {error}"


def _pages(state: StoredState, sample: int | None) -> Iterator[list[int]]:
    """Yield pages of task ids: all tasks in order, or a sample."""
    if sample is None:
        after = 0
        while task_ids := _task_ids(state, after, PAGE_TASKS):
            yield task_ids
            after = task_ids[-1]
        return
    ((first, last),) = state.select("SELECT min(id), max(id) FROM tasks")
    chosen: set[int] = set()
    for _ in range(20 * sample):  # a draw may repeat a task when there are few
        chosen.update(_task_ids(state, random.randrange(first - 1, last), 1))  # noqa: S311 - a sample
        if len(chosen) == sample:
            break
    ordered = sorted(chosen)
    for start in range(0, len(ordered), PAGE_TASKS):
        yield ordered[start : start + PAGE_TASKS]


def _task_ids(state: StoredState, after: int, limit: int) -> list[int]:
    return [row[0] for row in state.select(f"SELECT id FROM tasks WHERE id > {after:d} ORDER BY id LIMIT {limit:d}")]  # noqa: S608


def _page(task_ids: list[int]) -> Callable[[Queries], list[TaskWithHistory]]:
    return lambda queries: queries.tasks_with_history(task_ids, OUTPUT_BYTES_MAX)


def _of_task(state: StoredState, workflows: Mapping[int, Workflow], record: TaskWithHistory) -> Iterator[str]:
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
        row._replace(output=_output(state, row.id)) if row.output is None and row.output_bytes else row for row in rows
    ]
    for one in differences(replayed, task, steps):
        where = f"task {one.task_id}" if one.step is None else f"task {one.task_id}, step {one.step}"
        yield f"{where}: {one.what} is {_shown(one.row)}, and {_shown(one.history)} by its history"


def _output(state: StoredState, step_id: int) -> str | None:
    output = state.read(lambda queries: queries.load_payloads([], [step_id])).outputs.get(step_id)
    return None if output is None else output.decode()


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value) if isinstance(value, str) else str(value)
