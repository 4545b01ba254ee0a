"""Level 1 full: credit."""

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage

FAR_TOO_MANY = 600


@case(
    "credit.done",
    Level.FULL,
    "Items that are done do not count: a worker whose results wait for their ack has its slots free",
    "9",
    needs="conform.echo",
    lasts_s=2,
    cause="`free` counts what is held, also what is done: a late ack stops the work",
)
def done(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(*[stage.step("conform.echo", i) for i in range(stage.watch.slots)])
    for item in batch.items:
        stage.result_of(item)
    stage.drop_seen()
    beat = stage.expect("heartbeat")
    free = beat["free"].get("b1", 0)
    at_once = beat.get("slots_free", {}).get("b1", free)
    stage.ack([m["rid"] for m in stage.seen("results")])
    if at_once < stage.watch.slots:
        raise RuleBroken(f"nothing runs, and slots_free is {at_once} of {stage.watch.slots} (free {free})")


@case(
    "credit.busy",
    Level.FULL,
    "A worker returns, or refuses as `busy`, what exceeds twice its capacity",
    "9 and 10",
    needs="conform.wait",
    lasts_s=2,
    strength="should",
    fresh=True,
    cause="everything that arrives is kept, whatever the credit was",
)
def busy(stage: Stage) -> None:
    batch = stage.steps(*[stage.step("conform.wait", {"ms": 60_000}) for _ in range(FAR_TOO_MANY)])
    batch.refused("busy")


@case(
    "credit.returns",
    Level.FULL,
    "After its steps have ended, the worker offers its slots again",
    "9",
    needs="conform.echo",
)
def returns(stage: Stage) -> None:
    count = min(stage.credit(), 2 * stage.watch.slots)
    batch = stage.steps(*[stage.step("conform.echo", i) for i in range(count)])
    for item in batch.items:
        stage.result_of(item)
    stage.drop_seen()
    slots = stage.watch.slots
    stage.expect("heartbeat", where=lambda m: m["free"].get("b1", 0) >= slots, what="`heartbeat` with free slots")
