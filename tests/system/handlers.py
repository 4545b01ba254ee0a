"""The handlers of these tests: a worker program on the shipped SDK that records each action before reporting it.

    python -m tests.system.handlers DIRECTORY NAME [--slots N] [--prefetch N] [--heartbeat-ms N] [--unsynced] \
        [--offers HANDLER_CLASS …]

The messages that its session received and sent are in a ledger of their own, `wire-…`.

Each step's `handler_config` describes its run: `work_ms` is its duration; with a `gate` it lasts until the file
`gates/<gate>` exists; its first `failures` attempts fail, with or without a `category`; with `outcome_unknown` it
reports that.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import stepwire.worker.socket_thread
from stepwire import Context, OutcomeUnknown, StepError, Worker

from .ledger import Ledger
from .recorded_session import RecordedSession

GATES: Final = "gates"
LEDGERS: Final = "ledgers"
GATE_POLL_S: Final = 0.01


class Handlers:
    """One run writes `started`, then `effect`, then `finished` or `failed`; a cancelled run writes `stopped`."""

    def __init__(self, directory: Path, name: str, *, is_synced: bool = True) -> None:
        self._ledger = Ledger(directory / LEDGERS, f"worker-{name}-{os.getpid()}", is_synced=is_synced)
        self._gates = directory / GATES

    def add_to(self, worker: Worker, offers: Sequence[str] = ()) -> None:
        """Register both handlers, or `work` under these names."""
        for name in offers or ("system.work",):
            worker.handler(name)(self.work)
        if not offers:
            worker.handler("system.quick")(self.quick)

    def work(self, ctx: Context, _: Any) -> dict[str, Any]:
        """Run in a thread, as the step's `handler_config` describes."""
        config = ctx.config
        self._write("started", ctx, mode=ctx.delivery_mode, key=ctx.idempotency_key, seen=_seen(ctx))
        self._wait(ctx, config)
        self._write("effect", ctx, key=ctx.idempotency_key)
        if ctx.attempt < config.get("failures", 0):
            self._write("failed", ctx)
            raise StepError("configured to fail", code="told_to", category=config.get("category"))
        if config.get("outcome_unknown"):
            self._write("failed", ctx)
            raise OutcomeUnknown("configured as unknown")
        self._write("finished", ctx)
        return {"token": token(ctx.step_id, ctx.delivery, os.getpid())}

    async def quick(self, ctx: Context, _: Any) -> dict[str, Any]:
        """Run on the event loop, and return at once."""
        self._write("started", ctx, mode=ctx.delivery_mode, key=ctx.idempotency_key, seen=_seen(ctx))
        self._write("finished", ctx)
        return {"token": token(ctx.step_id, ctx.delivery, os.getpid())}

    def _wait(self, ctx: Context, config: dict[str, Any]) -> None:
        gate = config.get("gate")
        while gate is not None and not (self._gates / gate).exists():
            if ctx.cancelled.wait(GATE_POLL_S):
                self._stop(ctx)
        work_ms = config.get("work_ms", 0)
        if work_ms and ctx.cancelled.wait(work_ms / 1000):
            self._stop(ctx)

    def _stop(self, ctx: Context) -> None:
        self._write("stopped", ctx, reason=ctx.cancel_reason)
        raise StepError(f"stopped: {ctx.cancel_reason}", code="stopped")

    def _write(self, event: str, ctx: Context, **facts: Any) -> None:
        self._ledger.write(
            event,
            step_id=ctx.step_id,
            task_id=ctx.task_id,
            step=ctx.step_name,
            delivery=ctx.delivery,
            attempt=ctx.attempt,
            pid=os.getpid(),
            **facts,
        )


def token(step_id: int, delivery: int, pid: int) -> str:
    """Return the token of a run for its output. Dependents record the tokens that they receive."""
    return f"{step_id}/{delivery}/{pid}"


def _seen(ctx: Context) -> dict[str, Any]:
    return {name: output.get("token") for name, output in ctx.results.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--prefetch", type=int)
    parser.add_argument("--heartbeat-ms", type=int, default=2_000)
    parser.add_argument("--unsynced", action="store_true")
    parser.add_argument("--offers", nargs="+", default=())
    options = parser.parse_args()
    RecordedSession.ledger = Ledger(options.directory / LEDGERS, f"wire-{options.name}-{os.getpid()}", is_synced=False)
    stepwire.worker.socket_thread.Session = RecordedSession  # type: ignore[attr-defined]
    worker = Worker.from_env(
        name=options.name, slots=options.slots, prefetch=options.prefetch, heartbeat_ms=options.heartbeat_ms
    )
    Handlers(options.directory, options.name, is_synced=not options.unsynced).add_to(worker, options.offers)
    started = time.monotonic()
    worker.run()
    print(f"worker {options.name} ended after {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
