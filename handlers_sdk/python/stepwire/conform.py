"""The conformance worker of this SDK: `python -m stepwire.conform` offers the handlers that the conformance kit calls.

`protocol/conformance/CONTRACT.md` describes them; `stepwire handler conform -- python -m stepwire.conform` grades them.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from .context import Context
from .errors import ConfigurationError, OutcomeUnknown, Permanent, Retry, StepError
from .worker import Worker

CRASH_CODE: Final = 70
POLL_S: Final = 0.05
_ERRORS: Final[dict[str, Callable[[str | None], Exception]]] = {
    "error": lambda text: RuntimeError(text or "an ordinary error"),
    "permanent": lambda text: Permanent(text or "a permanent error", code="conform"),
    "retry": lambda text: Retry(text or "a retryable error", after=1.5),
    "unknown": lambda text: OutcomeUnknown(text or "the outcome is unknown"),
    "unavailable": lambda text: StepError(text or "a resource is unavailable", category="unavailable"),
}
_BAD_OUTPUTS: Final = {
    "nan": float("nan"),
    "bigint": 2**53 + 1,
    "nul": "a\0b",
    "surrogate": "\ud800",
    "object": object(),
}


class Order(msgspec.Struct, omit_defaults=True):
    """The input of `conform.typed`."""

    order_id: int
    note: str | None = None


async def echo(ctx: Context, value: Any) -> Any:
    return value


async def fail(ctx: Context, value: dict[str, Any]) -> None:
    if value.get("log"):
        ctx.log.info(value["log"])
    raise _ERRORS[value["kind"]](value.get("text"))


async def crash(ctx: Context) -> None:
    os._exit(CRASH_CODE)


def wait(ctx: Context, value: dict[str, Any]) -> dict[str, Any]:
    """Run until a request to stop, or for `ms`. With `ignore`, the request is ignored."""
    started_s = time.monotonic()
    until_s = started_s + value.get("ms", 0) / 1000
    while (left_s := until_s - time.monotonic()) > 0:
        if value.get("ignore"):
            time.sleep(min(left_s, POLL_S))
        elif ctx.cancelled.wait(left_s):
            break
    reason = None if value.get("ignore") else ctx.cancel_reason
    return {"stopped": reason, "ms": round((time.monotonic() - started_s) * 1000)}


def compute(ctx: Context, value: dict[str, Any]) -> dict[str, Any]:
    until_s = time.monotonic() + value["ms"] / 1000
    while time.monotonic() < until_s:
        pass
    return {"ms": value["ms"]}


async def big(ctx: Context, value: dict[str, Any]) -> dict[str, Any]:
    return {"text": "x" * value["bytes"]}


async def bad_output(ctx: Context, value: dict[str, Any]) -> Any:
    return {"value": _BAD_OUTPUTS[value["kind"]]}


async def context(ctx: Context) -> dict[str, Any]:
    return {
        "step_id": ctx.step_id,
        "task_id": ctx.task_id,
        "attempt": ctx.attempt,
        "delivery": ctx.delivery,
        "idempotency_key": ctx.idempotency_key,
        "traceparent": ctx.traceparent,
        "tracestate": getattr(ctx, "tracestate", None),
        "config": ctx.config,
        "results": ctx.results,
        "handler_class": ctx.handler_class,
    }


async def trace(ctx: Context) -> dict[str, Any]:
    return {"traceparent": ctx.traceparent}


async def progress(ctx: Context, value: Any) -> dict[str, Any]:
    options = value or {}
    ctx.progress(1, 2, options.get("note", "half"))
    await asyncio.sleep(options.get("ms", 0) / 1000)  # a run that ends at once may send no report
    return {}


def book(ctx: Context, value: Any) -> dict[str, str]:
    """Write each event of the run into a file, for tests that break processes while steps run."""
    directory = os.environ.get("CONFORM_BOOK")
    if directory is None:
        raise Permanent("CONFORM_BOOK is not set")
    seen = {name: output.get("token") for name, output in ctx.results.items()}
    _append(directory, "started", ctx, mode=ctx.delivery_mode, key=ctx.idempotency_key, seen=seen)
    work_ms = ctx.config.get("work_ms", 0)
    if work_ms and ctx.cancelled.wait(work_ms / 1000):
        _append(directory, "stopped", ctx, reason=ctx.cancel_reason)
        raise StepError(f"stopped: {ctx.cancel_reason}", code="stopped")
    _append(directory, "effect", ctx, key=ctx.idempotency_key)
    if ctx.attempt < ctx.config.get("failures", 0):
        _append(directory, "failed", ctx)
        raise StepError("configured to fail", code="told_to")
    _append(directory, "finished", ctx)
    return {"token": f"{ctx.step_id}/{ctx.delivery}/{os.getpid()}"}


def _append(directory: str, event: str, ctx: Context, **facts: Any) -> None:
    """Append one line with one system call, so that lines of several threads never mix."""
    record = {
        "event": event,
        "at": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "wall": time.time_ns(),
        "step_id": ctx.step_id,
        "task_id": ctx.task_id,
        "step": ctx.step_name,
        "delivery": ctx.delivery,
        "attempt": ctx.attempt,
        "pid": os.getpid(),
        **facts,
    }
    path = os.path.join(directory, f"worker-{os.environ.get('STEPWIRE_NAME', '')}-{os.getpid()}.jsonl")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(record) + b"\n")
    finally:
        os.close(descriptor)


async def typed(ctx: Context, order: Order) -> Order:
    return order


def make_worker() -> Worker:
    worker = Worker.from_env()
    worker.handler("conform.echo")(echo)
    worker.handler("conform.fail")(fail)
    worker.handler("conform.crash")(crash)
    worker.handler("conform.wait")(wait)
    worker.handler("conform.compute")(compute)
    worker.handler("conform.big")(big)
    worker.handler("conform.bad_output")(bad_output)
    worker.handler("conform.context")(context)
    worker.handler("conform.trace")(trace)
    worker.handler("conform.progress")(progress)
    worker.handler("conform.book")(book)
    worker.handler("conform.typed")(typed)
    worker.handler("conform.limited", concurrency=2)(wait)
    worker.handler("conform.short", timeout_ms=300)(wait)
    return worker


if __name__ == "__main__":
    try:
        make_worker().run()
    except ConfigurationError as error:
        print(f"stepwire: {error}", file=sys.stderr)
        sys.exit(2)
