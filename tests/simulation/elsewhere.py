"""Requests that other brokers carry out: the shipped elsewhere.py and results_elsewhere.py without threads.

An order is stored by one statement, and its answer is looked for at growing intervals. Both statements may fail, or be
performed without the client's knowledge.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.answers.answers import Answer, CommandRefused, Done
from stepwire_broker.core.commit.decision import OrderToStore, ResultsElsewhere, WaitElsewhere
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.events import ReportResult, ResultsTaken
from stepwire_broker.core.sharing.order_texts import command_text, read_answer
from stepwire_broker.elsewhere import FIRST_LOOK_S, GIVE_UP_S, LOOK_S_MAX, SETTLED_EVERY_S
from stepwire_broker.results_elsewhere import is_taken

from tests.memory_store.database import MemoryOrders

if TYPE_CHECKING:
    from .broker_node import BrokerNode

PUT_MS: Final = 2_000.0
READ_MS: Final = 5_000.0


class Elsewhere:
    """One life of a broker's process."""

    def __init__(self, node: "BrokerNode") -> None:
        assert node.world.server is not None
        self._node = node
        self._server = node.world.server
        self._queries = node.world.store.queries
        self._orders = MemoryOrders(node.world.tables)
        self._waiting: dict[int, OrderToStore] = {}  # by order
        self._passed: set[tuple[str, int]] = set()  # messages with results, by worker and rid

    # -- orders -------------------------------------------------------------------------------------------------------

    def order(self, order: OrderToStore) -> None:
        until_ms = self._node.world.now + 1_000.0 * GIVE_UP_S
        text = command_text(order.command)

        def stored(number: int) -> None:
            self._node.world.count("order", type(order.command).__name__)
            self._waiting[number] = order
            self._look_soon(order, number, 1_000.0 * FIRST_LOOK_S, until_ms)
            self._node.notifications.send(Notification(orders=(order.lane,)))

        def failed() -> None:
            self._node.give_answer(order.request, CommandRefused("commit_unknown", "the order may have been lost"))

        self._server.call(self._node, lambda: self._orders.put(order.lane, text).result(), stored, failed, PUT_MS)

    def look_now(self, answers: Collection[int]) -> None:
        """The owners have answered these orders."""
        for number in answers:
            order = self._waiting.get(number)
            if order is not None and self._node.is_asked(order.request):
                self._read_answer(order, number, lambda: None)

    def _look_soon(self, order: OrderToStore, number: int, pause_ms: float, until_ms: float) -> None:
        self._node.later(pause_ms, self._look, order, number, pause_ms, until_ms)

    def _look(self, order: OrderToStore, number: int, pause_ms: float, until_ms: float) -> None:
        def again() -> None:
            if self._node.world.now > until_ms:
                refused = CommandRefused("commit_unknown", f"no owner of lane {order.lane} has answered")
                self._node.give_answer(order.request, refused)
            else:
                self._look_soon(order, number, min(2.0 * pause_ms, 1_000.0 * LOOK_S_MAX), until_ms)

        if self._node.is_asked(order.request):
            self._read_answer(order, number, again)
        else:
            self._waiting.pop(number, None)

    def _read_answer(self, order: OrderToStore, number: int, again: Callable[[], None]) -> None:
        def read(answers: dict[int, str]) -> None:
            text = answers.get(number)
            answer: Answer | None = None if text is None else read_answer(text, {})
            if answer is None:
                again()
            else:
                self._waiting.pop(number, None)
                self._node.give_answer(order.request, answer)

        self._server.call(self._node, lambda: self._queries.order_answers([number]), read, again, READ_MS)

    # -- waits --------------------------------------------------------------------------------------------------------

    def wait(self, wait: WaitElsewhere) -> None:
        self._node.later(1_000.0 * SETTLED_EVERY_S, self._look_for_end, wait)

    def _look_for_end(self, wait: WaitElsewhere) -> None:
        def read(rows: list[Any]) -> None:
            if rows:
                row = rows[0]
                self._node.give_answer(wait.request, Done(row.id, row.state, row.attention))
            else:
                self.wait(wait)

        if self._node.is_asked(wait.request):
            self._server.call(
                self._node,
                lambda: self._queries.settled_tasks([wait.task_id]),
                read,
                lambda: self.wait(wait),
                READ_MS,
            )

    # -- results ------------------------------------------------------------------------------------------------------

    def pass_on(self, message: ResultsElsewhere) -> None:
        key = message.worker, message.rid
        if key not in self._passed:
            self._passed.add(key)
            self._pass_from(message, 0)

    def _pass_from(self, message: ResultsElsewhere, place: int) -> None:
        """Pass on the results from this place, one after the other."""
        key = message.worker, message.rid
        if place == len(message.results):
            self._passed.discard(key)
            self._node.post("event", ResultsTaken(*key))
            return
        result = message.results[place]

        def answered(answer: Answer | None) -> None:
            if self._node.elsewhere is not self:
                return  # the process has ended
            if answer is not None and is_taken(answer):
                self._pass_from(message, place + 1)
            else:
                self._passed.discard(key)

        self._node.ask(
            lambda request: ReportResult(request, result.step_id, message.worker, message.batch_id, result), answered
        )
