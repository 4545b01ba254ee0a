"""The stored state of tasks and steps, as an application reads it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from stepwire_broker.core.answers.error_texts import described
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.states import TASK_FINAL
from stepwire_broker.core.workflow_warnings import WorkflowWarning
from stepwire_broker.store.definitions import Definitions
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import StepRow
from stepwire_broker.store.task_results import result_of

_decode: Final = msgspec.json.Decoder().decode


class StepView(Struct, frozen=True, kw_only=True):
    """The stored state of a step at the time of the read."""

    step_id: int
    name: str
    handler_class: str
    state: str
    attempt: int
    worker: str | None
    reason: str | None
    error: Any
    output: Any

    @property
    def error_text(self) -> str | None:
        """The error in one line, `Declined: card declined`; None without an error. `error` also has the backtrace."""
        if self.error is None:
            return None
        return described(self.error.get("code"), self.error.get("message") or "")


class TaskView(Struct, frozen=True, kw_only=True):
    """The stored state of a task at the time of the read. `result` is None until the task is completed."""

    task_id: int
    namespace: str
    workflow: str
    version: str
    state: str
    attention: str | None
    key: str | None
    created_ms: int
    finished_ms: int | None
    context: Any
    result: Any
    steps: tuple[StepView, ...]

    def in_state(self, state: str) -> tuple[StepView, ...]:
        """The steps in this state."""
        return tuple(step for step in self.steps if step.state == state)

    @property
    def is_settled(self) -> bool:
        """True if the task has ended, or waits for an operator's decision."""
        return self.state in TASK_FINAL or self.attention is not None


class AppliedWorkflow(Struct, frozen=True):
    """`created` is False when this version already existed with the same content. `warnings` are probable mistakes, and
    handlers that are not offered now."""

    namespace: str
    name: str
    version: str
    created: bool
    warnings: tuple[WorkflowWarning, ...]


def read_view(queries: Queries, task_id: int, workflows: Mapping[int, Workflow]) -> TaskView | None:
    """Read a task with its steps. Runs in a reader's thread."""
    stored = queries.task(task_id)
    if stored is None:
        return None
    row = stored.task
    result = result_of(queries, stored, Definitions(queries, workflows)[row.workflow_id]).result
    return TaskView(
        task_id=row.id,
        namespace=row.namespace,
        workflow=row.workflow,
        version=row.version,
        state=row.state,
        attention=row.attention,
        key=row.key,
        created_ms=row.created_ms,
        finished_ms=row.finished_ms,
        context=_decode(stored.context),
        result=None if result is None else _decode(result),
        steps=tuple(step_view(step) for step in stored.steps),
    )


def step_view(row: StepRow) -> StepView:
    return StepView(
        step_id=row.id,
        name=row.name,
        handler_class=row.handler_class,
        state=row.state,
        attempt=row.attempt,
        worker=row.worker,
        reason=row.reason,
        error=None if row.error is None else _decode(row.error),
        output=None if row.output is None else _decode(row.output),
    )
