"""One call of a handler, from the session's `Run` to the result for the broker."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from types import coroutine
from typing import Any, Final, Protocol

import msgspec
from stepwire_protocol.messages import Item, Result

from stepwire.actions import Run
from stepwire.context import Context
from stepwire.edge import Edge, OpenedStep
from stepwire.handler import Handler, bad_input, completed, failed, read_input, stopped
from stepwire.identity import now_ms

from . import run_log

GIVE_BACK: Final[Result | None] = None  # an outcome: the step was not started, or had no effect


class OutcomeReport(Protocol):
    """Accepts the outcome of a call: a Result, or GIVE_BACK. Any thread may call this function."""

    def __call__(self, item: Item, result: Result | None) -> None: ...


class HandlerCall:
    """One run, with its handler and context."""

    __slots__ = ("context", "edge", "handler", "is_sealed", "offer", "opened", "run", "step", "task")

    def __init__(self, run: Run, handler: Handler, context: Context, edge: Edge | None = None) -> None:
        self.run = run
        self.step = run.step  # as the handler receives it
        self.edge = edge  # None: the step needs no opening
        self.opened: OpenedStep | None = None
        self.is_sealed = False  # texts of errors are then not logged
        self.offer = run.offer
        self.handler = handler
        self.context = context
        self.task: asyncio.Task[None] | None = None  # set while the handler runs on a loop

    def begin(self, at_ms: float) -> bool:
        """The last check before the handler is called: may it be called? If not, the step is given back."""
        run, context = self.run, self.context
        if not run.begin(at_ms):
            return False
        context._started_ms, context._timeout_at_ms = at_ms, run.timeout_at_ms
        return context.cancel_reason is None

    @property
    def needs_opening(self) -> bool:
        return self.edge is not None and self.edge.is_needed(self.run.step)

    def open(self) -> Result | None:
        """Open the step for its handler. Returns None, or the result of a step that cannot be opened. May wait for
        files."""
        assert self.edge is not None
        opened = self.edge.open(self.run.step)
        if isinstance(opened, Result):
            return _logged(self, opened)
        self.opened = opened
        self.step = self.context._step = opened.step
        self.is_sealed = self.context._is_sealed = opened.task is not None
        return None

    @property
    def is_too_late(self) -> bool:
        """True if the lease ended while the step was opened, also if a new session has begun since: the broker may
        have given the step to another worker, so the handler must not be called."""
        return now_ms() >= self.run.lease.until_ms or self.context.lease_lost.is_set()

    def closed(self, result: Result | None) -> Result | None:
        """The result as it may leave the worker."""
        if result is None or self.edge is None or self.opened is None:
            return result
        return self.edge.close(self.opened, result)


def opened_and_closed(call: HandlerCall, perform: Callable[[HandlerCall], Result | None]) -> Result | None:
    """Perform a call in this thread, between the opening of its step and the closing of its result."""
    if not call.needs_opening:
        return perform(call)
    refusal = call.open()
    if refusal is not None:
        return refusal
    return GIVE_BACK if call.is_too_late else call.closed(perform(call))


def call_plain(call: HandlerCall) -> Result:
    """Run a plain handler in this thread, in a copy of the context variables."""
    handler, step, context = call.handler, call.step, call.context
    started_ms = now_ms()
    arguments: tuple[Any, ...] = (context,)
    if handler.takes_input:
        try:
            arguments = (context, read_input(handler, step))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _logged(call, bad_input(handler, step, str(error)))
    try:
        value = copy_context().run(handler.function, *arguments)
    except BaseException as error:
        took_ms = now_ms() - started_ms
        if context.cancel_reason == "timeout":
            return stopped(step, "timeout", took_ms, handler.version)
        run_log.raised(step, error, context.cancel_reason, is_sealed=call.is_sealed)
        return failed(handler, step, error, took_ms)
    result = completed(handler, step, value, now_ms() - started_ms)
    return result if result.error is None else _logged(call, result)


async def call_async(call: HandlerCall, started_ms: float) -> Result | None:
    """Run an async handler in the current task, between the opening of its step and the closing of its result."""
    if not call.needs_opening:
        return await call_async_opened(call, started_ms)
    try:
        refusal = await asyncio.to_thread(call.open)
    except asyncio.CancelledError:
        return stopped(call.run.step, call.context.cancel_reason or "shutdown", now_ms() - started_ms)
    if refusal is not None:
        return refusal
    return GIVE_BACK if call.is_too_late else call.closed(await call_async_opened(call, started_ms))


async def call_async_opened(call: HandlerCall, started_ms: float) -> Result | None:
    """Run an async handler, whose step is open, in the current task, in a copy of the context variables."""
    handler, step, context = call.handler, call.step, call.context
    running: Coroutine[Any, Any, Any]
    try:
        if handler.takes_input:
            running = handler.function(context, read_input(handler, step))
        else:
            running = handler.function(context)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _logged(call, bad_input(handler, step, str(error)))
    variables = copy_context()
    try:
        try:
            awaited = variables.run(running.send, None)
        except StopIteration as returned:
            output = returned.value
        else:
            output = await _rest_of(running, variables, awaited)
    except BaseException as error:
        took_ms = now_ms() - started_ms
        reason = context.cancel_reason
        if reason is not None and (isinstance(error, asyncio.CancelledError) or reason == "timeout"):
            if reason == "shutdown" and step.delivery_mode == "at_least_once":
                return GIVE_BACK
            return stopped(step, reason, took_ms, handler.version)
        run_log.raised(step, error, reason, is_sealed=call.is_sealed)
        return failed(handler, step, error, took_ms)
    result = completed(handler, step, output, now_ms() - started_ms)
    return result if result.error is None else _logged(call, result)


def _logged(call: HandlerCall, result: Result) -> Result:
    run_log.not_reported(call.run.step, result, is_sealed=call.is_sealed)
    return result


@coroutine
def _rest_of(running: Coroutine[Any, Any, Any], variables: Variables, awaited: Any) -> Generator[Any, Any, Any]:
    """Continue a started coroutine in its own context variables. Does the same as `await`, step by step."""
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
