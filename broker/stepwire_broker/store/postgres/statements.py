"""The statements of a group and of a page of tasks to load.

A statement of a group writes all rows of one list, from one parameter: JSON, whose payloads are texts. Encoding a JSON
text costs the client a tenth of an array per column, and the server reads it once. A statement that changes rows
asserts their number itself, so that a missing row fails the group before its COMMIT.
"""

from collections.abc import Mapping
from typing import Final

from .pipeline import Statement

TASKS_NEW: Final = {
    "id": "bigint",
    "uid": "text",
    "workflow_id": "bigint",
    "lane": "int",
    "namespace": "text",
    "key": "text",
    "state": "text",
    "attention": "text",
    "cancelling": "boolean",
    "stored": "boolean",
    "priority": "int",
    "rank_ms": "bigint",
    "labels": "text",
    "context_bytes": "int",
    "created_ms": "bigint",
    "finished_ms": "bigint",
    "deadline_ms": "bigint",
    "wake_ms": "bigint",
    "wants": "text",
    "context": "text",
}
TASKS_CHANGED: Final = {
    "id": "bigint",
    "state": "text",
    "attention": "text",
    "cancelling": "boolean",
    "stored": "boolean",
    "rank_ms": "bigint",
    "finished_ms": "bigint",
    "deadline_ms": "bigint",
    "wake_ms": "bigint",
    "wants": "text",
}
STEPS_NEW: Final = {
    "id": "bigint",
    "task_id": "bigint",
    "position": "int",
    "name": "text",
    "handler_class": "text",
    "state": "text",
    "ready_ms": "bigint",
}
STEPS_DISPATCHED: Final = {
    "id": "bigint",
    "delivery": "int",
    "batch_id": "text",
    "worker": "text",
    "ready_ms": "bigint",
    "dispatched_ms": "bigint",
}
STEPS_COMPLETED: Final = {
    "id": "bigint",
    "output": "text",
    "output_bytes": "int",
    "finished_ms": "bigint",
    "run_ms": "bigint",
}
STEPS_CHANGED: Final = {
    "id": "bigint",
    "state": "text",
    "attempt": "int",
    "delivery": "int",
    "accept_from": "int",
    "batch_id": "text",
    "worker": "text",
    "granted": "boolean",
    "lost_sessions": "int",
    "ready_ms": "bigint",
    "dispatched_ms": "bigint",
    "started_ms": "bigint",
    "not_before_ms": "bigint",
    "finished_ms": "bigint",
    "deadline_ms": "bigint",
    "run_ms": "bigint",
    "error": "text",
    "reason": "text",
    "key_number": "int",
    "earlier": "text",
    "handle": "text",
}
HISTORY: Final = {
    "lane": "int",
    "seq": "bigint",
    "position": "int",
    "task_id": "bigint",
    "at_ms": "bigint",
    "facts": "text",
}


class HotStatements:
    """The statements of one schema. Each takes a JSON list of objects; one that changes rows takes their number too."""

    def __init__(self, schema: str) -> None:
        self.tasks_new = _insert(schema, "tasks", TASKS_NEW)
        self.steps_new = _insert(schema, "steps", STEPS_NEW)
        self.history = _insert(schema, "history", HISTORY)
        self.steps_dispatched = _update(
            "steps_dispatched", schema, "steps", STEPS_DISPATCHED, {"state": "'dispatched'"}
        )
        self.steps_completed = _update(
            "steps_completed",
            schema,
            "steps",
            STEPS_COMPLETED,
            {"state": "'completed'", "batch_id": "NULL", "not_before_ms": "NULL", "reason": "NULL", "earlier": "NULL"},
        )
        self.steps_changed = _update("steps_changed", schema, "steps", STEPS_CHANGED)
        self.tasks_changed = _update("tasks_changed", schema, "tasks", TASKS_CHANGED)

        # A page of tasks to load: lane, position of the last one that was read (rank_ms, id), and their largest number.
        self.load_left = Statement("load_left", _LEFT.format(schema=schema))
        # Lane, now, and their largest number.
        self.load_due = Statement("load_due", _DUE.format(schema=schema))
        # Lane, a JSON list of the offered handler classes, and the largest number of each.
        self.load_wanting = Statement("load_wanting", _WANTING.format(schema=schema))

    def of_groups(self) -> dict[str, Statement]:
        """The statements that a group may contain, by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("load_")}


def _insert(schema: str, table: str, columns: Mapping[str, str]) -> Statement:
    names = ", ".join(columns)
    return Statement(f"{table}_new", f"INSERT INTO {schema}.{table} ({names}) SELECT {names} FROM {_rows(columns)}")  # noqa: S608


def _update(
    name: str, schema: str, table: str, columns: Mapping[str, str], fixed: Mapping[str, str] | None = None
) -> Statement:
    """Set the columns of rows by id, and fail unless all rows exist."""
    changes = {column: f"v.{column}" for column in columns if column != "id"} | dict(fixed or {})
    assignments = ", ".join(f"{column} = {value}" for column, value in changes.items())
    return Statement(
        name,
        f"WITH changed AS (UPDATE {schema}.{table} AS t SET {assignments} FROM {_rows(columns)} WHERE t.id = v.id "  # noqa: S608
        "RETURNING 1) SELECT CASE WHEN count(*) = $2::bigint THEN 0 "
        f"ELSE ('rows of {table} are missing: ' || $2::bigint - count(*))::int END FROM changed",
    )


def _rows(columns: Mapping[str, str]) -> str:
    typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    return f"json_to_recordset($1::json) AS v ({typed})"


_LEFT: Final = """\
SELECT * FROM {schema}.tasks WHERE lane = $1::int AND finished_ms IS NULL AND NOT stored
 AND (rank_ms, id) > ($2::bigint, $3::bigint) ORDER BY rank_ms, id LIMIT $4::int"""

_DUE: Final = """\
SELECT * FROM {schema}.tasks WHERE lane = $1::int AND finished_ms IS NULL AND stored AND wake_ms IS NOT NULL
 AND wake_ms <= $2::bigint ORDER BY wake_ms LIMIT $3::int"""

_WANTING: Final = """\
SELECT t.* FROM json_array_elements_text($2::json) AS offered (wants) CROSS JOIN LATERAL (
 SELECT * FROM {schema}.tasks AS t WHERE t.lane = $1::int AND t.wants = offered.wants AND t.finished_ms IS NULL
  AND t.stored AND t.wants IS NOT NULL ORDER BY t.rank_ms, t.id LIMIT $3::int) AS t"""
