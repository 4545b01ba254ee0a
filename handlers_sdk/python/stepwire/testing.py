"""Run a handler without a broker, in a unit test.

from stepwire import testing

outcome = testing.run(ship, {"order_id": 7}, results={"pay": {"transaction": "t1"}})
assert outcome.status == "completed" and outcome.output["tracking"]
"""

import asyncio
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw
from stepwire_protocol import limits
from stepwire_protocol.messages import ErrorDetail, Item, Result, StepMetadata, StepRequest

from .actions import NEVER, Lease, Run
from .context import Context
from .edge import Edge
from .errors import ConfigurationError
from .handler import Handler, make_handler
from .identity import now_ms
from .runners.calls import HandlerCall, call_async, call_plain, opened_and_closed
from .session import find_offer
from .worker import Worker


class RecordedProgress(NamedTuple):
    """One call of `ctx.progress`."""

    done: float
    total: float | None
    note: str | None


class Outcome(NamedTuple):
    """The result that a worker would have reported."""

    status: Literal["completed", "failed", "error"]
    output: Any  # decoded from its JSON, as a dependent step would read it
    error: ErrorDetail | None
    progress: list[RecordedProgress]

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"


def run(
    handler: Callable[..., Any] | Worker,
    input: Any = None,
    *,
    handler_class: str | None = None,
    results: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    attempt: int = 0,
    delivery_mode: Literal["at_least_once", "at_most_once"] = "at_least_once",
    timeout_ms: int = limits.TIMEOUT_DEFAULT_MS,
    idempotency_key: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a handler once, with the decoding, encoding and mapping of errors of a worker.

    `handler` is the function, or a Worker together with a `handler_class`. An async handler runs on a new event loop,
    so call `run` from plain tests; in an async test, use `run_async`. `secrets` has the values of the secrets to which
    the input and the configuration refer.
    """
    call, progress = _call(
        handler, input, handler_class, results, config, attempt, delivery_mode, timeout_ms, idempotency_key, secrets
    )
    if call.handler.kind == "async":
        return _outcome(asyncio.run(_within(call)), progress)
    return _outcome(opened_and_closed(call, call_plain), progress)


async def run_async(
    handler: Callable[..., Any] | Worker,
    input: Any = None,
    *,
    handler_class: str | None = None,
    results: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    attempt: int = 0,
    delivery_mode: Literal["at_least_once", "at_most_once"] = "at_least_once",
    timeout_ms: int = limits.TIMEOUT_DEFAULT_MS,
    idempotency_key: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Outcome:
    """The same as `run`, for async tests. A plain handler runs in a thread."""
    call, progress = _call(
        handler, input, handler_class, results, config, attempt, delivery_mode, timeout_ms, idempotency_key, secrets
    )
    result = await (
        _within(call) if call.handler.kind == "async" else asyncio.to_thread(opened_and_closed, call, call_plain)
    )
    return _outcome(result, progress)


async def _within(call: HandlerCall) -> Result | None:
    """Run the call with the timeout of a worker: cancel the handler, and wait until it ends by itself."""
    running = asyncio.ensure_future(call_async(call, now_ms()))

    def overdue() -> None:
        call.context._stop("timeout")
        running.cancel()

    timer = asyncio.get_running_loop().call_later(max(0.0, call.context.remaining_ms) / 1000, overdue)
    try:
        return await running
    finally:
        timer.cancel()


def _call(
    handler: Callable[..., Any] | Worker,
    input: Any,
    handler_class: str | None,
    results: dict[str, Any] | None,
    config: dict[str, Any] | None,
    attempt: int,
    delivery_mode: Literal["at_least_once", "at_most_once"],
    timeout_ms: int,
    idempotency_key: str | None,
    secrets: Mapping[str, str] | None,
) -> tuple[HandlerCall, list[RecordedProgress]]:
    registered = _find(handler, handler_class)
    step = StepRequest(
        step_id=2,
        task_id=1,
        step_name="step",
        handler_class=handler_class or registered.name,
        handler_config=Raw(msgspec.json.encode(config or {})),
        task_context=Raw(msgspec.json.encode({} if input is None else input)),
        previous_results=Raw(msgspec.json.encode(results or {})),
        delivery=1,
        delivery_mode=delivery_mode,
        metadata=StepMetadata(
            attempt=attempt,
            retry_limit=3,
            timeout_ms=timeout_ms,
            idempotency_key=idempotency_key or f"{token_hex(16)}/step",
        ),
    )
    progress: list[RecordedProgress] = []

    def report(item: Item, done: float, total: float | None, note: str | None) -> None:
        progress.append(RecordedProgress(done, total, note))

    at_ms = now_ms()
    context = Context(step, started_ms=at_ms, timeout_at_ms=at_ms + timeout_ms, clock=now_ms, report=report)
    lease = Lease()
    lease.until_ms = NEVER
    edge = Edge(None if secrets is None else secrets.get)
    return HandlerCall(Run((2, 1), step, 0, lease, timeout_ms), registered, context, edge), progress


def _find(handler: Callable[..., Any] | Worker, handler_class: str | None) -> Handler:
    if not isinstance(handler, Worker):
        return make_handler(handler, handler_class or "tested")
    if handler_class is None:
        raise ConfigurationError("testing.run(worker, ...) needs handler_class=, the handler to run")
    offer = find_offer((h.offer for h in handler.handlers), handler_class)
    if offer is None:
        offered = ", ".join(h.name for h in handler.handlers) or "nothing"
        raise ConfigurationError(f"the worker does not offer {handler_class!r}; it offers {offered}")
    return handler.handlers[offer]


def _outcome(result: Result | None, progress: list[RecordedProgress]) -> Outcome:
    assert result is not None, "only a run that a shutdown stops gives its step back"
    output = msgspec.json.decode(result.output) if result.status == "completed" else None
    return Outcome(result.status, output, result.error, progress)
