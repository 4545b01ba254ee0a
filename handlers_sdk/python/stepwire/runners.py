"""Where handlers run: async ones on a loop of their own, plain ones in threads, never where the sockets are.

A loop serves its calls with a few long-lived tasks instead of one task a call: a batch of short handlers then runs
through without going back to the loop once. Each call has its own copy of the context variables all the same.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from types import coroutine
from typing import Any, Final, Protocol

import msgspec
from stepwire_protocol.messages import Item, Result

from .actions import Run
from .context import Context
from .handler import Handler, bad_input, completed, failed, read_input, stopped
from .identity import now_ms

GIVE_BACK: Final[Result | None] = None
RELEASE_EVERY_MS: Final = 1.0  # a loop that has much to do reports at least this often


class Report(Protocol):
    """Takes the outcome of a call: a Result, or None for one that has not started. May be called by any thread."""

    def __call__(self, item: Item, result: Result | None) -> None: ...


class Call:
    """One run on its way to a handler and back."""

    __slots__ = ("context", "handler", "run", "task")

    def __init__(self, run: Run, handler: Handler, context: Context) -> None:
        self.run = run
        self.handler = handler
        self.context = context
        self.task: asyncio.Task[None] | None = None  # set while the handler runs on a loop

    def may_start(self, at_ms: float) -> bool:
        """The last look before the handler is entered: is the lease still good, does anybody still want it?"""
        return at_ms < self.run.lease.until_ms and self.context.cancel_reason is None


def run_plain(call: Call) -> Result:
    """Run a plain handler here and now, in context variables of its own."""
    handler, step, context = call.handler, call.run.step, call.context
    started_ms = now_ms()
    arguments: tuple[Any, ...] = (context,)
    if handler.takes_input:
        try:
            arguments = (context, read_input(handler, step))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return bad_input(handler, step, str(error))
    try:
        value = copy_context().run(handler.function, *arguments)
    except BaseException as error:
        took_ms = now_ms() - started_ms
        if context.cancel_reason == "timeout":
            return stopped(step, "timeout", took_ms, handler.version)
        return failed(handler, step, error, took_ms)
    return completed(handler, step, value, now_ms() - started_ms)


class Threads:
    """Daemon threads, made as they are needed, at most `threads_max`. One that hangs holds its slot, nothing else."""

    def __init__(self, threads_max: int, name: str, report: Report, perform: Callable[[Call], Result | None]) -> None:
        self._threads_max = threads_max
        self._name = name
        self._report = report
        self._perform = perform
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # calls without a thread
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, call: Call) -> None:
        with self._lock:
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self._threads_max:
                name = f"{self._name}-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
        self._calls.put(call)

    def stop(self, wait_s: float) -> None:
        for _ in self._threads:
            self._calls.put(None)
        until_ms = now_ms() + wait_s * 1000
        for thread in self._threads:
            thread.join(max(0.0, (until_ms - now_ms()) / 1000))

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._idle -= 1
            result = self._perform(call) if call.may_start(now_ms()) else GIVE_BACK
            with self._lock:
                self._idle += 1
            self._report(call.run.item, result)


class Loop:
    """An asyncio loop in a thread of its own, for async handlers."""

    def __init__(self, name: str, report_many: Callable[[list[tuple[Item, Result | None]]], None]) -> None:
        self._report_many = report_many
        self._done: list[tuple[Item, Result | None]] = []
        self._reported_ms = 0.0
        self._calls: deque[Call] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._is_roused = False
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- called by other threads --------------------------------------------------------------------------------------

    def submit(self, calls: list[Call]) -> None:
        self._loop.call_soon_threadsafe(self._take, calls)

    def cancel(self, call: Call) -> None:
        self._loop.call_soon_threadsafe(self._cancel, call)

    def stop(self, wait_s: float) -> None:
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

    def _take(self, calls: list[Call]) -> None:
        self._calls.extend(calls)
        if not self._is_roused:
            self._rouse()

    def _rouse(self) -> None:
        """Have one more task look at the calls. It rouses the next if there is more than it can begin."""
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
            while calls:
                call = calls.popleft()
                if calls and not self._is_roused:
                    self._rouse()
                at_ms = now_ms()
                if call.may_start(at_ms):
                    call.task = task
                    result: Result | None = await perform_async(call, at_ms, self._flush)
                    call.task = None
                    while task.cancelling():
                        task.uncancel()
                    if self._is_stopping:
                        return
                else:
                    result = GIVE_BACK
                self._done.append((call.run.item, result))
                if not calls or now_ms() - self._reported_ms > RELEASE_EVERY_MS:
                    self._flush()
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            await idle

    def _flush(self) -> None:
        self._reported_ms = now_ms()
        done, self._done = self._done, []
        self._report_many(done)

    def _cancel(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()


async def perform_async(
    call: Call, started_ms: float, before_waiting: Callable[[], None] | None = None
) -> Result | None:
    """Run an async handler in the current task, in context variables of its own."""
    handler, step, context = call.handler, call.run.step, call.context
    running: Coroutine[Any, Any, Any]
    try:
        if handler.takes_input:
            running = handler.function(context, read_input(handler, step))
        else:
            running = handler.function(context)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return bad_input(handler, step, str(error))
    variables = copy_context()
    try:
        try:
            awaited = variables.run(running.send, None)
        except StopIteration as returned:
            output = returned.value
        else:
            if before_waiting is not None:
                before_waiting()
            output = await _rest_of(running, variables, awaited)
    except BaseException as error:
        took_ms = now_ms() - started_ms
        reason = context.cancel_reason
        if reason is not None and (isinstance(error, asyncio.CancelledError) or reason == "timeout"):
            if reason == "shutdown" and step.delivery_mode == "at_least_once":
                return GIVE_BACK
            return stopped(step, reason, took_ms, handler.version)
        return failed(handler, step, error, took_ms)
    return completed(handler, step, output, now_ms() - started_ms)


@coroutine
def _rest_of(running: Coroutine[Any, Any, Any], variables: Variables, awaited: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has begun, in its own context variables: what `await` does, spelled out."""
    while True:
        try:
            sent = yield awaited
        except BaseException as error:
            resume: Callable[[Any], Any] = running.throw
            argument: Any = error
        else:
            resume, argument = running.send, sent
        try:
            awaited = variables.run(resume, argument)
        except StopIteration as returned:
            return returned.value
