"""The questions of the store, answered from the tables in memory in plain Python: what every adapter has to answer."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from stepwire_broker.core.answers import erasing
from stepwire_broker.core.definitions.stored_rows import (
    Catalogue,
    LeftBehind,
    Loaded,
    Payloads,
    StoredControl,
    StoredOrder,
    StoredStep,
    StoredTask,
    StoredWorkflow,
)
from stepwire_broker.core.model.commit_group import StepStderr, TaskNew
from stepwire_broker.store.audit_chain import AuditChain, AuditRow
from stepwire_broker.store.queries import PAGE_ROWS_MAX
from stepwire_broker.store.rows import (
    ATTENTION_STATES,
    AuditFilter,
    EventRow,
    HistoryCursor,
    HistoryItem,
    LaneRow,
    ListPoint,
    OpenCounts,
    ParkedRow,
    SettledTask,
    StepFilter,
    StepRow,
    TaskFilter,
    TaskOfStep,
    TaskRecord,
    TaskRow,
    TaskWithHistory,
    WorkflowRow,
    counts_by_lane,
)
from stepwire_protocol import limits, patterns

from .tables import StoredRow, Tables


class MemoryQueries:
    """The port store/queries.py over Tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    # -- loading ------------------------------------------------------------------------------------------------------

    def load_page(
        self,
        limit: int,
        lanes: Mapping[int, LeftBehind | None],
        wants: Sequence[str],
        now_ms: int,
        resident_bytes_max: int,
    ) -> Loaded:
        own = sorted((t for t in self._tables.open_tasks if t.lane in lanes), key=lambda t: (t.rank_ms, t.id))
        chosen: list[TaskNew] = []
        left: dict[int, LeftBehind | None] = {}
        for lane, after in lanes.items():
            if after is not None and len(chosen) < limit:
                behind = [t for t in own if not t.stored and t.lane == lane and t.id < after.before_id]
                chosen += [t for t in behind if (t.rank_ms, t.id) > (after.rank_ms, after.id)][: limit - len(chosen)]
                is_full = len(chosen) == limit
                left[lane] = after._replace(rank_ms=chosen[-1].rank_ms, id=chosen[-1].id) if is_full else None
        stored = [t for t in own if t.stored]
        due = [t for t in stored if (t.wake_ms is not None and t.wake_ms <= now_ms) or t.wants in wants]
        chosen += due[: limit - len(chosen)]
        chosen.sort(key=lambda t: (t.rank_ms, t.id))
        loaded = self._load([t.id for t in chosen], resident_bytes_max)
        return loaded._replace(
            wants=tuple(sorted({t.wants for t in stored if t.wants is not None})), left_behind=tuple(left.items())
        )

    def load_tasks(self, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded:
        return self._load(self._shown(sorted(set(task_ids))), resident_bytes_max)

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, TaskOfStep]:
        tables = self._tables
        tasks = {i: tables.tasks[tables.steps[i].stored.task_id] for i in step_ids if i in tables.steps}
        return {step_id: TaskOfStep(task.id, task.state) for step_id, task in tasks.items()}

    def load_payloads(self, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads:
        tables = self._tables
        contexts = {i: tables.tasks[i].context for i in task_ids if i in tables.tasks}
        outputs = {i: tables.steps[i].stored.output for i in step_ids if i in tables.steps}
        return Payloads(contexts, {i: o.encode() for i, o in outputs.items() if o is not None})

    def open_task_ids(self, after: int, limit: int) -> list[int]:
        return sorted(t.id for t in self._tables.open_tasks if t.id > after)[:limit]

    def open_counts(self) -> dict[int, OpenCounts]:
        open_steps = Counter(
            row.stored.task_id for row in self._tables.steps.values() if row.stored.finished_ms is None
        )
        tasks: Counter[tuple[int, str]] = Counter()
        steps: Counter[tuple[int, str]] = Counter()
        for task in self._tables.open_tasks:
            tasks[task.lane, task.namespace] += 1
            steps[task.lane, task.namespace] += open_steps[task.id]
        return counts_by_lane((*of, count, steps[of]) for of, count in tasks.items())

    def tasks_with_history(self, task_ids: Sequence[int], resident_bytes_max: int) -> list[TaskWithHistory]:
        return [
            TaskWithHistory(
                self._tables.stored_task(task_id, resident_bytes_max),
                list(self._steps(task_id, resident_bytes_max)),
                [row.facts for row in self._tables.history.get(task_id, ())],
            )
            for task_id in self._shown(sorted(set(task_ids)))
        ]

    def _load(self, task_ids: Iterable[int], resident_bytes_max: int) -> Loaded:
        tasks: list[StoredTask] = []
        steps: list[StoredStep] = []
        for task_id in task_ids:
            tasks.append(self._tables.stored_task(task_id, resident_bytes_max))
            steps += self._steps(task_id, resident_bytes_max)
        return Loaded(tasks, steps)

    def _steps(self, task_id: int, resident_bytes_max: int) -> Iterable[StoredStep]:
        for stored in self._tables.stored_steps(task_id):
            yield stored._replace(output=None) if stored.output_bytes > resident_bytes_max else stored

    def _shown(self, task_ids: Iterable[int]) -> list[int]:
        """The tasks that exist and of which retention has removed nothing."""
        return [i for i in task_ids if i in self._tables.tasks and i not in self._tables.partly_removed]

    # -- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: int, outputs_bytes_max: int = limits.INTEGER_MAX) -> TaskRecord | None:
        if not self._shown([task_id]):
            return None
        task = self._tables.tasks[task_id]
        steps = []
        bytes_so_far = 0
        for step_id in self._tables.steps_of.get(task_id, ()):
            row = self._step_row(self._tables.steps[step_id])
            bytes_so_far += row.output_bytes
            steps.append(row if bytes_so_far <= outputs_bytes_max else row._replace(output=None))
        return TaskRecord(self._task_row(task), task.context.decode(), steps)

    def erased_tasks(self) -> list[tuple[str, int]]:
        rows = ((row.uid, erasing.erased_ms(row.labels)) for row in self._tables.tasks.values())
        return [(uid, at_ms) for uid, at_ms in rows if at_ms is not None]

    def task_state(self, task_id: int) -> str | None:
        task = self._tables.tasks.get(task_id)
        return None if task is None else task.state

    def namespace_of(self, number: int) -> str | None:
        step = self._tables.steps.get(number)
        task = self._tables.tasks.get(number if step is None else step.stored.task_id)
        return None if task is None else task.namespace

    def tasks(self, wanted: TaskFilter) -> list[TaskRow]:
        rows = [self._task_row(self._tables.tasks[i]) for i in self._shown(self._tables.tasks)]
        rows.sort(key=lambda row: row.point, reverse=True)
        is_wanted = _all_of(
            (wanted.state, lambda row: row.state == wanted.state),
            (wanted.namespace, lambda row: row.namespace == wanted.namespace),
            (wanted.namespaces, lambda row: row.namespace in wanted.namespaces),
            (wanted.workflow, lambda row: row.workflow == wanted.workflow),
            (wanted.label, lambda row: wanted.label in _labels(row).items()),
            (wanted.key, lambda row: row.key == wanted.key),
            (wanted.since_ms, lambda row: row.created_ms >= wanted.since_ms),
            (wanted.before, lambda row: row.point < wanted.before),
            (wanted.first, lambda row: row.point >= wanted.first),
        )
        return [row for row in rows if is_wanted(row)][: wanted.limit]

    def list_end(self, wanted: TaskFilter | StepFilter, rows: int) -> ListPoint | None:
        points = [ListPoint(task.created_ms, task.id) for task in self._tables.tasks.values()]
        if isinstance(wanted, StepFilter) and wanted.state in ATTENTION_STATES:
            noticed = self._tables.attention.values()
            points = [ListPoint(row.at_ms, row.id) for row in noticed if row.kind == wanted.state]
        after = sorted((p for p in points if wanted.before is None or p < wanted.before), reverse=True)
        if not after:
            return None
        return after[rows - 1] if len(after) >= rows else ListPoint(0, 0)

    def _task_row(self, task: TaskNew) -> TaskRow:
        workflow = self._tables.workflows[task.workflow_id]
        return TaskRow(
            id=task.id,
            uid=task.uid,
            workflow_id=task.workflow_id,
            namespace=task.namespace,
            workflow=workflow.name,
            version=workflow.version,
            key=task.key,
            state=task.state,
            attention=task.attention,
            cancelling=int(task.cancelling),
            priority=task.priority,
            labels=None if task.labels is None else task.labels.decode(),
            context_bytes=task.context_bytes,
            created_ms=task.created_ms,
            finished_ms=task.finished_ms,
            deadline_ms=task.deadline_ms,
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step_id: int) -> StepRow | None:
        row = self._tables.steps.get(step_id)
        return None if row is None else self._step_row(row)

    def steps(self, wanted: StepFilter) -> list[StepRow]:
        if wanted.state in ATTENTION_STATES:
            noticed = [row for row in self._tables.attention.values() if row.kind == wanted.state]
            rows = [self._step_row(self._tables.steps[row.id])._replace(listed_ms=row.at_ms) for row in noticed]
        else:
            rows = [self._step_row(row) for row in self._tables.steps.values()]
        rows = [row._replace(output=None) for row in rows]
        rows.sort(key=lambda row: row.point, reverse=True)
        handler = wanted.handler_class or ""
        is_pattern = patterns.is_pattern(handler)
        is_wanted = _all_of(
            (wanted.state, lambda row: row.state == wanted.state),
            (
                wanted.handler_class,
                lambda row: (
                    patterns.matches(handler, row.handler_class) if is_pattern else row.handler_class == handler
                ),
            ),
            (wanted.namespaces, lambda row: self._tables.tasks[row.task_id].namespace in wanted.namespaces),
            (wanted.before, lambda row: row.point < wanted.before),
            (wanted.first, lambda row: row.point >= wanted.first),
        )
        return [row for row in rows if is_wanted(row)][: wanted.limit]

    def step_stderr(self, step_id: int) -> StepStderr | None:
        return self._tables.stderr.get(step_id)

    def stored_wants(self) -> list[str]:
        return sorted({task.wants for task in self._wanting()})

    def stored_counts(self, wants: Sequence[str], limit: int) -> dict[str, int]:
        return dict(Counter(task.wants for task in self._counted(wants, limit)))

    def stored_counts_by_workflow(self, wants: Sequence[str], limit: int) -> dict[tuple[str, int], int]:
        return dict(Counter((task.wants, task.workflow_id) for task in self._counted(wants, limit)))

    def oldest_stored_ms(self, wants: Sequence[str]) -> int | None:
        first: dict[tuple[int, str], _Wanting] = {}
        for task in self._wanting():
            if task.wants in wants:
                key = task.lane, task.wants
                first[key] = min(first.get(key, task), task, key=lambda each: (each.rank_ms, each.id))
        return min((task.created_ms for task in first.values()), default=None)

    def _counted(self, wants: Sequence[str], limit: int) -> list["_Wanting"]:
        return [task for task in self._wanting() if task.wants in wants][:limit]

    def _wanting(self) -> list["_Wanting"]:
        return [
            _Wanting(task.id, task.lane, task.wants, task.workflow_id, task.rank_ms, task.created_ms)
            for task in self._tables.open_tasks
            if task.stored and task.wants is not None
        ]

    def held_count(self) -> int:
        return sum(row.kind == "held" for row in self._tables.attention.values())

    def _step_row(self, row: StoredRow) -> StepRow:
        values = {name: getattr(row.stored, name) for name in StepRow._fields if name in StoredStep._fields}
        task = self._tables.tasks[row.stored.task_id]
        return StepRow(
            **values,
            name=row.name,
            handler_class=row.handler_class,
            workflow_id=task.workflow_id,
            listed_ms=task.created_ms,
        )

    # -- controls -----------------------------------------------------------------------------------------------------

    def controls(self) -> list[StoredControl]:
        rows = sorted(self._tables.controls.items())
        return [StoredControl(*name, row.value, row.position) for name, row in rows if row.value is not None]

    # -- orders -------------------------------------------------------------------------------------------------------

    def catalogue(self, known: Collection[int]) -> Catalogue:
        tables = self._tables
        return Catalogue(
            self.controls_revision(),
            self.controls(),
            [row for row in tables.workflows.values() if row.id not in known],
            [row.id for row in tables.workflows.values() if row.active],
            {number: block.lane for number, block in tables.blocks.items()},
        )

    def open_orders(self, lanes: Sequence[int], limit: int) -> list[StoredOrder]:
        found = [(n, row) for n, row in sorted(self._tables.orders.items()) if row.answer is None and row.lane in lanes]
        now_ms = self._tables.now_ms()
        return [StoredOrder(row.lane, n, now_ms - row.asked_ms, row.request) for n, row in found[:limit]]

    def controls_revision(self) -> int:
        return max((row.revision for row in self._tables.controls.values()), default=0)

    def order_answers(self, order_ids: Sequence[int]) -> dict[int, str]:
        rows = ((n, self._tables.orders.get(n)) for n in order_ids)
        return {n: row.answer for n, row in rows if row is not None and row.answer is not None}

    def settled_tasks(self, task_ids: Sequence[int]) -> list[SettledTask]:
        tasks = (self._tables.tasks[i] for i in sorted(set(task_ids)) if i in self._tables.tasks)
        settled = [t for t in tasks if t.finished_ms is not None or t.attention is not None]
        return [SettledTask(t.id, t.state, t.attention) for t in settled]

    # -- workflows ----------------------------------------------------------------------------------------------------

    def workflows(self) -> list[StoredWorkflow]:
        return list(self._tables.workflows.values())

    def workflow(self, namespace: str, name: str, version: str | None) -> StoredWorkflow | None:
        for row in self._tables.workflows.values():
            is_named = (row.namespace, row.name) == (namespace, name)
            if is_named and (row.active if version is None else row.version == version):
                return row
        return None

    def workflow_rows(self, namespace: str | None) -> list[WorkflowRow]:
        rows = [
            WorkflowRow(row.id, row.namespace, row.name, row.version, row.created_ms, row.active)
            for row in self._tables.workflows.values()
            if namespace in (None, row.namespace)
        ]
        return sorted(rows, key=lambda row: (row.namespace, row.name, row.id))

    # -- history ------------------------------------------------------------------------------------------------------

    def lanes(self) -> list[LaneRow]:
        tables = self._tables
        return [LaneRow(lane, *owner, tables.seqs[lane]) for lane, owner in tables.lanes.items()]

    def task_events(
        self, task_id: int, after: tuple[int, int, int] | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[HistoryItem]:
        items = [
            HistoryItem(row.lane, row.seq, row.position, row.task_id, row.at_ms, row.facts.decode())
            for row in self._tables.history.get(task_id, ())
        ]
        return [item for item in items if item[:3] > (after or (0, 0, 0))][:limit]

    def events_from(self, lane_id: int, first: HistoryCursor, limit: int, task_id: int | None = None) -> list[EventRow]:
        rows = [row for row in self._tables.log if row.lane == lane_id]
        wanted = [row for row in rows if row[1:3] >= first and task_id in (None, row.task_id)]
        return [
            EventRow(lane_id, row.seq, row.position, row.task_id, row.facts.decode(), *self._references(row.task_id))
            for row in wanted[:limit]
        ]

    def _references(self, task_id: int) -> tuple[int | None, int | None]:
        """A task's workflow and its first step, as far as retention has left them."""
        task = self._tables.tasks.get(task_id)
        first_steps = [step.id for step in self._tables.stored_steps(task_id) if step.position == 0]
        return None if task is None else task.workflow_id, first_steps[0] if first_steps else None

    # -- refused input ------------------------------------------------------------------------------------------------

    def audit_chains(self) -> list[AuditChain]:
        tables = self._tables
        ends = [(tables.audit_end(lane), tables.audit_cut(lane)) for lane in tables.seqs]
        return [AuditChain(end.lane, end.n, end.hash, cut.n, cut.hash) for end, cut in ends if end.n]

    def audit_rows(self, wanted: AuditFilter) -> list[AuditRow]:
        equal = ("principal", "action", "target", "outcome")
        rows = [
            row
            for row in reversed(self._tables.audit)
            if row.lane == wanted.lane
            and wanted.first <= row.n < wanted.before
            and all(getattr(wanted, name) in (None, getattr(row, name)) for name in equal)
            and (wanted.since_ms is None or row.at_ms >= wanted.since_ms)
            and (wanted.until_ms is None or row.at_ms < wanted.until_ms)
        ]
        return rows[: wanted.limit]

    def parked(self, before: int | None = None, limit: int = 50) -> list[ParkedRow]:
        numbers = [n for n in sorted(self._tables.parked, reverse=True) if before is None or n < before]
        return [ParkedRow(n, *self._tables.parked[n]) for n in numbers[:limit]]


class _Wanting(NamedTuple):
    """A stored task that waits for handlers."""

    id: int
    lane: int
    wants: str
    workflow_id: int
    rank_ms: int
    created_ms: int


def _labels(row: TaskRow) -> dict[str, str]:
    return {} if row.labels is None else msgspec.json.decode(row.labels, type=dict[str, str])


def _all_of(*conditions: tuple[object, Callable[[Any], bool]]) -> Callable[[Any], bool]:
    """A row passes every condition whose filter is given."""
    given = [is_met for wanted, is_met in conditions if wanted is not None]
    return lambda row: all(is_met(row) for is_met in given)
