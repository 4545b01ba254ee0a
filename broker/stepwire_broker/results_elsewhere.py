"""Results of steps that another broker owns, reported here because their worker has no session with the owner.

Each result is passed on as an order. The worker's message is acknowledged when the owners have stored all of them. A
worker resends a message that is not acknowledged, so whatever fails is tried again with the next copy.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from .core.answers.answers import Answer, CommandRefused, ResultTaken
from .core.commit.decision import ResultsElsewhere
from .core.model.events import Command, ReportResult, ResultsTaken

MESSAGES_MAX: Final = 1_000  # under way; the copies of further ones find room later


class PassedOn:
    """Passes results on, and reports the messages whose results are stored. Used on the loop."""

    def __init__(
        self,
        ask: Callable[[Callable[[int], Command]], Awaitable[Answer]],
        taken: Callable[[ResultsTaken], None],
    ) -> None:
        self._ask = ask
        self._taken = taken
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}  # by worker and rid

    def pass_on(self, message: ResultsElsewhere) -> None:
        key = message.worker, message.rid
        if key not in self._under_way and len(self._under_way) < MESSAGES_MAX:
            task = asyncio.get_running_loop().create_task(self._pass_on(message))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))

    def close(self) -> None:
        for task in list(self._under_way.values()):
            task.cancel()

    async def _pass_on(self, message: ResultsElsewhere) -> None:
        for result in message.results:
            answer = await self._ask(
                lambda request, result=result: ReportResult(  # type: ignore[misc]
                    request, result.step_id, message.worker, message.batch_id, result
                )
            )
            if not is_taken(answer):
                return
        self._taken(ResultsTaken(message.worker, message.rid))


def is_taken(answer: Answer) -> bool:
    """True if the result is stored or late, or its step was removed."""
    return isinstance(answer, ResultTaken) or (isinstance(answer, CommandRefused) and answer.code == "not_found")
