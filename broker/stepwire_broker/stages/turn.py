"""One turn: handle an event and carry out the decision, in the only order that keeps the delivery guarantees.

This module uses no sockets, threads or clocks: the engine and the simulation run the same turn.
"""

from collections.abc import Callable
from typing import NamedTuple

from stepwire_broker.core.commit.decision import (
    BreakerChanged,
    Complaint,
    Decision,
    LaneGone,
    LaneReleasable,
    OffersLeftOut,
    OrderToStore,
    Read,
    ResultsElsewhere,
    WaitElsewhere,
    WatchProcess,
    WorkerDied,
    WorkerFlaps,
)
from stepwire_broker.core.commit.ports import ReadClocks, WirePort
from stepwire_broker.core.lanes import darkness
from stepwire_broker.core.machine import Machine
from stepwire_broker.core.membership.members import Conclusion
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.commit_group import CommitGroup, Outcome
from stepwire_broker.core.model.events import Event, Now, Tick
from stepwire_broker.core.model.live import StepProgress
from stepwire_broker.core.model.principal import PROCESS

from . import dispatch


def _notify_no_broker(notification: Notification) -> None:
    """Do nothing: no other broker reads the database."""


def _no_other_broker(request: OrderToStore | WaitElsewhere | LaneReleasable | Conclusion) -> None:
    raise AssertionError(f"one broker owns all lanes, so nothing is asked of another: {request}")


def _leave_to_their_worker(results: ResultsElsewhere) -> None:
    """Do nothing: the worker resends what is not acknowledged."""


class Around(NamedTuple):
    """The clock that a turn reads, and the functions that carry its decisions out."""

    clock: ReadClocks
    wire: WirePort
    put: Callable[[CommitGroup], None]
    answer: Callable[[Decision], None]
    read: Callable[[Read], None]
    watch: Callable[[WatchProcess], None]
    breaker_changed: Callable[[BreakerChanged], None]
    complain: Callable[[Complaint], None]
    progressed: Callable[[list[StepProgress]], None]
    offers_left_out: Callable[[OffersLeftOut], None]
    worker_news: Callable[[WorkerDied | WorkerFlaps], None]
    lane_gone: Callable[[LaneGone], None]
    release: Callable[[LaneReleasable], None] = _no_other_broker
    order: Callable[[OrderToStore], None] = _no_other_broker
    wait_elsewhere: Callable[[WaitElsewhere], None] = _no_other_broker
    pass_on: Callable[[ResultsElsewhere], None] = _leave_to_their_worker
    conclude: Callable[[Conclusion], None] = _no_other_broker
    notify: Callable[[Notification], None] = _notify_no_broker


class Turn:
    def __init__(self, machine: Machine, around: Around) -> None:
        self._machine = machine
        self._around = around

    def handle(self, event: Event, principal: str = PROCESS) -> Decision:
        """Pass one event to the core and act on the decision, which is returned for the taps."""
        decision = self._machine.handle(event, self._around.clock(), principal)
        self.act(decision)
        return decision

    def tick(self, mono: int) -> None:
        """Expire the timers that are due at `mono`, which may be earlier than now."""
        now = self._around.clock()
        self.act(self._machine.handle(Tick(), Now(mono, now.wall - (now.mono - mono))))

    def commit(self, outcome: Outcome) -> None:
        """Handle a commit's outcome. The writer gets its next group before the messages of this commit are sent."""
        now = self._around.clock()
        decision = self._machine.handle(outcome, now)
        self._hand_over(now)
        self.act(decision)

    def flush(self) -> None:
        """Dispatch, and hand each lane's open group to its writer if the writer is free."""
        self._hand_over(self._around.clock())

    def _hand_over(self, now: Now) -> None:
        machine = self._machine
        machine.dispatch(now)
        for lane in machine.state.outbox.lanes:
            group, decision = machine.next_group(lane, now)
            if group is not None:
                self._around.put(group)
            self.act(decision)

    def act(self, decision: Decision) -> None:
        if decision.is_empty:
            return
        around = self._around
        state = self._machine.state
        if state.members is not None and darkness.is_dark(state, now := around.clock()):
            darkness.silence(state, decision, now)
        dispatch.send(around.wire, decision)
        if decision.answers:
            around.answer(decision)
        for read in decision.reads:
            around.read(read)
        for order in decision.orders:
            around.order(order)
        for wait in decision.waits:
            around.wait_elsewhere(wait)
        for results in decision.results_elsewhere:
            around.pass_on(results)
        for watch in decision.watches:
            around.watch(watch)
        for changed in decision.breaker_changes:
            around.breaker_changed(changed)
        for complaint in decision.complaints:
            around.complain(complaint)
        if decision.progress:
            around.progressed(decision.progress)
        for left_out in decision.offers_left_out:
            around.offers_left_out(left_out)
        for news in decision.worker_news:
            around.worker_news(news)
        for gone in decision.lanes_gone:
            around.lane_gone(gone)
        for conclusion in decision.conclusions:
            around.conclude(conclusion)
        for releasable in decision.released:
            around.release(releasable)
        for notification in decision.notifications:
            around.notify(notification)
