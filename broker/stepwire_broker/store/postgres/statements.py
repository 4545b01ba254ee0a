"""The statements of a group.

A statement of a group writes all rows of one list, from one parameter: JSON, whose payloads are texts. Encoding a JSON
text costs the client a tenth of an array per column, and the server reads it once. The statement that changes tasks
asserts their number itself, so that a missing task fails the group before its COMMIT. There are no foreign keys: a
statement asserts the rows to which new rows refer, where the writer does not know them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK

from .pipeline import Row, Statement

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
    "priority": "int",
    "labels": "text",
    "context": "text",
    "context_bytes": "int",
    "created_ms": "bigint",
    "finished_ms": "bigint",
    "deadline_ms": "bigint",
    "rank_ms": "bigint",
    "stored": "boolean",
    "wake_ms": "bigint",
    "wants": "text",
}
TASKS_CHANGED: Final = {
    "id": "bigint",
    "state": "text",
    "attention": "text",
    "cancelling": "boolean",
    "finished_ms": "bigint",
    "deadline_ms": "bigint",
    "stored": "boolean",
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
STEPS_OUTPUT: Final = {"id": "bigint", "output": "text", "output_bytes": "int"}
STEPS_STDERR: Final = {"id": "bigint", "delivery": "int", "text": "text"}
ATTENTION: Final = {
    "id": "bigint",
    "task_id": "bigint",
    "kind": "text",
    "at_ms": "bigint",
    "handler_class": "text",
    "lane": "int",
}
PARKED: Final = {
    "at_ms": "bigint",
    "task_id": "bigint",
    "step_id": "bigint",
    "code": "text",
    "source": "text",
    "body": "text",  # hexadecimal
}
AUDIT: Final = {
    "lane": "int",
    "n": "bigint",
    "at_ms": "bigint",
    "principal": "text",
    "via": "text",
    "action": "text",
    "target": "text",
    "reason": "text",
    "detail": "text",
    "outcome": "text",
    "request_id": "text",
    "hash": "text",
}
ORDERS: Final = {"id": "bigint", "answer": "text"}
HISTORY: Final = {
    "lane_id": "int",
    "seq": "bigint",
    "position": "int",
    "task_id": "bigint",
    "at_ms": "bigint",
    "facts": "text",
}


class HotStatements:
    """The statements of one schema. Each takes a JSON list of objects; `tasks_changed` takes their number too."""

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
        self.steps_output = _update("steps_output", schema, "steps", STEPS_OUTPUT)
        self.steps_stderr = Statement(
            "steps_stderr",
            f"INSERT INTO {schema}.step_stderr (id, delivery, text) SELECT id, delivery, text FROM "  # noqa: S608
            f"{_rows(STEPS_STDERR)} ON CONFLICT (id) DO UPDATE SET delivery = excluded.delivery, text = excluded.text",
        )
        self.tasks_changed = _counted(_update("tasks_changed", schema, "tasks", TASKS_CHANGED), "tasks")

    def of_groups(self) -> dict[str, Statement]:
        """The statements that a group may contain, by name."""
        return dict(vars(self))


class ColdStatements:
    """The statements of one schema that few groups contain. Lists are JSON, as those of HotStatements."""

    def __init__(self, schema: str) -> None:
        self._make_keys(schema)
        self._make_workflows(schema)
        self._make_records(schema)
        self._make_shared(schema)

    def _make_keys(self, schema: str) -> None:
        keys = "json_to_recordset($1::json) AS v (n int, namespace text, key text, digest text, task_id bigint)"
        ids = "(SELECT value::bigint FROM json_array_elements_text($1::json))"

        # The keys are inserted in their order, so that two lanes never wait for each other. Of two claims of one key
        # in a group the first is inserted.
        self.claim_keys = Statement(
            "claim_keys",
            f"INSERT INTO {schema}.keys (namespace, key, digest, task_id) "  # noqa: S608
            f"SELECT namespace, key, decode(digest, 'hex'), task_id FROM {keys} ORDER BY namespace, key, n "
            "ON CONFLICT (namespace, key) DO NOTHING",
        )
        self.key_owners = Statement(
            "key_owners",
            f"SELECT k.namespace, k.key, encode(k.digest, 'hex'), k.task_id FROM {keys} "  # noqa: S608
            f"JOIN {schema}.keys k ON (k.namespace, k.key) = (v.namespace, v.key)",
        )
        self.release_keys = Statement(
            "release_keys",
            f"DELETE FROM {schema}.keys k USING {keys} "  # noqa: S608
            "WHERE (k.namespace, k.key, k.task_id) = (v.namespace, v.key, v.task_id)",
        )
        self.assert_workflows = Statement(
            "assert_workflows",
            f"{missing('workflows')} FROM {schema}.workflows WHERE id IN {ids}",
        )
        self.assert_tasks = Statement("assert_tasks", f"{missing('tasks')} FROM {schema}.tasks WHERE id IN {ids}")
        self.tasks_of_steps = Statement(
            "tasks_of_steps",
            f"SELECT id, task_id FROM {schema}.steps WHERE id IN {ids}",  # noqa: S608
        )

    def _make_workflows(self, schema: str) -> None:
        self.add_workflow = Statement(
            "add_workflow",
            f"INSERT INTO {schema}.workflows (namespace, name, version, digest, document, created_ms, active) "  # noqa: S608
            "SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, false WHERE NOT EXISTS "
            f"(SELECT 1 FROM {schema}.workflows WHERE (namespace, name, version) = ($1::text, $2::text, $3::text)) "
            "ON CONFLICT (namespace, name, version) DO NOTHING",
        )
        self.find_workflow = Statement(
            "find_workflow",
            f"SELECT id, digest FROM {schema}.workflows "  # noqa: S608
            "WHERE (namespace, name, version) = ($1::text, $2::text, $3::text)",
        )
        self.deactivate = Statement(
            "deactivate",
            f"UPDATE {schema}.workflows SET active = false WHERE active AND id <> $1::bigint AND (namespace, name) = "  # noqa: S608
            f"(SELECT namespace, name FROM {schema}.workflows WHERE id = $1::bigint)",
        )
        self.activate = Statement("activate", f"UPDATE {schema}.workflows SET active = true WHERE id = $1::bigint")  # noqa: S608

    def _make_records(self, schema: str) -> None:
        # Revisions become visible in their order.
        self.lock_controls = Statement(
            "lock_controls", f"SELECT pg_advisory_xact_lock(hashtextextended('stepwire-controls {schema}', 0))"
        )
        self.set_control = Statement(
            "set_control",
            f"INSERT INTO {schema}.controls (kind, name, value, position, revision) VALUES ($1::text, $2::text, "  # noqa: S608
            f"$3::text, $4::bigint, (SELECT coalesce(max(revision), 0) + 1 FROM {schema}.controls)) "
            "ON CONFLICT (kind, name) DO UPDATE "
            "SET value = excluded.value, position = excluded.position, revision = excluded.revision",
        )
        self.remove_control = Statement(
            "remove_control",
            f"DELETE FROM {schema}.controls WHERE kind = $1::text AND name = $2::text",  # noqa: S608
        )
        self.park = Statement(
            "park",
            f"INSERT INTO {schema}.parked (at_ms, task_id, step_id, code, source, body) "  # noqa: S608
            f"SELECT at_ms, task_id, step_id, code, source, decode(body, 'hex') FROM {_rows(PARKED)}",
        )
        columns = ", ".join(ATTENTION)
        self.attention = Statement(
            "attention",
            f"INSERT INTO {schema}.attention ({columns}) SELECT {columns} FROM {_rows(ATTENTION)} "  # noqa: S608
            "ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at_ms = excluded.at_ms",
        )
        self.end_attention = Statement(
            "end_attention",
            f"DELETE FROM {schema}.attention "  # noqa: S608
            "WHERE id IN (SELECT value::bigint FROM json_array_elements_text($1::json))",
        )
        self.audit_end = Statement("audit_end", f"SELECT n, hash FROM {schema}.audit_chains WHERE lane = $1::int")  # noqa: S608
        self.add_audit = _insert(schema, "audit", AUDIT)
        self.move_audit_end = Statement(
            "move_audit_end",
            f"INSERT INTO {schema}.audit_chains (lane, n, hash, cut_n, cut_hash) "  # noqa: S608
            "VALUES ($1::int, $2::bigint, $3::text, 0, $4::text) "
            "ON CONFLICT (lane) DO UPDATE SET n = excluded.n, hash = excluded.hash",
        )

    def _make_shared(self, schema: str) -> None:
        # The rows, their number, and the lane. The request is not needed from then on, and may hold a payload.
        self.answer_orders = Statement(
            "answer_orders",
            f"WITH found AS (UPDATE {schema}.orders AS t SET answer = v.answer, request = '' "  # noqa: S608
            f"FROM {_rows(ORDERS)} WHERE t.lane = $3::int AND t.id = v.id AND t.answer IS NULL RETURNING 1) "
            f"{missing('orders')} FROM found",
        )
        # The number of ids and the lane: from the lane's last block, or from a new one if they do not fit.
        self.reserve_ids = Statement(
            "reserve_ids",
            f"WITH last AS (UPDATE {schema}.blocks SET reserved = reserved + $1::int "  # noqa: S608
            f"WHERE number = (SELECT max(number) FROM {schema}.blocks WHERE lane = $2::int) "
            f"AND reserved + $1::int <= {IDS_PER_BLOCK} RETURNING number, reserved), "
            f"made AS (INSERT INTO {schema}.blocks (lane, reserved) SELECT $2::int, $1::int "
            "WHERE NOT EXISTS (SELECT 1 FROM last) RETURNING number, reserved) "
            "SELECT number, reserved FROM last UNION ALL SELECT number, reserved FROM made",
        )
        self.return_ids = Statement(
            "return_ids",
            f"UPDATE {schema}.blocks SET reserved = $2::int WHERE number = $1::bigint AND reserved = $3::int",  # noqa: S608
        )


def reserved_ids(rows: Sequence[Row], count: int) -> tuple[int, int]:
    """Return the first and the last of the ids that `reserve_ids` reserved."""
    ((number, reserved),) = rows
    last = int(number or 0) * IDS_PER_BLOCK + int(reserved or 0)
    return last - count + 1, last


def _insert(schema: str, table: str, columns: Mapping[str, str]) -> Statement:
    names = ", ".join(columns)
    return Statement(f"{table}_new", f"INSERT INTO {schema}.{table} ({names}) SELECT {names} FROM {_rows(columns)}")  # noqa: S608


def _update(
    name: str, schema: str, table: str, columns: Mapping[str, str], fixed: Mapping[str, str] | None = None
) -> Statement:
    """Set the columns of rows by id."""
    changes = {column: f"v.{column}" for column in columns if column != "id"} | dict(fixed or {})
    assignments = ", ".join(f"{column} = {value}" for column, value in changes.items())
    return Statement(
        name,
        f"UPDATE {schema}.{table} AS t SET {assignments} FROM {_rows(columns)} WHERE t.id = v.id",  # noqa: S608
    )


def _counted(update: Statement, table: str) -> Statement:
    """Let an update fail unless it changes as many rows as the second parameter says."""
    return Statement(update.name, f"WITH found AS ({update.text} RETURNING 1) {missing(table)} FROM found")


def missing(table: str) -> str:
    """Select an error unless the number of rows is the second parameter. Its code is that of refused data."""
    return (
        "SELECT CASE WHEN count(*) = $2::bigint THEN 0 "
        f"ELSE ('rows of {table} are missing: ' || $2::bigint - count(*))::int END"
    )


def _rows(columns: Mapping[str, str]) -> str:
    typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    return f"json_to_recordset($1::json) AS v ({typed})"
