"""Executors: pause and resume by an operator, and the figures of their runs.

A pause is not stored: it ends when the executor is resumed or the broker restarts.
"""

from collections.abc import Callable
from typing import Final

from stepwire_protocol.messages import Result

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.commit.decision import ToRequest
from stepwire_broker.core.model.events import Command, Now
from stepwire_broker.core.model.figures import Figures
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.state import BrokerState


class PauseExecutor(Command, frozen=True):
    """Send this executor no further steps until it is resumed or the broker restarts."""

    executor: str


class ResumeExecutor(Command, frozen=True):
    executor: str


class ExecutorPaused(Answer, frozen=True):
    """The time in UTC since which the executor is paused. None: the executor is not paused."""

    executor: str
    since_ms: int | None


def on_pause(state: BrokerState, event: PauseExecutor, now: Now) -> None:
    """Pause an executor, which finishes the steps it has. If it is already paused, its first pause continues."""
    executor = state.executor(event.executor)
    if executor.paused_wall is None:
        executor.paused_wall = now.wall
    state.decision.answers.append(ToRequest(event.request, ExecutorPaused(executor.key, executor.paused_wall)))


def on_resume(state: BrokerState, event: ResumeExecutor, now: Now) -> None:
    executor = state.executor(event.executor)
    executor.paused_wall = None
    state.decision.answers.append(ToRequest(event.request, ExecutorPaused(executor.key, None)))


def count(figures: Figures, step: Step, result: Result, now: Now) -> None:
    """Count a run that ended. Its duration is the worker's measurement, or else the time since the start."""
    took_ms = None if result.metadata is None else result.metadata.execution_time_ms
    if took_ms is None and step.started_ms is not None:
        took_ms = max(0, now.wall - step.started_ms)
    figures.ended(result.status == "completed", None if took_ms is None else took_ms / 1000)


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {PauseExecutor: on_pause, ResumeExecutor: on_resume}
