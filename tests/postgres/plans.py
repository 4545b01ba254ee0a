"""The plans of the product's own questions, as the server answers them: `python -m tests.postgres.figures plans`."""

from collections.abc import Callable
from typing import Any, Final

import psycopg
from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.store.postgres.queries import PostgresQueries
from stepwire_broker.store.rows import HistoryCursor, ListPoint, StepFilter, TaskFilter

from .server import PostgresServer

RESIDENT: Final = 16 * 1024
HERE: Final = ListPoint(1 << 40, 1 << 40)
LARGE: Final = frozenset({"tasks", "steps", "history"})  # tables in which no question may read every row

QUESTIONS: Final[dict[str, Callable[[PostgresQueries], object]]] = {
    "a page of tasks to load": lambda q: q.load_page(200, {0: LeftBehind(0)}, ["shop::H10"], 5, RESIDENT),
    "a look for work that no worker offers": lambda q: q.load_page(200, {0: None, 1: None}, ["a::B"], 5, RESIDENT),
    "what stored tasks wait for": lambda q: q.distinct_wants([0, 1]),
    "tasks by their ids": lambda q: q.load_tasks([5, 10], RESIDENT),
    "the tasks of steps": lambda q: q.tasks_of_steps([6, 7, 11]),
    "payloads": lambda q: q.load_payloads([5], [6]),
    "open tasks and steps": lambda q: q.open_counts(),
    "a task": lambda q: q.task(5),
    "a page of tasks": lambda q: q.tasks(TaskFilter(before=HERE)),
    "failed tasks": lambda q: q.tasks(TaskFilter(state="failed")),
    "tasks of a workflow": lambda q: q.tasks(TaskFilter(workflow="order", before=HERE)),
    "tasks since a time": lambda q: q.tasks(TaskFilter(since_ms=9)),
    "the tasks of a key": lambda q: q.tasks(TaskFilter(key="k")),
    "a step": lambda q: q.step(6),
    "held steps": lambda q: q.steps(StepFilter(state="held")),
    "failed steps": lambda q: q.steps(StepFilter(state="failed", before=HERE)),
    "a page of steps": lambda q: q.steps(StepFilter(before=HERE)),
    "the backlog by what it waits for": lambda q: q.stored_counts(["shop::H10", "shop::H30"], 100_000),
    "the backlog by workflow": lambda q: q.stored_counts_by_workflow(["shop::H10"], 100_000),
    "the oldest of the backlog": lambda q: q.oldest_stored_ms(["shop::H10", "shop::H30"]),
    "the number of held steps": lambda q: q.held_count(),
    "a part of the tasks": lambda q: q.list_end(TaskFilter(before=HERE), 9),
    "events of a task": lambda q: q.task_events(10, (1, 2, 3)),
    "history from a cursor on": lambda q: q.events_from(0, HistoryCursor(3, 4), 10),
    "history of a task from a cursor on": lambda q: q.events_from(0, HistoryCursor(3, 4), 10, 10),
}


class ExplainingConnection:
    """Passes statements on, and keeps the plan of each."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self.plans: list[str] = []

    def execute(self, statement: bytes, values: Any = None) -> Any:
        rows = self._connection.execute(b"EXPLAIN " + statement, values).fetchall()
        self.plans.append("\n".join(row[0] for row in rows))
        return self._connection.execute(statement, values)


def fill(server: PostgresServer, schema: str, tasks: int, *, is_analysed: bool = True) -> None:
    """Tasks of four steps in two lanes. One of ten is open and stored, and one of twenty waits for a handler."""
    server.sql(
        f"INSERT INTO {schema}.tasks (id, uid, workflow_id, lane, namespace, state, cancelling, stored, priority, "
        "rank_ms, context_bytes, created_ms, context, finished_ms, wake_ms, wants) "
        "SELECT n * 5, lpad(n::text, 32, '0'), 1, n % 2, 'd', "
        "CASE n % 10 WHEN 0 THEN 'pending' ELSE 'completed' END, false, n % 10 = 0, 0, n, 2, n, '{}', "
        "CASE n % 10 WHEN 0 THEN NULL ELSE n END, CASE n % 20 WHEN 0 THEN n END, "
        "CASE n % 20 WHEN 10 THEN 'shop::H' || n % 100 END "
        f"FROM generate_series(1, {tasks}) AS n"
    )
    server.sql(
        f"INSERT INTO {schema}.steps (id, task_id, position, name, handler_class, state, finished_ms, output) "
        f"SELECT n * 5 + p + 1, n * 5, p, 's', 'shop::H', 'completed', 1, '1' "
        f"FROM generate_series(1, {tasks}) AS n, generate_series(0, 3) AS p"
    )
    server.sql(
        f"INSERT INTO {schema}.history (lane_id, seq, position, task_id, at_ms, facts) "
        f"SELECT n % 2, n, 0, n * 5, n, '[]' FROM generate_series(1, {tasks}) AS n"
    )
    if is_analysed:
        server.sql(f"ANALYZE {schema}.tasks, {schema}.steps, {schema}.history")


def plans(server: PostgresServer, schema: str, question: str) -> list[str]:
    """The plan of each statement of a question, with the settings of a reader."""
    with server.connect() as connection, connection.transaction():
        connection.execute(f"SET LOCAL search_path TO {schema}".encode())
        connection.execute("SET LOCAL enable_seqscan TO off")  # as readers do
        explaining = ExplainingConnection(connection)
        QUESTIONS[question](PostgresQueries(explaining))  # type: ignore[arg-type]
    return explaining.plans


def reads_everything(plan: str) -> bool:
    """Whether a plan reads all rows of a large table."""
    return any(f"Seq Scan on {table}" in plan for table in LARGE)
