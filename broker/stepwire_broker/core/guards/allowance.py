"""What may be handed out of a handler that fails: nothing, or a few to try it with; and how many retries.

Failures here are of the infrastructure: a lost session, a delivery that was refused or not answered, a result that
cannot be read, a handler that says that what it needs is unavailable. That a handler says no is business: it was there
to say so.

Steps that have to wait stay `ready`, in their place in the queue, and no attempt is spent. Nothing of this is stored:
after a restart every breaker is closed.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal

from stepwire_protocol.messages import ErrorDetail

from stepwire_broker.core.commit.decision import BreakerChanged, ToRequest
from stepwire_broker.core.model.answers import Answer, CommandRefused
from stepwire_broker.core.model.events import Command, Now
from stepwire_broker.core.model.hints import Hint, HintCode
from stepwire_broker.core.model.live import RETRY_COUNTED, RETRY_NAMED, Step
from stepwire_broker.core.model.targets import Route
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import BreakerDue, BudgetDue, GuardSweepDue

from .breaker import Breaker, BreakerPhase
from .guard import GUARDS_MAX, Guard, Probe

SWEEP_MS: Final = 60_000
LOSSES_APART_MS: Final = 2_000  # sessions that die within this time are one failure: it was their host, or its network
REASON_CHARACTERS_MAX: Final = 200

UNAVAILABLE: Final = "unavailable"  # the category by which a handler says that what it needs is not there
# What an SDK reports with the status `error` when it could not run the handler, or not bring its outcome home.
_NOT_RUN: Final = frozenset({"unknown_handler", "result_refused", "process_died", "handler_not_loadable"})
_REFUSALS: Final = frozenset({"unknown_handler", "bad_message"})  # the others are about the worker, or about the step


def guard_of(state: BrokerState, handler_class: str, now: Now) -> Guard | None:
    """The guard of this handler, from now on. None when there are too many already."""
    guards = state.guards
    guard = guards.by_handler.get(handler_class)
    if guard is None:
        if not guards.by_handler:
            state.timers.set(now.mono + SWEEP_MS, GuardSweepDue())
        guard = guards.add(handler_class, now.mono, now.wall)
    return guard


# -- what may go ------------------------------------------------------------------------------------------------------


class Allowance:
    """How many more steps of some routes may go now."""

    __slots__ = ("is_for_probes", "left")

    def __init__(self, left: int, *, is_for_probes: bool = False) -> None:
        self.left = left
        self.is_for_probes = is_for_probes  # each goes alone, so that they are spread over the workers


NO_ROOM: Final = Allowance(0)
_FREE: Final[dict[Route, Allowance]] = {}


def limits(state: BrokerState, routes: Iterable[Route], now: Now) -> dict[Route, Allowance]:
    """Those of these routes of which only so many steps may go, and how many. Those that are not in it are free."""
    guards = state.guards
    barred = guards.barred
    held = [r for r in routes if (guards.bounds_retries and r.is_held_to_budget) or r.handler_class in barred]
    if not held:
        return _FREE
    found: dict[Route, Allowance] = {}
    retries: dict[str, list[Route]] = {}
    probes: dict[str, Allowance] = {}
    for route in held:
        handler_class = route.handler_class
        guard = barred.get(handler_class)
        if guard is None:
            retries.setdefault(handler_class, []).append(route)
        elif route.is_at_most_once:
            found[route] = NO_ROOM  # what never starts twice is not what anything is tried with
        else:
            room = guard.breaker.room
            found[route] = probes.setdefault(handler_class, Allowance(room, is_for_probes=True)) if room else NO_ROOM
    for handler_class, own in retries.items():
        guard = guard_of(state, handler_class, now)
        if guard is None or guard.budget is None:
            continue
        left = guard.budget.room(now.mono)
        if left < state.ready.count_of(own):
            found |= dict.fromkeys(own, Allowance(left) if left else NO_ROOM)
            _wake_for_budget(state, guard, now)
    return found


def handed(state: BrokerState, steps: list[Step], now: Now) -> None:
    """These were handed out, and their deliveries are numbered."""
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


# -- what becomes of it -----------------------------------------------------------------------------------------------


def answered(state: BrokerState, step: Step, delivery: int, error: ErrorDetail | None, status: str, now: Now) -> None:
    """A result was taken: of a handler that can be reached, unless it says otherwise."""
    probe = state.guards.probes.get(step.id)
    if probe is not None and probe.delivery != delivery:
        probe = None
    outcome = _outcome(status, error)
    if outcome == "bad" or (outcome == "late" and probe is not None):
        assert error is not None
        said = error.message if outcome == "bad" else "it ran longer than its time-out"
        _failed(state, step.definition.handler_class, f"{error.code or status}: {said}", now, step if probe else None)
        return
    guard = state.guards.by_handler.get(step.definition.handler_class)
    if guard is None or outcome == "none":
        return
    call = _call(guard.breaker) if probe is None else state.guards.probes.pop(step.id).call
    before = guard.breaker.turn
    guard.breaker.succeeded(call, now.mono)
    _look_at(state, guard, before, now)


def _outcome(status: str, error: ErrorDetail | None) -> Literal["good", "bad", "late", "none"]:
    if error is None or status == "completed":
        return "good"
    if error.category == UNAVAILABLE or (status == "error" and error.code in _NOT_RUN):
        return "bad"
    if error.code == "timeout":
        return "late"
    return "none" if error.code == "cancelled" else "good"


def lost(state: BrokerState, held: list[Step], ran: list[Step], how: str, now: Now) -> None:
    """A session died with these, some of which may have run; or a level-0 handler let the lease of these end. One
    failure of each handler, and none if others were lost just before: a host that dies says nothing about a handler."""
    of_probes = {s.definition.handler_class: s for s in held if s.id in state.guards.probes}
    for step in of_probes.values():
        _failed(state, step.definition.handler_class, how, now, step)
    for handler_class in dict.fromkeys(s.definition.handler_class for s in ran):
        guard = guard_of(state, handler_class, now)
        if guard is not None and (guard.lost_mono is None or now.mono - guard.lost_mono >= LOSSES_APART_MS):
            guard.lost_mono = now.mono
            _failed(state, handler_class, how, now)


def refused(state: BrokerState, steps: list[Step], code: str, now: Now) -> None:
    """A worker gave these back. One failure of each handler, if it says anything about that."""
    if code not in _REFUSALS:
        return
    for step in {s.definition.handler_class: s for s in steps if s.id not in state.guards.probes}.values():
        _failed(state, step.definition.handler_class, f"a worker refused it: {code}", now)
    for step in [s for s in steps if s.id in state.guards.probes]:
        _failed(state, step.definition.handler_class, f"a worker refused it: {code}", now, step)


def overdue(state: BrokerState, step: Step, now: Now) -> None:
    """It should have ended long ago. Of a probe, that is an answer."""
    if step.id in state.guards.probes:
        _failed(state, step.definition.handler_class, "it ran longer than its time-out", now, step)


def gave_up(state: BrokerState, step: Step) -> None:
    """A probe is nobody's any more, and nothing is known by it: another may go in its place."""
    probe = state.guards.probes.pop(step.id, None)
    if probe is not None:
        probe.guard.breaker.given_up(probe.call)


def will_retry(state: BrokerState, step: Step, *, named: bool, now: Now) -> None:
    """An attempt failed, and another follows: when its handler said, or when the budget allows."""
    step.retry = RETRY_NAMED if named else None
    if not named and state.guards.bounds_retries:
        guard_of(state, step.definition.handler_class, now)  # its starts are counted from now on


def retried(state: BrokerState, step: Step, now: Now) -> None:
    """A retry that was counted has succeeded."""
    guard = state.guards.by_handler.get(step.definition.handler_class)
    if guard is not None and guard.budget is not None:
        guard.budget.completed(now.mono)
    step.retry = RETRY_NAMED


def _failed(state: BrokerState, handler_class: str, reason: str, now: Now, tried: Step | None = None) -> None:
    """`tried`: the step, if it may have been a probe."""
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
    _look_at(state, guard, before, now)


def _call(breaker: Breaker) -> int:
    """Of what is no probe: it counts as long as the breaker is closed."""
    return breaker.turn if breaker.state is BreakerPhase.CLOSED else -1


# -- how a breaker turns ----------------------------------------------------------------------------------------------


def _look_at(state: BrokerState, guard: Guard, before: int, now: Now) -> None:
    """Has its breaker turned? Then it is told, and its timer is set."""
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
            guard.budget.renew()  # what went before was tried in vain, and would be held against what is well now
    else:
        guards.barred[guard.handler_class] = guard
    state.counters.breakers_opened += breaker.state is BreakerPhase.OPEN
    _set_timer(state, guard, now)
    state.decision.turned.append(
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
    """Nobody may have to come by for what waits to go on."""
    breaker = guard.breaker
    due_mono = breaker.until_mono
    if breaker.state is BreakerPhase.HALF_OPEN:
        due_mono = now.mono + breaker.pause_ms
    elif due_mono is not None:
        guard.until_wall = now.wall + due_mono - now.mono
    if due_mono is not None:
        state.timers.set(due_mono, BreakerDue(guard, breaker.turn))


def on_breaker_timer(state: BrokerState, due: BreakerDue, now: Now) -> None:
    """The open time is over. Or there was nothing to try it with for as long: then what waits has to do."""
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
    _look_at(state, guard, turn, now)


def _wake_for_budget(state: BrokerState, guard: Guard, now: Now) -> None:
    assert guard.budget is not None
    if not guard.wakes:
        guard.wakes = True
        state.timers.set(guard.budget.next_change(now.mono), BudgetDue(guard))


def on_budget_timer(due: BudgetDue) -> None:
    """Steps that waited for the budget are dispatched after every event. If it is too early, a new timer is set."""
    due.guard.wakes = False


def on_sweep_timer(state: BrokerState, now: Now) -> None:
    state.guards.sweep(now.mono)
    if state.guards.by_handler:
        state.timers.set(now.mono + SWEEP_MS, GuardSweepDue())


# -- people -----------------------------------------------------------------------------------------------------------


class SetBreaker(Command, frozen=True):
    """Keep a handler's breaker open or closed, or leave it to itself again."""

    handler_class: str
    state: Literal["open", "closed", "auto"]
    reason: str = ""


class BreakerSet(Answer, frozen=True):
    """A handler's breaker is as it was put."""

    handler_class: str
    state: str
    is_forced: bool


def on_set_breaker(state: BrokerState, event: SetBreaker, now: Now) -> None:
    """It stays as it is put until it is told otherwise, or this broker ends. Nothing of it is stored, so the answer
    waits for no commit."""
    handler_class = event.handler_class
    if handler_class not in state.guards.by_handler and not _is_known(state, handler_class):
        message = f"no workflow and no worker here knows the handler {handler_class}"
        state.refuse_now(event.request, CommandRefused("not_found", message, Hint(HintCode.LIST_HANDLERS)))
        return
    guard = guard_of(state, handler_class, now)
    if guard is None:
        message = f"{GUARDS_MAX} breakers have been put by hand or are open"
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
    _look_at(state, guard, before, now)
    breaker = guard.breaker
    answer = BreakerSet(handler_class, breaker.state, breaker.is_forced)
    state.decision.answers.append(ToRequest(event.request, answer))


def _is_known(state: BrokerState, handler_class: str) -> bool:
    return any(session.offers(handler_class) for session in state.sessions.values()) or any(
        step.handler_class == handler_class for workflow in state.workflows.values() for step in workflow.steps
    )


# -- looking ----------------------------------------------------------------------------------------------------------


def is_shut(state: BrokerState, handler_class: str, longer_than_ms: int, now: Now) -> bool:
    """Will nothing of this handler be handed out for longer than that?"""
    guard = state.guards.barred.get(handler_class)
    if guard is None or guard.breaker.state is not BreakerPhase.OPEN:
        return False
    left_ms = _left(guard, now)
    return left_ms is None or left_ms > longer_than_ms


def waits_for_budget(state: BrokerState, step: Step, now: Now) -> bool:
    """Is it a retry, and no room for it now?"""
    if not step.attempt or step.retry is not None:
        return False
    guard = state.guards.by_handler.get(step.definition.handler_class)
    return guard is not None and guard.budget is not None and guard.budget.room(now.mono) == 0


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {SetBreaker: on_set_breaker}
