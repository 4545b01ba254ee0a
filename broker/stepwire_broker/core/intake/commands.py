"""What people order: cancel, pause, resume, retry, resolve. Answered after the commit, or refused."""

from typing import Final

from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.dispatch.payloads import forget_fetched
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.answers import CommandRefused, Done
from stepwire_broker.core.model.apply import counted
from stepwire_broker.core.model.events import (
    AwaitTask,
    CancelTask,
    Forget,
    Now,
    PauseTask,
    ResolveStep,
    ResumeTask,
    RetryTask,
)
from stepwire_broker.core.model.hints import Hint, HintCode
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
from stepwire_broker.core.progress.progress import (
    cancel_step,
    complete,
    decide_again,
    enqueue,
    fail,
    fail_for,
    undeliver,
    unknown_outcome,
    wait_again,
)
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers.loss import bury
from stepwire_broker.core.workers.stopping import request_stop

from .submission import intake_refused, no_executor


def on_await(state: BrokerState, event: AwaitTask, now: Now) -> None:
    """Who asks reads the task after this: what is not in memory ended before, or is stored and will be loaded."""
    task = state.tasks.get(event.task_id)
    if task is not None and (task.state in TASK_FINAL or task.attention is not None):
        state.answer(event.request, Done(task.id, task.state, task.attention), task, awaits=True)
        return
    wait(state, event.request, event.task_id)


def wait(state: BrokerState, request: int, task_id: int) -> None:
    state.waiters.setdefault(task_id, []).append(request)
    state.asked[request] = task_id


def on_forget(state: BrokerState, event: Forget, now: Now) -> None:
    task_id = state.asked.pop(event.request, None)
    if task_id is not None:
        waiters = state.waiters[task_id]
        waiters.remove(event.request)
        if not waiters:
            del state.waiters[task_id]


def on_cancel(state: BrokerState, task: Task, event: CancelTask, now: Now) -> None:
    if task.state in TASK_FINAL:
        _refuse_state(state, event.request, task, "cancelled")
        return
    if not task.cancelling:
        state.record(task, facts.CancelAsked(now.wall, event.reason))
        _stop_all(state, task, "task_cancelled", now)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def _stop_all(state: BrokerState, task: Task, code: str, now: Now) -> None:
    """What has not been handed out ends now; workers are told; a granted at_most_once step is left to its outcome."""
    for step in task.steps:
        if step.state in (WAITING, READY, RETRY_WAIT):
            cancel_step(state, step, code, now)
        elif step.state is DISPATCHED:
            request_stop(state, step, "task_cancelled")
            if step.at_most_once and not step.granted:
                cancel_step(state, step, code, now)  # it needs a grant to start, and gets none


def on_pause(state: BrokerState, task: Task, event: PauseTask, now: Now) -> None:
    if task.state in TASK_FINAL:
        _refuse_state(state, event.request, task, "paused")
        return
    if task.state is not TaskState.PAUSED:
        state.record(task, facts.Paused(now.wall))
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def on_resume(state: BrokerState, task: Task, event: ResumeTask, now: Now) -> None:
    if task.state in TASK_FINAL:
        _refuse_state(state, event.request, task, "resumed")
        return
    if task.state is TaskState.PAUSED:
        state.record(task, facts.Resumed(now.wall))
        for step in task.steps:
            enqueue(state, step)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


def on_retry(state: BrokerState, task: Task, event: RetryTask, now: Now) -> None:
    """Failed, cancelled and skipped steps again; with `from_step`, that step and all after it."""
    refused = intake_refused(state)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    if (missing := state.router.refusal(task.workflow)) is not None:
        state.refuse_now(event.request, no_executor(task.workflow, missing))
        return
    if event.from_step is not None and event.from_step not in task.workflow.by_name:
        names = tuple(sorted(task.workflow.by_name)[:20])
        state.refuse_now(
            event.request,
            CommandRefused(
                "invalid",
                f"the workflow has no step {event.from_step!r}",
                Hint(HintCode.NAME_A_STEP, names=names),
            ),
        )
        return
    if task.cancelling and task.state not in TASK_FINAL:
        _refuse_state(state, event.request, task, "retried while it is being cancelled")
        return
    chosen, blocked = _chosen(task, event)
    charged = [s for s in chosen if s.state is COMPLETED and s.at_most_once and not event.again]
    if blocked:
        standing = ", ".join(f"{s.definition.name} ({s.state})" for s in blocked)
        state.refuse_now(
            event.request,
            CommandRefused("wrong_state", f"cannot run again: {standing}", Hint(HintCode.WAIT_OR_RESOLVE)),
        )
        return
    if charged:
        completed = ", ".join(s.definition.name for s in charged)
        state.refuse_now(
            event.request,
            CommandRefused(
                "wrong_state",
                f"completed at_most_once steps would run a second time: {completed}",
                Hint(HintCode.CONFIRM_SECOND_RUN),
            ),
        )
        return
    if not chosen:
        state.refuse_now(
            event.request,
            CommandRefused(
                "wrong_state", f"task {task.id} is {task.state} and has no failed, cancelled or skipped step"
            ),
        )
        return
    was_final = task.state in TASK_FINAL
    state.record(task, facts.Operated(now.wall, "retry", None, event.reason))
    if was_final:
        state.record(task, facts.TaskReopened(now.wall))
        task.deadline_ms = None  # it was of the run that is over
        for step in task.steps:
            state.ended.pop(step.id, None)
    forget_fetched(state, task.steps)
    for step in chosen:
        if step.output is not None:
            state.hold_bytes(task, -len(step.output))
        state.record(task, facts.Reopened(now.wall, step.position, event.new_key))
    counted(task)
    for step in chosen:
        step.avoid = None
    for step in task.steps:
        if step.waits == 0 and step.state is WAITING:
            decide_again(state, step, now)
        else:
            enqueue(state, step)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


_AGAIN: Final = frozenset({FAILED, CANCELLED, SKIPPED})


def _chosen(task: Task, event: RetryTask) -> tuple[list[Step], list[Step]]:
    """The steps to run again, and those that stand in the way: nothing may run on what is about to change."""
    todo = [s.definition.index for s in task.steps if s.state in _AGAIN]
    if event.from_step is not None:
        todo = [task.workflow.by_name[event.from_step]]
    reached: set[int] = set()
    while todo:
        index = todo.pop()
        # Without `from_step`, what completed stays so, and so does what only depends on that.
        if index not in reached and (event.from_step is not None or task.steps[index].state is not COMPLETED):
            reached.add(index)
            todo.extend(task.steps[index].definition.dependents)
    steps = [task.steps[i] for i in sorted(reached)]
    blocked = [s for s in steps if s.state in (DISPATCHED, HELD)]
    return [s for s in steps if s.state not in (WAITING, DISPATCHED, HELD)], blocked


def on_resolve(state: BrokerState, step: Step, event: ResolveStep, now: Now) -> None:
    """An operator knows what became of a held step."""
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
    position = step.position
    state.record(task, facts.Operated(now.wall, f"resolve_{event.outcome}", position, event.reason))
    match event.outcome:
        case "completed":
            output = b"{}" if event.output is None else bytes(event.output)
            complete(state, step, step.delivery, output, now)
        case "failed":
            detail = ErrorDetail(message=event.message or event.reason, code="resolved_failed", category="operator")
            fail(state, step, detail, now, retryable=False)
        case "retry":
            state.record(task, facts.Reopened(now.wall, position, event.new_key))
            if task.cancelling:
                cancel_step(state, step, "task_cancelled", now)
            else:
                wait_again(state, step, now)
    state.answer(event.request, Done(task.id, task.state, task.attention), task)


# -- deadlines --------------------------------------------------------------------------------------------------------


def expire_queue(state: BrokerState, step: Step, ready_ms: int | None, now: Now) -> None:
    """Ready, and not started in time."""
    if step.ready_ms != ready_ms or not step.task.steps:
        return
    if step.state is READY:
        fail_for(state, step, "queue_timeout", now)
    elif step.state is DISPATCHED and step.started_ms is None and not step.granted:
        request_stop(state, step, "superseded")  # if it has not started, its worker refuses it as stale
        if step.at_most_once:
            undeliver(state, step, "superseded", now, avoid=False)  # without a grant it has not started


def expire_deadline(state: BrokerState, step: Step, deadline_ms: int, now: Now) -> None:
    """All its attempts together have taken too long."""
    if step.task.steps and step.deadline_ms == deadline_ms:
        _expire(state, step, "deadline", now)


def expire_task(state: BrokerState, task: Task, deadline_ms: int, now: Now) -> None:
    """What is under way ends now. What the workflow wants to run after a failure runs still."""
    if task.state in TASK_FINAL or task.deadline_ms != deadline_ms:
        return
    for step in [s for s in task.steps if s.state in _UNDER_WAY]:
        _expire(state, step, "task_deadline", now)


_UNDER_WAY: Final = frozenset({READY, RETRY_WAIT, DISPATCHED})


def _expire(state: BrokerState, step: Step, code: str, now: Now) -> None:
    if step.state is DISPATCHED:
        request_stop(state, step, "timeout")
        if step.at_most_once and step.granted:
            unknown_outcome(state, step, "outcome_unknown", now)
            return
    if step.state in _UNDER_WAY:
        fail_for(state, step, code, now)


def expire_unstarted(state: BrokerState, step: Step, delivery: int, now: Now) -> None:
    """A worker without heartbeats has not asked to start it. If it has not even taken it, it is not there any more."""
    if not step.task.steps or step.state is not DISPATCHED or step.delivery != delivery or step.granted:
        return
    session, batch = step.session, step.batch
    undeliver(state, step, "unaccepted", now)
    if session is not None and not session.dead and batch is not None and not batch.answered:
        bury(state, session, now)


def _refuse_state(state: BrokerState, request: int, task: Task, what: str) -> None:
    state.refuse_now(
        request,
        CommandRefused(
            "wrong_state",
            f"task {task.id} is {task.state} and cannot be {what}",
            Hint(HintCode.SHOW_TASK, task_id=task.id),
        ),
    )
