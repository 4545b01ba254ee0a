"""The handlers of these tests: a worker program on the shipped SDK that writes down what it does before it says so.

    python -m tests.system.handlers DIRECTORY NAME [--slots N] [--prefetch N] [--heartbeat-ms N] [--unsynced] \
        [--offers HANDLER_CLASS …]

What its session received and sent is in a ledger of its own, `wire-…`.

Each step's `handler_config` says what its run is like: `work_ms` long; until the file `gates/<gate>` is there; failing
its first `failures` attempts, with a `category` or without; reporting `outcome_unknown`.
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
    """One run writes `started`, then `effect`, then `finished` or `failed`; a run that is told to stop, `stopped`."""

    def __init__(self, directory: Path, name: str, *, is_synced: bool = True) -> None:
        self._ledger = Ledger(directory / LEDGERS, f"worker-{name}-{os.getpid()}", is_synced=is_synced)
        self._gates = directory / GATES

    def add_to(self, worker: Worker, offers: Sequence[str] = ()) -> None:
        """Both, or `work` by these names."""
        for name in offers or ("system.work",):
            worker.handler(name)(self.work)
        if not offers:
            worker.handler("system.quick")(self.quick)

    def work(self, ctx: Context, _: Any) -> dict[str, Any]:
        """In a thread, for as long as it is told to."""
        config = ctx.config
        self._write("started", ctx, mode=ctx.delivery_mode, key=ctx.idempotency_key, seen=_seen(ctx))
        self._wait(ctx, config)
        self._write("effect", ctx, key=ctx.idempotency_key)
        if ctx.attempt < config.get("failures", 0):
            self._write("failed", ctx)
            raise StepError("told to fail", code="told_to", category=config.get("category"))
        if config.get("outcome_unknown"):
            self._write("failed", ctx)
            raise OutcomeUnknown("told not to know")
        self._write("finished", ctx)
        return {"token": token(ctx.step_id, ctx.delivery, os.getpid())}

    async def quick(self, ctx: Context, _: Any) -> dict[str, Any]:
        """On the event loop, at once."""
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
    """Which run made an output: dependents write down the tokens they were given."""
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
    asked = parser.parse_args()
    RecordedSession.ledger = Ledger(asked.directory / LEDGERS, f"wire-{asked.name}-{os.getpid()}", is_synced=False)
    stepwire.worker.socket_thread.Session = RecordedSession  # type: ignore[attr-defined]
    worker = Worker.from_env(
        name=asked.name, slots=asked.slots, prefetch=asked.prefetch, heartbeat_ms=asked.heartbeat_ms
    )
    Handlers(asked.directory, asked.name, is_synced=not asked.unsynced).add_to(worker, asked.offers)
    started = time.monotonic()
    worker.run()
    print(f"worker {asked.name} ended after {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
