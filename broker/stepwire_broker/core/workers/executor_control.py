"""Executors: pause and resume by an operator, and the figures of their runs.

A pause is stored: it ends when an operator resumes the executor.
"""

from collections.abc import Callable
from typing import Final

from stepwire_protocol.messages import Result

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.commit.operator_controls import PausedExecutor, control, removal
from stepwire_broker.core.model.commit_group import AuditPart, ControlChanged
from stepwire_broker.core.model.events import Command, CommandOfOperator, Now
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.model.targets import BUS
from stepwire_broker.core.state import BrokerState


class PauseExecutor(CommandOfOperator, frozen=True):
    """Send this executor no further steps until it is resumed."""

    executor: str


class ResumeExecutor(CommandOfOperator, frozen=True):
    executor: str


class ExecutorPaused(Answer, frozen=True):
    """The time in UTC since which the executor is paused. None: the executor is not paused."""

    executor: str
    since_ms: int | None


def on_pause(state: BrokerState, event: PauseExecutor, now: Now) -> None:
    """Pause an executor, which finishes the steps it has. If it is already paused, its first pause continues."""
    executor = state.executor(event.executor)
    outcome, part = "unchanged", None
    if executor.paused_wall is None:
        executor.paused_wall = now.wall
        outcome, part = "done", _set(state, control(executor.key, PausedExecutor(now.wall)))
    state.audit(event, "pause_executor", f"executor {executor.key}", now, part=part, outcome=outcome)
    state.answer(event.request, ExecutorPaused(executor.key, executor.paused_wall))


def on_resume(state: BrokerState, event: ResumeExecutor, now: Now) -> None:
    executor = state.executor(event.executor)
    outcome, part = "unchanged", None
    if executor.paused_wall is not None:
        executor.paused_wall = None
        outcome, part = "done", _set(state, removal(executor.key, PausedExecutor))
    state.audit(event, "resume_executor", f"executor {executor.key}", now, part=part, outcome=outcome)
    state.answer(event.request, ExecutorPaused(executor.key, None))


def _set(state: BrokerState, change: ControlChanged) -> AuditPart:
    state.set_control(change)
    return ("control", f"{change.kind} {change.name}")


def count_run(state: BrokerState, session: WorkerSession | None, step: Step, result: Result, now: Now) -> None:
    """Count a run that ended, for its executor and its session. Its duration is the one that the worker measured, or
    else the time since its start."""
    is_completed = result.status == "completed"
    if session is None:
        executor = state.executor(BUS)
    else:
        executor = session.of
        if is_completed:
            session.completed += 1
        else:
            session.failed += 1
    took_ms = None if result.metadata is None else result.metadata.execution_time_ms
    if took_ms is None and step.started_ms is not None:
        took_ms = max(0, now.wall - step.started_ms)
    executor.figures.ended(is_completed, None if took_ms is None else took_ms / 1000)


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {PauseExecutor: on_pause, ResumeExecutor: on_resume}
