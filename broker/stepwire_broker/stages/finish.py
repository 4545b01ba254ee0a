"""Station five, finish: answer the waiting requests, after the commit that an answer depends on."""

import asyncio
from collections.abc import Callable

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.commit.decision import Decision
from stepwire_broker.core.model.events import Command, Forget


class PendingAnswers:
    """Unanswered requests by number. The futures belong to the running loop."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Answer]] = {}
        self._count = 0

    def open(self) -> tuple[int, asyncio.Future[Answer]]:
        self._count += 1
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._futures[self._count] = future
        return self._count, future

    async def ask(self, make: Callable[[int], Command], *, handle: Callable[[Command], None]) -> Answer:
        """Pass a command to the core and return its answer after the commit. A cancelled call drops the request."""
        request, future = self.open()
        try:
            handle(make(request))
            return await future
        except asyncio.CancelledError:
            self.close(request)
            handle(Forget(request))
            raise

    def close(self, request: int) -> None:
        """Drop a request whose client has disconnected."""
        self._futures.pop(request, None)

    def is_open(self, request: int) -> bool:
        return request in self._futures

    def answer(self, decision: Decision) -> None:
        for each in decision.answers:
            self.answer_one(each.request, each.answer)

    def answer_one(self, request: int, answer: Answer) -> None:
        future = self._futures.pop(request, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def give_up(self, answer: Answer) -> None:
        """Answer all waiting requests with this answer: the broker stops, and their outcomes are unknown."""
        for future in self._futures.values():
            if not future.done():
                future.set_result(answer)
        self._futures.clear()

    def __len__(self) -> int:
        return len(self._futures)
