"""Explains why a task or a step is in its state, from its committed rows and the core's state in memory.

The rows are read first, so that an explanation contains only durable facts about the task. Sessions, leases and the
queue are not stored: for these the core's current state is used. Of another broker's task, only that broker knows them:
it is asked by an order, and a document waits a limited time for the answer.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.stored_rows import StoredStep, StoredTask
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.apply import unlink
from stepwire_broker.core.model.events import Explain, ExplainSteps
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import STEP_FINAL, TASK_FINAL
from stepwire_broker.core.sharing.explaining import STEPS_EXPLAINED_MAX, StepsAnswer, StepWhy, WhyAnswer
from stepwire_broker.core.why import Why
from stepwire_broker.store.definitions import Definitions
from stepwire_broker.store.queries import Queries
from stepwire_broker.timestamps import rfc3339_or_none

from . import core_views, reading
from .documents import Reason, StepReason, TaskReason
from .engine_port import EnginePort
from .enumerations import OWNER_SILENT, StepState, TaskState
from .hints import worded
from .http_problems import HttpProblem, not_found, of_refused
from .namespace_rules import no_such_step, no_such_task
from .reading import Explained

OWNER_S: Final = 2.0  # for which a document waits for the owner of its task, at most
NO_PAYLOADS: Final = 0
READS_MAX: Final = 3  # for a task that changes between its explanation and its document
STEPS_NAMED_MAX: Final = 20


async def task(broker: EnginePort, task_id: int, inspects: bool) -> reading.Read | None:
    """The task's document, with explanations of its open steps."""
    is_open = core_views.live_task(broker, task_id) is not None
    read, live = None, core_views.live(broker)
    explained: Mapping[int, Explained] = {}
    for _ in range(READS_MAX):
        if is_open and (stored := await _restored(broker, task_id)) is not None:
            live, explained = await _explained(broker, stored)
        read = await broker.read(reading.task, task_id, live, inspects, explained)
        if read is None or read.state in TASK_FINAL or (is_open and not read.has_moved):
            break
        is_open = True
    return read


async def stored_task(broker: EnginePort, task_id: int, inspects: bool) -> reading.Read | None:
    """The task's document without explanations: for a client that goes on waiting."""
    return await broker.read(reading.task, task_id, core_views.live(broker), inspects, {})


def small_task(broker: EnginePort, task_id: int, inspects: bool) -> reading.Read | None:
    """The document of a task that has just ended, if it is small and can be read without waiting."""
    if core_views.live_task(broker, task_id) is not None:
        return None
    read = broker.read_at_once(reading.small_task, task_id, core_views.live(broker), inspects)
    return read if read is not None and read.is_settled else None


async def step_by_id(broker: EnginePort, step_id: int, inspects: bool) -> bytes | None:
    """A step's document, with an explanation if the step is open."""
    task_id = core_views.task_of_open_step(broker, step_id)
    if task_id is None:
        read = await broker.read(reading.step, step_id, core_views.live(broker), inspects)
        if read is None or not read.is_open:
            return None if read is None else read.document
        task_id = read.task_id
    stored = await _restored(broker, task_id)
    if stored is None:
        return None
    live, explained = await _explained(broker, stored, step_id)
    read = await broker.read(reading.step, step_id, live, inspects, explained.get(step_id))
    return None if read is None else read.document


async def step(broker: EnginePort, task_id: int, name: str, inspects: bool) -> bytes:
    """The document of a step, by its task and its name."""
    stored = await _restored(broker, task_id)
    if stored is None:
        raise await no_task(broker, task_id)
    try:
        step_id = _named(stored, name).id
    finally:
        unlink(stored)
    document = await step_by_id(broker, step_id, inspects)
    if document is None:
        raise await no_task(broker, task_id)
    return document


async def why_task(broker: EnginePort, task_id: int) -> TaskReason:
    if core_views.is_elsewhere(broker, task_id):
        asked = await _ask_owner(broker, task_id)
        return TaskReason(task_id, TaskState(asked.state), *_shown(asked), asked.step_id, asked.step)
    stored = await _restored(broker, task_id)
    if stored is None:
        raise await no_task(broker, task_id)
    why, on = core_views.why_task(broker, stored)
    unlink(stored)
    step_id, name = (None, None) if on is None else (on.id, on.definition.name)
    since = rfc3339_or_none(why.since_ms)
    return TaskReason(task_id, stored.state, why.code, why.message, since, *_next(why), step_id, name)


async def why_step(broker: EnginePort, task_id: int, name: str) -> StepReason:
    if core_views.is_elsewhere(broker, task_id):
        asked = await _ask_owner(broker, task_id, name)
        assert asked.step_id is not None
        return StepReason(task_id, asked.step_id, name, StepState(asked.state), *_shown(asked))
    stored = await _restored(broker, task_id)
    if stored is None:
        raise await no_task(broker, task_id)
    try:
        step = _named(stored, name)
        why = core_views.why_step(broker, step)
    finally:
        unlink(stored)
    since = rfc3339_or_none(why.since_ms)
    return StepReason(task_id, step.id, name, step.state, why.code, why.message, since, *_next(why))


class Explanations(NamedTuple):
    """Reasons and progress of open steps, from the memory of the task's owner."""

    live: reading.Live
    steps: Mapping[int, Explained]


async def _explained(broker: EnginePort, stored: Task, step_id: int | None = None) -> Explanations:
    """Explain the open steps of a task, or this one. `stored` is unlinked."""
    try:
        still_open = [each for each in stored.steps if each.state not in STEP_FINAL and step_id in (None, each.id)]
        if not core_views.is_elsewhere(broker, stored.id):
            return Explanations(
                core_views.live(broker), {each.id: _explain(broker, each) for each in still_open[:STEPS_EXPLAINED_MAX]}
            )
        states = {each.id: (str(each.state), each.attempt, each.delivery) for each in still_open[:STEPS_EXPLAINED_MAX]}
    finally:
        unlink(stored)
    return await _explained_by_owner(broker, stored.id, step_id, states)


async def _explained_by_owner(
    broker: EnginePort, task_id: int, step_id: int | None, states: Mapping[int, tuple[str, int, int]]
) -> Explanations:
    """Ask the owner of the task. If it does not answer in time, each open step has a reason that says this."""
    live, owner = core_views.live(broker), core_views.live_owner(broker, task_id)
    answer = None
    if owner is not None:
        asking = broker.ask(lambda request: ExplainSteps(request, task_id, step_id))
        with suppress(TimeoutError):
            answer = await asyncio.wait_for(asking, OWNER_S)
    if isinstance(answer, StepsAnswer):
        progress = {each.step_id: each for each in answer.progress}
        return Explanations(
            live._replace(progress=progress), {each.step_id: _from_owner(each) for each in answer.steps}
        )
    reason = _reason(_silent(owner))
    return Explanations(live, {number: Explained(*state, reason) for number, state in states.items()})


def _from_owner(why: StepWhy) -> Explained:
    reason = _reason(Why(why.code, why.message, why.since_ms, why.hint))
    return Explained(why.state, why.attempt, why.delivery, reason)


def _silent(owner: str | None) -> Why:
    text = "no living broker is known to own the task, so only the stored state of the step is shown"
    if owner is not None:
        text = f"broker {owner} owns the task and has not explained the step in time: only its stored state is shown"
    return Why(OWNER_SILENT, text, None)


async def _ask_owner(broker: EnginePort, task_id: int, step: str | None = None) -> WhyAnswer:
    """The owner's explanation: sessions, leases and the queue are in its memory only."""
    answer = await broker.ask(lambda request: Explain(request, task_id, step))
    if isinstance(answer, CommandRefused):
        names_a_step = answer.hint is not None and answer.hint.code is HintCode.NAME_A_STEP
        raise of_refused(answer) if answer.code != "not_found" or names_a_step else await no_task(broker, task_id)
    assert isinstance(answer, WhyAnswer), answer
    return answer


def _shown(why: WhyAnswer) -> tuple[str, str, str | None, str | None, Hint | None]:
    text = None if why.hint is None else worded(why.hint)
    return why.code, why.message, rfc3339_or_none(why.since_ms), text, why.hint


async def no_task(broker: EnginePort, task_id: int) -> HttpProblem:
    """The problem of an id that no task has. Tasks and steps are numbered in one sequence: it may be a step's."""
    row = await broker.read(lambda queries: queries.step(task_id))
    if row is None:
        return no_such_task(task_id)
    what = f"task {task_id}: {task_id} is the step `{row.name}` of task {row.task_id}"
    return not_found(what, Hint(HintCode.SHOW_TASK, task_id=row.task_id))


async def no_step(broker: EnginePort, step_id: int) -> HttpProblem:
    """The problem of an id that no step has. It may be a task's."""
    stored = await _restored(broker, step_id)
    if stored is None:
        return no_such_step(step_id)
    names = tuple(list(stored.workflow.by_name)[:STEPS_NAMED_MAX])
    unlink(stored)
    return not_found(f"step {step_id}: {step_id} is a task", Hint(HintCode.NAME_A_STEP, task_id=step_id, names=names))


async def _restored(broker: EnginePort, task_id: int) -> Task | None:
    """The task as described by its rows, without payloads. The caller must unlink the task after use."""
    loaded = await broker.read(_load, task_id, broker.workflows)
    return None if loaded is None else core_views.restored_task(*loaded)


def _load(
    queries: Queries, task_id: int, workflows: Mapping[int, Workflow]
) -> tuple[StoredTask, list[StoredStep], Workflow] | None:
    loaded = queries.load_tasks([task_id], NO_PAYLOADS)
    if not loaded.tasks:
        return None
    (task,) = loaded.tasks
    return task, loaded.steps, Definitions(queries, workflows)[task.workflow_id]


def _named(task: Task, name: str) -> Step:
    index = task.workflow.by_name.get(name)
    if index is None:
        names = tuple(list(task.workflow.by_name)[:STEPS_NAMED_MAX])
        raise not_found(f"step {name[:200]!r} in task {task.id}", Hint(HintCode.NAME_A_STEP, names=names))
    return task.steps[index]


def _explain(broker: EnginePort, step: Step) -> Explained:
    return Explained(step.state, step.attempt, step.delivery, _reason(core_views.why_step(broker, step)))


def _reason(why: Why) -> Reason:
    return Reason(why.code, why.message, rfc3339_or_none(why.since_ms), *_next(why))


def _next(why: Why) -> tuple[str | None, Hint | None]:
    return (None, None) if why.hint is None else (worded(why.hint), why.hint)
