"""Station five, finish: whoever waits for an answer gets it, after the commit of what it says."""

import asyncio

from stepwire_broker.core.commit.decision import Decision
from stepwire_broker.core.model.answers import Answer


class PendingAnswers:
    """Requests that are not answered yet, by number."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Answer]] = {}
        self._count = 0

    def open(self) -> tuple[int, asyncio.Future[Answer]]:
        self._count += 1
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._futures[self._count] = future
        return self._count, future

    def close(self, request: int) -> None:
        """Nobody waits for this one any more."""
        self._futures.pop(request, None)

    def answer(self, decision: Decision) -> None:
        for given in decision.answers:
            future = self._futures.pop(given.request, None)
            if future is not None and not future.done():
                future.set_result(given.answer)

    def give_up(self, answer: Answer) -> None:
        """The broker stops: what is not answered by now is not known to be done."""
        for future in self._futures.values():
            if not future.done():
                future.set_result(answer)
        self._futures.clear()

    def __len__(self) -> int:
        return len(self._futures)
