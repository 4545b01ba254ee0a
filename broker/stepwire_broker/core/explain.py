"""Explain in one sentence why a step is not running, from the same data that the dispatcher uses.

The caller passes a live step, or a step restored from its committed rows, so that every sentence reports durable state.
Sessions, leases and the queue are only in memory; they are used while memory and rows agree on the step.
Times are clock readings in UTC, so that a sentence is still true when it is read later.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.model.live import RESTORED, Step, Task, WorkerSession

from .answers.error_texts import described
from .answers.reason_codes import describe
from .explain_ready import explain_ready
from .model.events import Now
from .model.states import STEP_FINAL, TASK_FINAL, WAITING, StepState, TaskState
from .phrases import at_time, progress_text, span
from .state import BrokerState
from .why import CODES, WAITS_FOR, Why, WhyTask, committing, live_step, paused, skipped_because

STEPS_EXAMINED_MAX: Final = 200  # steps of a task that are searched for the cause of its waiting
HOPS_MAX: Final = 100  # from one waiting step to the next
ERROR_CHARACTERS_MAX: Final = 200


def step(state: BrokerState, step: Step, now: Now) -> Why:
    """Explain the state of a step."""
    why = _OF_STATE[step.state](state, step, now)
    assert why.code in CODES, why
    return why


def task(state: BrokerState, task: Task, now: Now) -> WhyTask:
    """Explain the step that a task waits for, or its end."""
    if task.state in TASK_FINAL:
        return _ended(state, task, now)
    moving = [s for s in task.steps if s.state not in STEP_FINAL and s.state is not WAITING]
    reasons = [(step(state, each, now), each) for each in moving[:STEPS_EXAMINED_MAX]]
    if task.state is TaskState.PAUSED and not any(s.state is StepState.DISPATCHED for s in moving):
        return WhyTask(paused(task), None)
    if not reasons:
        waiting = [s for s in task.steps if s.state is WAITING][:STEPS_EXAMINED_MAX]
        reasons = [(step(state, each, now), each) for each in waiting]
    if not reasons:
        return WhyTask(Why("committing", "all its steps are final, and its end is being written", None), None)
    why, what = min(reasons, key=lambda each: _RANK[each[0].code])
    others = "" if what.state is WAITING else _others(task, [each for each in reasons if each[1] is not what], moving)
    return WhyTask(why._replace(message=f"`{what.definition.name}`: {why.message}{others}"), what)


def _others(task: Task, reasons: list[tuple[Why, Step]], moving: list[Step]) -> str:
    """Count the other steps of the task that are open or have failed, by what they wait for."""
    counts = Counter(WAITS_FOR[why.code] for why, _ in reasons)
    counts["failed"] = sum(s.state is StepState.FAILED for s in task.steps)
    counts["not examined"] = len(moving) - len(reasons) - 1
    parts = [f"{count} {what}" for what, count in counts.items() if count > 0]
    return f"; its other steps: {', '.join(parts)}" if parts else ""


# -- by state ---------------------------------------------------------------------------------------------------------


def _waiting(state: BrokerState, step: Step, now: Now) -> Why:
    """Name the first open dependency, and the last step in the chain of steps that this dependency waits for."""
    before = _open_before(step)
    if not before:
        return Why(
            "payload_fetched", "all dependencies are final; the payloads that its rule compares are being read", None
        )
    first = before[0]
    last = first
    for _ in range(HOPS_MAX):
        further = _open_before(last) if last.state is WAITING else None
        if not further:
            break
        last = further[0]
    if last.state is WAITING and _open_before(last):
        reason = Why("waits_for", "which waits for other steps", None)
    else:
        reason = _OF_STATE[last.state](state, last, now)
    name = first.definition.name
    if last is first:
        message = f"waits for `{name}` ({reason.message})"
    else:
        message = f"waits for `{name}`, which waits for `{last.definition.name}` ({reason.message})"
    if len(before) > 1:
        message += f", and for {len(before) - 1} more"
    return Why("waits_for", message, reason.since_ms, reason.hint)


def _open_before(step: Step) -> list[Step]:
    steps = (step.task.steps[i] for i in step.definition.depends_on)
    return [s for s in steps if s.state not in STEP_FINAL]


def _dispatched(state: BrokerState, step: Step, now: Now) -> Why:
    since = step.started_ms or step.dispatched_ms
    live = live_step(state, step)
    if live is None and step.id in state.steps:
        return committing(since)
    if step.at_level0:
        return _at_level0(state, step, now)
    stopping = f"; the worker was asked to stop it: {describe(live.cancel)}" if live is not None and live.cancel else ""
    where, at = f"`{step.worker}`", at_time(step.dispatched_ms, now)
    if live is None or live.session is None:
        lane = state.lanes.get(step.task.lane)
        left_ms = 0 if lane is None else lane.safe_at_mono - now.mono
        rest = (
            f"the worker has {span(left_ms)} left to connect again"
            if left_ms > 0
            else "the worker is being asked which steps it holds"
        )
        return Why("worker_awaited", f"handed to {where} {at}, before this broker started; {rest}{stopping}", since)
    lease = _lease(live.session, now)
    if live.seen == "done":
        return Why("result_awaited", f"ran on {where}, and its result has not arrived yet; {lease}{stopping}", since)
    progress = _progress(state, live, now)
    if step.started_ms is not None or progress:
        # Progress proves the start before the next heartbeat reports its time.
        started = f", started {at_time(step.started_ms, now)}" if step.started_ms is not None else ""
        return Why("running", f"runs on {where}{started}{progress}; {lease}{stopping}", since)
    if live.batch is not None and not live.batch.answered:
        return Why("handed_out", f"handed to {where} {at}, which has not accepted it yet; {lease}{stopping}", since)
    return Why("handed_out", f"handed to {where} {at}, which has not started it; {lease}{stopping}", since)


def _progress(state: BrokerState, live: Step, now: Now) -> str:
    """Return the latest progress report of a running step, or nothing."""
    report = state.progress.get(live.id)
    if report is None or report.delivery != live.delivery:
        return ""
    return f"; progress {progress_text(report.done, report.total, report.note)}, {span(now.wall - report.at_ms)} ago"


def _at_level0(state: BrokerState, step: Step, now: Now) -> Why:
    """A level-0 handler reports nothing but results: only the dispatch and the time left are known."""
    handout = None if step.batch_id is None else state.level0.handouts.get(step.batch_id)
    message = f"handed to the level-0 handler `{step.worker}` {at_time(step.dispatched_ms, now)}"
    if handout is not None and handout.peer is None:
        message += ", before this broker started"
    elif handout is not None and handout.peer is not None and handout.peer.gone:
        message += ", which has gone since and may still answer"
    if handout is not None and handout.due_mono:
        message += f"; {span(handout.due_mono - now.mono)} left to answer"
    return Why("handed_out", message, step.dispatched_ms)


def _lease(session: WorkerSession, now: Now) -> str:
    if not session.has_lease:
        return "the worker sends no heartbeats"
    return f"lease renewed {span(now.mono - session.heard_mono)} ago"


def _retry_wait(state: BrokerState, step: Step, now: Now) -> Why:
    until = step.not_before_ms or now.wall
    left_ms = until - now.wall
    when = f"until {at_time(until, now)}" if left_ms > 0 else "which is over"
    attempts = f"attempt {step.attempt + 1} of {step.definition.retry_limit + 1} comes next"
    return Why("back_off", f"in back-off {when}; {attempts}{_last_error(step)}", step.started_ms or step.dispatched_ms)


def _held(state: BrokerState, step: Step, now: Now) -> Why:
    hint = Hint(HintCode.RESOLVE_STEP, step_id=step.id)
    since = step.started_ms or step.dispatched_ms
    if step.reason == RESTORED:
        return Why("held", f"held: {describe(RESTORED)}", since, hint)
    gone = "" if step.worker in state.sessions else ", which is gone"
    granted = f"granted to `{step.worker}` {at_time(step.dispatched_ms, now)}{gone}"
    message = f"held: {granted}; {describe(step.reason or 'outcome_unknown')}{_last_error(step)}"
    return Why("held", message, since, hint)


def _final(state: BrokerState, step: Step, now: Now) -> Why:
    at = at_time(step.finished_ms, now)
    match step.state:
        case StepState.COMPLETED:
            where = f" on `{step.worker}`" if step.worker else ""
            message = f"completed{where} {at}"
        case StepState.FAILED:
            tries = f" after {step.attempt + 1} attempts" if step.attempt else ""
            message = f"failed {at}{tries}: {_error(step) or describe(step.reason or 'failed')}"
        case StepState.CANCELLED:
            message = f"cancelled {at}: {describe(step.reason or 'task_cancelled')}"
        case _:
            steps = step.task.steps
            because = skipped_because(step.task.workflow, step.position, lambda index: steps[index].state)
            message = f"skipped {at}: {because}"
    return Why(str(step.state), message, step.finished_ms)


_OF_STATE: Final[dict[StepState, Callable[[BrokerState, Step, Now], Why]]] = {
    StepState.WAITING: _waiting,
    StepState.READY: explain_ready,
    StepState.DISPATCHED: _dispatched,
    StepState.RETRY_WAIT: _retry_wait,
    StepState.HELD: _held,
    **dict.fromkeys(STEP_FINAL, _final),
}


# -- of tasks ---------------------------------------------------------------------------------------------------------


def _ended(state: BrokerState, task: Task, now: Now) -> WhyTask:
    failed = next((s for s in task.steps if s.state is StepState.FAILED and not s.definition.allow_failure), None)
    if task.state is TaskState.FAILED and failed is not None:
        why = _final(state, failed, now)
        return WhyTask(why._replace(message=f"`{failed.definition.name}`: {why.message}"), failed)
    code = str(task.state)
    return WhyTask(Why(code, f"the task is {code} since {at_time(task.finished_ms, now)}", task.finished_ms), None)


_RANK: Final = {code: rank for rank, code in enumerate(CODES)}


# -- parts of sentences -----------------------------------------------------------------------------------------------


def _last_error(step: Step) -> str:
    error = _error(step)
    return f"; last error: {error}" if error else ""


def _error(step: Step) -> str | None:
    if step.error is None:
        return None
    error = msgspec.json.decode(step.error, type=ErrorDetail)
    return described(error.code, error.message, ERROR_CHARACTERS_MAX)
