"""The effects of timers: each goes to the room that set it."""

from typing import assert_never

from .commit.decision import LoadById
from .commit.loads import RejectedLoad
from .dispatch import transmission
from .guards import allowance
from .intake import storing
from .lanes import releasing
from .loading import residency
from .model import events
from .model.events import Now
from .progress.readiness import expire_retry
from .shadows import copies
from .sharing import orders
from .state import BrokerState
from .timer_kinds import (
    AdoptionDue,
    AnyTimer,
    BreakerDue,
    BudgetDue,
    FetchDue,
    GuardSweepDue,
    HandoutEnds,
    LeaseEnds,
    LookDue,
    PageDue,
    PeerSettled,
    QueueLimit,
    RecoverySafe,
    ReleaseDue,
    ReloadDue,
    RetransmitDue,
    RetryDue,
    RunLimit,
    ShadowEnds,
    SliceDue,
    StartLimit,
    StepDeadline,
    TaskDeadline,
)
from .workers import holding, level0, loss, time_limits


def on_tick(state: BrokerState, event: events.Tick, now: Now) -> None:
    while (timer := state.timers.pop_due(now)) is not None:
        _fire(state, timer, now)


def _fire(state: BrokerState, timer: AnyTimer, now: Now) -> None:
    match timer:
        case RetransmitDue():
            transmission.retransmit(state, timer.batch, now)
        case LeaseEnds():
            loss.check_lease(state, timer.session, now)
        case AdoptionDue():
            holding.ask_adoption(state, timer.session, now)
        case HandoutEnds():
            level0.expire(state, timer.handout, now)
        case ShadowEnds():
            copies.expire(state, timer.shadow, now)
        case RunLimit():
            time_limits.expire_run(state, timer, now)
        case StartLimit():
            time_limits.expire_unstarted(state, timer.step, timer.delivery, now)
        case RetryDue():
            expire_retry(state, timer.step, timer.not_before_ms, now)
        case QueueLimit():
            time_limits.expire_queue(state, timer.step, timer.ready_ms, now)
        case StepDeadline():
            time_limits.expire_deadline(state, timer.step, timer.deadline_ms, now)
        case TaskDeadline():
            time_limits.expire_task(state, timer.task, timer.deadline_ms, now)
        case BreakerDue():
            allowance.on_breaker_timer(state, timer, now)
        case BudgetDue():
            allowance.on_budget_timer(timer)
        case GuardSweepDue():
            allowance.on_sweep_timer(state, now)
        case RecoverySafe():
            _recover(state, now)
        case ReleaseDue():
            releasing.look(state, timer.lane, timer.epoch, now)
        case FetchDue():
            state.undecided_steps.extend(s for s in timer.steps if s.task.steps)
        case ReloadDue():
            _reload_rejected(state, timer.task_id)
        case LookDue():
            orders.look(state, now)
        case SliceDue():
            storing.on_slice_timer(state, timer.request, now)
        case PeerSettled() | PageDue():
            return  # dispatch and loading follow every event
        case _:
            assert_never(timer)


def _recover(state: BrokerState, now: Now) -> None:
    if state.safe_due_mono is None or now.mono < state.safe_due_mono:
        return  # a timer that was replaced by an earlier one
    state.safe_due_mono = None
    loss.expire_recovered(state, now)
    unsafe = [lane.safe_at_mono for lane in state.lanes.values() if now.mono < lane.safe_at_mono]
    if state.recovered or unsafe:
        state.await_safety(max(min(unsafe, default=0), now.mono + residency.PAGE_PAUSE_MS))


def _reload_rejected(state: BrokerState, task_id: int) -> None:
    if task_id in state.rejected:
        request = state.next_read()
        state.loads[request] = RejectedLoad(task_id)
        state.decision.reads.append(LoadById(request, [task_id]))
