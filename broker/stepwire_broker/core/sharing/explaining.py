"""The commands `Explain` and `ExplainSteps`: a broker asks the owner of a task why it, or a step of it, is not running.

The owner explains the task as it is in its memory, and the answer leaves after everything decided before it is durable.
A task that is only in the database is explained from its rows, and stays there. `ExplainSteps` completes a document of
the task that another broker sends.
"""

from typing import Final

from msgspec import Struct

from stepwire_broker.core import explain
from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.loading.residency import restored
from stepwire_broker.core.model.apply import unlink
from stepwire_broker.core.model.events import Explain, ExplainSteps, Now
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.model.states import STEP_FINAL
from stepwire_broker.core.state import BrokerState

STEPS_NAMED_MAX: Final = 20
STEPS_EXPLAINED_MAX: Final = 100  # open steps in one task's document; further steps have only the reason in their row
PROGRESS_MAX: Final = 1_000  # reports in one answer


class WhyAnswer(Answer, frozen=True):
    """Why the task, or the named step, is in its state. `step`: the step that explains it; None if the task itself
    does."""

    task_id: int
    state: str  # of the task, or of the named step
    code: str
    message: str
    since_ms: int | None
    hint: Hint | None
    step_id: int | None
    step: str | None


class StepWhy(Struct, frozen=True):
    """Why a step is in its state. The reason is invalid after the step has changed."""

    step_id: int
    state: str
    attempt: int
    delivery: int
    code: str
    message: str
    since_ms: int | None
    hint: Hint | None


class RunProgress(Struct, frozen=True):
    """The latest progress report of a run."""

    step_id: int
    delivery: int
    at_ms: int
    done: float
    total: float | None
    note: str | None


class StepsAnswer(Answer, frozen=True):
    """Reasons and progress of the open steps of a task, from the memory of its owner."""

    steps: tuple[StepWhy, ...]
    progress: tuple[RunProgress, ...]


EXPLANATIONS: Final[dict[str, type[Answer]]] = {kind.__name__: kind for kind in (WhyAnswer, StepsAnswer)}


def explain_live(state: BrokerState, task: Task, event: Explain | ExplainSteps, now: Now) -> None:
    state.answer(event.request, _answer_to(state, task, event, now), task)


def explain_stored(state: BrokerState, loaded: Loaded, event: Explain | ExplainSteps, now: Now) -> None:
    """Explain a task from its rows, which were just read."""
    row = loaded.tasks[0]
    task = restored(state.workflows[row.workflow_id], row, loaded.steps)
    answer = _answer_to(state, task, event, now)
    unlink(task)
    state.answer(event.request, answer)


def _answer_to(state: BrokerState, task: Task, event: Explain | ExplainSteps, now: Now) -> Answer:
    return _explained(state, task, event, now) if isinstance(event, Explain) else _open_steps(state, task, event, now)


def _explained(state: BrokerState, task: Task, event: Explain, now: Now) -> Answer:
    if event.step is None:
        why, step = explain.task(state, task, now)
        is_in = str(task.state)
    else:
        index = task.workflow.by_name.get(event.step)
        if index is None:
            names = tuple(list(task.workflow.by_name)[:STEPS_NAMED_MAX])
            text = f"there is no step {event.step[:200]!r} in task {task.id}"
            return CommandRefused("not_found", text, Hint(HintCode.NAME_A_STEP, names=names))
        step = task.steps[index]
        why = explain.step(state, step, now)
        is_in = str(step.state)
    step_id, name = (None, None) if step is None else (step.id, step.definition.name)
    return WhyAnswer(task.id, is_in, why.code, why.message, why.since_ms, why.hint, step_id, name)


def _open_steps(state: BrokerState, task: Task, event: ExplainSteps, now: Now) -> StepsAnswer:
    steps = [each for each in task.steps if each.state not in STEP_FINAL and event.step_id in (None, each.id)]
    reports = [state.progress[step.id] for step in steps if step.id in state.progress]
    whys = [(step, explain.step(state, step, now)) for step in steps[:STEPS_EXPLAINED_MAX]]
    return StepsAnswer(
        tuple(StepWhy(step.id, str(step.state), step.attempt, step.delivery, *why) for step, why in whys),
        tuple(
            RunProgress(each.step.id, each.delivery, each.at_ms, each.done, each.total, each.note)
            for each in reports[:PROGRESS_MAX]
        ),
    )
