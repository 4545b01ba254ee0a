"""Retention's statements in PostgreSQL's SQL. Each piece is a transaction that holds the lane's row, so that only the
owner of a lane removes its rows.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from stepwire_broker.core.model.states import STEP_FINAL, TaskState
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.retention import (
    BYTES_MAX,
    TASKS_MAX,
    EndedStep,
    EndedTask,
    OldAudit,
    ParkedInput,
    Removed,
)

from .failures import NotYet, StatementFailed
from .pipeline import Statement, StatementCall, StatementReply
from .reading import PARTLY_REMOVED
from .writer import PostgresWriter

_encode: Final = msgspec.json.Encoder().encode
_IDS: Final = "(SELECT value::bigint FROM json_array_elements_text($1::json))"


class PostgresPruning:
    """The port `PruneStatements` of store/retention.py, for one lane and on the connection of its writer. Refused input
    has no lane: the lowest lane removes it."""

    def __init__(self, writer: PostgresWriter, schema: str, lane: int) -> None:
        self._writer = writer
        self._lane = lane
        self._partly_removed = f"{PARTLY_REMOVED} {lane}"
        self._is_first = lane == LANE
        self._statements = statements_of(schema)

    def remove_whole(self, before_ms: Mapping[TaskState, int], without: Collection[int], steps: int) -> Removed:
        """A slice is 10 trips or more: within the time of a piece, a network would leave room for few."""
        statement, final = self._statements["remove_whole"], _encode(sorted(STEP_FINAL))
        calls = [
            StatementCall(
                statement,
                (self._lane, str(state), before, _json(without), min(steps, TASKS_MAX), steps, final, BYTES_MAX),
            )
            for state, before in before_ms.items()
        ]
        counts = [tuple(int(value or 0) for value in reply.rows[0]) for reply in self._run(calls)]
        return Removed(*map(sum, zip(*counts, strict=True)))

    def _run(self, calls: Sequence[StatementCall]) -> list[StatementReply]:
        """Run statements in a transaction without a sequence, in one trip. Raises NotYet, and commits nothing, if the
        lane belongs to another epoch."""
        writer = self._writer
        try:
            writer.begin()
            writer.trips.calls += [writer.hold, *calls]
            writer.commit()
        except BaseException as error:
            writer.abandon()
            if isinstance(error, StatementFailed) and error.name == writer.hold.statement.name:
                raise NotYet("the lane belongs to another broker") from error
            raise
        return writer.replies[-1 - len(calls) : -1]

    # -- the transaction ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._writer.begin()
        self._writer.lock()

    def commit(self) -> None:
        self._writer.commit()

    def abandon(self) -> None:
        self._writer.abandon()

    def rest(self, rows: int) -> None:
        """The server removes dead rows by itself."""

    # -- tasks --------------------------------------------------------------------------------------------------------

    def oldest_ended_ms(self, state: str) -> int | None:
        ((at_ms,),) = self._rows("oldest_ended", self._lane, state)
        return None if at_ms is None else int(at_ms)

    def ended_tasks(self, state: str, before_ms: int, without: Collection[int], limit: int) -> list[EndedTask]:
        rows = self._rows("ended_tasks", _json(without), self._lane, state, before_ms, limit)
        return [EndedTask(*map(int, row)) for row in rows]

    def steps_of(self, task_ids: Collection[int], limit: int) -> list[EndedStep]:
        rows = self._rows("steps_of", _json(task_ids), limit)
        return [EndedStep(int(a), int(b), int(c), d.decode()) for a, b, c, d in rows]

    def task_not_over(self, task_ids: Collection[int]) -> int | None:
        rows = self._rows("not_over", _json(task_ids), _encode(sorted(STEP_FINAL)))
        return int(rows[0][0]) if rows else None

    def remove_steps(self, step_ids: Collection[int]) -> int:
        self._remove("remove_stderr", _json(step_ids))
        self._remove("remove_attention", _json(step_ids))
        return self._remove("remove_steps", _json(step_ids))

    def remove_history(self, task_ids: Collection[int], limit: int) -> int:
        return self._remove("remove_history", _json(task_ids), limit)

    def remove_keys(self, task_ids: Collection[int]) -> int:
        return self._remove("remove_keys", _json(task_ids))

    def remove_tasks(self, task_ids: Collection[int]) -> int:
        self._remove("remove_attention", _json(task_ids))
        return self._remove("remove_tasks", _json(task_ids))

    # -- refused input ------------------------------------------------------------------------------------------------

    def newest_parked(self) -> int | None:
        if not self._is_first:
            return None
        ((last,),) = self._rows("newest_parked")
        return None if last is None else int(last)

    def parked_until(self, last_id: int, before_ms: int, limit: int) -> list[ParkedInput]:
        return [ParkedInput(*map(int, row)) for row in self._rows("parked_until", last_id, before_ms, limit)]

    def newest_parked_sizes(self, limit: int) -> list[ParkedInput]:
        return [ParkedInput(*map(int, row)) for row in self._rows("parked_sizes", limit)]

    def remove_parked(self, ids: Collection[int]) -> int:
        return self._remove("remove_parked", _json(ids))

    # -- the audit ----------------------------------------------------------------------------------------------------

    def first_audit(self, limit: int) -> list[OldAudit]:
        rows = self._rows("first_audit", self._lane, limit)
        return [OldAudit(int(a), int(b), int(c), d.decode()) for a, b, c, d in rows]

    def cut_audit(self, last: OldAudit) -> int:
        self._remove("cut_audit", last.lane, last.n, last.hash)
        return self._remove("remove_audit", last.lane, last.n)

    # -- notes --------------------------------------------------------------------------------------------------------

    def partly_removed(self) -> set[int]:
        rows = self._rows("noted", self._partly_removed)
        return set(msgspec.json.decode(rows[0][0], type=list[int])) if rows else set()

    def note_partly_removed(self, task_ids: Collection[int]) -> None:
        if task_ids:
            self.note(self._partly_removed, _json(task_ids).decode())
        else:
            self._remove("unnote", self._partly_removed)

    def forbid_changes(self, task_ids: Collection[int]) -> None:
        self._writer.rows.partly_removed = frozenset(task_ids)

    def note(self, name: str, value: str) -> None:
        self._remove("note", name, value)

    def _rows(self, name: str, *values: bytes | str | int) -> list[tuple[Any, ...]]:
        return list(self._writer.trips.ask(self._statements[name], *values))

    def _remove(self, name: str, *values: bytes | str | int) -> int:
        return self._writer.trips.change(self._statements[name], *values)


def statements_of(schema: str) -> dict[str, Statement]:
    """The statements of one schema, by name."""
    return {name: Statement(f"prune_{name}", text.format(s=schema, ids=_IDS)) for name, text in _TEXTS.items()}


def _json(values: Collection[int]) -> bytes:
    return _encode(sorted(values))


# Tasks are chosen until their steps or their payloads are too many. Every statement sees the rows as they were, so the
# rows of a task are found by the task's row that another part removes.
_REMOVE_WHOLE: Final = """\
WITH ended AS MATERIALIZED (SELECT id, context_bytes, finished_ms FROM {s}.tasks WHERE lane = $1::int
  AND state = $2::text AND finished_ms IS NOT NULL AND finished_ms < $3::bigint
  AND id NOT IN (SELECT value::bigint FROM json_array_elements_text($4::json)) ORDER BY finished_ms LIMIT $5::int),
 sized AS MATERIALIZED (SELECT id, context_bytes, finished_ms, sum(1 + coalesce(
   (SELECT max(position) FROM {s}.steps WHERE task_id = ended.id), 0)) OVER (ORDER BY finished_ms, id) AS steps
  FROM ended),
 looked AS MATERIALIZED (SELECT id, is_over, sum(context_bytes + bytes) OVER (ORDER BY finished_ms, id) AS bytes
  FROM sized CROSS JOIN LATERAL (SELECT coalesce(sum(output_bytes), 0) AS bytes, coalesce(bool_and(state IN
    (SELECT value FROM json_array_elements_text($7::json))), true) AS is_over
   FROM {s}.steps WHERE task_id = sized.id) AS of_steps WHERE steps <= $6::int),
 gone AS (DELETE FROM {s}.tasks USING looked WHERE tasks.id = looked.id AND is_over AND bytes <= $8::bigint
  RETURNING tasks.id, namespace, key),
 gone_steps AS (DELETE FROM {s}.steps USING gone WHERE task_id = gone.id RETURNING steps.id),
 gone_stderr AS (DELETE FROM {s}.step_stderr USING gone_steps WHERE step_stderr.id = gone_steps.id),
 gone_attention AS (DELETE FROM {s}.attention
  USING (SELECT id FROM gone_steps UNION ALL SELECT id FROM gone) AS noticed WHERE attention.id = noticed.id),
 gone_history AS (DELETE FROM {s}.history USING gone WHERE task_id = gone.id RETURNING 1),
 gone_keys AS (DELETE FROM {s}.keys USING gone
  WHERE (keys.namespace, keys.key, task_id) = (gone.namespace, gone.key, gone.id) RETURNING 1)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM gone_steps), (SELECT count(*) FROM gone_history),
 (SELECT count(*) FROM gone_keys)"""

_TEXTS: Final = {
    "remove_whole": _REMOVE_WHOLE,
    "oldest_ended": (
        "SELECT min(finished_ms) FROM {s}.tasks WHERE lane = $1::int AND state = $2::text AND finished_ms IS NOT NULL"
    ),
    "ended_tasks": (
        "SELECT id, context_bytes, coalesce(1 + (SELECT max(position) FROM {s}.steps WHERE task_id = tasks.id), 0) "
        "FROM {s}.tasks WHERE lane = $2::int AND state = $3::text AND finished_ms IS NOT NULL "
        "AND finished_ms < $4::bigint AND id NOT IN {ids} ORDER BY finished_ms LIMIT $5::int"
    ),
    "steps_of": (
        "SELECT id, output_bytes + coalesce((SELECT length(text) FROM {s}.step_stderr WHERE id = steps.id), 0), "
        "task_id, state FROM {s}.steps WHERE task_id IN {ids} LIMIT $2::int"
    ),
    "not_over": (
        "SELECT task_id FROM {s}.steps WHERE task_id IN {ids} "
        "AND state NOT IN (SELECT value FROM json_array_elements_text($2::json)) LIMIT 1"
    ),
    "remove_stderr": "DELETE FROM {s}.step_stderr WHERE id IN {ids}",
    "remove_attention": "DELETE FROM {s}.attention WHERE id IN {ids}",
    "remove_steps": "DELETE FROM {s}.steps WHERE id IN {ids}",
    "remove_history": (
        "DELETE FROM {s}.history WHERE (lane_id, seq, position) IN (SELECT lane_id, seq, position FROM {s}.history "
        "WHERE task_id IN {ids} LIMIT $2::int)"
    ),
    "remove_keys": (
        "DELETE FROM {s}.keys WHERE (namespace, key) IN "
        "(SELECT namespace, key FROM {s}.tasks WHERE id IN {ids} AND key IS NOT NULL) AND task_id IN {ids}"
    ),
    "remove_tasks": "DELETE FROM {s}.tasks WHERE id IN {ids}",
    "newest_parked": "SELECT max(id) FROM {s}.parked",
    "parked_until": (
        "SELECT id, length(body) FROM {s}.parked WHERE id <= $1::bigint OR at_ms < $2::bigint ORDER BY id LIMIT $3::int"
    ),
    "parked_sizes": "SELECT id, length(body) FROM {s}.parked ORDER BY id DESC LIMIT $1::int",
    "remove_parked": "DELETE FROM {s}.parked WHERE id IN {ids}",
    "first_audit": "SELECT lane, n, at_ms, hash FROM {s}.audit WHERE lane = $1::int ORDER BY n LIMIT $2::int",
    "cut_audit": ("UPDATE {s}.audit_chains SET cut_n = $2::bigint, cut_hash = $3::text WHERE lane = $1::int"),
    "remove_audit": "DELETE FROM {s}.audit WHERE lane = $1::int AND n <= $2::bigint",
    "noted": "SELECT value FROM {s}.meta WHERE name = $1::text",
    "unnote": "DELETE FROM {s}.meta WHERE name = $1::text",
    "note": (
        "INSERT INTO {s}.meta (name, value) VALUES ($1::text, $2::text) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    ),
}
