"""The queries of people and of the API in PostgreSQL's SQL: pages of tasks, steps, workflows and history."""

from collections.abc import Mapping
from typing import Any, Final

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

from .handler_patterns import regular_expression
from .reading import NOT_PRUNED, WORKFLOW, PostgresReading


class PostgresPages(PostgresReading):
    # -- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: int, outputs_bytes_max: int = limits.INTEGER_MAX) -> TaskRecord | None:
        tasks = self._task_rows("tasks.id = %(id)s", {"id": task_id, "limit": 1})
        payload = self.one(
            "SELECT context, (SELECT coalesce(sum(output_bytes), 0)::bigint FROM steps WHERE task_id = tasks.id) "
            "FROM tasks WHERE id = %(id)s",
            {"id": task_id},
        )
        if not tasks or payload is None:
            return None
        context, outputs_bytes = payload
        values = {"task_id": task_id, "limit": None, "outputs_max": outputs_bytes_max}
        outputs = "steps.output" if outputs_bytes <= outputs_bytes_max else _FIRST_OUTPUTS
        steps = self._step_rows(_STEPS, "steps.task_id = %(task_id)s", values, "steps.position", outputs)
        return TaskRecord(tasks[0], context, steps)

    def erased_tasks(self) -> list[tuple[str, int]]:
        rows = self.plain("SELECT uid, labels FROM tasks WHERE labels LIKE '{\"erased\":%%'")
        return [(uid, at_ms) for uid, labels in rows if (at_ms := erasing.erased_ms(labels)) is not None]

    def task_state(self, task_id: int) -> str | None:
        row = self.one("SELECT state FROM tasks WHERE id = %(id)s", {"id": task_id})
        return None if row is None else str(row[0])

    def namespace_of(self, number: int) -> str | None:
        row = self.one(
            "SELECT namespace FROM tasks WHERE id = %(number)s"
            " OR id = (SELECT task_id FROM steps WHERE steps.id = %(number)s) LIMIT 1",
            {"number": number},
        )
        return None if row is None else str(row[0])

    def tasks(self, wanted: TaskFilter) -> list[TaskRow]:
        conditions, values = _conditions(
            {
                "tasks.namespace = %(namespace)s": wanted.namespace,
                "tasks.created_ms >= %(since_ms)s": wanted.since_ms,
            }
        )
        _limit(conditions, values, wanted, "tasks.created_ms, tasks.id")
        if wanted.namespaces is not None:
            conditions.append("tasks.namespace = ANY (%(namespaces)s::text[])")
            values["namespaces"] = list(wanted.namespaces)
        if wanted.label is not None:
            conditions.append("tasks.labels IS NOT NULL AND tasks.labels::json ->> %(label_name)s = %(label_value)s")
            values["label_name"], values["label_value"] = wanted.label
        values["limit"] = wanted.limit
        is_of_all = wanted.workflow is None and wanted.namespace is None and wanted.namespaces is None
        if wanted.key is None and wanted.label is None and (wanted.state is not None or not is_of_all):
            return self._tasks_of_workflows(wanted, conditions, values)
        if wanted.state is not None:
            conditions.append("tasks.state = %(state)s")
            values["state"] = wanted.state
        if wanted.workflow is not None:
            conditions.append("workflows.name = %(workflow)s")
            values["workflow"] = wanted.workflow
        if wanted.key is not None:
            conditions.append(_OF_KEY)
            values["key"] = wanted.key
        return self._task_rows(" AND ".join(conditions), values)

    def _tasks_of_workflows(self, wanted: TaskFilter, conditions: list[str], values: dict[str, Any]) -> list[TaskRow]:
        """Read each version and each state from its index, which is ordered: a joint query would sort all rows."""
        where = " AND ".join(["tasks.workflow_id = w", "tasks.state = s", *conditions, NOT_PRUNED])
        rows = self.plain(
            f"""
            SELECT page.id FROM unnest(%(workflow_ids)s::bigint[]) AS w CROSS JOIN unnest(%(states)s::text[]) AS s
            CROSS JOIN LATERAL (
              SELECT created_ms, id FROM tasks WHERE {where}
              ORDER BY tasks.created_ms DESC, tasks.id DESC LIMIT %(limit)s
            ) AS page ORDER BY page.created_ms DESC, page.id DESC LIMIT %(limit)s
            """,  # noqa: S608
            values
            | {
                "workflow_ids": self._workflow_ids(wanted.namespace, wanted.workflow, wanted.namespaces),
                "states": list(TASK_STATES) if wanted.state is None else [wanted.state],
            },
        )
        ids = [task_id for (task_id,) in rows]
        return self._task_rows("tasks.id = ANY (%(ids)s::bigint[])", {"ids": ids, "limit": None})

    def list_end(self, wanted: TaskFilter | StepFilter, rows: int) -> ListPoint | None:
        table, time, conditions, values = "tasks", "created_ms", ["TRUE"], dict[str, Any]()
        if isinstance(wanted, StepFilter) and wanted.state in ATTENTION_STATES:
            table, time, conditions, values = "attention", "at_ms", ["kind = %(kind)s"], {"kind": wanted.state}
        _limit(conditions, values, wanted, f"{time}, id")
        select = (
            f"SELECT {time}, id FROM {table} WHERE {' AND '.join(conditions)} "  # noqa: S608
            f"ORDER BY {time} DESC, id DESC LIMIT 1 OFFSET %(offset)s"
        )
        row = self.one(select, values | {"offset": rows - 1})
        if row is not None:
            return ListPoint(*row)
        return None if self.one(select, values | {"offset": 0}) is None else ListPoint(0, 0)

    def _task_rows(self, condition: str, values: Mapping[str, Any]) -> list[TaskRow]:
        return self.rows(
            TaskRow,
            f"""
            SELECT tasks.id, tasks.uid, workflow_id, tasks.namespace, workflows.name, workflows.version, tasks.key,
             tasks.state, attention, cancelling::int, priority, labels, context_bytes, tasks.created_ms,
             tasks.finished_ms, tasks.deadline_ms
            FROM tasks JOIN workflows ON workflows.id = tasks.workflow_id
            WHERE {condition or "TRUE"} AND {NOT_PRUNED}
            ORDER BY tasks.created_ms DESC, tasks.id DESC LIMIT %(limit)s
            """,  # noqa: S608
            values,
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step_id: int) -> StepRow | None:
        values = {"id": step_id, "limit": 1}
        steps = self._step_rows(_STEPS, "steps.id = %(id)s", values, "steps.id", "steps.output")
        return steps[0] if steps else None

    def steps(self, wanted: StepFilter) -> list[StepRow]:
        values: dict[str, Any] = {"limit": wanted.limit}
        conditions: list[str] = []
        if wanted.state in ATTENTION_STATES:
            source = "attention JOIN steps ON steps.id = attention.id JOIN tasks ON tasks.id = steps.task_id"
            handler, time, order = "attention.handler_class", "at_ms", "attention.at_ms DESC, attention.id DESC"
            conditions.append("attention.kind = %(state)s")
            _limit(conditions, values, wanted, "attention.at_ms, attention.id")
        else:
            source = "tasks JOIN steps ON steps.task_id = tasks.id"
            handler, time = "steps.handler_class", "tasks.created_ms"
            order = "tasks.created_ms DESC, tasks.id DESC, steps.position DESC"
            _limit(conditions, values, wanted, "tasks.created_ms, tasks.id")
            if wanted.before is not None:  # a step's id is higher than its task's, and lower than any later task's
                conditions.append("(tasks.created_ms, steps.id) < (%(before_ms)s, %(before_id)s)")
            if wanted.state is not None:
                conditions.append("steps.state = %(state)s")
        values["state"] = wanted.state
        if wanted.handler_class is not None:
            is_pattern = patterns.is_pattern(wanted.handler_class)
            conditions.append(f"{handler} ~ %(handler)s" if is_pattern else f"{handler} = %(handler)s")
            values["handler"] = regular_expression(wanted.handler_class) if is_pattern else wanted.handler_class
        if wanted.namespaces is not None:
            conditions.append("tasks.namespace = ANY (%(namespaces)s::text[])")
            values["namespaces"] = list(wanted.namespaces)
        return self._step_rows(source, " AND ".join(conditions), values, order, "NULL", time)

    def step_stderr(self, step_id: int) -> StepStderr | None:
        row = self.one("SELECT id, delivery, text FROM step_stderr WHERE id = %(id)s", {"id": step_id})
        return None if row is None else StepStderr(*row)

    def held_count(self) -> int:
        rows = self.plain("SELECT count(*) FROM attention WHERE kind = 'held'")
        return int(rows[0][0])

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
             granted::int, lost_sessions, ready_ms, dispatched_ms, started_ms, not_before_ms, steps.finished_ms,
             steps.deadline_ms, run_ms, error, reason, key_number, {output}, output_bytes, workflow_id, {time}
            FROM {source} WHERE {condition or "TRUE"} ORDER BY {order} LIMIT %(limit)s
            """,  # noqa: S608
            values,
        )

    # -- workflows ----------------------------------------------------------------------------------------------------

    def workflows(self) -> list[StoredWorkflow]:
        return self.rows(StoredWorkflow, f"SELECT {WORKFLOW} FROM workflows ORDER BY id")  # noqa: S608

    def workflow(self, namespace: str, name: str, version: str | None) -> StoredWorkflow | None:
        which = "active" if version is None else "version = %(version)s"
        workflows = self.rows(
            StoredWorkflow,
            f"SELECT {WORKFLOW} FROM workflows WHERE namespace = %(namespace)s AND name = %(name)s AND {which}",  # noqa: S608
            {"namespace": namespace, "name": name, "version": version},
        )
        return workflows[0] if workflows else None

    def workflow_rows(self, namespace: str | None) -> list[WorkflowRow]:
        return self.rows(
            WorkflowRow,
            """
            SELECT id, namespace, name, version, created_ms, active::int FROM workflows
            WHERE %(namespace)s::text IS NULL OR namespace = %(namespace)s ORDER BY namespace, name, id
            """,
            {"namespace": namespace},
        )

    def _workflow_ids(self, namespace: str | None, name: str | None, namespaces: tuple[str, ...] | None) -> list[int]:
        rows = self.plain(
            "SELECT id, namespace FROM workflows WHERE (%(name)s::text IS NULL OR name = %(name)s)"
            " AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)",
            {"name": name, "namespace": namespace},
        )
        return [workflow_id for workflow_id, of in rows if namespaces is None or of in namespaces]

    # -- history ------------------------------------------------------------------------------------------------------

    def lanes(self) -> list[LaneRow]:
        return self.rows(
            LaneRow,
            "SELECT id, owner, owner_epoch, epoch, coalesce((SELECT max(seq) FROM commits WHERE lane = lanes.id), 0) "
            "FROM lanes ORDER BY id",
        )

    def task_events(
        self, task_id: int, after: tuple[int, int, int] | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[HistoryItem]:
        lane_id, seq, position = after or (0, 0, 0)
        return self.rows(
            HistoryItem,
            """
            SELECT lane_id, seq, position, task_id, at_ms, facts FROM history
            WHERE task_id = %(task_id)s
             AND (lane_id, seq, position) > (%(lane_id)s::int, %(seq)s::bigint, %(position)s::int)
            ORDER BY lane_id, seq, position LIMIT %(limit)s
            """,
            {"task_id": task_id, "lane_id": lane_id, "seq": seq, "position": position, "limit": limit},
        )

    def events_from(self, lane_id: int, first: HistoryCursor, limit: int, task_id: int | None = None) -> list[EventRow]:
        return self.rows(
            EventRow,
            f"""
            SELECT lane_id, seq, position, task_id, facts,
             (SELECT workflow_id FROM tasks WHERE tasks.id = history.task_id),
             (SELECT id FROM steps WHERE steps.task_id = history.task_id AND steps.position = 0)
            FROM history WHERE {"" if task_id is None else "task_id = %(task_id)s AND"}
             lane_id = %(lane_id)s AND (seq, position) >= (%(seq)s::bigint, %(position)s::bigint)
            ORDER BY seq, position LIMIT %(limit)s
            """,  # noqa: S608
            {"lane_id": lane_id, "seq": first.seq, "position": first.position, "limit": limit, "task_id": task_id},
        )

    # -- the audit ----------------------------------------------------------------------------------------------------

    def audit_chains(self) -> list[AuditChain]:
        return self.rows(AuditChain, "SELECT lane, n, hash, cut_n, cut_hash FROM audit_chains ORDER BY lane")

    def audit_rows(self, wanted: AuditFilter) -> list[AuditRow]:
        conditions, values = _conditions(
            {
                "principal = %(principal)s": wanted.principal,
                "action = %(action)s": wanted.action,
                "target = %(target)s": wanted.target,
                "outcome = %(outcome)s": wanted.outcome,
                "at_ms >= %(since_ms)s": wanted.since_ms,
                "at_ms < %(until_ms)s": wanted.until_ms,
            }
        )
        where = " AND ".join(["lane = %(lane)s", "n >= %(first)s", "n < %(before)s", *conditions])
        values |= {"lane": wanted.lane, "first": wanted.first, "before": wanted.before, "limit": wanted.limit}
        columns = ", ".join(AuditRow._fields)
        return self.rows(
            AuditRow,
            f"SELECT {columns} FROM audit WHERE {where} ORDER BY n DESC LIMIT %(limit)s",  # noqa: S608
            values,
        )

    # -- refused input ------------------------------------------------------------------------------------------------

    def parked(self, before: int | None = None, limit: int = 50) -> list[ParkedRow]:
        return self.rows(
            ParkedRow,
            "SELECT id, at_ms, task_id, step_id, code, source, body FROM parked "
            "WHERE %(before)s::bigint IS NULL OR id < %(before)s ORDER BY id DESC LIMIT %(limit)s",
            {"before": before, "limit": limit},
        )


# The keys are found by namespace and key. A task belongs to a namespace of a workflow, and there are few of these.
_OF_KEY: Final = (
    "tasks.id IN (SELECT task_id FROM keys "
    "WHERE namespace IN (SELECT DISTINCT namespace FROM workflows) AND key = %(key)s)"
)

_STEPS: Final = "steps JOIN tasks ON tasks.id = steps.task_id"


# Only sizes decide which outputs are included: an output that is left out is not read.
_FIRST_OUTPUTS: Final = """
 CASE WHEN steps.id IN (SELECT id FROM (
   SELECT id, sum(output_bytes) OVER (ORDER BY position) AS bytes_so_far FROM steps WHERE task_id = %(task_id)s
 ) AS sizes WHERE bytes_so_far <= %(outputs_max)s) THEN steps.output END""".strip()


def _limit(conditions: list[str], values: dict[str, Any], wanted: TaskFilter | StepFilter, columns: str) -> None:
    """Add the conditions that limit the part of the list which is read."""
    if wanted.before is not None:
        conditions.append(f"({columns}) < (%(before_ms)s, %(before_id)s)")
        values["before_ms"], values["before_id"] = wanted.before
    if wanted.first is not None:
        conditions.append(f"({columns}) >= (%(first_ms)s, %(first_id)s)")
        values["first_ms"], values["first_id"] = wanted.first


def _conditions(optional: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions that have a value, and the values by the names that the conditions use."""
    given = {condition: value for condition, value in optional.items() if value is not None}
    return list(given), {condition.rpartition("%(")[2].partition(")")[0]: value for condition, value in given.items()}
