"""The core's queries in PostgreSQL's SQL: tasks to load into memory, and their payloads."""

from collections.abc import Mapping, Sequence
from typing import Final

from stepwire_broker.core.definitions.stored_rows import LeftBehind, Loaded, Payloads, StoredStep, StoredTask
from stepwire_broker.store.left_behind import RankedTask, left_page
from stepwire_broker.store.rows import OpenCounts, TaskOfStep, TaskWithHistory, counts_by_lane

from .reading import NOT_PRUNED, PostgresReading


class PostgresLoading(PostgresReading):
    def load_page(
        self,
        limit: int,
        lanes: Mapping[int, LeftBehind | None],
        wants: Sequence[str],
        now_ms: int,
        resident_bytes_max: int,
    ) -> Loaded:
        task_ids, left = left_page(lanes, limit, self._left_behind)
        if len(task_ids) < limit:
            task_ids += self._stored(limit - len(task_ids), list(lanes), wants, now_ms)
        tasks = self._tasks("TRUE", "rank_ms, id", task_ids, resident_bytes_max)
        steps = self._steps_in_order(tasks, resident_bytes_max)
        return Loaded(tasks, steps, tuple(self.distinct_wants(list(lanes))), tuple(left.items()))

    def load_tasks(self, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded:
        tasks = self._tasks(NOT_PRUNED, "id", task_ids, resident_bytes_max)
        return Loaded(tasks, self._steps_in_order(tasks, resident_bytes_max))

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, TaskOfStep]:
        rows = self.plain(
            "SELECT steps.id, tasks.id, tasks.state FROM steps JOIN tasks ON tasks.id = steps.task_id "
            "WHERE steps.id = ANY (%(ids)s::bigint[])",
            {"ids": list(step_ids)},
        )
        return {step_id: TaskOfStep(task_id, state) for step_id, task_id, state in rows}

    def load_payloads(self, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads:
        contexts = self.plain(
            "SELECT id, context FROM tasks WHERE id = ANY (%(ids)s::bigint[])", {"ids": list(task_ids)}
        )
        outputs = self.plain(
            "SELECT id, output FROM steps WHERE output IS NOT NULL AND id = ANY (%(ids)s::bigint[])",
            {"ids": list(step_ids)},
        )
        return Payloads(
            {task_id: context.encode() for task_id, context in contexts},
            {step_id: output.encode() for step_id, output in outputs},
        )

    def distinct_wants(self, lanes: Sequence[int]) -> list[str]:
        """Return everything that stored tasks of these lanes wait for, once each: one index lookup for each."""
        rows = self.plain(
            f"""
            WITH RECURSIVE distinct_wants (lane, wants) AS (
              SELECT own.lane, (SELECT wants FROM tasks WHERE {_WANTING} AND lane = own.lane ORDER BY wants LIMIT 1)
              FROM unnest(%(lanes)s::int[]) AS own (lane)
              UNION ALL
              SELECT lane, (
                SELECT tasks.wants FROM tasks
                WHERE {_WANTING} AND tasks.lane = distinct_wants.lane AND tasks.wants > distinct_wants.wants
                ORDER BY tasks.wants LIMIT 1
              ) FROM distinct_wants WHERE distinct_wants.wants IS NOT NULL
            )
            SELECT DISTINCT wants FROM distinct_wants WHERE wants IS NOT NULL ORDER BY wants
            """,  # noqa: S608
            {"lanes": list(lanes)},
        )
        return [wants for (wants,) in rows]

    def open_task_ids(self, after: int, limit: int) -> list[int]:
        rows = self.plain(
            "SELECT id FROM tasks WHERE finished_ms IS NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s",
            {"after": after, "limit": limit},
        )
        return [task_id for (task_id,) in rows]

    def open_counts(self) -> dict[int, OpenCounts]:
        rows = self.plain(
            f"""
            SELECT lane, namespace, count(*),
             sum((SELECT count(*) FROM steps WHERE task_id = tasks.id AND finished_ms IS NULL))::bigint
            FROM tasks WHERE id IN ({OPEN_TASK_IDS}) GROUP BY lane, namespace
            """  # noqa: S608
        )
        return counts_by_lane(rows)

    def tasks_with_history(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[TaskWithHistory]:
        tasks = self._tasks(NOT_PRUNED, "id", task_ids, resident_bytes_max)
        steps: dict[int, list[StoredStep]] = {task.id: [] for task in tasks}
        for row in self._steps_in_order(tasks, resident_bytes_max):
            steps[row.task_id].append(row)
        history: dict[int, list[bytes]] = {task.id: [] for task in tasks}
        facts_rows = self.plain(
            "SELECT task_id, facts FROM history WHERE task_id = ANY (%(ids)s::bigint[]) "
            "ORDER BY task_id, lane_id, seq, position",
            {"ids": list(history)},
        )
        for task_id, facts in facts_rows:
            history[task_id].append(facts.encode())
        return [TaskWithHistory(task, steps[task.id], history[task.id]) for task in tasks]

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _left_behind(self, after: LeftBehind, limit: int) -> list[RankedTask]:
        return self.rows(
            RankedTask,
            """
            SELECT rank_ms, id FROM tasks
            WHERE finished_ms IS NULL AND NOT stored AND lane = %(lane)s
             AND (rank_ms, id) > (%(rank_ms)s::bigint, %(id)s::bigint) AND id < %(before_id)s
            ORDER BY rank_ms, id LIMIT %(limit)s
            """,
            {**after._asdict(), "limit": limit},
        )

    def _stored(self, limit: int, lanes: Sequence[int], wants: Sequence[str], now_ms: int) -> list[int]:
        """Return the tasks that are due, or wait for one of these, by rank."""
        rows = self.plain(
            f"""
            SELECT rank_ms, id FROM (
              SELECT rank_ms, id FROM tasks WHERE {_OPEN} AND lane = ANY (%(lanes)s::int[]) AND wake_ms <= %(now_ms)s
              UNION
              SELECT wanting.rank_ms, wanting.id
              FROM unnest(%(lanes)s::int[]) AS own (lane) CROSS JOIN unnest(%(wants)s::text[]) AS offered (wants)
              CROSS JOIN LATERAL (
                SELECT rank_ms, id FROM tasks
                WHERE {_WANTING} AND tasks.lane = own.lane AND tasks.wants = offered.wants
                ORDER BY rank_ms, id LIMIT %(limit)s
              ) AS wanting
            ) AS page ORDER BY rank_ms, id LIMIT %(limit)s
            """,  # noqa: S608
            {"lanes": list(lanes), "now_ms": now_ms, "wants": list(wants), "limit": limit},
        )
        return [task_id for _, task_id in rows]

    def _tasks(self, condition: str, order: str, task_ids: Sequence[int], resident_bytes_max: int) -> list[StoredTask]:
        if not task_ids:
            return []  # as most looks for work end
        return self.rows(
            StoredTask,
            f"SELECT {_TASK} FROM tasks WHERE id = ANY (%(ids)s::bigint[]) AND {condition} ORDER BY {order}",  # noqa: S608
            {"ids": list(task_ids), "resident": resident_bytes_max},
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def _steps_in_order(self, tasks: list[StoredTask], resident_bytes_max: int) -> list[StoredStep]:
        """Return the steps in the order of the tasks, and by position."""
        if not tasks:
            return []
        steps = self.rows(
            StoredStep,
            f"SELECT {_STEP} FROM steps WHERE task_id = ANY (%(ids)s::bigint[]) ORDER BY task_id, position",  # noqa: S608
            {"ids": [task.id for task in tasks], "resident": resident_bytes_max},
        )
        rank = {task.id: i for i, task in enumerate(tasks)}
        steps.sort(key=lambda step: rank[step.task_id])
        return steps


_OPEN: Final = "tasks.finished_ms IS NULL AND tasks.stored"
_WANTING: Final = f"{_OPEN} AND tasks.wants IS NOT NULL"

# The open tasks, from the three indexes that hold them: however many have ended, their rows are not read.
OPEN_TASK_IDS: Final = """
 SELECT id FROM tasks WHERE finished_ms IS NULL AND NOT stored
 UNION ALL SELECT id FROM tasks WHERE finished_ms IS NULL AND stored AND wants IS NOT NULL
 UNION ALL SELECT id FROM tasks WHERE finished_ms IS NULL AND stored AND wake_ms IS NOT NULL AND wants IS NULL
"""

_TASK: Final = """id, uid, workflow_id, lane, namespace, key, state, attention, cancelling::int, priority, labels,
 CASE WHEN context_bytes <= %(resident)s::bigint THEN context END, context_bytes, created_ms, finished_ms, deadline_ms,
 stored::int"""
_STEP: Final = """id, task_id, position, state, attempt, delivery, accept_from, batch_id, worker, granted::int,
 lost_sessions, ready_ms, dispatched_ms, started_ms, not_before_ms, finished_ms, deadline_ms, run_ms, error, reason,
 key_number, earlier, handle,
 CASE WHEN output_bytes <= %(resident)s::bigint THEN output END, output_bytes"""
