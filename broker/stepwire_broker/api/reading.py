"""Reads rows of the store for an answer: parses the query's members, and builds the document.

The functions that take `queries` run in a reader's thread and build the document there, so the loop only sends it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw
from stepwire_protocol.messages import NULL

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.live import StepProgress
from stepwire_broker.core.model.states import STEP_FINAL, TASK_FINAL, StepState, TaskState
from stepwire_broker.core.sharing.explaining import RunProgress
from stepwire_broker.core.why import skipped_because
from stepwire_broker.store.definitions import Definitions
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import ListPoint, StepFilter, StepRow, TaskFilter, TaskRecord, TaskRow, WorkflowRow
from stepwire_broker.store.task_results import result_of
from stepwire_broker.timestamps import parse_rfc3339, rfc3339, rfc3339_or_none

from . import attempts, scanning
from .documents import (
    NO_LABELS,
    ProgressDocument,
    Reason,
    StderrDocument,
    StepDetail,
    StepDocument,
    StepPage,
    StepSummary,
    TaskDocument,
    TaskPage,
    TaskSummary,
    WorkflowDocument,
    WorkflowPage,
    WorkflowSummary,
    raw_or_null,
)
from .enumerations import HANDLER_ERROR, REASONS
from .http_problems import HttpProblem
from .replies import encode

TASK_QUERY: Final = ("state", "namespace", "workflow", "label", "idempotency_key", "since", "limit", "cursor")
STEP_QUERY: Final = ("state", "handler_class", "limit", "cursor")
LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500
OUTPUTS_BYTES_MAX: Final = 1024 * 1024  # of one task in one answer; a single step is always complete
SMALL_BYTES_MAX: Final = 16 * 1024  # of outputs and of a context that are read on the event loop
SMALL_STEPS_MAX: Final = 16
RESULT_BYTES_MAX: Final = 8 * 1024 * 1024

F = TypeVar("F", TaskFilter, StepFilter)
R = TypeVar("R", TaskRow, StepRow)


# -- filters from queries ---------------------------------------------------------------------------------------------


def task_filter(query: dict[str, str], namespaces: tuple[str, ...] | None) -> TaskFilter:
    return TaskFilter(
        namespaces=namespaces,
        state=one_of("state", query.get("state"), tuple(TaskState)),
        namespace=query.get("namespace"),
        workflow=query.get("workflow"),
        label=_label(query.get("label")),
        key=query.get("idempotency_key"),
        since_ms=_since(query.get("since")),
        before=_cursor(query.get("cursor")),
        limit=limit(query.get("limit")),
    )


def step_filter(query: dict[str, str], namespaces: tuple[str, ...] | None) -> StepFilter:
    return StepFilter(
        namespaces=namespaces,
        state=one_of("state", query.get("state"), tuple(StepState)),
        handler_class=query.get("handler_class"),
        before=_cursor(query.get("cursor")),
        limit=limit(query.get("limit")),
    )


def number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and least <= int(text) <= most):
        raise HttpProblem(400, "bad_query", f"`{name}` is {text[:64]!r}: it must be a number from {least} to {most}")
    return int(text)


def flag(name: str, text: str) -> bool:
    return one_of(name, text, ("true", "false")) == "true"


# -- documents --------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A task's document, and whether a client may still wait for it."""

    document: bytes
    state: str
    is_settled: bool  # the task has ended, or depends on a held step
    has_moved: bool  # a step has changed since it was explained


class Explained(NamedTuple):
    """The reason for a step's state, with that state. The reason is invalid after the step has changed."""

    state: str
    attempt: int
    delivery: int
    reason: Reason


class Live(NamedTuple):
    """Data of the core that is not in the database. The core changes both mappings during a read, so a reader
    only looks values up."""

    workflows: Mapping[int, Workflow]
    progress: Mapping[int, StepProgress | RunProgress]  # by step id

    def with_definitions(self, queries: Queries) -> "Live":
        """The same, with workflows that another broker applied a moment ago."""
        return self._replace(workflows=Definitions(queries, self.workflows))


def small_task(queries: Queries, task_id: int, live: Live, inspects: bool) -> Read | None:
    """A task that has ended. None if the task is too large to be read on the event loop."""
    record = queries.task(task_id, SMALL_BYTES_MAX)
    if record is None or any(row.output is None and row.output_bytes for row in record.steps):
        return None
    return _read(queries, record, live, inspects, {})


def task(queries: Queries, task_id: int, live: Live, inspects: bool, explained: Mapping[int, Explained]) -> Read | None:
    """`inspects`: the reader has the scope `inspect`. Without it, no document of this module contains a payload."""
    record = queries.task(task_id, OUTPUTS_BYTES_MAX if inspects else 0)
    return None if record is None else _read(queries, record, live, inspects, explained)


def _read(queries: Queries, record: TaskRecord, live: Live, inspects: bool, explained: Mapping[int, Explained]) -> Read:
    live = live.with_definitions(queries)
    steps = [_step_document(row, live, inspects, record.steps, explained.get(row.id)) for row in record.steps]
    document = TaskDocument(
        **_task(record.task),
        **(_task_payloads(queries, record, live) if inspects else {}),
        cancel=attempts.cancel_of(queries, record.task.id) if record.task.cancelling else None,
        steps=[StepDocument(**members) for members in steps],
    )
    state = record.task.state
    is_settled = state in TASK_FINAL or record.task.attention is not None
    return Read(encode(document), state, is_settled, any(_moved(row, explained.get(row.id)) for row in record.steps))


def _task_payloads(queries: Queries, record: TaskRecord, live: Live) -> dict[str, Any]:
    result, is_too_large = result_of(queries, record, live.workflows[record.task.workflow_id], RESULT_BYTES_MAX)
    return {
        "context": raw_or_null(record.context),
        "result": NULL if result is None else Raw(result),
        "result_omitted": is_too_large,
    }


def _moved(row: StepRow, explained: Explained | None) -> bool:
    return explained is not None and explained[:3] != (row.state, row.attempt, row.delivery)


def _step_document(
    row: StepRow, live: Live, inspects: bool, of_task: Sequence[StepRow], explained: Explained | None = None
) -> dict[str, Any]:
    """The members of a step's document. `of_task`: the steps of its task in order; they explain a skipped step."""
    members = _step(row, live)
    workflow = live.workflows.get(row.workflow_id)
    if row.state == StepState.SKIPPED and workflow is not None:
        because = skipped_because(workflow, row.position, lambda index: of_task[index].state)
        members["reason"] = Reason(str(StepState.SKIPPED), because, rfc3339_or_none(row.finished_ms), None, None)
    if explained is not None and not _moved(row, explained):
        members["reason"] = explained.reason
    members["output_bytes"] = row.output_bytes
    if inspects:
        members["output"] = raw_or_null(row.output)
        members["output_omitted"] = row.output is None and row.output_bytes > 0
    return members


def tasks(queries: Queries, filters: TaskFilter) -> bytes:
    rows, stopped_at = _listed(queries, queries.tasks, filters)
    tasks = [TaskSummary(**_task(row)) for row in rows]
    return encode(TaskPage(tasks, _next(rows, filters.limit, stopped_at), _scanned_to(stopped_at)))


class ReadStep(NamedTuple):
    """A step's document. `is_open`: the step is not final."""

    document: bytes
    task_id: int
    is_open: bool


def step(
    queries: Queries, step_id: int, live: Live, inspects: bool, explained: Explained | None = None
) -> ReadStep | None:
    """A single step, with its backtrace, its attempts and its standard error."""
    row = queries.step(step_id)
    if row is None:
        return None
    live = live.with_definitions(queries)
    record = queries.task(row.task_id, 0) if row.state == StepState.SKIPPED else None
    members = _step_document(row, live, inspects, () if record is None else record.steps, explained)
    if inspects:
        members["error"] = raw_or_null(row.error)
        stderr = queries.step_stderr(step_id)
        members["stderr"] = None if stderr is None else StderrDocument(stderr.delivery, stderr.text)
    latest, omitted = attempts.of_step(queries, row.task_id, row.position)
    document = encode(StepDetail(**members, attempts=latest, attempts_omitted=omitted))
    return ReadStep(document, row.task_id, row.state not in STEP_FINAL)


def steps(queries: Queries, filters: StepFilter, live: Live) -> bytes:
    live = live.with_definitions(queries)
    rows, stopped_at = _listed(queries, queries.steps, filters)
    steps = [StepSummary(**_step(row, live)) for row in rows]
    return encode(StepPage(steps, _next(rows, filters.limit, stopped_at), _scanned_to(stopped_at)))


def workflow(
    queries: Queries, namespace: str, name: str, version: str | None, inspects: bool
) -> WorkflowDocument | None:
    """The workflow without warnings: these depend on the workers of the moment."""
    row = queries.workflow(namespace, name, version)
    if row is None:
        return None
    document = raw_or_null(row.document) if inspects else _without_configuration(row.document)
    return WorkflowDocument(**_workflow(row), document=document, warnings=[])


def workflows(queries: Queries, namespace: str | None, namespaces: tuple[str, ...] | None) -> bytes:
    rows = [row for row in queries.workflow_rows(namespace) if namespaces is None or row.namespace in namespaces]
    return encode(WorkflowPage([WorkflowSummary(**_workflow(row)) for row in rows]))


# -- rows to documents ------------------------------------------------------------------------------------------------


def _task(row: TaskRow) -> dict[str, Any]:
    erased_ms = erasing.erased_ms(row.labels)
    return {
        "task_id": row.id,
        "namespace": row.namespace,
        "workflow": row.workflow,
        "version": row.version,
        "state": row.state,
        "attention": row.attention,
        "cancelling": bool(row.cancelling),
        "priority": row.priority,
        "labels": NO_LABELS if row.labels is None or erased_ms is not None else raw_or_null(row.labels),
        "erased_at": rfc3339_or_none(erased_ms),
        "idempotency_key": row.key,
        "created_at": rfc3339(row.created_ms),
        "finished_at": rfc3339_or_none(row.finished_ms),
        "deadline_at": rfc3339_or_none(row.deadline_ms),
    }


def _step(row: StepRow, live: Live) -> dict[str, Any]:
    workflow = live.workflows.get(row.workflow_id)
    started_ms, run_ms = _run(row)
    return {
        "step_id": row.id,
        "task_id": row.task_id,
        "name": row.name,
        "handler_class": row.handler_class,
        "state": row.state,
        "attempt": row.attempt,
        "retry_limit": None if workflow is None else workflow.steps[row.position].retry_limit,
        "deliveries": row.delivery,
        "worker": row.worker,
        "ready_at": rfc3339_or_none(row.ready_ms),
        "dispatched_at": rfc3339_or_none(row.dispatched_ms),
        "started_at": rfc3339_or_none(started_ms),
        "not_before": rfc3339_or_none(row.not_before_ms),
        "finished_at": rfc3339_or_none(row.finished_ms),
        "queue_ms": _queue_ms(row),
        "run_ms": run_ms,
        "progress": _progress(row, live),
        "error": _without_backtrace(row.error),
        "reason": _reason(row),
    }


def _run(row: StepRow) -> tuple[int | None, int | None]:
    """The start and the duration of the step's latest run, as StepSummary describes them."""
    started_ms, run_ms = row.started_ms, row.run_ms
    if row.state == StepState.COMPLETED and row.finished_ms is not None and row.dispatched_ms is not None:
        if started_ms is None:
            started_ms = row.dispatched_ms if run_ms is None else max(row.dispatched_ms, row.finished_ms - run_ms)
        if run_ms is None:
            run_ms = max(0, row.finished_ms - started_ms)
    return started_ms, run_ms


def _queue_ms(row: StepRow) -> int | None:
    """The time for which the step was ready before its latest delivery; None while it waits for one."""
    if row.ready_ms is None or row.dispatched_ms is None or row.state in (StepState.WAITING, StepState.READY):
        return None
    return max(0, row.dispatched_ms - row.ready_ms)


def _progress(row: StepRow, live: Live) -> ProgressDocument | None:
    """The latest report of the step's run; None if the run has ended since."""
    report = live.progress.get(row.id)
    if report is None or row.state != StepState.DISPATCHED or report.delivery != row.delivery:
        return None
    return ProgressDocument(report.done, report.total, report.note, rfc3339(report.at_ms))


def _without_backtrace(error: str | None) -> Raw:
    """A step's error for documents that clients pass on. A backtrace names files and code of the worker."""
    if error is None or '"backtrace"' not in error:
        return raw_or_null(error)
    members = msgspec.json.decode(error)
    members.pop("backtrace", None)
    return Raw(msgspec.json.encode(members))


def _without_configuration(document: str) -> Raw:
    """A workflow's document without the configuration of its handlers."""
    members = msgspec.json.decode(document)
    for step in members["steps"]:
        step.pop("handler_config", None)
    return Raw(msgspec.json.encode(members))


def _reason(row: StepRow) -> Reason | None:
    """The reason in the step's row, and the time since which it applies."""
    if row.reason is None:
        return None
    since = row.ready_ms if row.state == StepState.READY else row.finished_ms or row.started_ms or row.dispatched_ms
    code, message = row.reason, REASONS.get(row.reason)
    if message is None:
        code, message = HANDLER_ERROR, f"the handler failed the step with the code {row.reason}"
    return Reason(code, message, rfc3339_or_none(since), None, None)


def _workflow(row: StoredWorkflow | WorkflowRow) -> dict[str, Any]:
    return {
        "workflow_id": row.id,
        "namespace": row.namespace,
        "name": row.name,
        "version": row.version,
        "active": bool(row.active),
        "created_at": rfc3339(row.created_ms),
    }


def _listed(queries: Queries, read: Callable[[F], list[R]], filters: F) -> scanning.Scanned[R]:
    if not scanning.needs_scan(filters):
        return scanning.Scanned(read(filters), None)

    def chunk(before: ListPoint | None, first: ListPoint, limit: int) -> list[R]:
        return read(filters._replace(before=before, first=first, limit=limit))

    def end(before: ListPoint | None, rows: int) -> ListPoint | None:
        return queries.list_end(filters._replace(before=before), rows)

    return scanning.scan(chunk, end, filters.before, filters.limit)


def _next(rows: Sequence[TaskRow] | Sequence[StepRow], limit: int, stopped_at: ListPoint | None) -> str | None:
    """The cursor after a full page, because another page may follow, or where a scan stopped; otherwise None."""
    point = stopped_at or (rows[-1].point if len(rows) == limit else None)
    return None if point is None else f"{point.at_ms}.{point.id}"


def _scanned_to(stopped_at: ListPoint | None) -> str | None:
    return None if stopped_at is None else rfc3339(stopped_at.at_ms)


# -- the members of a query -------------------------------------------------------------------------------------------


def one_of(name: str, text: str | None, known: tuple[str, ...]) -> str | None:
    if text is not None and text not in known:
        raise HttpProblem(400, "bad_query", f"`{name}` is {text[:64]!r}", f"one of: {', '.join(known)}")
    return text


def limit(text: str | None) -> int:
    return LIMIT_DEFAULT if text is None else number("limit", text, 1, LIMIT_MAX)


def _cursor(text: str | None) -> ListPoint | None:
    if text is None:
        return None
    numbers = text.split(".")
    if len(numbers) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in numbers):
        raise HttpProblem(
            400, "bad_query", "`cursor` was not issued by this broker", "use `next_cursor` of the previous page"
        )
    return ListPoint(int(numbers[0]), int(numbers[1]))


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise HttpProblem(400, "bad_query", f"`label` is {text[:64]!r}: it must have the form region=eu")
    return name, value


def _since(text: str | None) -> int | None:
    return time_of("since", text)


def time_of(name: str, text: str | None) -> int | None:
    """The time of this member of a query, in milliseconds; None if the query lacks it."""
    if text is None:
        return None
    since_ms = parse_rfc3339(text)
    if since_ms is None:
        raise HttpProblem(400, "bad_query", f"`{name}` is {text[:64]!r}: it must have the form 2026-11-18T10:00:00Z")
    return since_ms
