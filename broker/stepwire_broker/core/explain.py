"""Explain in one sentence why a step is not running, from the same data that the dispatcher uses.

The caller passes a live step, or a step restored from its committed rows, so that every sentence reports durable state.
Sessions, leases and the queue are only in memory; they are used while memory and rows agree on the step.
Times are clock readings in UTC, so that a sentence is still true when it is read later.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.model.live import RESTORED, Step, Task, WorkerSession
from stepwire_broker.core.model.targets import BUS, LOCAL, POLL, Target
from stepwire_broker.core.routing.router import NO_EXECUTOR, Decided, missing_text, path_of

from . import takers
from .answers.error_texts import described
from .answers.reason_codes import describe
from .guards import allowance
from .guards.breaker import BreakerPhase
from .model.events import Now
from .model.states import STEP_FINAL, TASK_FINAL, WAITING, StepState, TaskState
from .phrases import at_time, counted, named, progress_text, span
from .state import BrokerState
from .takers import Obstacle
from .workflow_warnings import meant_by

STEPS_EXAMINED_MAX: Final = 200  # steps of a task that are searched for the cause of its waiting
QUEUE_EXAMINED_MAX: Final = 2_000
HOPS_MAX: Final = 100  # from one waiting step to the next
ERROR_CHARACTERS_MAX: Final = 200

# The meaning of each code; a message adds names and numbers. A task is explained by its step with the first code.
CODES: Final[dict[str, str]] = {
    "held": "the outcome of the step is unknown, and an operator must decide",
    "paused": "the task is paused",
    "executor_paused": "the executor of the step is paused",
    "database_stalled": "the database accepts no writes now, so nothing is dispatched",
    "broker_draining": "the broker is stopping and dispatches nothing",
    "no_executor": "the executor that the step is routed to is not configured",
    "no_worker_offers": "no connected worker offers the step's handler_class",
    "no_worker_matches": "workers offer the handler_class, and none has the labels that the step or its rule requires",
    "workers_leaving": "every worker that could run the step accepts nothing new",
    "runs_alone": "workers died while they ran the step, so it runs alone, and every worker has such a step",
    "breaker_open": "the breaker of the handler is open: the handler failed too often, and is not called for a while",
    "breaker_half_open": "the breaker of the handler is half-open: a few steps test the handler",
    "retries_wait": "the step is a retry, and the retry budget of its handler is used up",
    "workers_busy": "every worker that could run the step is full",
    "executor_full": "the executor of the step is full, or reports that it has no capacity",
    "no_poll_waits": "workers over HTTP could run the step, but no such worker requests steps now",
    "back_off": "an attempt failed, and the next one is scheduled",
    "not_loaded": "the task waits in the database until memory has space",
    "payload_fetched": "the step's payload, or a payload that its rule compares, is being read from the database",
    "queued": "the step is in the queue, and will be dispatched",
    "committing": "the step's state is changing: the next state is being written",
    "worker_awaited": "the step was dispatched before this broker started, and its worker may still have it",
    "handed_out": "a worker has the step, and has not started it",
    "result_awaited": "the step has run, and its result has not arrived yet",
    "running": "a worker runs the step",
    "waits_for": "a dependency is not final",
    "completed": "the step is completed",
    "failed": "the step has failed",
    "cancelled": "the step was cancelled",
    "skipped": "the step can no longer run",
}


class Why(NamedTuple):
    code: str
    message: str
    since_ms: int | None  # UTC; None if unknown
    hint: Hint | None = None  # the operator's next action


class WhyTask(NamedTuple):
    """Why a task is not finished. `step` is the step that it waits for, or None if the task itself is the reason."""

    why: Why
    step: Step | None


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
        return WhyTask(_paused(task), None)
    if not reasons:
        waiting = [s for s in task.steps if s.state is WAITING][:STEPS_EXAMINED_MAX]
        reasons = [(step(state, each, now), each) for each in waiting]
    if not reasons:
        return WhyTask(Why("committing", "all its steps are final, and its end is being written", None), None)
    why, what = min(reasons, key=lambda each: _RANK[each[0].code])
    more = len(moving) - 1
    others = f"; {more} more of its steps are in progress" if more > 0 else ""
    return WhyTask(why._replace(message=f"`{what.definition.name}`: {why.message}{others}"), what)


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


def _ready(state: BrokerState, step: Step, now: Now) -> Why:
    for check in _READY:
        why = check(state, step, now)
        if why is not None:
            return why
    raise AssertionError(step)


def _dispatched(state: BrokerState, step: Step, now: Now) -> Why:
    since = step.started_ms or step.dispatched_ms
    live = _live(state, step)
    if live is None and step.id in state.steps:
        return _committing(since)
    if step.at_level0:
        return _at_level0(state, step, now)
    stopping = f"; the worker was asked to stop it: {describe(live.cancel)}" if live is not None and live.cancel else ""
    where, at = f"`{step.worker}`", at_time(step.dispatched_ms, now)
    if live is None or live.session is None:
        left_ms = state.safe_at_mono - now.mono
        rest = (
            f"the worker has {span(left_ms)} left to connect again"
            if left_ms > 0
            else "the worker is being asked which steps it holds"
        )
        return Why("worker_awaited", f"handed to {where} {at}, before this broker started; {rest}{stopping}", since)
    lease = _lease(live.session, now)
    if live.seen == "done":
        return Why("result_awaited", f"ran on {where}, and its result has not arrived yet; {lease}{stopping}", since)
    if step.started_ms is not None:
        started = f"started {at_time(step.started_ms, now)}{_progress(state, live, now)}"
        return Why("running", f"runs on {where}, {started}; {lease}{stopping}", since)
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
            message = f"skipped {at}: its trigger rule is false, or a dependency did not complete"
    return Why(str(step.state), message, step.finished_ms)


_OF_STATE: Final[dict[StepState, Callable[[BrokerState, Step, Now], Why]]] = {
    StepState.WAITING: _waiting,
    StepState.READY: _ready,
    StepState.DISPATCHED: _dispatched,
    StepState.RETRY_WAIT: _retry_wait,
    StepState.HELD: _held,
    **dict.fromkeys(STEP_FINAL, _final),
}


# -- a ready step: the first check that applies is the reason ---------------------------------------------------------


def _is_paused(state: BrokerState, step: Step, now: Now) -> Why | None:
    return _paused(step.task) if step.task.state is TaskState.PAUSED else None


def _is_stalled(state: BrokerState, step: Step, now: Now) -> Why | None:
    if state.stalled is None:
        return None
    message = (
        f"the database accepts no writes now ({state.stalled}), so nothing is dispatched; the broker resumes by itself"
    )
    return Why("database_stalled", message, None)


def _is_draining(state: BrokerState, step: Step, now: Now) -> Why | None:
    if not state.draining:
        return None
    return Why("broker_draining", "the broker is draining: it stops, and dispatches nothing", None)


def _is_changing(state: BrokerState, step: Step, now: Now) -> Why | None:
    return _committing(step.ready_ms) if step.id in state.steps and _live(state, step) is None else None


def _has_no_executor(state: BrokerState, step: Step, now: Now) -> Why | None:
    if state.router.target(step).executor != NO_EXECUTOR:
        return None
    destination = state.router.destination(step.task.workflow, step.definition.index)
    return Why("no_executor", missing_text(destination), step.ready_ms)


def _is_offered_by_no_worker(state: BrokerState, step: Step, now: Now) -> Why | None:
    name, target = step.definition.handler_class, state.router.target(step)
    of_executor = _of_executor(state, target.executor)
    offering_it = [s for s in of_executor if s.offers(name)]
    if any(takers.knows_handler(s, name) for s in of_executor) or takers.level0_serves(state, state.route_of(step)):
        return None
    if offering_it:
        rest = f"{named(s.worker for s in offering_it)} offered it and then refused it as unknown"
    elif of_executor:
        offered = sorted({h for s in of_executor for h in s.handlers})
        rest = f"{counted(len(of_executor), 'worker')} connected, offering {named(offered)}"
    else:
        rest = _connected_elsewhere(state)
    meant = meant_by(state, name)
    if meant is not None and meant != name:
        rest = f"did you mean `{meant}`? {rest}"
    whose = "" if target.executor == BUS else f" of executor `{target.executor}`"
    hint = _elsewhere(state, step, target)
    other = "" if hint is None else f"; executor `{hint.executor}` offers it"
    refusal, setting = takers.level0_refusal(state, step, now)
    message = f"no worker{whose} offers `{name}` ({rest}){_rule(state, step)}{other}{refusal}"
    return Why("no_worker_offers", message, step.ready_ms, hint or setting)


def _connected_elsewhere(state: BrokerState) -> str:
    """Name what is connected when the step's own executor has no worker."""
    peers = [counted(len(state.level0.peers), "level-0 handler")] if state.level0.peers else []
    executors = [f"executor `{key}`" for key in sorted({s.executor for s in state.sessions.values()})]
    return f"connected: only {named(peers + executors)}" if peers or executors else "no worker is connected"


def _elsewhere(state: BrokerState, step: Step, target: Target) -> Hint | None:
    """Suggest another executor that offers the handler."""
    destination = state.router.destination(step.task.workflow, step.definition.index)
    if destination.decided is Decided.LOCAL:
        return None
    name = step.definition.handler_class
    others = {s.executor for s in state.sessions.values() if takers.knows_handler(s, name)}
    if not others - {target.executor}:
        return None
    key = min(others - {target.executor})
    path = path_of(step.task.namespace, step.task.workflow.name, step.definition.name)
    return Hint(HintCode.ROUTE_TO_EXECUTOR, path=path, executor=key)


def _of_executor(state: BrokerState, executor: str) -> list[WorkerSession]:
    any_worker = Target(executor)
    return [s for s in state.sessions.values() if any_worker.is_executor_of(s)]


def _rule(state: BrokerState, step: Step) -> str:
    """Name the rule or the setting that routed the step, if it is not the default."""
    destination = state.router.destination(step.task.workflow, step.definition.index)
    if destination.rule is not None:
        side = " as canary" if state.router.target(step) is destination.canary else ""
        return f"; rule {destination.rule.number} ({destination.rule.match}) sends it there{side}"
    if destination.decided is Decided.LOCAL:
        by = "the worker_selector" if step.definition.worker_selector == LOCAL else "the default_execution_mode"
        return f"; {by} keeps it inside the broker"
    return ""


def _is_matched_by_no_worker(state: BrokerState, step: Step, now: Now) -> Why | None:
    if takers.can_be_taken(state, state.route_of(step)):
        return None
    name, target = step.definition.handler_class, state.router.target(step)
    of_executor = [s for s in _of_executor(state, target.executor) if s.offers(name)]
    have = sorted({f"{k}={v}" for s in of_executor for k, v in s.labels.items()})
    theirs = f"theirs are {named(have)}" if have else "they have none"
    asks = named(f"{k}={v}" for k, v in target.selector)
    shuns = named(f"{k}={v}" for k, v in target.without)
    wanted = f"has the labels {asks}" if asks else ""
    if shuns:
        wanted += f"{' and ' if asks else ''}is not one of the canary's ({shuns})"
    message = f"no worker that offers `{name}` {wanted} ({theirs}){_rule(state, step)}"
    return Why("no_worker_matches", message, step.ready_ms)


def _is_of_a_paused_executor(state: BrokerState, step: Step, now: Now) -> Why | None:
    executor = state.executor(state.router.target(step).executor)
    since = executor.paused_wall
    if since is None:
        return None
    message = f"the executor `{executor.key}` is paused since {at_time(since, now)}"
    return Why("executor_paused", message, since, Hint(HintCode.RESUME_EXECUTOR, executor=executor.key))


def _is_barred(state: BrokerState, step: Step, now: Now) -> Why | None:
    name = step.definition.handler_class
    guard = state.guards.barred.get(name)
    if guard is None:
        return None
    breaker, since = guard.breaker, f"since {at_time(guard.since_wall, now)}"
    if breaker.is_forced:
        reason = f": {guard.reason}" if guard.reason else ""
        message = f"the breaker for `{name}` is held open by an operator {since}{reason}"
        return Why("breaker_open", message, guard.since_wall, Hint(HintCode.RELEASE_BREAKER, handler_class=name))
    if breaker.state is BreakerPhase.OPEN:
        message = f"the breaker for `{name}` is open {since}, after {breaker.cause} (the last: {guard.reason})"
        return Why(
            "breaker_open",
            f"{message}; the handler is tried again at {at_time(guard.until_wall, now)}",
            guard.since_wall,
        )
    if breaker.room and not step.at_most_once:
        return None  # the step may be used to try the handler
    trials = f"{counted(breaker.under_way, 'trial step')} in progress; {breaker.needed} must succeed"
    if not breaker.under_way:
        trials = "no step that may run twice is ready for a trial"
    rest = "; at_most_once steps wait until the breaker is closed" if step.at_most_once else ""
    message = f"the breaker for `{name}` is half-open {since}: {trials}{rest}"
    return Why("breaker_half_open", message, guard.since_wall)


def _waits_for_budget(state: BrokerState, step: Step, now: Now) -> Why | None:
    name = step.definition.handler_class
    if not allowance.waits_for_budget(state, state.steps.get(step.id, step), now):
        return None
    budget = state.guards.by_handler[name].budget
    assert budget is not None
    starts, retries = budget.lately(now.mono)
    of = state.settings.dispatch.retry_budget
    lately = f"in the last {span(of.window_ms)} {retries} of its {counted(starts, 'start')} were retries"
    message = f"retries of `{name}` wait: {lately}; the limit is {of.percent:g} %, or {of.at_least} retries"
    return Why("retries_wait", f"{message}; first attempts are not delayed", step.ready_ms)


def _is_fetched(state: BrokerState, step: Step, now: Now) -> Why | None:
    live = state.steps.get(step.id)
    if not any(live is each for steps in state.fetching.values() for each in steps):
        return None
    return Why("payload_fetched", "the payload is being read from the database", step.ready_ms)


def _is_not_loaded(state: BrokerState, step: Step, now: Now) -> Why | None:
    if step.id in state.steps:
        return None
    in_memory = f"{len(state.tasks)} tasks are in memory, at most {state.settings.limits.max_active_tasks}"
    message = f"the task waits in the database: {in_memory}, and {state.unloaded} wait to be loaded"
    return Why("not_loaded", message, step.ready_ms)


def _has_only_leaving_workers(state: BrokerState, step: Step, now: Now) -> Why | None:
    route = state.route_of(step)
    sessions = takers.offering(state, route)
    if takers.level0_serves(state, route) or any(
        takers.passing_obstacle(s, route) not in takers.LEAVING for s in sessions
    ):
        return None
    how = named(f"`{s.worker}` {_leaving(s)}" for s in sessions)
    return Why("workers_leaving", f"no worker that could run it accepts anything new: {how}", step.ready_ms)


def _leaving(session: WorkerSession) -> str:
    if session.draining:
        return "is draining"
    if session.stuck:
        return "is stuck: all its runs have exceeded their timeouts"
    return "does not answer the steps sent to it"


def _runs_alone(state: BrokerState, step: Step, now: Now) -> Why | None:
    route = state.route_of(step)
    obstacles = {takers.passing_obstacle(s, route) for s in takers.offering(state, route)}
    if Obstacle.HAS_SUSPECT not in obstacles or None in obstacles:
        return None
    message = (
        f"{step.lost_sessions} workers died while they ran it, so it runs alone, and every worker has such a step now"
    )
    return Why("runs_alone", message, step.ready_ms)


def _finds_no_room(state: BrokerState, step: Step, now: Now) -> Why | None:
    route = state.route_of(step)
    if takers.level0_serves(state, route):
        return _peers_are_busy(state, step, now)
    if takers.takers(state, route):
        return None
    sessions = [s for s in takers.offering(state, route) if takers.passing_obstacle(s, route) not in takers.LEAVING]
    hosts = {s.executor for s in sessions}
    if hosts == {POLL}:
        return Why("no_poll_waits", f"{_none_requests(sessions)}{_ahead(state, step)}", step.ready_ms)
    if len(hosts) == 1 and BUS not in hosts and LOCAL not in hosts:
        return Why("executor_full", f"{_at_its_limit(sessions)}{_ahead(state, step)}", step.ready_ms)
    slots = counted(sum(s.slots for s in sessions), "slot")
    whose = f"{counted(len(sessions), 'worker')} that could run it"
    ahead = _ahead(state, step)
    return Why("workers_busy", f"all {slots} of the {whose} are busy{ahead}", step.ready_ms)


def _none_requests(sessions: list[WorkerSession]) -> str:
    """Explain why no worker over HTTP takes the step: such a worker takes steps only while its request waits."""
    have = counted(sum(len(s.deliveries) for s in sessions), "step")
    slots = counted(sum(s.slots for s in sessions), "slot")
    return (
        f"{counted(len(sessions), 'worker')} over HTTP could run it, with {have} in {slots}, and none requests more now"
    )


def _at_its_limit(sessions: list[WorkerSession]) -> str:
    key, slots, held = sessions[0].executor, sum(s.slots for s in sessions), sum(len(s.deliveries) for s in sessions)
    if held >= slots:
        return f"the executor `{key}` has {counted(held, 'step')}, and accepts at most {slots} at a time"
    return f"the executor `{key}` reports that it has no capacity now; it has {counted(held, 'step')}"


def _peers_are_busy(state: BrokerState, step: Step, now: Now) -> Why | None:
    name = step.definition.handler_class
    peers = [peer for peer in state.level0.peers.values() if name not in peer.unknown]
    if any(takers.peer_obstacle(peer, state.route_of(step), now) is None for peer in peers):
        return None
    if all(peer.doubted for peer in peers) and step.at_most_once:
        message = "each level-0 handler let a lease expire, and gets no at_most_once step until it answers; restart one"
        return Why("workers_leaving", message, step.ready_ms)
    refused = len(state.level0.peers) - len(peers)
    rest = f", and {refused} more that do not know `{name}`" if refused else ""
    message = f"no level-0 handler is free ({len(peers)} connected{rest})"
    return Why("workers_busy", f"{message}{_ahead(state, step)}", step.ready_ms)


def _is_queued(state: BrokerState, step: Step, now: Now) -> Why:
    return Why("queued", f"dispatched with the next commit{_ahead(state, step)}", step.ready_ms)


def _ahead(state: BrokerState, step: Step) -> str:
    ahead = state.ready.ahead_of(step, QUEUE_EXAMINED_MAX)
    return f"; queued behind {counted(ahead, 'step')}" if ahead else ""


_READY: Final[tuple[Callable[[BrokerState, Step, Now], Why | None], ...]] = (
    _is_paused,
    _is_stalled,
    _is_draining,
    _is_changing,
    _has_no_executor,
    _is_offered_by_no_worker,
    _is_matched_by_no_worker,
    _is_of_a_paused_executor,
    _is_barred,
    _waits_for_budget,
    _is_fetched,
    _is_not_loaded,
    _has_only_leaving_workers,
    _runs_alone,
    _finds_no_room,
    _is_queued,
)


# -- of tasks ---------------------------------------------------------------------------------------------------------


def _paused(task: Task) -> Why:
    return Why("paused", "the task is paused", None, Hint(HintCode.RESUME_TASK, task_id=task.id))


def _ended(state: BrokerState, task: Task, now: Now) -> WhyTask:
    failed = next((s for s in task.steps if s.state is StepState.FAILED and not s.definition.allow_failure), None)
    if task.state is TaskState.FAILED and failed is not None:
        why = _final(state, failed, now)
        return WhyTask(why._replace(message=f"`{failed.definition.name}`: {why.message}"), failed)
    code = str(task.state)
    return WhyTask(Why(code, f"the task is {code} since {at_time(task.finished_ms, now)}", task.finished_ms), None)


_RANK: Final = {code: rank for rank, code in enumerate(CODES)}


# -- parts of sentences -----------------------------------------------------------------------------------------------


def _live(state: BrokerState, step: Step) -> Step | None:
    """Return the same step in memory, if its state in memory is the same."""
    live = state.steps.get(step.id)
    if live is None or (live.state, live.delivery, live.attempt) != (step.state, step.delivery, step.attempt):
        return None
    return live


def _committing(since_ms: int | None) -> Why:
    return Why("committing", "its state is changing: the next state is being written", since_ms)


def _last_error(step: Step) -> str:
    error = _error(step)
    return f"; last error: {error}" if error else ""


def _error(step: Step) -> str | None:
    if step.error is None:
        return None
    error = msgspec.json.decode(step.error, type=ErrorDetail)
    return described(error.code, error.message, ERROR_CHARACTERS_MAX)
