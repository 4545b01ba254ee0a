"""Level 1 full: cancel, timeouts and deadlines."""

import time
from typing import Any, Final

from stepwire_conform.case import Level, Missing, RuleBroken, case
from stepwire_conform.stage import Stage

LATE_S: Final = 10.0  # a run of 20 s that ends within this time was stopped


def _expect_stopped(result: dict[str, Any], reason: str, code: str) -> None:
    """A run that was asked to stop either returns, with the reason that it saw, or fails with a code of the SDK."""
    if result["status"] == "completed":
        stopped = (result.get("output") or {}).get("stopped")
        if stopped != reason:
            raise RuleBroken(f"the handler saw the reason {stopped!r}, and it is {reason!r}")
    elif (result.get("error") or {}).get("code") != code:
        raise RuleBroken(f"the run was stopped ({reason}), and is reported as {result!r}")


@case(
    "cancel.running",
    Level.FULL,
    "`cancel` of a running item: the handler is asked to stop, with the reason, and its result is reported",
    "13",
    needs="conform.wait",
    cause="`cancel` does not reach running handlers",
)
def running(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 20_000}))
    stage.until_holding(batch.item, "running")
    stage.cancel([batch.item])
    _expect_stopped(batch.result(within_s=LATE_S), "task_cancelled", "cancelled")


@case("cancel.reason", Level.FULL, "The handler sees the reason of the cancel", "13", needs="conform.wait")
def reason(stage: Stage) -> None:
    for one in ("superseded", "timeout"):
        batch = stage.steps(stage.step("conform.wait", {"ms": 20_000}))
        stage.until_holding(batch.item, "running")
        stage.cancel([batch.item], one)
        _expect_stopped(batch.result(within_s=LATE_S), one, "timeout" if one == "timeout" else "cancelled")


@case(
    "cancel.queued",
    Level.FULL,
    "`cancel` of a queued item: it gets a tombstone, and `refuse` `stale` answers",
    "13",
    needs="conform.limited",
    lasts_s=3,
    cause="an item that waits is only taken from the queue, or runs all the same",
)
def queued(stage: Stage) -> None:
    first, second = stage.queued()
    stage.cancel([second.item])
    second.refused("stale")
    stage.cancel(first.items)
    for item in first.items:
        stage.result_of(item, within_s=LATE_S)
    stage.nothing("results", for_s=0.6, where=lambda m: m["batch_id"] == second.id, why="it was cancelled")
    second.again()
    stage.expect("refuse", batch_id=second.id, code="stale")


@case(
    "cancel.unknown",
    Level.FULL,
    "`cancel` of an unknown item: a tombstone and no answer; the step is refused as `stale` when it arrives later",
    "13",
    cause="a cancel that overtakes its step is forgotten",
)
def unknown(stage: Stage) -> None:
    step = stage.step(stage.some_handler(), {}, delivery_mode="at_most_once")
    item = (step["step_id"], 1)
    stage.cancel([item])
    stage.nothing("refuse", "adopted", for_s=0.5, where=lambda m: list(item) in m["items"], why="it is unknown")
    stage.steps(step).refused("stale")


@case("cancel.done", Level.FULL, "`cancel` of a finished item changes nothing", "13", needs="conform.echo", lasts_s=2)
def done(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {"a": 1}))
    rid = batch.message()["rid"]
    stage.cancel([batch.item])
    stage.nothing("refuse", for_s=0.4, where=lambda m: m["batch_id"] == batch.id, why="it is done")
    copies = len(stage.watch.copies[rid])
    stage.until(lambda: len(stage.watch.copies[rid]) > copies, "results again, unchanged", within_s=8)
    stage.ack([rid])


@case(
    "cancel.again",
    Level.FULL,
    "The same `cancel` again changes nothing",
    "6",
    needs="conform.wait",
)
def again(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 20_000}))
    stage.until_holding(batch.item, "running")
    for _ in range(4):
        stage.cancel([batch.item])
    batch.result(within_s=LATE_S)
    stage.cancel([batch.item])
    stage.wait(0.4)


@case(
    "cancel.ignored",
    Level.FULL,
    "A run that does not stop keeps its slot, and its result is reported when it ends",
    "13",
    needs="conform.limited",
    lasts_s=3,
    cause="a cancelled run is forgotten while it still runs",
)
def ignored(stage: Stage) -> None:
    first, second = stage.queued(ms=3_000, ignore=True)
    stage.cancel(first.items)
    stage.nothing("results", for_s=0.8, why="the handler's places are taken by runs that do not stop")
    for item in first.items:
        stage.result_of(item, within_s=LATE_S)
    second.result()


@case(
    "timeout.enforced",
    Level.FULL,
    "The worker enforces `timeout_ms`: it asks the handler to stop, and reports how the run ended",
    "13",
    needs="conform.wait",
    cause="`metadata.timeout_ms` is ignored",
)
def timeout_enforced(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 20_000}, metadata={"timeout_ms": 300}))
    _expect_stopped(batch.result(within_s=LATE_S), "timeout", "timeout")


@case("timeout.none", Level.FULL, "`timeout_ms` 0 is no timeout", "6", needs="conform.wait")
def timeout_none(stage: Stage) -> None:
    result = stage.run("conform.wait", {"ms": 700}, metadata={"timeout_ms": 0})
    if result["status"] != "completed" or result["output"]["stopped"] is not None:
        raise RuleBroken(f"a run without a timeout was stopped: {result!r}")


@case(
    "timeout.from_start",
    Level.FULL,
    "`timeout_ms` runs from the start of the run: waiting for a slot does not count",
    "13",
    needs="conform.limited",
    lasts_s=4,
    cause="the timeout runs from the receipt of the step",
)
def timeout_from_start(stage: Stage) -> None:
    _, second = stage.queued(ms=2_500, metadata={"timeout_ms": 1_000}, task_context={"ms": 600})
    result = second.result()
    if result["status"] != "completed" or result["output"]["stopped"] is not None:
        raise RuleBroken(f"a step waited for more than 2 s and ran 0.6 s, with a timeout of 1 s: {result!r}")


@case(
    "timeout.age",
    Level.FULL,
    "`age_ms` of a running item counts from the start of its run",
    "4",
    needs="conform.limited",
    lasts_s=4,
    cause="ages count from the receipt: the broker would enforce timeouts too early",
)
def age(stage: Stage) -> None:
    _, second = stage.queued(ms=3_000, task_context={"ms": 1_500})
    beat = stage.until_holding(second.item, "running")
    found = next(held[3] for held in beat["holding"] if (held[0], held[1]) == second.item)
    if found > 2_200:
        raise RuleBroken(f"a step waited for almost 3 s and has just started, and its age is {found} ms")
    second.result()


@case(
    "timeout.of_handler",
    Level.FULL,
    "A handler's own timeout shortens that of the step",
    "CONTRACT",
    needs="conform.short",
    strength="should",
)
def of_handler(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.short", {"ms": 20_000}))
    _expect_stopped(batch.result(within_s=LATE_S), "timeout", "timeout")


@case(
    "timeout.deadline",
    Level.FULL,
    "`deadline_ms` is the time left for the step: the run is asked to stop when it is over",
    "6",
    needs="conform.wait",
    strength="should",
)
def deadline(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 20_000}, metadata={"deadline_ms": 500}))
    _expect_stopped(batch.result(within_s=LATE_S), "timeout", "timeout")


@case(
    "concurrency.handler",
    Level.FULL,
    "A handler's own concurrency limits its runs, and the other slots stay free for other handlers",
    "CONTRACT",
    needs=("conform.limited", "conform.echo"),
    lasts_s=3,
)
def handler_concurrency(stage: Stage) -> None:
    batch = stage.steps(*[stage.step("conform.limited", {"ms": 1_200}) for _ in range(3)])
    stage.until(
        lambda: any(
            sum(state == "running" for state in stage.holding_of(m).values()) >= 2 for m in stage.seen("heartbeat")
        ),
        "heartbeat with two runs of conform.limited",
    )
    stage.run("conform.echo", {})
    began_s = time.monotonic()
    for item in batch.items:
        stage.result_of(item)
    for message in stage.seen("heartbeat"):
        states = [state for item, state in stage.holding_of(message).items() if item in batch.items]
        if states.count("running") > 2:
            raise RuleBroken(f"{states.count('running')} runs of a handler with concurrency 2")
    assert time.monotonic() >= began_s


@case(
    "progress.form",
    Level.FULL,
    "`progress` goes to the broker of the step, with [step_id, delivery, done, total, note]",
    "5",
    needs="conform.progress",
)
def progress(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.progress", {"ms": 1_000}))
    began_s = time.monotonic()
    batch.result()
    stage.wait(0.3)
    messages = [m for m in stage.seen("progress") if any(tuple(i[:2]) == batch.item for i in m["items"])]
    if not messages:
        if time.monotonic() - began_s < 1.0:
            raise Missing("conform.progress ended at once: it does not wait for `input.ms`")
        raise RuleBroken("no `progress` of a run that reported it and lasted 1 s")
    message = messages[0]
    item = next(i for i in message["items"] if tuple(i[:2]) == batch.item)
    if item[2:] != [1, 2, "half"]:
        raise RuleBroken(f"progress 1 of 2 with the note half is reported as {item!r}")
