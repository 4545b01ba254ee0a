"""The command `erase`: replace the payloads of a task that has ended, in memory and in every row.

The core decides, and records the fact `Erased`; the store replaces the payloads in the transaction of that fact.
Memory outside the task that may hold parts of its payloads is cleared here: copies for shadows, the texts of
comparisons and of breakers, and the bytes of batches whose deliveries were withdrawn.
"""

from collections.abc import Callable
from typing import Final

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.dispatch import transmission
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Command, CommandOfOperator, Now
from stepwire_broker.core.model.live import RESTORED, Task
from stepwire_broker.core.model.states import HELD, TASK_FINAL, TaskState
from stepwire_broker.core.progress.task_outcome import end
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.state import BrokerState


class EraseTask(CommandOfOperator, frozen=True):
    task_id: int
    reason: str


class ErasedTask(Answer, frozen=True):
    """The payloads of this task are erased, by this command or by an earlier one. `uid` names the task in every copy of
    the database."""

    task_id: int
    state: str
    attention: str | None
    uid: str
    erased_ms: int


def on_erase(state: BrokerState, task: Task, event: EraseTask, now: Now) -> None:
    """Erase a task that has ended. Erasing it again changes nothing."""
    if task.state not in TASK_FINAL:
        message = f"task {task.id} is {task.state}, and only a task that has ended can be erased"
        state.refuse_now(
            event.request, CommandRefused("wrong_state", message, Hint(HintCode.CANCEL_FIRST, task_id=task.id))
        )
        return
    erased_ms = erasing.erased_ms(task.labels)
    if erased_ms is None:
        erased_ms = now.wall
        erase(state, task, event.reason, event.by, now)
        state.audit(event, "erase_task", f"task {task.id}", now, task=task, reason=event.reason)
    state.answer(event.request, ErasedTask(task.id, task.state, task.attention, task.uid, erased_ms), task)


def erase(state: BrokerState, task: Task, reason: str, by: str | None, now: Now) -> None:
    resident_bytes = _resident_bytes(task)
    task.erase_ms = now.wall
    state.record(task, facts.Erased(now.wall, reason, by))
    state.hold_bytes(task, _resident_bytes(task) - resident_bytes)
    state.counters.erased += 1
    _forget_guards(state, task)
    copies.forget(state, task)
    transmission.forget(state, task)


def erase_restored(state: BrokerState, task: Task, reason: str, now: Now) -> None:
    """Erase a task of a restored backup. A task that is open in the backup ended later: cancel it."""
    if task.state not in TASK_FINAL:
        if task.state is TaskState.PENDING:
            state.record(task, facts.Activated(now.wall))
        state.record(task, facts.CancelAsked(now.wall, reason))
        for step in task.steps:
            if step.state is HELD:
                state.record(task, facts.Failed(now.wall, step.position, step.delivery, RESTORED))
            elif not step.is_final:
                state.record(task, facts.StepCancelled(now.wall, step.position, "task_cancelled"))
        end(state, task, now)
    erase(state, task, reason, None, now)


def _resident_bytes(task: Task) -> int:
    outputs = sum(len(step.output) for step in task.steps if step.output is not None)
    return outputs + (len(task.context) if task.context is not None else 0)


def _forget_guards(state: BrokerState, task: Task) -> None:
    """Remove the text of the last failure of the task's handlers: it may be the text of this task."""
    for step in task.steps:
        guard = state.guards.by_handler.get(step.definition.handler_class)
        if guard is not None and guard.reason and not guard.breaker.is_forced:
            guard.reason = erasing.TEXT


# The machine loads the task before it calls this function, and removes the task afterwards.
TASK_COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {EraseTask: on_erase}
