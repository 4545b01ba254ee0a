"""What is read, one statement a function: `(connection, …) -> values`, on a read-only connection of the reader.

A result of many rows comes back as one row, a JSON array that SQLite builds and msgspec takes apart: Python's driver
lets go of the GIL at every row it steps over and, beside a busy loop, waits a switch interval to get it back. So a
page costs the loop a handful of hand-overs, whatever its length.
"""

import heapq
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from stepwire_protocol import limits, patterns

from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads, StoredStep, StoredTask, StoredWorkflow

PAGE_ROWS_MAX: Final = 1_000

Row = TypeVar("Row")
Connection = sqlite3.Connection

_encode: Final = msgspec.json.Encoder().encode


# -- for the core: loading tasks --------------------------------------------------------------------------------------


def load_page(
    connection: Connection, limit: int, epoch: int, wants: Sequence[str], now_ms: int, resident_bytes_max: int
) -> Loaded:
    """Open tasks that are not in this epoch's memory: those that are due, those that wait for one of these handler
    classes, and those of which nothing is noted; the most urgent first, then the oldest. What is larger than
    `resident_bytes_max` stays. `epoch` is the reader's own: what another epoch had in memory, nobody has."""
    with _snapshot(connection):
        tasks = _open_tasks(connection, limit, epoch, wants, now_ms, resident_bytes_max)
        steps = _steps_in_order(connection, tasks, resident_bytes_max)
        return Loaded(tasks, steps, tuple(distinct_wants(connection, epoch)))


def load_tasks(connection: Connection, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded:
    """These tasks, whatever their state; those that do not exist are left out."""
    with _snapshot(connection):
        tasks = _tasks_by_id(connection, task_ids, resident_bytes_max)
        return Loaded(tasks, _steps_in_order(connection, tasks, resident_bytes_max))


def _steps_in_order(connection: Connection, tasks: list[StoredTask], resident_bytes_max: int) -> list[StoredStep]:
    """As the tasks, and by position."""
    task_ids = [task.id for task in tasks]
    steps = _steps_of_tasks(connection, task_ids, resident_bytes_max)
    if task_ids != sorted(task_ids):
        rank = {task_id: i for i, task_id in enumerate(task_ids)}
        steps.sort(key=lambda step: rank[step.task_id])
    return steps


def _open_tasks(
    connection: Connection, limit: int, epoch: int, wants: Sequence[str], now_ms: int, resident_bytes_max: int
) -> list[StoredTask]:
    return _rows(
        connection,
        StoredTask,
        f"""
        SELECT {_TASK} FROM tasks
        WHERE finished_ms IS NULL AND owner_epoch <> :epoch AND (
          wake_ms <= :now_ms
          OR wants IN (SELECT value FROM json_each(:wants))
          OR (wake_ms IS NULL AND wants IS NULL)
        )
        ORDER BY priority DESC, id LIMIT :limit
        """,  # noqa: S608
        {
            "epoch": epoch,
            "now_ms": now_ms,
            "wants": _json(wants),
            "resident": resident_bytes_max,
            "limit": limit,
        },
    )


def _tasks_by_id(connection: Connection, task_ids: Sequence[int], resident_bytes_max: int) -> list[StoredTask]:
    return _rows(
        connection,
        StoredTask,
        f"""
        SELECT {_TASK} FROM tasks
        WHERE id IN (SELECT value FROM json_each(:ids)) AND {_NOT_GOING} ORDER BY id LIMIT -1
        """,  # noqa: S608
        {"ids": _json(task_ids), "resident": resident_bytes_max},
    )


def _steps_of_tasks(connection: Connection, task_ids: Sequence[int], resident_bytes_max: int) -> list[StoredStep]:
    return _rows(
        connection,
        StoredStep,
        f"""
        SELECT {_STEP} FROM steps
        WHERE task_id IN (SELECT value FROM json_each(:ids)) ORDER BY task_id, position LIMIT -1
        """,  # noqa: S608
        {"ids": _json(task_ids), "resident": resident_bytes_max},
    )


def distinct_wants(connection: Connection, epoch: int) -> list[str]:
    """The handler classes that stored tasks wait for."""
    return [
        row.wants
        for row in _rows(
            connection,
            _Wants,
            """
            SELECT DISTINCT wants FROM tasks
            WHERE finished_ms IS NULL AND wants IS NOT NULL AND owner_epoch <> :epoch ORDER BY wants LIMIT -1
            """,
            {"epoch": epoch},
        )
    ]


def open_task_ids(connection: Connection, after: int, limit: int) -> list[int]:
    """Tasks that have not ended, whoever has them, by their numbers."""
    return [
        row[0]
        for row in connection.execute(
            "SELECT id FROM tasks WHERE finished_ms IS NULL AND id > ? ORDER BY id LIMIT ?", (after, limit)
        )
    ]


class TaskWithHistory(NamedTuple):
    task: StoredTask
    steps: list[StoredStep]
    history: list[bytes]  # its facts, in order


def tasks_with_history(
    connection: Connection, task_ids: Sequence[int], resident_bytes_max: int
) -> list[TaskWithHistory]:
    """These tasks and all that happened to them, as of one moment."""
    with _snapshot(connection):
        tasks = _tasks_by_id(connection, task_ids, resident_bytes_max)
        rows = _steps_in_order(connection, tasks, resident_bytes_max)
        told = connection.execute(
            "SELECT task_id, CAST(facts AS BLOB) FROM history WHERE task_id IN (SELECT value FROM json_each(?)) "
            "ORDER BY task_id, lane_id, seq, position",
            (_json([task.id for task in tasks]),),
        ).fetchall()
    steps: dict[int, list[StoredStep]] = {task.id: [] for task in tasks}
    for row in rows:
        steps[row.task_id].append(row)
    history: dict[int, list[bytes]] = {task.id: [] for task in tasks}
    for task_id, facts in told:
        history[task_id].append(facts)
    return [TaskWithHistory(task, steps[task.id], history[task.id]) for task in tasks]


class TaskOfStep(NamedTuple):
    task_id: int
    state: str  # the task's


def tasks_of_steps(connection: Connection, step_ids: Sequence[int]) -> dict[int, TaskOfStep]:
    """Steps that do not exist are left out."""
    found = _rows(
        connection,
        _StepAndTask,
        """
        SELECT steps.id, tasks.id, tasks.state FROM steps JOIN tasks ON tasks.id = steps.task_id
        WHERE steps.id IN (SELECT value FROM json_each(:ids))
        """,
        {"ids": _json(step_ids)},
    )
    return {row.step_id: TaskOfStep(row.task_id, row.state) for row in found}


def load_payloads(connection: Connection, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads:
    """Whole contexts and outputs, of whatever size."""
    with _snapshot(connection):
        return Payloads(_contexts(connection, task_ids), _outputs(connection, step_ids))


def _contexts(connection: Connection, task_ids: Sequence[int]) -> dict[int, bytes]:
    return dict(
        connection.execute(
            "SELECT id, CAST(context AS BLOB) FROM tasks WHERE id IN (SELECT value FROM json_each(?))",
            (_json(task_ids),),
        )
    )


def _outputs(connection: Connection, step_ids: Sequence[int]) -> dict[int, bytes]:
    return dict(
        connection.execute(
            "SELECT id, CAST(output AS BLOB) FROM steps "
            "WHERE output IS NOT NULL AND id IN (SELECT value FROM json_each(?))",
            (_json(step_ids),),
        )
    )


class OpenCounts(NamedTuple):
    tasks: int
    steps: int


def open_counts(connection: Connection) -> OpenCounts:
    """Tasks that have not ended, and their steps that have not: what they hold of `limits.max_open_steps`."""
    return OpenCounts(
        *connection.execute(
            """
            SELECT (SELECT count(*) FROM tasks WHERE finished_ms IS NULL),
             (SELECT count(*) FROM steps WHERE finished_ms IS NULL
               AND task_id IN (SELECT id FROM tasks WHERE finished_ms IS NULL))
            """
        ).fetchone()
    )


# -- for people: tasks ------------------------------------------------------------------------------------------------


class TaskRow(NamedTuple):
    id: int
    uid: str
    workflow_id: int
    namespace: str
    workflow: str
    version: str
    key: str | None
    state: str
    attention: str | None
    cancelling: int
    priority: int
    labels: str | None
    context_bytes: int
    created_ms: int
    finished_ms: int | None
    deadline_ms: int | None


class StepRow(NamedTuple):
    id: int
    task_id: int
    position: int
    name: str
    handler_class: str
    state: str
    attempt: int
    delivery: int
    worker: str | None
    granted: int
    lost_sessions: int
    ready_ms: int | None
    dispatched_ms: int | None
    started_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    deadline_ms: int | None
    error: str | None
    reason: str | None
    key_number: int
    output: str | None  # JSON text; None too where a list leaves it out
    output_bytes: int


class TaskRecord(NamedTuple):
    """All of a task, but outputs that were too many bytes. Payloads are JSON text."""

    task: TaskRow
    context: str
    steps: list[StepRow]


class TaskFilter(NamedTuple):
    """What is None filters nothing. `before` is a cursor: the last task id of the page before this one."""

    state: str | None = None
    namespace: str | None = None
    workflow: str | None = None
    label: tuple[str, str] | None = None
    since_ms: int | None = None
    before: int | None = None
    limit: int = 50


def task(connection: Connection, task_id: int, outputs_bytes_max: int = limits.INTEGER_MAX) -> TaskRecord | None:
    """With its outputs in the order of its steps, as long as they come to no more than so many bytes together."""
    with _snapshot(connection):
        found = _task_rows(connection, "tasks.id = :id", {"id": task_id, "limit": 1})
        if not found:
            return None
        context, outputs_bytes = connection.execute(
            "SELECT context, (SELECT sum(output_bytes) FROM steps WHERE task_id = tasks.id) FROM tasks WHERE id = ?",
            (task_id,),
        ).fetchone()
        values = {"task_id": task_id, "limit": -1, "outputs_max": outputs_bytes_max}
        outputs = "output" if (outputs_bytes or 0) <= outputs_bytes_max else _FIRST_OUTPUTS
        steps = _step_rows(connection, "steps.task_id = :task_id", values, "steps.position", outputs)
        return TaskRecord(found[0], context, steps)


# Which they are is decided from their sizes alone: what is left out is not read.
_FIRST_OUTPUTS: Final = """
 CASE WHEN id IN (SELECT id FROM (
   SELECT id, sum(output_bytes) OVER (ORDER BY position) AS bytes_so_far FROM steps WHERE task_id = :task_id
 ) WHERE bytes_so_far <= :outputs_max) THEN output END""".strip()


def task_state(connection: Connection, task_id: int) -> str | None:
    row = connection.execute("SELECT state FROM tasks WHERE id = ?", (task_id,)).fetchone()
    return None if row is None else str(row[0])


def tasks(connection: Connection, wanted: TaskFilter) -> list[TaskRow]:
    """The newest first."""
    conditions, values = _conditions(
        {
            "tasks.namespace = :namespace": wanted.namespace,
            "tasks.created_ms >= :since_ms": wanted.since_ms,
            "tasks.id < :before": wanted.before,
        }
    )
    if wanted.state is not None:
        # The literal, where there is an index of just these tasks.
        conditions.append("tasks.state = 'failed'" if wanted.state == "failed" else "tasks.state = :state")
        values["state"] = wanted.state
    if wanted.label is not None:
        conditions.append(
            "EXISTS (SELECT 1 FROM json_each(tasks.labels) WHERE key = :label_name AND value = :label_value)"
        )
        values["label_name"], values["label_value"] = wanted.label
    values["limit"] = wanted.limit
    if wanted.workflow is None:
        return _task_rows(connection, " AND ".join(conditions), values)
    # A version at a time, each newest first from its index: together they would have to be sorted whole.
    with _snapshot(connection):
        pages = [
            _task_rows(
                connection,
                " AND ".join([*conditions, "tasks.workflow_id = :workflow_id"]),
                values | {"workflow_id": workflow_id},
            )
            for workflow_id in _workflow_ids(connection, wanted.namespace, wanted.workflow)
        ]
    return heapq.nlargest(wanted.limit, (row for page in pages for row in page), key=lambda row: row.id)


def _task_rows(connection: Connection, condition: str, values: Mapping[str, Any]) -> list[TaskRow]:
    return _rows(
        connection,
        TaskRow,
        f"""
        SELECT tasks.id, tasks.uid, workflow_id, tasks.namespace, workflows.name, workflows.version, tasks.key,
         tasks.state, attention, cancelling, priority, labels, context_bytes, tasks.created_ms, tasks.finished_ms,
         tasks.deadline_ms
        FROM tasks CROSS JOIN workflows ON workflows.id = tasks.workflow_id
        WHERE {condition or "TRUE"} AND {_NOT_GOING} ORDER BY tasks.id DESC LIMIT :limit
        """,  # noqa: S608
        values,
    )


# -- steps ------------------------------------------------------------------------------------------------------------


class StepFilter(NamedTuple):
    """`handler_class` may be a pattern. `before` is a cursor: the last step id of the page before this one."""

    state: str | None = None
    handler_class: str | None = None
    before: int | None = None
    limit: int = 50


def step(connection: Connection, step_id: int) -> StepRow | None:
    found = _step_rows(connection, "steps.id = :id", {"id": step_id, "limit": 1}, "steps.id", "steps.output")
    return found[0] if found else None


def steps(connection: Connection, wanted: StepFilter) -> list[StepRow]:
    """The newest first, without their outputs."""
    conditions, values = _conditions({"steps.id < :before": wanted.before})
    if wanted.state is not None:
        indexed = {"held": "steps.state = 'held'", "failed": "steps.state = 'failed'"}
        conditions.append(indexed.get(wanted.state, "steps.state = :state"))
        values["state"] = wanted.state
    if wanted.handler_class is not None:
        is_pattern = patterns.is_pattern(wanted.handler_class)
        conditions.append("matches(:handler, handler_class)" if is_pattern else "handler_class = :handler")
        values["handler"] = wanted.handler_class
    values["limit"] = wanted.limit
    return _step_rows(connection, " AND ".join(conditions), values, "steps.id DESC", "NULL")


def held_count(connection: Connection) -> int:
    """Steps that wait for an operator, from the index that holds just them."""
    (count,) = connection.execute("SELECT count(*) FROM steps WHERE state = 'held'").fetchone()
    return int(count)


def _step_rows(
    connection: Connection, condition: str, values: Mapping[str, Any], order: str, output: str
) -> list[StepRow]:
    return _rows(
        connection,
        StepRow,
        f"""
        SELECT id, task_id, position, name, handler_class, state, attempt, delivery, worker, granted, lost_sessions,
         ready_ms, dispatched_ms, started_ms, not_before_ms, finished_ms, deadline_ms, error, reason, key_number,
         {output}, output_bytes
        FROM steps WHERE {condition or "TRUE"} ORDER BY {order} LIMIT :limit
        """,  # noqa: S608
        values,
    )


# -- workflows --------------------------------------------------------------------------------------------------------


def workflows(connection: Connection) -> list[StoredWorkflow]:
    """Every version of every workflow, with its document: what the core starts from."""
    return _rows(connection, StoredWorkflow, f"SELECT {_WORKFLOW} FROM workflows ORDER BY id LIMIT -1", {})  # noqa: S608


class WorkflowRow(NamedTuple):
    """A version of a workflow, without its document."""

    id: int
    namespace: str
    name: str
    version: str
    created_ms: int
    active: int


def workflow_rows(connection: Connection, namespace: str | None) -> list[WorkflowRow]:
    """By name, the versions of each in the order they came."""
    return _rows(
        connection,
        WorkflowRow,
        """
        SELECT id, namespace, name, version, created_ms, active FROM workflows
        WHERE :namespace IS NULL OR namespace = :namespace ORDER BY namespace, name, id LIMIT -1
        """,
        {"namespace": namespace},
    )


def workflow(connection: Connection, namespace: str, name: str, version: str | None) -> StoredWorkflow | None:
    """This version, or the active one."""
    found = _rows(
        connection,
        StoredWorkflow,
        f"""
        SELECT {_WORKFLOW} FROM workflows
        WHERE namespace = :namespace AND name = :name
         AND CASE WHEN :version IS NULL THEN active ELSE version = :version END
        """,  # noqa: S608
        {"namespace": namespace, "name": name, "version": version},
    )
    return found[0] if found else None


def _workflow_ids(connection: Connection, namespace: str | None, name: str) -> list[int]:
    return [
        row[0]
        for row in connection.execute(
            "SELECT id FROM workflows WHERE name = ?1 AND (?2 IS NULL OR namespace = ?2)", (name, namespace)
        )
    ]


# -- history ----------------------------------------------------------------------------------------------------------


class HistoryCursor(NamedTuple):
    """After this row of a lane. (0, 0) is before all of them: sequences begin at 1."""

    seq: int = 0
    position: int = 0


class HistoryItem(NamedTuple):
    lane_id: int
    seq: int
    position: int
    task_id: int
    at_ms: int
    facts: str


class LaneRow(NamedTuple):
    id: int
    broker: str
    lane: int
    epoch: int
    seq: int


def lanes(connection: Connection) -> list[LaneRow]:
    """Every lane there ever was: who follows the history keeps a cursor for each."""
    return _rows(connection, LaneRow, "SELECT id, broker, lane, epoch, seq FROM lanes ORDER BY id LIMIT -1", {})


def history_after(connection: Connection, lane_id: int, after: HistoryCursor, limit: int) -> list[HistoryItem]:
    """A lane's history in order. What is committed later comes later, so nothing is ever skipped."""
    return _rows(
        connection,
        HistoryItem,
        """
        SELECT lane_id, seq, position, task_id, at_ms, facts FROM history
        WHERE lane_id = :lane_id AND (seq, position) > (:seq, :position) ORDER BY seq, position LIMIT :limit
        """,
        {"lane_id": lane_id, "seq": after.seq, "position": after.position, "limit": limit},
    )


def task_events(
    connection: Connection, task_id: int, after: tuple[int, int, int] | None = None, limit: int = PAGE_ROWS_MAX
) -> list[HistoryItem]:
    """A task's history in order, from the beginning or after (lane_id, seq, position)."""
    lane_id, seq, position = after or (0, 0, 0)
    return _rows(
        connection,
        HistoryItem,
        """
        SELECT lane_id, seq, position, task_id, at_ms, facts FROM history
        WHERE task_id = :task_id AND (lane_id, seq, position) > (:lane_id, :seq, :position)
        ORDER BY lane_id, seq, position LIMIT :limit
        """,
        {"task_id": task_id, "lane_id": lane_id, "seq": seq, "position": position, "limit": limit},
    )


class ToldItem(NamedTuple):
    """A row of the history with what its facts are told by: of which workflow its task is."""

    lane_id: int
    seq: int
    position: int
    task_id: int
    facts: str
    workflow_id: int | None  # None when the task has been removed since
    first_step_id: int | None  # None when its steps have been removed since


def told_after(
    connection: Connection, lane_id: int, from_: HistoryCursor, limit: int, task_id: int | None = None
) -> list[ToldItem]:
    """A lane's history in order, from this row on, it included; with `task_id`, what is of that task."""
    return _rows(
        connection,
        ToldItem,
        f"""
        SELECT lane_id, seq, position, task_id, facts,
         (SELECT workflow_id FROM tasks WHERE tasks.id = history.task_id),
         (SELECT id FROM steps WHERE steps.task_id = history.task_id AND position = 0)
        FROM history WHERE {"" if task_id is None else "task_id = :task_id AND"}
         lane_id = :lane_id AND (seq, position) >= (:seq, :position) ORDER BY seq, position LIMIT :limit
        """,  # noqa: S608
        {"lane_id": lane_id, "seq": from_.seq, "position": from_.position, "limit": limit, "task_id": task_id},
    )


class ParkedRow(NamedTuple):
    id: int
    at_ms: int
    task_id: int | None
    step_id: int | None
    code: str
    source: str
    body: bytes


def parked(connection: Connection, before: int | None = None, limit: int = 50) -> list[ParkedRow]:
    """The newest first."""
    found = connection.execute(
        "SELECT id, at_ms, task_id, step_id, code, source, body FROM parked "
        "WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2",
        (before, limit),
    )
    return [ParkedRow(*row) for row in found.fetchall()]


# -- how rows come back -----------------------------------------------------------------------------------------------


class _Wants(NamedTuple):
    wants: str


class _StepAndTask(NamedTuple):
    step_id: int
    task_id: int
    state: str


# Of these, retention has removed a part and will remove the rest: they are not shown, and not loaded.
_NOT_GOING: Final = """
tasks.id NOT IN (SELECT value FROM json_each((SELECT value FROM meta WHERE name = 'pruning')))""".strip()
_TASK: Final = """id, uid, workflow_id, lane, namespace, key, state, attention, cancelling, priority, labels,
 CASE WHEN context_bytes <= :resident THEN context END, context_bytes, created_ms, finished_ms, deadline_ms"""
_STEP: Final = """id, task_id, position, state, attempt, delivery, accept_from, batch_id, worker, granted,
 lost_sessions, ready_ms, dispatched_ms, started_ms, not_before_ms, finished_ms, deadline_ms, error, reason, key_number,
 earlier,
 CASE WHEN output_bytes <= :resident THEN output END, output_bytes"""
_WORKFLOW: Final = "id, namespace, name, version, digest, document, created_ms, active"

_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {
    row: msgspec.json.Decoder(list[row])  # type: ignore[valid-type]
    for row in (
        StoredTask,
        StoredStep,
        StoredWorkflow,
        TaskRow,
        StepRow,
        LaneRow,
        HistoryItem,
        ToldItem,
        WorkflowRow,
        _Wants,
        _StepAndTask,
    )
}
_COLUMNS: Final = {row: ", ".join(f"c{i}" for i in range(len(row._fields))) for row in _DECODERS}


def _rows(connection: Connection, row: type[Row], select: str, values: Mapping[str, Any]) -> list[Row]:
    """The selected rows, in their order: the aggregate takes what comes as it comes. An ORDER BY needs a LIMIT, if only
    -1, or SQLite may think that nobody wants the order."""
    columns = _COLUMNS[row]
    text = connection.execute(
        f"WITH page ({columns}) AS ({select}) SELECT json_group_array(json_array({columns})) FROM page",  # noqa: S608
        values,
    ).fetchone()[0]
    found: list[Row] = _DECODERS[row].decode(text)
    return found


def _conditions(optional: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Those conditions whose value is given, and the values by the names that the conditions use."""
    given = {condition: value for condition, value in optional.items() if value is not None}
    return list(given), {condition.rpartition(":")[2]: value for condition, value in given.items()}


def _json(values: Sequence[Any]) -> str:
    return _encode(values).decode()


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    """Several statements see one state. Short: the log cannot be reset past the oldest reader."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")
