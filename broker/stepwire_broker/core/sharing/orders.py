"""Orders: commands on tasks that come in at one broker while another one owns the lane.

The broker that a client is connected to stores the command for the owner, which looks for such orders regularly. The
owner handles an order like the command itself, and its answer is written in the transaction of the effect. A broker
that loses the lane before that commit has written neither, and the next owner carries the order out.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.decision import LookAround, OrderToStore, WaitElsewhere
from stepwire_broker.core.deployment.order_book import OrderUnderWay, request_of
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.events import AwaitTask, Command, CommandOfOperator, FoundOrder, LookedAround, Now
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import LookDue

from . import catalogue

LOOK_EVERY_MS: Final = 250
LOOK_ALONE_MS: Final = 2_000
ORDER_LIVES_MS: Final = (
    20_000  # an older order is not carried out, because its client has its answer: the outcome is unknown
)

Handle = Callable[[BrokerState, Command, Now], None]


# -- the broker that a client is connected to -------------------------------------------------------------------------


def is_elsewhere(state: BrokerState, command: Command, number: int) -> bool:
    """Pass a command on if another broker owns the task or step that has this id. False: this broker decides it."""
    lane = state.lane_of(number)
    if lane is None and state.catalogue.look_up(command, state):
        return True  # another broker may have reserved the block of this id a moment ago
    if lane is None or lane in state.outbox.lanes:
        return False
    reason = _not_served(state, lane)
    if reason is not None:
        text = f"lane {lane}, which has the task, is not served: {reason}"
        state.refuse_now(command.request, CommandRefused("database_unavailable", text, Hint(HintCode.ACCEPT_LOSS)))
    elif isinstance(command, AwaitTask):
        state.decision.waits.append(WaitElsewhere(command.request, command.task_id))
    else:
        pass_on(state, command, lane)
    return True


def _not_served(state: BrokerState, lane: int) -> str | None:
    """Why no broker serves this lane until an operator accepts a loss; None if one does or will soon."""
    if state.members is not None and lane in state.members.lanes_in_doubt():
        return state.stopped.get(lane, "commits may have been lost since its last owner, and no broker takes it over")
    return state.stopped.get(lane)


def pass_on(state: BrokerState, command: Command, lane: int) -> None:
    """Have the owner of this lane, another broker, decide the command."""
    if command.request < 0:
        state.orders.under_way.pop(command.request, None)  # the lane's new owner finds the order open
        return
    if isinstance(command, CommandOfOperator):
        command = msgspec.structs.replace(command, request_id=state.identity.request_id(command.request))
    state.counters.orders_sent += 1
    state.decision.orders.append(OrderToStore(command.request, lane, command))


# -- the owner of the lane --------------------------------------------------------------------------------------------


def look(state: BrokerState, now: Now) -> None:
    """Look for open orders of own lanes, unless a look is under way. Later looks follow.

    A broker that knows of no other living one looks less often: its beats tell if it is not alone."""
    is_alone = state.members is not None and not state.members.live
    state.timers.set(now.mono + (LOOK_ALONE_MS if is_alone else LOOK_EVERY_MS), LookDue())
    look_now(state)


def look_now(state: BrokerState) -> None:
    """Look at once, unless a look is under way."""
    book = state.orders
    if book.look is None:
        book.look = state.next_read()
        book.looks_again = False
        state.decision.reads.append(LookAround(book.look, tuple(state.outbox.lanes)))


def on_notified(state: BrokerState, event: Notification, now: Now) -> None:
    """Look for what another broker has stored a moment ago. A look that is under way may have begun before that."""
    if event.controls or not state.outbox.lanes.keys().isdisjoint(event.orders):
        is_looking = state.orders.look is not None
        look_now(state)
        state.orders.looks_again = is_looking


def on_looked(state: BrokerState, event: LookedAround, now: Now, handle: Handle) -> None:
    """Carry out the orders that were found. The read may be older than the commit of an answer, so it may find an order
    that was carried out meanwhile."""
    book = state.orders
    book.look = None
    for order in event.orders:
        if order.lane in state.outbox.lanes and not book.is_known(order.id):
            book.under_way[request_of(order.id)] = OrderUnderWay(order.lane, order.id)
            _carry_out(state, order, now, handle)
    book.forget_answered(event.request)
    catalogue.on_revision(state, event.revision)
    if book.looks_again:
        look_now(state)


def _carry_out(state: BrokerState, order: FoundOrder, now: Now, handle: Handle) -> None:
    request = request_of(order.id)
    if order.age_ms > ORDER_LIVES_MS:
        text = f"the command waited {order.age_ms} ms for the owner of lane {order.lane}, and was not carried out"
        state.refuse_now(request, CommandRefused("commit_unknown", text, Hint(HintCode.SEND_AGAIN)))
    elif order.command is None:
        text = f"broker {state.identity.broker} owns the task, and its version does not know this command"
        state.refuse_now(request, CommandRefused("invalid", text))
    else:
        handle(state, msgspec.structs.replace(order.command, request=request), now)


def on_committed(state: BrokerState, lane: int, seq: int) -> None:
    if state.orders.under_way and (answered := state.orders.commit(lane, seq, state.reads)):
        state.counters.orders_answered += len(answered)
        state.decision.notifications.append(Notification(answers=tuple(answered)))
    if state.catalogue.own and state.catalogue.commit(lane, seq, state.reads):
        state.decision.notifications.append(Notification(controls=True))


def refuse_for(state: BrokerState, task_id: int) -> None:
    """Refuse the orders whose effects the database refused with the rows of this task."""
    for request, order in list(state.orders.under_way.items()):
        if order.task_id == task_id and order.seq is not None:
            text = f"the database refused the data of task {task_id}"
            state.refuse_now(request, CommandRefused("refused_by_database", text))


def forget_lane(state: BrokerState, lane: int) -> None:
    """Leave the open orders of a lane to its next owner."""
    state.orders.forget_lane(lane)
    state.catalogue.forget_lane(lane)
