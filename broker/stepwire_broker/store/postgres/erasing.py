"""The erasure of a task in PostgreSQL's SQL: see store/erasure.py. Runs inside the transaction of the fact `Erased`."""

from collections.abc import Sequence
from typing import Final

import msgspec

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.commit import scrubbing
from stepwire_broker.core.model.commit_group import TaskErased
from stepwire_broker.store.erasure import FRAME_CODES, names_a_step, text_of

from .pipeline import Statement
from .trips import Trips

_encode: Final = msgspec.json.Encoder().encode


class ErasingStatements:
    def __init__(self, schema: str) -> None:
        # Of the task and, where there is a marker, the marker. The key is released before the task loses its name.
        self.release_key = Statement(
            "erase_key",
            f"DELETE FROM {schema}.keys WHERE task_id = $1::bigint AND (namespace, key) = "  # noqa: S608
            f"(SELECT namespace, key FROM {schema}.tasks WHERE id = $1::bigint AND key IS NOT NULL)",
        )
        marked = {
            "task": (
                "tasks SET key = NULL, labels = $2::text, context = $2::text, context_bytes = length($2::text) "
                "WHERE id = $1::bigint"
            ),
            "outputs": (
                "steps SET output = $2::text, output_bytes = length($2::text) "
                "WHERE task_id = $1::bigint AND output IS NOT NULL"
            ),
            "errors": "steps SET error = $2::text WHERE task_id = $1::bigint AND error IS NOT NULL",
            "stderr": (
                f"step_stderr SET text = $2::text WHERE id IN (SELECT id FROM {schema}.steps "  # noqa: S608
                "WHERE task_id = $1::bigint)"
            ),
            "parked": (
                "parked SET body = convert_to($2::text, 'UTF8') WHERE task_id = $1::bigint OR step_id IN "  # noqa: S608
                f"(SELECT id FROM {schema}.steps WHERE task_id = $1::bigint)"
            ),
        }
        self.marked = [Statement(f"erase_{name}", f"UPDATE {schema}.{text}") for name, text in marked.items()]
        self.steps = Statement(
            "erased_steps",
            f"SELECT id, reason FROM {schema}.steps WHERE task_id = $1::bigint",  # noqa: S608
        )
        self.reason = Statement(
            "erase_reason",
            f"UPDATE {schema}.steps SET reason = $3::text WHERE task_id = $1::bigint AND reason = $2::text",  # noqa: S608
        )
        self.frames = Statement(
            "frames_of_steps",
            f"SELECT id, encode(body, 'hex') FROM {schema}.parked "  # noqa: S608
            "WHERE code IN (SELECT value FROM json_array_elements_text($1::json))",
        )
        self.frame = Statement(
            "erase_frame",
            f"UPDATE {schema}.parked SET body = convert_to($2::text, 'UTF8') WHERE id = $1::bigint",  # noqa: S608
        )
        self.history = Statement(
            "erased_history",
            f"SELECT lane_id, seq, position, facts FROM {schema}.history WHERE task_id = $1::bigint",  # noqa: S608
        )
        self.fact = Statement(
            "erase_fact",
            f"UPDATE {schema}.history SET facts = $4::text "  # noqa: S608
            "WHERE lane_id = $1::int AND seq = $2::bigint AND position = $3::int",
        )


def erase(trips: Trips, statements: ErasingStatements, erasures: Sequence[TaskErased]) -> None:
    for task_id, at_ms in erasures:
        _erase(trips, statements, task_id, text_of(at_ms))


def _erase(trips: Trips, statements: ErasingStatements, task_id: int, marker: str) -> None:
    steps = trips.ask(statements.steps, task_id)
    trips.later(statements.release_key, task_id)
    for statement in statements.marked:
        trips.later(statement, task_id, marker)
    for reason in {(reason or b"").decode() for _, reason in steps if reason is not None}:
        if erasing.code(reason) != reason:
            trips.later(statements.reason, task_id, reason, erasing.code(reason))
    # Frames parked for other tasks that also hold a step of this task. There are few, if any.
    step_ids = {int(step or 0) for step, _ in steps}
    for parked_id, body in trips.ask(statements.frames, _encode(FRAME_CODES)):
        if names_a_step(bytes.fromhex((body or b"").decode()), step_ids):
            trips.later(statements.frame, int(parked_id or 0), marker)
    for lane, seq, position, facts in trips.ask(statements.history, task_id):
        scrubbed = scrubbing.scrubbed(facts or b"")
        if scrubbed != facts:
            trips.later(statements.fact, int(lane or 0), int(seq or 0), int(position or 0), scrubbed)
