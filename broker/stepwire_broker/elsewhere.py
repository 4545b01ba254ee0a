"""Requests about tasks that another broker owns: orders to that broker, and waits for the ends of tasks.

An order is stored in the database, and its answer is read there. Nothing is sent from broker to broker, so an order
reaches whichever broker owns the lane when it is carried out.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from .core.answers.answers import Answer, CommandRefused, Done
from .core.answers.hints import Hint, HintCode
from .core.commit.decision import OrderToStore, WaitElsewhere
from .core.membership.notifications import Notification
from .core.sharing.explaining import EXPLANATIONS
from .core.sharing.order_texts import command_text, read_answer
from .core.sharing.orders import ORDER_LIVES_MS
from .errors import BrokerError
from .stages.finish import PendingAnswers
from .store import Store
from .store.errors import OrderNotStored

FIRST_LOOK_S: Final = 0.02
LOOK_S_MAX: Final = 0.25
GIVE_UP_S: Final = ORDER_LIVES_MS / 1000 + 1.0  # no owner carries out an older order
SETTLED_EVERY_S: Final = 0.1
WAITS_MAX: Final = 1_000  # tasks in one query


class Elsewhere:
    """Answers requests of this broker's clients by what other brokers store. Used on the loop."""

    def __init__(self, store: Store, answers: PendingAnswers, notify: Callable[[Notification], None]) -> None:
        self._store = store
        self._answers = answers
        self._notify = notify
        self._answered: dict[int, asyncio.Event] = {}  # by order under way: its owner has answered it
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._waits: dict[int, int] = {}  # by request: the task
        self._is_waiting = False

    def order(self, order: OrderToStore) -> None:
        """Store an order, and answer its request with the owner's answer."""
        self._begin(self._carry_out(order))

    def look_now(self, orders: Collection[int]) -> None:
        """Look for the answers to these orders now."""
        for number in orders:
            if number in self._answered:
                self._answered[number].set()

    def wait(self, wait: WaitElsewhere) -> None:
        """Answer the request when the rows of its task show that the task has ended or needs an operator."""
        self._waits[wait.request] = wait.task_id
        if not self._is_waiting:
            self._is_waiting = True
            self._begin(self._look_for_ends())

    @property
    def awaited(self) -> Collection[int]:
        """The tasks for whose ends clients wait."""
        return self._waits.values()

    def close(self) -> None:
        for each in self._under_way:
            each.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _carry_out(self, order: OrderToStore) -> None:
        answer = await self._answer_to(order)
        if answer is not None:
            self._answers.answer_one(order.request, answer)

    async def _answer_to(self, order: OrderToStore) -> Answer | None:
        """Return the answer; None if the client has gone, which does not end the order."""
        assert self._store.orders is not None
        until_s = self._loop.time() + GIVE_UP_S
        try:
            number = await asyncio.wrap_future(self._store.orders.put(order.lane, command_text(order.command)))
        except OrderNotStored as error:
            text = f"the command could not be stored for the owner of the task: {error}"
            return CommandRefused("database_unavailable", text, Hint(HintCode.WAIT_FOR_DATABASE))
        except BrokerError as error:
            text = f"the command was sent to the owner of the task, and may have been lost: {error}"
            return CommandRefused("commit_unknown", text)
        answered = self._answered[number] = asyncio.Event()
        self._notify(Notification(orders=(order.lane,)))
        try:
            return await self._look_for_answer(order, number, answered, until_s)
        finally:
            del self._answered[number]

    async def _look_for_answer(
        self, order: OrderToStore, number: int, answered: asyncio.Event, until_s: float
    ) -> Answer | None:
        """Look at growing intervals, and when the owner notifies this broker."""
        pause_s = FIRST_LOOK_S
        while self._answers.is_open(order.request):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), pause_s)
            answered.clear()
            pause_s = min(2 * pause_s, LOOK_S_MAX)
            stored = await self._stored_answer(number)
            if stored is not None:
                return read_answer(stored, EXPLANATIONS) or CommandRefused(
                    "commit_unknown", "the owner of the task has another version, and its answer cannot be read"
                )
            if self._loop.time() > until_s:
                text = f"no broker that owns lane {order.lane} has answered within {ORDER_LIVES_MS // 1000} s"
                return CommandRefused("commit_unknown", text)
        return None

    async def _stored_answer(self, order_id: int) -> str | None:
        try:
            answers = await asyncio.wrap_future(self._store.read(lambda queries: queries.order_answers([order_id])))
        except BrokerError:
            return None  # the database is away for a moment, and the answer stays in it
        return answers.get(order_id)

    # -- waits --------------------------------------------------------------------------------------------------------

    async def _look_for_ends(self) -> None:
        try:
            while self._waits:
                await asyncio.sleep(SETTLED_EVERY_S)
                self._waits = {n: task for n, task in self._waits.items() if self._answers.is_open(n)}
                await self._look_once()
        finally:
            self._is_waiting = False

    async def _look_once(self) -> None:
        wanted = sorted(set(self._waits.values()))
        for start in range(0, len(wanted), WAITS_MAX):
            some = wanted[start : start + WAITS_MAX]
            try:
                settled = await asyncio.wrap_future(
                    self._store.read(lambda queries, ids: queries.settled_tasks(ids), some)
                )
            except BrokerError:
                return
            found = {row.id: Done(row.id, row.state, row.attention) for row in settled}
            for request in [n for n, task in self._waits.items() if task in found]:
                self._answers.answer_one(request, found[self._waits.pop(request)])
