"""Commands on tasks and steps: await, cancel, pause, resume, retry, resolve.

A command is answered when its effects are committed, or refused at once.
"""

from collections.abc import Callable
from typing import Final, Literal, assert_never

from stepwire_protocol import sealed_payloads
from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.answers.answers import CommandRefused, Done
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.dispatch.payloads import forget_fetched
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.apply import counted
from stepwire_broker.core.model.events import AwaitTask, Command, CommandOfOperator, Forget, Now
from stepwire_broker.core.model.live import Step, Task
from stepwire_broker.core.model.states import (
    CANCELLED,
    COMPLETED,
    DISPATCHED,
    FAILED,
    HELD,
    READY,
    RETRY_WAIT,
    SKIPPED,
    TASK_FINAL,
    WAITING,
    TaskState,
)
from stepwire_broker.core.progress.dependents import decide_again, wait_again
from stepwire_broker.core.progress.readiness import enqueue
from stepwire_broker.core.progress.step_outcomes import cancel_step, complete, fail
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers.stopping import request_stop

from .submission import intake_refused, no_executor


class CancelTask(CommandOfOperator, frozen=True):
    task_id: int
    reason: str = ""


class PauseTask(CommandOfOperator, frozen=True):
    task_id: int


class ResumeTask(CommandOfOperator, frozen=True):
    task_id: int


class RetryTask(CommandOfOperator, frozen=True):
    """Run failed, cancelled and skipped steps again; with `from_step`, that step and all after it."""

    task_id: int
    from_step: str | None = None
    again: bool = False  # also completed at_most_once steps
    new_key: bool = False
    reason: str = ""


class ResolveStep(CommandOfOperator, frozen=True):
    """An operator sets the outcome of a held step."""

    step_id: int
    outcome: Literal["completed", "failed", "retry"]
    reason: str
    output: bytes | None = None  # JSON
    message: str = ""
    new_key: bool = False


def on_await(state: BrokerState, event: AwaitTask, now: Now) -> None:
    """Answer when the task ends or needs an operator.

    The caller reads the task after it sent this command. A task that is not in memory has ended or is loaded later.
    """
    task = state.tasks.get(event.task_id)
    if task is not None and (task.state in TASK_FINAL or task.attention is not None):
        state.answer(event.request, Done(task.id, task.state, task.attention), task, awaits=True)
        return
    wait(state, event.request, event.task_id)


def wait(state: BrokerState, request: int, task_id: int) -> None:
    """Answer this request when the task ends or needs an operator."""
    state.waiters.setdefault(task_id, []).append(request)
    state.asked[request] = task_id


def on_forget(state: BrokerState, event: Forget, now: Now) -> None:
    """Stop waiting for a task whose caller has disconnected."""
    task_id = state.asked.pop(event.request, None)
    if task_id is not None:
        waiters = state.waiters[task_id]
        waiters.remove(event.request)
        if not waiters:
            del state.waiters[task_id]


def on_cancel(state: BrokerState, task: Task, event: CancelTask, now: Now) -> None:
    if task.state in TASK_FINAL:
        state.refuse_now(event.request, _wrong_state(task, "cancelled"))
        return
    outcome = _outcome(is_changed=not task.cancelling)
    state.audit(event, "cancel_task", f"task {task.id}", now, task=task, reason=event.reason, outcome=outcome)
    if not task.cancelling:
        state.record(task, facts.CancelAsked(now.wall, event.reason, event.by))
        _stop_all(state, task, "task_cancelled", now)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def _stop_all(state: BrokerState, task: Task, code: str, now: Now) -> None:
    """Cancel the steps that no worker holds, and ask workers to stop the others.

    A granted at_most_once step ends as its worker reports.
    """
    for step in task.steps:
        if step.state in (WAITING, READY, RETRY_WAIT):
            cancel_step(state, step, code, now)
        elif step.state is DISPATCHED:
            request_stop(state, step, "task_cancelled")
            if step.at_most_once and not step.granted:
                cancel_step(state, step, code, now)  # the step needs a grant to start, and gets none
                step.ended_by_command = True


def on_pause(state: BrokerState, task: Task, event: PauseTask, now: Now) -> None:
    if task.state in TASK_FINAL:
        state.refuse_now(event.request, _wrong_state(task, "paused"))
        return
    outcome = _outcome(is_changed=task.state is not TaskState.PAUSED)
    state.audit(event, "pause_task", f"task {task.id}", now, task=task, outcome=outcome)
    if task.state is not TaskState.PAUSED:
        state.record(task, facts.Paused(now.wall, event.by))
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def on_resume(state: BrokerState, task: Task, event: ResumeTask, now: Now) -> None:
    if task.state in TASK_FINAL:
        state.refuse_now(event.request, _wrong_state(task, "resumed"))
        return
    outcome = _outcome(is_changed=task.state is TaskState.PAUSED)
    state.audit(event, "resume_task", f"task {task.id}", now, task=task, outcome=outcome)
    if task.state is TaskState.PAUSED:
        state.record(task, facts.Resumed(now.wall, event.by))
        for step in task.steps:
            enqueue(state, step)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def on_retry(state: BrokerState, task: Task, event: RetryTask, now: Now) -> None:
    """Run the failed, cancelled and skipped steps again; with `from_step`, that step and all steps after it."""
    refused = intake_refused(state) or _retry_refused(state, task, event)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    chosen = _chosen(task, event)
    if isinstance(chosen, CommandRefused):
        state.refuse_now(event.request, chosen)
        return
    detail = {"from_step": event.from_step, "steps": len(chosen), "again": event.again, "new_key": event.new_key}
    state.audit(event, "retry_task", f"task {task.id}", now, task=task, reason=event.reason, detail=detail)
    _reopen(state, task, chosen, event, now)
    for step in task.steps:
        if step.waits == 0 and step.state is WAITING:
            decide_again(state, step, now)
        else:
            enqueue(state, step)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def _retry_refused(state: BrokerState, task: Task, event: RetryTask) -> CommandRefused | None:
    """Refuse a retry that is wrong for any states of the steps."""
    if (missing := state.router.refusal(task.workflow)) is not None:
        return no_executor(task.workflow, missing)
    if erasing.erased_ms(task.labels) is not None:
        return CommandRefused(
            "wrong_state", f"task {task.id} is erased: its payloads are gone, so no step of it can run again"
        )
    if event.from_step is not None and event.from_step not in task.workflow.by_name:
        names = tuple(sorted(task.workflow.by_name)[:20])
        return CommandRefused(
            "invalid", f"the workflow has no step {event.from_step!r}", Hint(HintCode.NAME_A_STEP, names=names)
        )
    if task.cancelling and task.state not in TASK_FINAL:
        return _wrong_state(task, "retried while it is being cancelled")
    return None


def _chosen(task: Task, event: RetryTask) -> list[Step] | CommandRefused:
    """Return the steps to run again. Refuse while one of these steps, or a step after them, runs or is held."""
    reached = _reached(task, event)
    blocked = [s for s in reached if s.state in (DISPATCHED, HELD)]
    if blocked:
        names = ", ".join(f"{s.definition.name} ({s.state})" for s in blocked)
        return CommandRefused("wrong_state", f"cannot run again: {names}", Hint(HintCode.WAIT_OR_RESOLVE))
    chosen = [s for s in reached if s.state is not WAITING]
    completed = [s.definition.name for s in chosen if s.state is COMPLETED and s.at_most_once]
    if completed and not event.again:
        return CommandRefused(
            "wrong_state",
            f"completed at_most_once steps would run a second time: {', '.join(completed)}",
            Hint(HintCode.CONFIRM_SECOND_RUN),
        )
    if not chosen:
        message = f"task {task.id} is {task.state} and has no failed, cancelled or skipped step"
        return CommandRefused("wrong_state", message)
    return chosen


def _reached(task: Task, event: RetryTask) -> list[Step]:
    """Return the steps that the retry starts from and all steps after them."""
    if event.from_step is not None:
        todo = [task.workflow.by_name[event.from_step]]
    else:
        todo = [s.definition.index for s in task.steps if s.state in _AGAIN]
    reached: set[int] = set()
    while todo:
        index = todo.pop()
        # Without `from_step`, a completed step stays completed, and so do steps that depend only on such steps.
        if index not in reached and (event.from_step is not None or task.steps[index].state is not COMPLETED):
            reached.add(index)
            todo.extend(task.steps[index].definition.dependents)
    return [task.steps[i] for i in sorted(reached)]


_AGAIN: Final = frozenset({FAILED, CANCELLED, SKIPPED})


def _reopen(state: BrokerState, task: Task, chosen: list[Step], event: RetryTask, now: Now) -> None:
    """Set the chosen steps back to waiting, and a task that has ended back to running."""
    was_final = task.state in TASK_FINAL
    state.record(task, facts.Operated(now.wall, "retry", None, event.reason, event.by))
    if was_final:
        state.record(task, facts.TaskReopened(now.wall))
        task.deadline_ms = None  # the deadline applied to the run that has ended
        for step in task.steps:
            state.ended.pop(step.id, None)
    forget_fetched(state, task.steps)
    for step in chosen:
        if step.output is not None:
            state.hold_bytes(task, -len(step.output))
        state.record(task, facts.Reopened(now.wall, step.position, event.new_key))
        step.avoid = None
    counted(task)


def on_resolve(state: BrokerState, step: Step, event: ResolveStep, now: Now) -> None:
    """Set the outcome of a held step as the operator found it."""
    task = step.task
    if step.state is not HELD:
        state.refuse_now(
            event.request,
            CommandRefused(
                "wrong_state",
                f"step {step.id} ({step.definition.name}) is {step.state}; only a held step is resolved",
                Hint(HintCode.SHOW_TASK, task_id=task.id),
            ),
        )
        return
    if event.outcome == "completed" and task.workflow.is_sealed and event.output is not None:
        fault = sealed_payloads.output_fault(event.output)
        if fault is not None:
            text = f"the workflow's payloads are sealed, and this output is refused: {fault}; null is accepted"
            state.refuse_now(event.request, CommandRefused("invalid", text))
            return
    resolved = {
        "task": task.id,
        "step": step.definition.name,
        "outcome": event.outcome,
        "output_bytes": 0 if event.output is None else len(event.output),
        "new_key": event.new_key,
    }
    state.audit(event, "resolve_step", f"step {step.id}", now, task=task, reason=event.reason, detail=resolved)
    action = f"resolve_{event.outcome}"
    state.record(task, facts.Operated(now.wall, action, step.position, event.reason, event.by))
    match event.outcome:
        case "completed":
            output = b"{}" if event.output is None else event.output
            complete(state, step, step.delivery, output, now)
        case "failed":
            detail = ErrorDetail(message=event.message or event.reason, code="resolved_failed", category="operator")
            fail(state, step, detail, now, retryable=False)
        case "retry":
            state.record(task, facts.Reopened(now.wall, step.position, event.new_key))
            if task.cancelling:
                cancel_step(state, step, "task_cancelled", now)
            else:
                wait_again(state, step, now)
        case _:
            assert_never(event.outcome)
    step.ended_by_command = step.is_final
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def _outcome(*, is_changed: bool) -> str:
    return "done" if is_changed else "unchanged"


def _wrong_state(task: Task, done: str) -> CommandRefused:
    text = f"already {done}" if task.state == done else f"{task.state} and cannot be {done}"
    return CommandRefused("wrong_state", f"task {task.id} is {text}", Hint(HintCode.SHOW_TASK, task_id=task.id))


# The machine loads the task before it calls these functions, and removes a task that has ended afterwards.
TASK_COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {
    CancelTask: on_cancel,
    PauseTask: on_pause,
    ResumeTask: on_resume,
    RetryTask: on_retry,
}
