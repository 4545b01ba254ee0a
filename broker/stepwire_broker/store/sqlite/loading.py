"""The core's queries in SQLite's SQL: tasks to load into memory, and their payloads."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from stepwire_broker.core.definitions.stored_rows import LeftBehind, Loaded, Payloads, StoredStep, StoredTask
from stepwire_broker.store.left_behind import RankedTask, left_page
from stepwire_broker.store.rows import OpenCounts, TaskOfStep, TaskWithHistory, counts_by_lane

from .reading import NOT_PRUNED, OPEN_TASK_IDS, Reading, json_list

_OPEN: Final = "finished_ms IS NULL AND stored = 1"
_WANTING: Final = f"{_OPEN} AND wants IS NOT NULL"


class LoadingQueries(Reading):
    def load_page(
        self,
        limit: int,
        lanes: Mapping[int, LeftBehind | None],
        wants: Sequence[str],
        now_ms: int,
        resident_bytes_max: int,
    ) -> Loaded:
        with self.snapshot():
            task_ids, left = left_page(lanes, limit, self._left_behind)
            if len(task_ids) < limit:
                task_ids += self._stored(limit - len(task_ids), list(lanes), wants, now_ms)
            tasks = self._tasks_by_rank(task_ids, resident_bytes_max)
            steps = self._steps_in_order(tasks, resident_bytes_max)
            return Loaded(tasks, steps, tuple(self.distinct_wants(list(lanes))), tuple(left.items()))

    def load_tasks(self, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded:
        with self.snapshot():
            tasks = self._tasks_by_id(task_ids, resident_bytes_max)
            return Loaded(tasks, self._steps_in_order(tasks, resident_bytes_max))

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, TaskOfStep]:
        rows = self.rows(
            _StepAndTask,
            """
            SELECT steps.id, tasks.id, tasks.state FROM steps JOIN tasks ON tasks.id = steps.task_id
            WHERE steps.id IN (SELECT value FROM json_each(:ids))
            """,
            {"ids": json_list(step_ids)},
        )
        return {row.step_id: TaskOfStep(row.task_id, row.state) for row in rows}

    def load_payloads(self, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads:
        with self.snapshot():
            return Payloads(self._contexts(task_ids), self._outputs(step_ids))

    def distinct_wants(self, lanes: Sequence[int]) -> list[str]:
        """Return everything that stored tasks of these lanes wait for, once each: one index lookup for each."""
        rows = self.rows(
            _Wants,
            f"""
            WITH RECURSIVE distinct_wants(lane, wants) AS (
              SELECT own.value, (SELECT min(wants) FROM tasks WHERE {_WANTING} AND lane = own.value)
              FROM json_each(:lanes) AS own
              UNION ALL
              SELECT lane, (
                SELECT min(tasks.wants) FROM tasks
                WHERE {_WANTING} AND tasks.lane = distinct_wants.lane AND tasks.wants > distinct_wants.wants
              ) FROM distinct_wants WHERE distinct_wants.wants IS NOT NULL
            )
            SELECT DISTINCT wants FROM distinct_wants WHERE wants IS NOT NULL ORDER BY wants LIMIT -1
            """,  # noqa: S608
            {"lanes": json_list(lanes)},
        )
        return [row.wants for row in rows]

    def open_task_ids(self, after: int, limit: int) -> list[int]:
        return [
            row[0]
            for row in self.execute(
                "SELECT id FROM tasks WHERE finished_ms IS NULL AND id > ? ORDER BY id LIMIT ?", (after, limit)
            )
        ]

    def open_counts(self) -> dict[int, OpenCounts]:
        rows = self.execute(
            f"""
            SELECT lane, namespace, count(*),
             sum((SELECT count(*) FROM steps WHERE task_id = tasks.id AND finished_ms IS NULL))
            FROM tasks WHERE id IN ({OPEN_TASK_IDS}) GROUP BY lane, namespace
            """  # noqa: S608
        ).fetchall()
        return counts_by_lane(rows)

    def tasks_with_history(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[TaskWithHistory]:
        with self.snapshot():
            tasks = self._tasks_by_id(task_ids, resident_bytes_max)
            step_rows = self._steps_in_order(tasks, resident_bytes_max)
            history_rows = self.execute(
                "SELECT task_id, CAST(facts AS BLOB) FROM history WHERE task_id IN (SELECT value FROM json_each(?)) "
                "ORDER BY task_id, lane_id, seq, position",
                (json_list([task.id for task in tasks]),),
            ).fetchall()
        steps: dict[int, list[StoredStep]] = {task.id: [] for task in tasks}
        for row in step_rows:
            steps[row.task_id].append(row)
        history: dict[int, list[bytes]] = {task.id: [] for task in tasks}
        for task_id, facts in history_rows:
            history[task_id].append(facts)
        return [TaskWithHistory(task, steps[task.id], history[task.id]) for task in tasks]

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _left_behind(self, after: LeftBehind, limit: int) -> list[RankedTask]:
        return self.rows(
            RankedTask,
            """
            SELECT rank_ms, id FROM tasks
            WHERE finished_ms IS NULL AND stored = 0 AND lane = :lane AND (rank_ms, id) > (:rank_ms, :id)
             AND id < :before_id ORDER BY rank_ms, id LIMIT :limit
            """,
            {**after._asdict(), "limit": limit},
        )

    def _stored(self, limit: int, lanes: Sequence[int], wants: Sequence[str], now_ms: int) -> list[int]:
        """Return the tasks that are due, or wait for one of these, by rank."""
        rows = self.rows(
            RankedTask,
            f"""
            SELECT rank_ms, id FROM (
              SELECT tasks.rank_ms, tasks.id FROM json_each(:lanes) AS own CROSS JOIN tasks
              WHERE {_OPEN} AND lane = own.value AND wake_ms <= :now_ms
              UNION
              SELECT wanting.rank_ms, wanting.id
              FROM json_each(:lanes) AS own CROSS JOIN json_each(:wants) AS offered CROSS JOIN tasks AS wanting
              WHERE wanting.id IN (
                SELECT id FROM tasks
                WHERE {_OPEN} AND lane = own.value AND wants = offered.value ORDER BY rank_ms, id LIMIT :limit
              )
            ) ORDER BY rank_ms, id LIMIT :limit
            """,  # noqa: S608
            {"lanes": json_list(lanes), "now_ms": now_ms, "wants": json_list(wants), "limit": limit},
        )
        return [row.id for row in rows]

    def _tasks_by_rank(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[StoredTask]:
        return self.rows(
            StoredTask,
            f"""
            SELECT {_TASK} FROM tasks WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY rank_ms, id LIMIT -1
            """,  # noqa: S608
            {"ids": json_list(task_ids), "resident": resident_bytes_max},
        )

    def _tasks_by_id(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[StoredTask]:
        return self.rows(
            StoredTask,
            f"""
            SELECT {_TASK} FROM tasks
            WHERE id IN (SELECT value FROM json_each(:ids)) AND {NOT_PRUNED} ORDER BY id LIMIT -1
            """,  # noqa: S608
            {"ids": json_list(task_ids), "resident": resident_bytes_max},
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def _steps_in_order(self, tasks: list[StoredTask], resident_bytes_max: int) -> list[StoredStep]:
        """Return the steps in the order of the tasks, and by position."""
        task_ids = [task.id for task in tasks]
        steps = self._steps_of_tasks(task_ids, resident_bytes_max)
        if task_ids != sorted(task_ids):
            rank = {task_id: i for i, task_id in enumerate(task_ids)}
            steps.sort(key=lambda step: rank[step.task_id])
        return steps

    def _steps_of_tasks(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[StoredStep]:
        return self.rows(
            StoredStep,
            f"""
            SELECT {_STEP} FROM steps
            WHERE task_id IN (SELECT value FROM json_each(:ids)) ORDER BY task_id, position LIMIT -1
            """,  # noqa: S608
            {"ids": json_list(task_ids), "resident": resident_bytes_max},
        )

    # -- payloads -----------------------------------------------------------------------------------------------------

    def _contexts(self, task_ids: Sequence[int]) -> dict[int, bytes]:
        return dict(
            self.execute(
                "SELECT id, CAST(context AS BLOB) FROM tasks WHERE id IN (SELECT value FROM json_each(?))",
                (json_list(task_ids),),
            )
        )

    def _outputs(self, step_ids: Sequence[int]) -> dict[int, bytes]:
        return dict(
            self.execute(
                "SELECT id, CAST(output AS BLOB) FROM steps "
                "WHERE output IS NOT NULL AND id IN (SELECT value FROM json_each(?))",
                (json_list(step_ids),),
            )
        )


class _Wants(NamedTuple):
    wants: str


class _StepAndTask(NamedTuple):
    step_id: int
    task_id: int
    state: str


_TASK: Final = """id, uid, workflow_id, lane, namespace, key, state, attention, cancelling, priority, labels,
 CASE WHEN context_bytes <= :resident THEN context END, context_bytes, created_ms, finished_ms, deadline_ms, stored"""
_STEP: Final = """id, task_id, position, state, attempt, delivery, accept_from, batch_id, worker, granted,
 lost_sessions, ready_ms, dispatched_ms, started_ms, not_before_ms, finished_ms, deadline_ms, run_ms, error, reason,
 key_number, earlier, handle,
 CASE WHEN output_bytes <= :resident THEN output END, output_bytes"""
