"""The number of steps that may be dispatched to a failing handler: none, a few probes, or a limited share of retries.

Only failures of the infrastructure count: a lost session, a refused or unanswered delivery, an unreadable result, or a
handler that reports an unavailable dependency. An error of the handler's own does not count, because the handler was
reached.

Steps that must wait stay `ready`, keep their position in the queue, and use no attempt. A breaker that an operator
forced is stored. Other breakers and budgets are not: they are closed and new after a restart.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final, Literal, assert_never

from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.decision import BreakerChanged
from stepwire_broker.core.commit.operator_controls import ForcedBreaker, control, removal
from stepwire_broker.core.model.commit_group import AuditPart
from stepwire_broker.core.model.events import Command, CommandOfOperator, Now
from stepwire_broker.core.model.live import RETRY_COUNTED, RETRY_NAMED, Step
from stepwire_broker.core.model.targets import Route
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import BreakerDue, BudgetDue, GuardSweepDue

from .breaker import Breaker, BreakerPhase
from .guard import GUARDS_MAX, Guard, Probe

SWEEP_MS: Final = 60_000
LOSSES_APART_MS: Final = 2_000  # sessions that die within this time are one failure: of their host, or its network
REASON_CHARACTERS_MAX: Final = 200

LATE: Final = "the run took longer than its timeout"
UNAVAILABLE: Final = "unavailable"  # the error category of a handler whose dependency is unavailable
# Codes of an SDK, with status `error`: it could not run the handler, or could not send the handler's outcome.
_NOT_RUN: Final = frozenset({"unknown_handler", "result_refused", "process_died", "handler_not_loadable"})
_REFUSALS: Final = frozenset({"unknown_handler", "bad_message"})  # other codes are about the worker or the step


def guard_of(state: BrokerState, handler_class: str, now: Now) -> Guard | None:
    """Return the guard of this handler, created if necessary. None when the limit of guards is reached."""
    guards = state.guards
    guard = guards.by_handler.get(handler_class)
    if guard is None:
        if not guards.by_handler:
            state.timers.set(now.mono + SWEEP_MS, GuardSweepDue())
        guard = guards.add(handler_class, now.mono, now.wall)
    return guard


# -- allowances -------------------------------------------------------------------------------------------------------


class Allowance:
    """The number of further steps of some routes that may be dispatched now."""

    __slots__ = ("is_for_probes", "left")

    def __init__(self, left: int, *, is_for_probes: bool = False) -> None:
        self.left = left
        self.is_for_probes = is_for_probes  # each probe is sent alone, so that probes are spread over the workers


NO_ROOM: Final = Allowance(0)
_FREE: Final[dict[Route, Allowance]] = {}


def limits(state: BrokerState, routes: Iterable[Route], now: Now) -> dict[Route, Allowance]:
    """Return the allowance of each limited route. Routes that are missing in the result are not limited."""
    guards = state.guards
    barred = guards.barred
    limited = [r for r in routes if (guards.bounds_retries and r.is_held_to_budget) or r.handler_class in barred]
    if not limited:
        return _FREE
    allowances: dict[Route, Allowance] = {}
    retries: dict[str, list[Route]] = {}
    probes: dict[str, Allowance] = {}
    for route in limited:
        handler_class = route.handler_class
        guard = barred.get(handler_class)
        if guard is None:
            retries.setdefault(handler_class, []).append(route)
        elif route.is_at_most_once:
            allowances[route] = NO_ROOM  # a step that never starts twice is no probe
        else:
            room = guard.breaker.room
            probe = probes.setdefault(handler_class, Allowance(room, is_for_probes=True)) if room else NO_ROOM
            allowances[route] = probe
    for handler_class, own in retries.items():
        guard = guard_of(state, handler_class, now)
        if guard is None or guard.budget is None:
            continue
        left = guard.budget.room(now.mono)
        if left < state.ready.count_of(own):
            allowances |= dict.fromkeys(own, Allowance(left) if left else NO_ROOM)
            _wake_for_budget(state, guard, now)
    return allowances


def handed(state: BrokerState, steps: list[Step], now: Now) -> None:
    """Count a dispatch of these steps. Their deliveries are numbered already."""
    guards = state.guards
    for step in steps:
        guard = guards.by_handler.get(step.definition.handler_class)
        if guard is None:
            continue
        if guard.breaker.state is BreakerPhase.HALF_OPEN:
            guards.probes[step.id] = Probe(guard, step.delivery, guard.breaker.admit())
            state.counters.probes += 1
        elif guard.budget is not None:
            guard.budget.started(now.mono)
            if step.attempt and step.retry is None:
                guard.budget.retried(now.mono)
                step.retry = RETRY_COUNTED


# -- outcomes ---------------------------------------------------------------------------------------------------------


def answered(state: BrokerState, step: Step, delivery: int, error: ErrorDetail | None, status: str, now: Now) -> None:
    """Count an accepted result. It proves that the handler can be reached, unless its error reports the opposite."""
    probe = state.guards.probes.get(step.id)
    if probe is not None and probe.delivery != delivery:
        probe = None
    outcome = _outcome(status, error)
    if outcome == "bad" or (outcome == "late" and probe is not None):
        assert error is not None
        reason = error.message if outcome == "bad" else LATE
        _failed(state, step.definition.handler_class, f"{error.code or status}: {reason}", now, step if probe else None)
        return
    guard = state.guards.by_handler.get(step.definition.handler_class)
    if guard is None or outcome == "none":
        return
    call = _call(guard.breaker) if probe is None else state.guards.probes.pop(step.id).call
    before = guard.breaker.turn
    guard.breaker.succeeded(call, now.mono)
    _after_turn(state, guard, before, now)


def _outcome(status: str, error: ErrorDetail | None) -> Literal["good", "bad", "late", "none"]:
    if error is None or status == "completed":
        return "good"
    if error.category == UNAVAILABLE or (status == "error" and error.code in _NOT_RUN):
        return "bad"
    if error.code == "timeout":
        return "late"
    return "none" if error.code == "cancelled" else "good"


def lost(state: BrokerState, held: list[Step], ran: list[Step], how: str, now: Now) -> None:
    """Count the loss of these steps: a session died, or a level-0 handler did not answer within its lease.

    `ran` are the steps that may have run: one failure of each handler. No failure counts if other steps were lost just
    before, because the death of a host proves nothing about a handler.
    """
    of_probes = {s.definition.handler_class: s for s in held if s.id in state.guards.probes}
    for step in of_probes.values():
        _failed(state, step.definition.handler_class, how, now, step)
    for handler_class in dict.fromkeys(s.definition.handler_class for s in ran):
        guard = guard_of(state, handler_class, now)
        if guard is not None and (guard.lost_mono is None or now.mono - guard.lost_mono >= LOSSES_APART_MS):
            guard.lost_mono = now.mono
            _failed(state, handler_class, how, now)


def refused(state: BrokerState, steps: list[Step], code: str, now: Now) -> None:
    """Count steps that a worker refused: one failure of each handler, if the code is about the handler."""
    if code not in _REFUSALS:
        return
    for step in {s.definition.handler_class: s for s in steps if s.id not in state.guards.probes}.values():
        _failed(state, step.definition.handler_class, f"a worker refused a step: {code}", now)
    for step in [s for s in steps if s.id in state.guards.probes]:
        _failed(state, step.definition.handler_class, f"a worker refused a step: {code}", now, step)


def overdue(state: BrokerState, step: Step, now: Now) -> None:
    """Count a run that should have ended: a failure, if it is a probe."""
    if step.id in state.guards.probes:
        _failed(state, step.definition.handler_class, LATE, now, step)


def not_offered(state: BrokerState, step: Step, now: Now) -> None:
    """Count nothing for a step that a level-0 program returned, because it does not know the handler: the handler
    was not reached. A probe is given up when the delivery is removed."""
    guard = state.guards.by_handler.get(step.definition.handler_class)
    if guard is None or guard.budget is None or step.id in state.guards.probes:
        return
    is_retry = step.retry is RETRY_COUNTED
    guard.budget.taken_back(now.mono, is_retry=is_retry)
    if is_retry:
        step.retry = None


def gave_up(state: BrokerState, step: Step) -> None:
    """End a probe whose outcome is not known, so that another step can be dispatched in its place."""
    probe = state.guards.probes.pop(step.id, None)
    if probe is not None:
        probe.guard.breaker.given_up(probe.call)


def will_retry(state: BrokerState, step: Step, *, named: bool, now: Now) -> None:
    """Prepare the retry of a failed attempt: at the time its handler `named`, or when the budget allows."""
    step.retry = RETRY_NAMED if named else None
    if not named and state.guards.bounds_retries:
        guard_of(state, step.definition.handler_class, now)  # its starts are counted from now on


def retried(state: BrokerState, step: Step, now: Now) -> None:
    """Count the success of a retry."""
    guard = state.guards.by_handler.get(step.definition.handler_class)
    if guard is not None and guard.budget is not None:
        guard.budget.completed(now.mono)
    step.retry = RETRY_NAMED


def _failed(state: BrokerState, handler_class: str, reason: str, now: Now, tried: Step | None = None) -> None:
    """Count a failure of the handler. `tried` is the step, if it may have been a probe."""
    if not state.guards.settings.breaker.enabled:
        return
    guard = guard_of(state, handler_class, now)
    if guard is None:
        return
    state.counters.infrastructure_failures += 1
    breaker = guard.breaker
    probe = None if tried is None else state.guards.probes.pop(tried.id, None)
    call = probe.call if probe is not None else _call(breaker)
    if call == breaker.turn and not breaker.is_forced:
        guard.reason = reason[:REASON_CHARACTERS_MAX]
    before = breaker.turn
    breaker.failed(call, now.mono)
    _after_turn(state, guard, before, now)


def _call(breaker: Breaker) -> int:
    """Return the call number for a step that is no probe. Its outcome counts only while the breaker is closed."""
    return breaker.turn if breaker.state is BreakerPhase.CLOSED else -1


# -- changes of a breaker ---------------------------------------------------------------------------------------------


def _after_turn(state: BrokerState, guard: Guard, before: int, now: Now) -> None:
    """Log the change of a breaker whose turn is no longer `before`, and set its timer."""
    breaker, guards = guard.breaker, state.guards
    if breaker.turn == before:
        return
    guard.since_wall = now.wall
    guard.until_wall = None
    for step_id in [i for i, probe in guards.probes.items() if probe.guard is guard]:
        del guards.probes[step_id]
    if breaker.state is BreakerPhase.CLOSED:
        guards.barred.pop(guard.handler_class, None)
        if guard.budget is not None:
            guard.budget.renew()  # retries made while the handler failed must not limit its retries now
    else:
        guards.barred[guard.handler_class] = guard
    state.counters.breakers_opened += breaker.state is BreakerPhase.OPEN
    _set_timer(state, guard, now)
    state.decision.breaker_changes.append(
        BreakerChanged(
            handler_class=guard.handler_class,
            state=breaker.state,
            is_forced=breaker.is_forced,
            cause=breaker.cause,
            reason=guard.reason,
            left_ms=_left(guard, now),
        )
    )


def _left(guard: Guard, now: Now) -> int | None:
    until_mono = guard.breaker.until_mono
    return None if until_mono is None else max(0, until_mono - now.mono)


def _set_timer(state: BrokerState, guard: Guard, now: Now) -> None:
    """Set the timer for the next change of the breaker, so that waiting steps go on without another event."""
    breaker = guard.breaker
    due_mono = breaker.until_mono
    if breaker.state is BreakerPhase.HALF_OPEN:
        due_mono = now.mono + breaker.pause_ms
    elif due_mono is not None:
        guard.until_wall = now.wall + due_mono - now.mono
    if due_mono is not None:
        state.timers.set(due_mono, BreakerDue(guard, breaker.turn))


def on_breaker_timer(state: BrokerState, due: BreakerDue, now: Now) -> None:
    """End the open time, or a half-open time in which no step could be the probe."""
    guard, turn = due.guard, due.turn
    breaker = guard.breaker
    if breaker.turn != turn or breaker.is_forced:
        return
    if breaker.state is BreakerPhase.OPEN:
        breaker.look(now.mono)
    elif breaker.under_way:
        _set_timer(state, guard, now)
    else:
        breaker.close_untried(now.mono)
    _after_turn(state, guard, turn, now)


def _wake_for_budget(state: BrokerState, guard: Guard, now: Now) -> None:
    assert guard.budget is not None
    if not guard.wakes:
        guard.wakes = True
        state.timers.set(guard.budget.next_change(now.mono), BudgetDue(guard))


def on_budget_timer(due: BudgetDue) -> None:
    """Allow a new timer. Steps that waited for the budget are dispatched after every event."""
    due.guard.wakes = False


def on_sweep_timer(state: BrokerState, now: Now) -> None:
    state.guards.sweep(now.mono)
    if state.guards.by_handler:
        state.timers.set(now.mono + SWEEP_MS, GuardSweepDue())


# -- commands ---------------------------------------------------------------------------------------------------------


class SetBreaker(CommandOfOperator, frozen=True):
    """Force a handler's breaker open or closed, or return it to automatic control."""

    handler_class: str
    state: Literal["open", "closed", "auto"]
    reason: str = ""


class BreakerSet(Answer, frozen=True):
    """The state of a handler's breaker after the command."""

    handler_class: str
    state: str
    is_forced: bool


def on_set_breaker(state: BrokerState, event: SetBreaker, now: Now) -> None:
    """Force or release a breaker. A forced breaker is stored until it is released."""
    handler_class = event.handler_class
    if handler_class not in state.guards.by_handler and not _is_known(state, handler_class):
        message = f"no workflow and no worker here knows the handler {handler_class}"
        state.refuse_now(event.request, CommandRefused("not_found", message, Hint(HintCode.LIST_HANDLERS)))
        return
    guard = guard_of(state, handler_class, now)
    if guard is None:
        message = f"{GUARDS_MAX} breakers are forced or open, which is the limit"
        state.refuse_now(event.request, CommandRefused("wrong_state", message, Hint(HintCode.RELEASE_ANY_BREAKER)))
        return
    guard.reason = event.reason[:REASON_CHARACTERS_MAX]
    before = guard.breaker.turn
    match event.state:
        case "open":
            guard.breaker.force_open()
        case "closed":
            guard.breaker.force_closed()
        case "auto":
            guard.breaker.automatic(now.mono)
        case _:
            assert_never(event.state)
    _after_turn(state, guard, before, now)
    breaker = guard.breaker
    detail = {"state": event.state}
    if event.state == "auto":
        change = removal(handler_class, ForcedBreaker)
    else:
        change = control(handler_class, ForcedBreaker(event.state, guard.reason, now.wall))
    state.set_control(change)
    part: AuditPart = ("control", f"{change.kind} {change.name}")
    state.audit(event, "set_breaker", f"handler {handler_class}", now, part=part, reason=event.reason, detail=detail)
    state.answer(event.request, BreakerSet(handler_class, breaker.state, breaker.is_forced))


def apply_forced(state: BrokerState, forced: Mapping[str, ForcedBreaker], own: Set[str], now: Now) -> None:
    """Hold the breakers that operators forced at any broker, and release the others. `own`: changed here a moment
    ago."""
    for handler_class, wanted in forced.items():
        guard = guard_of(state, handler_class, now)
        if guard is None or (guard.breaker.is_forced and guard.breaker.state == wanted.state):
            continue
        guard.reason = wanted.reason
        before = guard.breaker.turn
        if wanted.state == "open":
            guard.breaker.force_open()
        else:
            guard.breaker.force_closed()
        _after_turn(state, guard, before, now)
    for guard in list(state.guards.by_handler.values()):
        if guard.breaker.is_forced and guard.handler_class not in forced and guard.handler_class not in own:
            before = guard.breaker.turn
            guard.breaker.automatic(now.mono)
            _after_turn(state, guard, before, now)


def _is_known(state: BrokerState, handler_class: str) -> bool:
    return any(session.offers(handler_class) for session in state.sessions.values()) or any(
        step.handler_class == handler_class for workflow in state.workflows.values() for step in workflow.steps
    )


# -- questions --------------------------------------------------------------------------------------------------------


def is_shut(state: BrokerState, handler_class: str, longer_than_ms: int, now: Now) -> bool:
    """True if no step of this handler will be dispatched for longer than `longer_than_ms`."""
    guard = state.guards.barred.get(handler_class)
    if guard is None or guard.breaker.state is not BreakerPhase.OPEN:
        return False
    left_ms = _left(guard, now)
    return left_ms is None or left_ms > longer_than_ms


def waits_for_budget(state: BrokerState, step: Step, now: Now) -> bool:
    """True if the step is a retry that the budget does not allow now."""
    if not step.attempt or step.retry is not None:
        return False
    guard = state.guards.by_handler.get(step.definition.handler_class)
    return guard is not None and guard.budget is not None and guard.budget.room(now.mono) == 0


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {SetBreaker: on_set_breaker}
