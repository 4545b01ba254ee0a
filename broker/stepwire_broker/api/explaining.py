"""Why a task or a step stands where it stands: committed rows, told by what the broker's memory knows beside them.

The rows are read first and the sentence is made from them, so nothing is said of what is not durable. Sessions, leases
and the queue are in no row: of those the core's state tells how it is at this moment.
"""

from typing import Final

from stepwire_broker.core import explain
from stepwire_broker.core.explain import Why
from stepwire_broker.core.loading.residency import restored
from stepwire_broker.core.model.apply import unlink
from stepwire_broker.core.model.hints import Hint, HintCode
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import STEP_FINAL
from stepwire_broker.timestamps import rfc3339_or_none

from . import reading
from .documents import Reason, StepReason, TaskReason
from .engine_port import EnginePort
from .hints import worded
from .http_problems import HttpProblem, not_found
from .reading import Explained

EXPLAINED_MAX: Final = 100  # open steps in the document of one task: the others' reasons are what their rows say
NO_PAYLOADS: Final = 0
READS_MAX: Final = 3  # of a task that moves on between what is explained and what is shown


async def task(broker: EnginePort, task_id: int) -> reading.Read | None:
    """The task's document; while the task is in memory, with a sentence for each of its open steps."""
    for _ in range(READS_MAX):
        explained: dict[int, Explained] = {}
        if task_id in broker.state.tasks:
            found = await _restored(broker, task_id)
            if found is not None:
                explained = _explained(broker, found)
                unlink(found)
        read = await broker.read(reading.task, task_id, broker.workflows, explained)
        if read is None or not read.has_moved:
            break
    return read


def small_task(broker: EnginePort, task_id: int) -> reading.Read | None:
    """The document of a task that ended a moment ago, if it is small and can be had at once."""
    if task_id in broker.state.tasks:
        return None
    read = broker.read_at_once(reading.small_task, task_id, broker.workflows)
    return read if read is not None and read.is_settled else None


async def step_by_id(broker: EnginePort, step_id: int) -> bytes | None:
    """A step's document; while its task is in memory, with the sentence."""
    live = broker.state.steps.get(step_id)
    if live is None or live.is_final:
        return await broker.read(reading.step, step_id)
    found = await _restored(broker, live.task.id)
    explained = None
    if found is not None:
        explained = next((_explain(broker, step) for step in found.steps if step.id == step_id), None)
        unlink(found)
    return await broker.read(reading.step, step_id, explained)


async def step(broker: EnginePort, task_id: int, name: str) -> bytes:
    """The document of a step that is named by its task and its own name."""
    found = await _restored(broker, task_id)
    if found is None:
        raise no_task(task_id)
    try:
        step = _named(found, name)
        explained = None if step.state in STEP_FINAL else _explain(broker, step)
        document = await broker.read(reading.step, step.id, explained)
    finally:
        unlink(found)
    if document is None:
        raise no_task(task_id)
    return document


async def why_task(broker: EnginePort, task_id: int) -> TaskReason:
    found = await _restored(broker, task_id)
    if found is None:
        raise no_task(task_id)
    why, on = explain.task(broker.state, found, broker.now())
    unlink(found)
    step_id, name = (None, None) if on is None else (on.id, on.definition.name)
    return TaskReason(
        task_id, found.state, why.code, why.message, rfc3339_or_none(why.since_ms), *_next(why), step_id, name
    )


async def why_step(broker: EnginePort, task_id: int, name: str) -> StepReason:
    found = await _restored(broker, task_id)
    if found is None:
        raise no_task(task_id)
    try:
        step = _named(found, name)
        why = explain.step(broker.state, step, broker.now())
    finally:
        unlink(found)
    return StepReason(
        task_id, step.id, name, step.state, why.code, why.message, rfc3339_or_none(why.since_ms), *_next(why)
    )


def no_task(task_id: int) -> HttpProblem:
    return not_found(f"task {task_id}", Hint(HintCode.LIST_TASKS))


async def _restored(broker: EnginePort, task_id: int) -> Task | None:
    """The task as its rows have it, without its payloads. Whoever is done with it unlinks it."""
    loaded = await broker.read(lambda queries: queries.load_tasks([task_id], NO_PAYLOADS))
    return restored(broker.state, loaded.tasks[0], loaded.steps) if loaded.tasks else None


def _named(task: Task, name: str) -> Step:
    index = task.workflow.by_name.get(name)
    if index is None:
        names = tuple(list(task.workflow.by_name)[:20])
        raise not_found(f"step {name[:200]!r} in task {task.id}", Hint(HintCode.NAME_A_STEP, names=names))
    return task.steps[index]


def _explained(broker: EnginePort, task: Task) -> dict[int, Explained]:
    still_open = [step for step in task.steps if step.state not in STEP_FINAL]
    return {step.id: _explain(broker, step) for step in still_open[:EXPLAINED_MAX]}


def _explain(broker: EnginePort, step: Step) -> Explained:
    return Explained(step.state, step.attempt, step.delivery, _reason(explain.step(broker.state, step, broker.now())))


def _reason(why: Why) -> Reason:
    return Reason(why.code, why.message, rfc3339_or_none(why.since_ms), *_next(why))


def _next(why: Why) -> tuple[str | None, Hint | None]:
    return (None, None) if why.hint is None else (worded(why.hint), why.hint)
