"""One call of a handler, from the session's `Run` to the result for the broker."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from types import coroutine
from typing import Any, Final, Protocol

import msgspec
from stepwire_protocol.messages import Item, Result, StepRequest

from stepwire.actions import Run
from stepwire.context import Context
from stepwire.handler import Handler, bad_input, completed, failed, read_input, stopped
from stepwire.identity import now_ms

from . import run_log

GIVE_BACK: Final[Result | None] = None  # an outcome: the step was not started, or had no effect


class OutcomeReport(Protocol):
    """Accepts the outcome of a call: a Result, or GIVE_BACK. Any thread may call this function."""

    def __call__(self, item: Item, result: Result | None) -> None: ...


class HandlerCall:
    """One run, with its handler and context."""

    __slots__ = ("context", "handler", "offer", "run", "task")

    def __init__(self, run: Run, handler: Handler, context: Context) -> None:
        self.run = run
        self.offer = run.offer
        self.handler = handler
        self.context = context
        self.task: asyncio.Task[None] | None = None  # set while the handler runs on a loop

    def begin(self, at_ms: float) -> bool:
        """The last check before the handler is called: may it be called? If not, the step is given back."""
        if not self.run.begin(at_ms):
            return False
        self.context._begin(at_ms, self.run.timeout_at_ms)
        return self.context.cancel_reason is None


def call_plain(call: HandlerCall) -> Result:
    """Run a plain handler in this thread, in a copy of the context variables."""
    handler, step, context = call.handler, call.run.step, call.context
    started_ms = now_ms()
    arguments: tuple[Any, ...] = (context,)
    if handler.takes_input:
        try:
            arguments = (context, read_input(handler, step))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _logged(step, bad_input(handler, step, str(error)))
    try:
        value = copy_context().run(handler.function, *arguments)
    except BaseException as error:
        took_ms = now_ms() - started_ms
        if context.cancel_reason == "timeout":
            return stopped(step, "timeout", took_ms, handler.version)
        run_log.raised(step, error, context.cancel_reason)
        return failed(handler, step, error, took_ms)
    result = completed(handler, step, value, now_ms() - started_ms)
    return result if result.error is None else _logged(step, result)


async def call_async(call: HandlerCall, started_ms: float) -> Result | None:
    """Run an async handler in the current task, in a copy of the context variables."""
    handler, step, context = call.handler, call.run.step, call.context
    running: Coroutine[Any, Any, Any]
    try:
        if handler.takes_input:
            running = handler.function(context, read_input(handler, step))
        else:
            running = handler.function(context)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _logged(step, bad_input(handler, step, str(error)))
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
        run_log.raised(step, error, reason)
        return failed(handler, step, error, took_ms)
    result = completed(handler, step, output, now_ms() - started_ms)
    return result if result.error is None else _logged(step, result)


def _logged(step: StepRequest, result: Result) -> Result:
    run_log.not_reported(step, result)
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
