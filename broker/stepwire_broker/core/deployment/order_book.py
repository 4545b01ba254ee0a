"""Orders that this broker carries out: commands that other brokers stored for the owner of a lane.

An order is decided like the command itself, under a negative request number. Its answer is a row of the group that has
the command's effect. Until that group is committed, and until a later look can no longer find the order open, the order
is known here, so it is not carried out twice.
"""

from msgspec import Struct

from stepwire_broker.core.answers.answers import PASSING, Answer, CommandRefused, answer_text
from stepwire_broker.core.commit.outbox import Outbox
from stepwire_broker.core.model.commit_group import AuditPart, OrderAnswer
from stepwire_broker.core.model.live import Task


class OrderUnderWay(Struct):
    """An order whose answer is not committed."""

    lane: int
    id: int
    task_id: int | None = None  # the database refuses the answer together with the rows of this task
    seq: int | None = None  # of the group that has the answer; None: the command waits, for example for a read

    @property
    def request(self) -> int:
        return request_of(self.id)


class OrderBook(Struct):
    """`answer` and `refuse` end an order as `BrokerState.answer` and `refuse_now` end a request of a client."""

    under_way: dict[int, OrderUnderWay] = {}  # by request
    answered: dict[int, int] = {}  # by order: the last read that was asked for before the answer was committed
    look: int | None = None  # the read that looks for orders now
    looks_again: bool = False  # after it, because it may have begun too early

    def answer(self, outbox: Outbox, request: int, answer: Answer, about: Task | None = None) -> None:
        """Write the answer to an order into the group that has the effect."""
        order = self.under_way.get(request)
        if order is None:
            return  # its lane has another owner now, who finds the order open
        assert about is None or about.lane == order.lane, (order, about)
        lane = outbox.touch(order.lane)
        part: AuditPart = None if about is None else ("task", about.id)
        lane.orders_answered.append(OrderAnswer(order.id, answer_text(answer), part))
        order.seq = lane.handed + 1
        order.task_id = None if about is None else about.id

    def refuse(self, outbox: Outbox, request: int, refused: CommandRefused) -> None:
        """Refuse an order. A refusal that will pass leaves the order open: a later look finds it again."""
        if refused.code in PASSING:
            self.under_way.pop(request, None)
        else:
            self.answer(outbox, request, refused)

    def is_known(self, order_id: int) -> bool:
        return request_of(order_id) in self.under_way or order_id in self.answered

    def commit(self, lane: int, seq: int, reads: int) -> list[int]:
        """Note that the answers in this lane's groups up to `seq` are durable, and return their orders. `reads`: the
        number of the last read."""
        durable = [
            (request, order)
            for request, order in self.under_way.items()
            if order.lane == lane and order.seq is not None and order.seq <= seq
        ]
        for request, order in durable:
            del self.under_way[request]
            self.answered[order.id] = reads
        return [order.id for _, order in durable]

    def forget_answered(self, read: int) -> None:
        """Forget orders that were answered before this read was asked for: no later look finds them open."""
        self.answered = {order: asked for order, asked in self.answered.items() if asked >= read}

    def forget_lane(self, lane: int) -> None:
        """Leave the orders of a lane to its next owner."""
        self.under_way = {n: order for n, order in self.under_way.items() if order.lane != lane}


def request_of(order_id: int) -> int:
    """Return the request number of an order. Requests of this broker's own clients have positive numbers."""
    return -order_id
