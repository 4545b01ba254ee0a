"""Explain why a ready step is not dispatched. The first check that applies is the reason."""

from collections.abc import Callable
from typing import Final

from stepwire_protocol import patterns

from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.model.targets import BUS, LOCAL, POLL, Target
from stepwire_broker.core.routing.router import NO_EXECUTOR, Decided, missing_text, path_of

from . import takers
from .guards import allowance
from .guards.breaker import BreakerPhase
from .model.events import Now
from .model.principal import Rights
from .model.states import TaskState
from .phrases import at_time, counted, named, span
from .state import BrokerState
from .takers import Obstacle
from .why import Why, committing, live_step, paused
from .workflow_warnings import meant_by

QUEUE_EXAMINED_MAX: Final = 2_000


def explain_ready(state: BrokerState, step: Step, now: Now) -> Why:
    live = state.steps.get(step.id)
    if live is not None:
        step.message_bytes = live.message_bytes  # not stored
    for check in _READY:
        why = check(state, step, now)
        if why is not None:
            return why
    raise AssertionError(step)


def _is_paused(state: BrokerState, step: Step, now: Now) -> Why | None:
    return paused(step.task) if step.task.state is TaskState.PAUSED else None


def _is_stalled(state: BrokerState, step: Step, now: Now) -> Why | None:
    lane = state.outbox.lanes.get(step.task.lane)
    code = None if lane is None else lane.stalled
    if code is None:
        return None
    message = f"the database accepts no writes now ({code}), so nothing is dispatched; the broker resumes by itself"
    return Why("database_stalled", message, None)


def _is_moving(state: BrokerState, step: Step, now: Now) -> Why | None:
    lane = state.lanes.get(step.task.lane)
    if lane is None or lane.release is None:
        return None
    message = f"lane {lane.number}, which has the task, moves to another broker: that broker hands the step out"
    return Why("lane_moving", message, None)


def _is_draining(state: BrokerState, step: Step, now: Now) -> Why | None:
    if not state.draining:
        return None
    return Why("broker_draining", "the broker is draining: it stops, and dispatches nothing", None)


def _is_changing(state: BrokerState, step: Step, now: Now) -> Why | None:
    return committing(step.ready_ms) if step.id in state.steps and live_step(state, step) is None else None


def _has_no_executor(state: BrokerState, step: Step, now: Now) -> Why | None:
    if state.router.target(step).executor != NO_EXECUTOR:
        return None
    destination = state.router.destination(step.task.workflow, step.definition.index)
    return Why("no_executor", missing_text(destination), step.ready_ms)


def _is_outside_grants(state: BrokerState, step: Step, now: Now) -> Why | None:
    route = state.route_of(step)
    if takers.can_be_taken(state, route):
        return None
    holders: list[tuple[str, Rights | None, str]] = [
        (session.worker, session.rights, session.principal)
        for session in state.sessions.values()
        if takers.lasting_obstacle(session, route) is Obstacle.OUTSIDE_GRANT
    ]
    verb = "offers it"
    if not holders and takers.level0_obstacle(state, route) is None:
        verb = "is a level-0 handler"
        holders = [
            (peer.worker, peer.rights, peer.principal)
            for peer in state.level0.peers.values()
            if takers.peer_obstacle(peer, route, now) is Obstacle.OUTSIDE_GRANT
        ]
    if not holders:
        return None
    worker, rights, principal = holders[0]
    if rights is None:
        reason = f"the grant of `{principal}` was withdrawn"
    elif rights.allows(route.handler_class, None):
        reason = f"its {_proof_of(principal)} does not allow the namespace `{step.task.namespace}`"
    else:
        reason = f"its {_proof_of(principal)} does not allow the handler `{route.handler_class}`"
    more = f" ({len(holders) - 1} more likewise)" if len(holders) > 1 else ""
    message = f"no connected principal may run `{route.handler_class}`: `{worker}` {verb}; {reason}{more}"
    return Why("outside_grant", message, step.ready_ms)


def _proof_of(principal: str) -> str:
    return "token" if principal.startswith("token:") else "key"


def _is_offered_elsewhere(state: BrokerState, step: Step, now: Now) -> Why | None:
    """Name a worker that would get the step if it were connected to this broker."""
    name, target = step.definition.handler_class, state.router.target(step)
    if not state.other_brokers or target.executor != BUS or _is_offered_here(state, step):
        return None
    for other in state.other_brokers:
        for partial in other.partial_workers:
            if state.identity.broker not in partial.brokers and patterns.any_of(partial.handlers)(name):
                here, there = state.identity.broker, ", ".join(partial.brokers)
                message = f"offered by `{partial.worker}`, which is connected to {there} only; this task is {here}'s"
                return Why("worker_elsewhere", f"{message}: give the worker the endpoints of {here}", step.ready_ms)
    return None


def _is_offered_here(state: BrokerState, step: Step) -> bool:
    name, target = step.definition.handler_class, state.router.target(step)
    of_executor = _of_executor(state, target.executor)
    return any(takers.knows_handler(s, name) for s in of_executor) or takers.level0_serves(state, state.route_of(step))


def _is_offered_by_no_worker(state: BrokerState, step: Step, now: Now) -> Why | None:
    if _is_offered_here(state, step):
        return None
    name, target = step.definition.handler_class, state.router.target(step)
    of_executor = _of_executor(state, target.executor)
    offering_it = [s for s in of_executor if s.offers(name)]
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
    refusal, setting = _not_at_level0(state, step, now)
    message = f"no worker{whose} offers `{name}` ({rest}){_rule(state, step)}{other}{refusal}"
    return Why("no_worker_offers", message, step.ready_ms, hint or setting)


def _not_at_level0(state: BrokerState, step: Step, now: Now) -> tuple[str, Hint | None]:
    """Return why the connected level-0 handlers do not get the step, as the end of a sentence, and the setting that
    can change it."""
    name, number = step.definition.handler_class, len(state.level0.peers)
    obstacle = takers.level0_obstacle(state, state.route_of(step))
    setting = Hint(HintCode.NAME_FOR_LEVEL0, handler_class=name)
    if not number or obstacle is Obstacle.OTHER_EXECUTOR:
        return "", None
    match obstacle:
        case Obstacle.RESERVED:
            offer = state.level0_handlers.reserved_by(name)
            assert offer is not None
            first = f"`{offer.worker}` offered it {at_time(offer.at_ms, now)}"
            return f"; {first}, so level 0 gets it only if bus.level0.handlers names it, and `**` does not", setting
        case Obstacle.NOT_OFFERED:
            return "; bus.level0.handlers does not include it", setting
        case Obstacle.LABELS:
            return "; the step requires labels, which level-0 handlers do not have", None
        case Obstacle.NOT_ALLOWED:
            return "; the step is at_most_once, which level-0 handlers get only with bus.level0.at_most_once", None
        case _:
            each = (
                "the only connected level-0 handler" if number == 1 else f"each of {number} connected level-0 handlers"
            )
            return f"; {each} answered that it does not know `{name}`", None


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
    route = state.route_of(step)
    small = [s for s in state.sessions.values() if takers.lasting_obstacle(s, route) is Obstacle.TOO_SMALL]
    if small:
        most = max(s.max_message_bytes for s in small)
        return Why(
            "workers_too_small",
            f"the step needs a message of {route.message_bytes} bytes, and no connected worker that offers"
            f" `{route.handler_class}` accepts more than {most}",
            step.ready_ms,
        )
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
    return Why("workers_busy", f"all {slots} of the {whose} are busy{_in_turn(sessions)}{ahead}", step.ready_ms)


def _in_turn(sessions: list[WorkerSession]) -> str:
    """Explain why workers with free slots may offer this broker nothing now."""
    small = [s for s in sessions if s.slots + s.prefetch < len(s.brokers)]
    if not small or len(small) < len(sessions):
        return ""
    first = small[0]
    takes, brokers = counted(first.slots + first.prefetch, "step"), counted(len(first.brokers), "broker")
    return f", or promised: `{first.worker}` takes {takes} and has {brokers}, which it serves in turn"


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
    _is_moving,
    _is_draining,
    _is_changing,
    _has_no_executor,
    _is_outside_grants,
    _is_offered_elsewhere,
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
