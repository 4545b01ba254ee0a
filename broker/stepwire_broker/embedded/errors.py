"""The exceptions of an embedded broker. Their texts are for people, and name neither code nor files of a handler.

`docs/reference/errors.md` draws the tree.
"""

from typing import Final

from stepwire_broker.errors import BrokerError

from .views import StepView, TaskView

STEPS_MAX: Final = 3  # steps that a text names


class CommandError(BrokerError):
    """A command was refused, and nothing is stored. `code` is the same as over HTTP, `hint` is the next action.

    Only with the code `commit_unknown`, the command may have been carried out: the broker stopped before the commit.
    With `retry_after_ms`, the same command may succeed after that time.
    """

    def __init__(self, code: str, message: str, hint: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {message}" + (f" ({hint})" if hint else ""))
        self.code = code
        self.message = message
        self.hint = hint
        self.retry_after_ms = retry_after_ms


class TaskNotCompleted(BrokerError):
    """A task has no result. `task` is its current state, and `steps` are the steps that prevent the result."""

    def __init__(self, text: str, task: TaskView, steps: tuple[StepView, ...] = ()) -> None:
        super().__init__(f"task {task.task_id} {text}")
        self.task = task
        self.steps = steps


class TaskFailed(TaskNotCompleted):
    """The task has ended: one of its steps has failed for good. `error_text` of a step is its error in one line."""

    def __init__(self, task: TaskView) -> None:
        steps = task.in_state("failed")
        named = [f"step {step.name}: {step.error_text or 'no reason is known'}" for step in steps[:STEPS_MAX]]
        text = f"failed: {'; '.join(named)}" if named else "failed"
        super().__init__(text + _and_more(steps), task, steps)


class TaskCancelled(TaskNotCompleted):
    """The task has ended: it was cancelled."""

    def __init__(self, task: TaskView) -> None:
        super().__init__("was cancelled", task)


class TaskHeld(TaskNotCompleted):
    """The task waits until its held steps are resolved: see `Broker.resolve`."""

    def __init__(self, task: TaskView) -> None:
        steps = task.in_state("held")
        named = ", ".join(f"{step.name} (step_id {step.step_id})" for step in steps[:STEPS_MAX])
        text = f"waits until its held step {named} is resolved" if len(steps) == 1 else f"waits for held steps: {named}"
        super().__init__(text + _and_more(steps), task, steps)


def _and_more(steps: tuple[StepView, ...]) -> str:
    return f"; and {len(steps) - STEPS_MAX} more" if len(steps) > STEPS_MAX else ""
