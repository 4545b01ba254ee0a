"""An asyncio loop in a thread of its own, for async handlers.

A few long-lived tasks serve the calls, instead of one task per call, so a batch of short handlers runs without a return
to the loop. Each call has its own copy of the context variables nevertheless.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context as Variables
from typing import Final

from stepwire_protocol.messages import Result

from stepwire.identity import now_ms

from . import run_log
from .calls import GIVE_BACK, HandlerCall, OutcomeReport, call_async, call_async_opened
from .loop_watch import BLOCKED_S, LoopWatch

SERVE_MAX_MS: Final = 5.0  # a task that only runs short calls returns to the loop after this time


class AsyncRunner:
    """Runs async handlers concurrently."""

    def __init__(
        self, name: str, report: OutcomeReport, next_call: Callable[[HandlerCall], HandlerCall | None]
    ) -> None:
        """`next_call` releases a call's slot. It returns the call that this runner must start in its place."""
        self._report = report
        self._next_call = next_call
        self._calls: deque[HandlerCall] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._is_roused = False
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self.loop_watch = LoopWatch(self._loop.call_soon_threadsafe)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- called by other threads --------------------------------------------------------------------------------------

    def submit(self, calls: list[HandlerCall]) -> None:
        self._loop.call_soon_threadsafe(self._add, calls)

    def cancel(self, call: HandlerCall) -> None:
        self._loop.call_soon_threadsafe(self._cancel, call)

    def watch(self, calls: Iterable[HandlerCall], now_ms: float) -> None:
        """Warn if a handler blocks the loop. `calls` are searched for this handler."""
        if self.loop_watch.is_blocked(now_ms):
            task = asyncio.current_task(self._loop)
            call = next((call for call in calls if task is not None and call.task is task), None)
            if call is None:
                run_log.loop_blocked(None, "", BLOCKED_S)
            else:
                run_log.loop_blocked(call.run.step, call.handler.name, BLOCKED_S)

    def stop(self, wait_s: float) -> None:
        """Cancel all running calls. Wait at most `wait_s` for their end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(wait_s)

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._is_stopping = True
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _add(self, calls: list[HandlerCall]) -> None:
        self._calls.extend(calls)
        if not self._is_roused:
            self._rouse()

    def _rouse(self) -> None:
        """Wake one idle task, or start a new one. The task wakes the next one if more calls wait."""
        self._is_roused = True
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                return
        task = self._loop.create_task(self._serve(), context=Variables())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        calls = self._calls
        task = asyncio.current_task()
        assert task is not None
        while True:
            self._is_roused = False
            since_ms = now_ms()
            while calls:
                call = calls.popleft()
                if calls and not self._is_roused:
                    self._rouse()
                at_ms = now_ms()
                if at_ms - since_ms > SERVE_MAX_MS:
                    await asyncio.sleep(0)
                    since_ms = at_ms = now_ms()
                if call.begin(at_ms):
                    call.task = task
                    # Nearly every step is open: it does not pass through one more coroutine.
                    perform = call_async_opened if call.edge is None else call_async
                    result: Result | None = await perform(call, at_ms)
                    call.task = None
                    while task.cancelling():
                        task.uncancel()
                    if self._is_stopping:
                        return
                else:
                    result = GIVE_BACK
                following = self._next_call(call)
                if following is not None:
                    calls.append(following)
                self._report(call.run.item, result)
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            await idle

    def _cancel(self, call: HandlerCall) -> None:
        if call.task is not None:
            call.task.cancel()
