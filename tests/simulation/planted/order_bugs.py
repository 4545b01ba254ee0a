"""Bugs of orders: a command for another broker's task is carried out twice, never, or by the wrong broker."""

from typing import Any, Final

from stepwire_broker.core.commit.outbox import Outbox
from stepwire_broker.core.deployment.order_book import OrderBook, OrderUnderWay
from stepwire_broker.core.model.commit_group import OrderAnswer
from stepwire_broker.core.sharing import orders

from tests.memory_store.writer import MemoryWriter

from .plant import Bug, Plant

LATE_MS: Final = 1_000
NEVER: Final = 2**62


def _answered_later(plant: Plant) -> None:
    """The answer is in a transaction of a second later than the effect."""
    late: dict[int, list[tuple[OrderUnderWay, OrderAnswer]]] = {}  # by lane state

    def answer(original: Any, self: Any, outbox: Outbox, request: int, *more: Any) -> None:
        original(self, outbox, request, *more)
        order = self.under_way.get(request)
        if order is not None:
            lane = outbox.lanes[order.lane]
            late.setdefault(id(lane), []).append((order, lane.orders_answered.pop()))
            lane.promised = True
            order.seq = NEVER

    def close(original: Any, self: Outbox, number: int, now: Any) -> Any:
        lane = self.lanes[number]
        if late.get(id(lane)) and now.mono >= lane.handed_mono + LATE_MS:
            for order, row in late.pop(id(lane)):
                lane.orders_answered.append(row)
                order.seq = lane.handed + 1
        return original(self, number, now)

    plant.method(OrderBook, "answer", answer)
    plant.method(Outbox, "close", close)


def _answered_twice(plant: Plant) -> None:
    """An owner forgets at once that it has answered, and the store does not compare."""

    def commit(original: Any, self: Any, lane: int, seq: int, reads: int) -> int:
        durable: int = original(self, lane, seq, reads)
        self.answered.clear()
        return durable

    def answer_orders(original: Any, self: Any, answers: Any) -> None:
        open_orders = self._tables.orders
        original(self, [each for each in answers if open_orders[each.id].answer is None])

    plant.method(OrderBook, "commit", commit)
    plant.method(MemoryWriter, "answer_orders", answer_orders)


def _decided_anywhere(plant: Plant) -> None:
    plant.function(orders.is_elsewhere, lambda original, state, command, number: False)


BUGS: Final = tuple(
    Bug(name, plant, brokers=2)
    for name, plant in (
        ("an order is answered outside the transaction of its effect", _answered_later),
        ("an order is carried out again by a look from before its commit", _answered_twice),
        ("a command on another broker's task is decided here", _decided_anywhere),
    )
)
