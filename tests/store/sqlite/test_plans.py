"""How SQLite answers: from an index, on a reader's connection."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.rows import HistoryCursor, StepFilter, TaskFilter
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


INDEXED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "failed tasks": (SqliteQueries.tasks, (TaskFilter(state="failed"),), "tasks_failed"),
    "held steps": (SqliteQueries.steps, (StepFilter(state="held", handler_class="a"),), "steps_held"),
    "failed steps": (SqliteQueries.steps, (StepFilter(state="failed", before=9),), "steps_failed"),
    "tasks of a workflow": (SqliteQueries.tasks, (TaskFilter(workflow="order", before=9),), "tasks_of_workflow"),
    "tasks of a namespace": (SqliteQueries.tasks, (TaskFilter(namespace="default"),), "tasks_of_workflow"),
    "the tasks of a key": (SqliteQueries.tasks, (TaskFilter(key="k"),), "SEARCH keys USING"),
    "a page of tasks": (SqliteQueries.tasks, (TaskFilter(before=9),), "USING INTEGER PRIMARY KEY"),
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
            if text.startswith("WITH")
        ]
        assert index in plans[-1]
        assert "TEMP B-TREE" not in plans[-1]


def test_a_failed_query_fails_its_caller_and_no_later_query(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        for _ in range(4):
            with pytest.raises(sqlite3.OperationalError):
                run.read(lambda queries: (queries.execute("BEGIN"), queries.execute("SELECT nonsense")))
        assert run.sql("SELECT count(*) FROM workflows") == [(1,)]
