"""The result of a completed task, from its stored outputs."""

from typing import NamedTuple

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.definitions.input_mapping import task_result
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.states import TaskState

from .queries import Queries
from .rows import TaskRecord


class TaskResult(NamedTuple):
    result: bytes | None  # JSON; None: the task is not completed, or its result is too large
    is_too_large: bool = False


def result_of(queries: Queries, record: TaskRecord, workflow: Workflow, bytes_max: int | None = None) -> TaskResult:
    """Return the workflow's `output`, or the outputs of its last steps by name. Reads outputs missing in the record."""
    if record.task.state != TaskState.COMPLETED:
        return TaskResult(None)
    erased_ms = erasing.erased_ms(record.task.labels)
    if erased_ms is not None:
        return TaskResult(erasing.marker(erased_ms))
    last = [workflow.steps[index].name for index in workflow.last]
    names = set(last) if workflow.output is None else {path[1] for _, path in workflow.output if path[0] != "context"}
    rows = [row for row in record.steps if row.name in names]
    if bytes_max is not None and sum(row.output_bytes for row in rows) > bytes_max:
        return TaskResult(None, is_too_large=True)
    outputs = {row.name: row.output.encode() for row in rows if row.output is not None}
    left_out = {row.id: row.name for row in rows if row.output is None and row.output_bytes}
    if left_out:
        read = queries.load_payloads([], list(left_out)).outputs
        outputs |= {left_out[step_id]: output for step_id, output in read.items()}
    return TaskResult(task_result(workflow.output, last, record.context.encode(), outputs))
