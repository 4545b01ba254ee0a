"""A worker whose handlers put their secrets and their input wherever a careless handler could: `python -m
tests.system.canary_worker DIRECTORY`. The handlers end as the member `end` of the step's configuration says."""

import sys
import time
from pathlib import Path
from typing import Any

from stepwire import Context, OutcomeUnknown, Retry, Worker

GATE = Path(sys.argv[1]) / "gates" if len(sys.argv) > 1 else Path()

worker = Worker.from_env(name="canary")


@worker.handler("canary.open", shadow_safe=True)
def open_payload(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    """The secret is in the configuration and in the context."""
    return _act(ctx, ctx.config["secret"], given)


@worker.handler("canary.sealed", shadow_safe=True)
async def sealed_payload(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    return _act(ctx, given["plaintext"], given, is_sealed=True)


def _act(ctx: Context, canary: str, given: dict[str, Any], *, is_sealed: bool = False) -> dict[str, Any]:
    ctx.progress(1, 2, f"working with {canary}")
    if not is_sealed:
        ctx.log.warning("working with %s", canary)
    end = ctx.config["end"]
    if end == "gate":
        (GATE / f"{ctx.step_name}.running").touch()
        while not (GATE / "open").exists():
            time.sleep(0.02)
    if end == "fail" or (end == "retry" and ctx.attempt == 0):
        try:
            raise ValueError(f"inner {canary}\nsecond line {canary}")
        except ValueError as error:
            if end == "retry":
                raise Retry(f"later: {canary}", after=0.05) from error
            raise RuntimeError(f"outer {canary} of {given.get('person')}") from error
    if end == "hold":
        raise OutcomeUnknown(f"unknown: {canary}")
    return {"echo": canary, "given": given, "clear": {"end": end}}


if __name__ == "__main__":
    worker.run()
