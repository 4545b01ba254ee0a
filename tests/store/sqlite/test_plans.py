"""How SQLite answers: from an index, on a reader's connection."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.rows import HistoryCursor, ListPoint, StepFilter, TaskFilter
from stepwire_broker.store.sqlite.queries import SqliteQueries

from tests.store.running import Running
from tests.store.stored_rows import NOW, submission

RESIDENT = 16 * 1024


def test_a_page_is_read_from_the_indexes_of_the_tasks_that_may_qualify(database: Path) -> None:
    """Among millions of finished tasks, of tasks in memory, and of tasks that wait for something else."""
    with Running(database) as run:
        run.workflow()
        statements: list[str] = []

        def trace(queries: SqliteQueries) -> None:
            queries.connection.set_trace_callback(statements.append)
            queries.load_page(10, {LANE: LeftBehind(LANE)}, ["a"], NOW, RESIDENT)
            queries.open_counts()
            queries.connection.set_trace_callback(None)

        run.read(trace)
        left, page, _, distinct_wants, counts = [
            " ".join(row[3] for row in run.sql(f"EXPLAIN QUERY PLAN {text}"))
            for text in statements
            if "tasks" in text and text.lstrip().startswith(("WITH", "SELECT"))
        ]
        assert "SEARCH tasks USING INDEX tasks_left (lane=? AND rank_ms>?)" in left
        assert "TEMP B-TREE" not in left
        assert "SEARCH tasks USING INDEX tasks_due (lane=? AND wake_ms<?)" in page
        assert "SEARCH tasks USING INDEX tasks_wanting (lane=? AND wants=?)" in page
        assert "SEARCH tasks USING INDEX tasks_wanting (lane=? AND wants>?)" in distinct_wants
        for plan in (page, distinct_wants, counts):
            assert "SCAN tasks USING" in plan or "SCAN tasks" not in plan, plan


HERE = ListPoint(NOW, 9)
INDEXED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "failed tasks": (SqliteQueries.tasks, (TaskFilter(state="failed"),), "tasks_by_state"),
    "held steps": (SqliteQueries.steps, (StepFilter(state="held", handler_class="a"),), "attention_listed"),
    "failed steps": (SqliteQueries.steps, (StepFilter(state="failed", before=HERE),), "attention_listed"),
    "tasks of a workflow": (SqliteQueries.tasks, (TaskFilter(workflow="order", before=HERE),), "tasks_by_state"),
    "tasks of a namespace": (SqliteQueries.tasks, (TaskFilter(namespace="default"),), "tasks_by_state"),
    "the tasks of a key": (SqliteQueries.tasks, (TaskFilter(key="k"),), "SEARCH keys USING"),
    "a page of tasks": (SqliteQueries.tasks, (TaskFilter(before=HERE),), "USING INDEX tasks_listed (created_ms<"),
    "tasks since a time": (SqliteQueries.tasks, (TaskFilter(since_ms=9),), "USING INDEX tasks_listed (created_ms>"),
    "a page of steps": (SqliteQueries.steps, (StepFilter(before=HERE),), "INDEX tasks_listed (created_ms<"),
    "a part of the tasks": (SqliteQueries.list_end, (TaskFilter(before=HERE), 9), "USING COVERING INDEX tasks_listed"),
    "a part of the held steps": (SqliteQueries.list_end, (StepFilter(state="held"), 9), "INDEX attention_listed"),
    "events of a task": (SqliteQueries.task_events, (10, (1, 2, 3)), "history_of_task"),
    "history from a cursor on": (
        SqliteQueries.events_from,
        (1, HistoryCursor(3, 4), 10),
        "USING PRIMARY KEY (lane_id=? AND (seq,position)>",
    ),
    "history of a task from a cursor on": (
        SqliteQueries.events_from,
        (1, HistoryCursor(3, 4), 10, 10),
        "USING INDEX history_of_task (task_id=? AND lane_id=? AND (seq,position)>",
    ),
    "steps of a task": (SqliteQueries.task, (10,), "steps_of_task"),
}


@pytest.mark.parametrize("what", INDEXED)
def test_a_question_is_answered_from_an_index_and_never_sorted(database: Path, what: str) -> None:
    query, arguments, index = INDEXED[what]
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        statements: list[str] = []

        def trace(queries: SqliteQueries) -> None:
            queries.connection.set_trace_callback(statements.append)
            query(queries, *arguments)
            queries.connection.set_trace_callback(None)

        run.read(trace)
        plans = [
            " ".join(row[3] for row in run.sql(f"EXPLAIN QUERY PLAN {text}"))
            for text in statements
            if text.startswith(("WITH", "SELECT created_ms", "SELECT at_ms"))
        ]
        assert any(index in plan for plan in plans), plans
        assert not any("TEMP B-TREE" in plan for plan in plans), plans


def test_a_failed_query_fails_its_caller_and_no_later_query(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        for _ in range(4):
            with pytest.raises(sqlite3.OperationalError):
                run.read(lambda queries: (queries.execute("BEGIN"), queries.execute("SELECT nonsense")))
        assert run.sql("SELECT count(*) FROM workflows") == [(1,)]
