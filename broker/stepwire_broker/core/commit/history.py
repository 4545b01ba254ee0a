"""Replay of the history: a task's facts give the state that its rows must show.

The live state changes by the same facts. Therefore a difference means that a row was written without its fact, a fact
was written without its row, or another program changed the database.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

from stepwire_broker.core.definitions.stored_rows import StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.apply import apply, counted
from stepwire_broker.core.model.facts import Fact
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import COMPLETED, TaskState
from stepwire_broker.errors import BrokerError


class ReplayDifference(NamedTuple):
    """A value that differs between a task's rows and its replayed history."""

    task_id: int
    step: str | None
    what: str
    row: Any
    history: Any


class CannotReplay(BrokerError):
    """The history is broken: a fact does not follow from the facts before it."""


def replay(task_id: int, workflow: Workflow, history: Iterable[bytes]) -> Task:
    """Build the task from its history. `history` are the facts of each history row, in order."""
    all_facts: list[Fact] = [fact for row in history for fact in facts.decode(row)]
    if not all_facts or not isinstance(all_facts[0], facts.Submitted):
        raise CannotReplay(f"task {task_id}: its history does not begin with its submission")
    first = all_facts[0]
    task = Task(
        id=task_id,
        uid=first.uid,
        workflow=workflow,
        lane=0,
        namespace=workflow.namespace,
        key=None,
        state=TaskState(first.state),
        priority=0,
        context=None,
        context_bytes=0,
        created_ms=first.at,
    )
    task.steps = [Step(first.first_step_id + d.index, task, d.index, d) for d in workflow.steps]
    counted(task)
    for number, fact in enumerate(all_facts[1:], 1):
        try:
            apply(task, fact)
        except (KeyError, IndexError, AssertionError, ValueError) as error:
            raise CannotReplay(f"task {task_id}: fact {number}, {fact}, does not follow: {error!r}") from error
        if isinstance(fact, facts.Completed):
            task.steps[fact.step].output_bytes = fact.output_bytes
            task.steps[fact.step].output = b"%d" % fact.output_crc32
        elif isinstance(fact, facts.Erased):
            for step in task.steps:
                step.output = None if step.output is None else b"%d" % crc32(step.output)
    return task


def differences(replayed: Task, row: StoredTask, steps: list[StoredStep]) -> list[ReplayDifference]:
    """Compare a task's rows with its replayed history. Outputs are compared by size, and by CRC-32 if present."""
    differing = [
        ReplayDifference(row.id, None, what, in_row, in_history)
        for what, in_row, in_history in (
            ("uid", row.uid, replayed.uid),
            ("state", row.state, str(replayed.state)),
            ("attention", row.attention, replayed.attention),
            ("cancelling", bool(row.cancelling), replayed.cancelling),
            ("finished_ms", row.finished_ms, replayed.finished_ms),
            ("created_ms", row.created_ms, replayed.created_ms),
            ("steps", len(steps), len(replayed.steps)),
        )
        if in_row != in_history
    ]
    for stored, step in zip(steps, replayed.steps, strict=False):
        differing += [
            ReplayDifference(row.id, step.definition.name, what, in_row, in_history)
            for what, in_row, in_history in _columns(stored, step)
            if in_row != in_history
        ]
    return differing


def _columns(stored: StoredStep, step: Step) -> list[tuple[str, Any, Any]]:
    columns: list[tuple[str, Any, Any]] = [
        ("id", stored.id, step.id),
        ("position", stored.position, step.position),
        ("state", stored.state, str(step.state)),
        ("attempt", stored.attempt, step.attempt),
        ("delivery", stored.delivery, step.delivery),
        ("accept_from", stored.accept_from, step.accept_from),
        ("batch_id", stored.batch_id, step.batch_id),
        ("worker", stored.worker, step.worker),
        ("granted", bool(stored.granted), step.granted),
        ("lost_sessions", stored.lost_sessions, step.lost_sessions),
        ("ready_ms", stored.ready_ms, step.ready_ms),
        ("dispatched_ms", stored.dispatched_ms, step.dispatched_ms),
        ("started_ms", stored.started_ms, step.started_ms),
        ("not_before_ms", stored.not_before_ms, step.not_before_ms),
        ("finished_ms", stored.finished_ms, step.finished_ms),
        ("run_ms", stored.run_ms, step.run_ms),
        ("reason", stored.reason, step.reason),
        ("key_number", stored.key_number, step.key_number),
        ("output_bytes", stored.output_bytes, step.output_bytes),
    ]
    if step.state is COMPLETED and stored.output is not None:
        columns.append(("output_crc32", b"%d" % crc32(stored.output.encode()), step.output))
    return columns
