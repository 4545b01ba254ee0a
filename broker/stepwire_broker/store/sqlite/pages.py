"""The queries of people and of the API in SQLite's SQL: pages of tasks, steps, workflows and history."""

import heapq
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from stepwire_protocol import limits, patterns

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
from stepwire_broker.core.model.commit_group import StepStderr
from stepwire_broker.store.audit_chain import AuditChain, AuditRow
from stepwire_broker.store.queries import PAGE_ROWS_MAX
from stepwire_broker.store.rows import (
    ATTENTION_STATES,
    TASK_STATES,
    AuditFilter,
    EventRow,
    HistoryCursor,
    HistoryItem,
    LaneRow,
    ListPoint,
    ParkedRow,
    StepFilter,
    StepRow,
    TaskFilter,
    TaskRecord,
    TaskRow,
    WorkflowRow,
)

from .reading import NOT_PRUNED, WORKFLOW, Reading, json_list


class PageQueries(Reading):
    # -- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: int, outputs_bytes_max: int = limits.INTEGER_MAX) -> TaskRecord | None:
        with self.snapshot():
            tasks = self._task_rows("tasks.id = :id", {"id": task_id, "limit": 1})
            if not tasks:
                return None
            context, outputs_bytes = self.execute(
                "SELECT context, (SELECT sum(output_bytes) FROM steps WHERE task_id = tasks.id) FROM tasks "
                "WHERE id = ?",
                (task_id,),
            ).fetchone()
            values = {"task_id": task_id, "limit": -1, "outputs_max": outputs_bytes_max}
            outputs = "steps.output" if (outputs_bytes or 0) <= outputs_bytes_max else _FIRST_OUTPUTS
            steps = self._step_rows(_STEPS, "steps.task_id = :task_id", values, "steps.position", outputs)
            return TaskRecord(tasks[0], context, steps)

    def erased_tasks(self) -> list[tuple[str, int]]:
        rows = self.execute("SELECT uid, labels FROM tasks WHERE labels LIKE '{\"erased\":%'").fetchall()
        return [(uid, at_ms) for uid, labels in rows if (at_ms := erasing.erased_ms(labels)) is not None]

    def task_state(self, task_id: int) -> str | None:
        row = self.execute("SELECT state FROM tasks WHERE id = ?", (task_id,)).fetchone()
        return None if row is None else str(row[0])

    def namespace_of(self, number: int) -> str | None:
        row = self.execute(
            "SELECT namespace FROM tasks WHERE id = :number"
            " OR id = (SELECT task_id FROM steps WHERE steps.id = :number) LIMIT 1",
            {"number": number},
        ).fetchone()
        return None if row is None else str(row[0])

    def tasks(self, wanted: TaskFilter) -> list[TaskRow]:
        conditions, values = _conditions({"tasks.namespace = :namespace": wanted.namespace})
        _limit(conditions, values, wanted, "tasks.created_ms, tasks.id")
        if wanted.since_ms is not None:
            conditions.append("tasks.created_ms >= :since_ms")
            values["since_ms"] = wanted.since_ms
        if wanted.namespaces is not None:
            conditions.append("tasks.namespace IN (SELECT value FROM json_each(:namespaces))")
            values["namespaces"] = msgspec.json.encode(wanted.namespaces).decode()
        if wanted.state is not None:
            conditions.append("tasks.state = :state")
            values["state"] = wanted.state
        is_of_all = wanted.workflow is None and wanted.namespace is None and wanted.namespaces is None
        if wanted.key is None and wanted.label is None and (wanted.state is not None or not is_of_all):
            return self._tasks_of_workflows(wanted, conditions, values)
        if wanted.workflow is not None:
            conditions.append("workflows.name = :workflow")
            values["workflow"] = wanted.workflow
        if wanted.label is not None:
            conditions.append(
                "EXISTS (SELECT 1 FROM json_each(tasks.labels) WHERE key = :label_name AND value = :label_value)"
            )
            values["label_name"], values["label_value"] = wanted.label
        if wanted.key is not None:
            found = self._task_rows(" AND ".join([*conditions, _OF_KEY]), values | {"key": wanted.key, "limit": -1})
            return heapq.nlargest(wanted.limit, found, key=lambda row: row.point)
        values["limit"] = wanted.limit
        return self._task_rows(" AND ".join(conditions), values, "ORDER BY tasks.created_ms DESC, tasks.id DESC")

    def _tasks_of_workflows(self, wanted: TaskFilter, conditions: list[str], values: dict[str, Any]) -> list[TaskRow]:
        """Read each version and each state from its index, which is ordered: a joint query would sort all rows."""
        where = " AND ".join(["tasks.workflow_id = :workflow_id", "tasks.state = :state", *conditions, NOT_PRUNED])
        select = (
            f"SELECT created_ms, id FROM tasks WHERE {where} "  # noqa: S608
            "ORDER BY tasks.created_ms DESC, tasks.id DESC LIMIT :limit"
        )
        with self.snapshot():
            points = (
                point
                for workflow_id in self._workflow_ids(wanted.namespace, wanted.workflow, wanted.namespaces)
                for state in (TASK_STATES if wanted.state is None else (wanted.state,))
                for point in self.execute(
                    select, values | {"workflow_id": workflow_id, "state": state, "limit": wanted.limit}
                )
            )
            ids = [task_id for _, task_id in heapq.nlargest(wanted.limit, points)]
            chosen = "tasks.id IN (SELECT value FROM json_each(:ids))"
            rows = self._task_rows(chosen, {"ids": json_list(ids), "limit": -1})
        return sorted(rows, key=lambda row: row.point, reverse=True)

    def list_end(self, wanted: TaskFilter | StepFilter, rows: int) -> ListPoint | None:
        table, time, conditions, values = "tasks", "created_ms", ["TRUE"], dict[str, Any]()
        if isinstance(wanted, StepFilter) and wanted.state in ATTENTION_STATES:
            table, time, conditions, values = "attention", "at_ms", ["kind = :kind"], {"kind": wanted.state}
        _limit(conditions, values, wanted, f"{time}, id")
        select = (
            f"SELECT {time}, id FROM {table} WHERE {' AND '.join(conditions)} "  # noqa: S608
            f"ORDER BY {time} DESC, id DESC LIMIT 1 OFFSET :offset"
        )
        row = self.execute(select, values | {"offset": rows - 1}).fetchone()
        if row is not None:
            return ListPoint(*row)
        return None if self.execute(select, values | {"offset": 0}).fetchone() is None else ListPoint(0, 0)

    def _task_rows(self, condition: str, values: Mapping[str, Any], order: str = "") -> list[TaskRow]:
        return self.rows(
            TaskRow,
            f"""
            SELECT tasks.id, tasks.uid, workflow_id, tasks.namespace, workflows.name, workflows.version, tasks.key,
             tasks.state, attention, cancelling, priority, labels, context_bytes, tasks.created_ms, tasks.finished_ms,
             tasks.deadline_ms
            FROM tasks CROSS JOIN workflows ON workflows.id = tasks.workflow_id
            WHERE {condition or "TRUE"} AND {NOT_PRUNED} {order} LIMIT :limit
            """,  # noqa: S608
            values,
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step_id: int) -> StepRow | None:
        steps = self._step_rows(_STEPS, "steps.id = :id", {"id": step_id, "limit": 1}, "steps.id", "steps.output")
        return steps[0] if steps else None

    def steps(self, wanted: StepFilter) -> list[StepRow]:
        values: dict[str, Any] = {"limit": wanted.limit}
        conditions: list[str] = []
        has_attention = wanted.state in ATTENTION_STATES
        if has_attention:
            source = "attention CROSS JOIN steps USING (id) CROSS JOIN tasks ON tasks.id = steps.task_id"
            handler, time, order = "attention.handler_class", "at_ms", "attention.at_ms DESC, attention.id DESC"
            conditions.append("attention.kind = :state")
            _limit(conditions, values, wanted, "attention.at_ms, attention.id")
        else:
            source = "tasks CROSS JOIN steps ON steps.task_id = tasks.id"
            handler, time = "steps.handler_class", "tasks.created_ms"
            order = "tasks.created_ms DESC, tasks.id DESC, steps.position DESC"
            _limit(conditions, values, wanted, "tasks.created_ms, tasks.id")
            if wanted.before is not None:  # a step's id is higher than its task's, and lower than any later task's
                conditions.append("(tasks.created_ms, steps.id) < (:before_ms, :before_id)")
            if wanted.state is not None:
                conditions.append("steps.state = :state")
        if wanted.state is not None:
            values["state"] = wanted.state
        if wanted.handler_class is not None:
            is_pattern = patterns.is_pattern(wanted.handler_class)
            conditions.append(f"matches(:handler, {handler})" if is_pattern else f"{handler} = :handler")
            values["handler"] = wanted.handler_class
        if wanted.namespaces is not None:
            conditions.append("tasks.namespace IN (SELECT value FROM json_each(:namespaces))")
            values["namespaces"] = msgspec.json.encode(wanted.namespaces).decode()
        return self._step_rows(source, " AND ".join(conditions), values, order, "NULL", time)

    def step_stderr(self, step_id: int) -> StepStderr | None:
        row = self.execute("SELECT id, delivery, text FROM step_stderr WHERE id = ?", (step_id,)).fetchone()
        return None if row is None else StepStderr(*row)

    def held_count(self) -> int:
        (count,) = self.execute("SELECT count(*) FROM attention WHERE kind = 'held'").fetchone()
        return int(count)

    def _step_rows(
        self,
        source: str,
        condition: str,
        values: Mapping[str, Any],
        order: str,
        output: str,
        time: str = "tasks.created_ms",
    ) -> list[StepRow]:
        return self.rows(
            StepRow,
            f"""
            SELECT steps.id, steps.task_id, position, name, steps.handler_class, steps.state, attempt, delivery, worker,
             granted, lost_sessions, ready_ms, dispatched_ms, started_ms, not_before_ms, steps.finished_ms,
             steps.deadline_ms, run_ms, error, reason, key_number, {output}, output_bytes, workflow_id, {time}
            FROM {source} WHERE {condition or "TRUE"} ORDER BY {order} LIMIT :limit
            """,  # noqa: S608
            values,
        )

    # -- workflows ----------------------------------------------------------------------------------------------------

    def workflows(self) -> list[StoredWorkflow]:
        return self.rows(StoredWorkflow, f"SELECT {WORKFLOW} FROM workflows ORDER BY id LIMIT -1", {})  # noqa: S608

    def workflow(self, namespace: str, name: str, version: str | None) -> StoredWorkflow | None:
        workflows = self.rows(
            StoredWorkflow,
            f"""
            SELECT {WORKFLOW} FROM workflows
            WHERE namespace = :namespace AND name = :name
             AND CASE WHEN :version IS NULL THEN active ELSE version = :version END
            """,  # noqa: S608
            {"namespace": namespace, "name": name, "version": version},
        )
        return workflows[0] if workflows else None

    def workflow_rows(self, namespace: str | None) -> list[WorkflowRow]:
        return self.rows(
            WorkflowRow,
            """
            SELECT id, namespace, name, version, created_ms, active FROM workflows
            WHERE :namespace IS NULL OR namespace = :namespace ORDER BY namespace, name, id LIMIT -1
            """,
            {"namespace": namespace},
        )

    def _workflow_ids(self, namespace: str | None, name: str | None, namespaces: tuple[str, ...] | None) -> list[int]:
        return [
            row[0]
            for row in self.execute(
                "SELECT id, namespace FROM workflows WHERE (:name IS NULL OR name = :name)"
                " AND (:namespace IS NULL OR namespace = :namespace)",
                {"name": name, "namespace": namespace},
            )
            if namespaces is None or row[1] in namespaces
        ]

    # -- history ------------------------------------------------------------------------------------------------------

    def lanes(self) -> list[LaneRow]:
        return self.rows(LaneRow, "SELECT id, owner, owner_epoch, epoch, seq FROM lanes ORDER BY id LIMIT -1", {})

    def task_events(
        self, task_id: int, after: tuple[int, int, int] | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[HistoryItem]:
        lane_id, seq, position = after or (0, 0, 0)
        return self.rows(
            HistoryItem,
            """
            SELECT lane_id, seq, position, task_id, at_ms, facts FROM history
            WHERE task_id = :task_id AND (lane_id, seq, position) > (:lane_id, :seq, :position)
            ORDER BY lane_id, seq, position LIMIT :limit
            """,
            {"task_id": task_id, "lane_id": lane_id, "seq": seq, "position": position, "limit": limit},
        )

    def events_from(self, lane_id: int, first: HistoryCursor, limit: int, task_id: int | None = None) -> list[EventRow]:
        return self.rows(
            EventRow,
            f"""
            SELECT lane_id, seq, position, task_id, facts,
             (SELECT workflow_id FROM tasks WHERE tasks.id = history.task_id),
             (SELECT id FROM steps WHERE steps.task_id = history.task_id AND position = 0)
            FROM history WHERE {"" if task_id is None else "task_id = :task_id AND"}
             lane_id = :lane_id AND (seq, position) >= (:seq, :position) ORDER BY seq, position LIMIT :limit
            """,  # noqa: S608
            {"lane_id": lane_id, "seq": first.seq, "position": first.position, "limit": limit, "task_id": task_id},
        )

    # -- the audit ----------------------------------------------------------------------------------------------------

    def audit_chains(self) -> list[AuditChain]:
        return self.rows(
            AuditChain, "SELECT lane, n, hash, cut_n, cut_hash FROM audit_chains ORDER BY lane LIMIT -1", {}
        )

    def audit_rows(self, wanted: AuditFilter) -> list[AuditRow]:
        conditions, values = _conditions(
            {
                "principal = :principal": wanted.principal,
                "action = :action": wanted.action,
                "target = :target": wanted.target,
                "outcome = :outcome": wanted.outcome,
                "at_ms >= :since_ms": wanted.since_ms,
                "at_ms < :until_ms": wanted.until_ms,
            }
        )
        where = " AND ".join(["lane = :lane", "n >= :first", "n < :before", *conditions])
        values |= {"lane": wanted.lane, "first": wanted.first, "before": wanted.before, "limit": wanted.limit}
        columns = ", ".join(AuditRow._fields)
        return self.rows(
            AuditRow,
            f"SELECT {columns} FROM audit WHERE {where} ORDER BY n DESC LIMIT :limit",  # noqa: S608
            values,
        )

    # -- refused input ------------------------------------------------------------------------------------------------

    def parked(self, before: int | None = None, limit: int = 50) -> list[ParkedRow]:
        rows = self.execute(
            "SELECT id, at_ms, task_id, step_id, code, source, body FROM parked "
            "WHERE :before IS NULL OR id < :before ORDER BY id DESC LIMIT :limit",
            {"before": before, "limit": limit},
        )
        return [ParkedRow(*row) for row in rows.fetchall()]


# The keys are found by namespace and key. A task belongs to a namespace of a workflow, and there are few of these.
_OF_KEY: Final = """
tasks.id IN (SELECT task_id FROM keys WHERE namespace IN (SELECT DISTINCT namespace FROM workflows) AND key = :key)
""".strip()


_STEPS: Final = "steps CROSS JOIN tasks ON tasks.id = steps.task_id"

# Only sizes decide which outputs are included: an output that is left out is not read.
_FIRST_OUTPUTS: Final = """
 CASE WHEN steps.id IN (SELECT id FROM (
   SELECT id, sum(output_bytes) OVER (ORDER BY position) AS bytes_so_far FROM steps WHERE task_id = :task_id
 ) WHERE bytes_so_far <= :outputs_max) THEN output END""".strip()


def _limit(conditions: list[str], values: dict[str, Any], wanted: TaskFilter | StepFilter, columns: str) -> None:
    """Add the conditions that limit the part of the list which is read."""
    if wanted.before is not None:
        conditions.append(f"({columns}) < (:before_ms, :before_id)")
        values["before_ms"], values["before_id"] = wanted.before
    if wanted.first is not None:
        conditions.append(f"({columns}) >= (:first_ms, :first_id)")
        values["first_ms"], values["first_id"] = wanted.first


def _conditions(optional: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions that have a value, and the values by the names that the conditions use."""
    given = {condition: value for condition, value in optional.items() if value is not None}
    return list(given), {condition.rpartition(":")[2]: value for condition, value in given.items()}
