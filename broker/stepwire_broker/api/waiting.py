"""Long polls: requests that wait until there is an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.stages.requests import Make

from . import http_problems
from .http import ClientGone, HttpCall

A = TypeVar("A", bound=Answer)


@asynccontextmanager
async def long_poll(call: HttpCall) -> AsyncIterator["LongPoll"]:
    """A long poll for a request whose body has been read. `wait` raises ClientGone when the client disconnects, and
    HttpProblem when its token is revoked."""
    poll = LongPoll(call)
    try:
        yield poll
    finally:
        poll.end()


class LongPoll:
    """A waiting client. Its commands are cancelled when the client disconnects, the time is over, or the server
    stops."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._disconnecting = asyncio.ensure_future(call.disconnected())
        self._closing = asyncio.ensure_future(call.closing.wait())
        self._revoked = call.revoked
        self._commands: list[asyncio.Future[Any]] = []

    async def ask(self, make: Make, expected: type[A]) -> "asyncio.Future[A]":
        """Send a command, and return after the core has received it. Rows that are read afterwards are not older than
        the command."""
        asking = asyncio.ensure_future(self._call.ask(make, expected))
        self._commands.append(asking)
        await self._call.broker.handled()
        return asking

    async def wait(self, answer: "asyncio.Future[Any]", timeout_s: float) -> None:
        """Wait for the answer, for at most `timeout_s`, or until the server is about to stop."""
        futures = (answer, self._disconnecting, self._closing, self._revoked)
        await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._disconnecting.done():
            raise ClientGone
        if self._revoked.done():
            raise http_problems.revoked(self._call.open_request.grant)
        if answer.done():
            answer.result()

    def end(self) -> None:
        """Cancel the futures without waiting for them, so that the answer can be sent meanwhile."""
        for future in (self._disconnecting, self._closing, *self._commands):
            if future.done():
                _ = future.cancelled() or future.exception()  # mark the exception as retrieved
            else:
                future.cancel()
