"""Level 1: every message may arrive more than once."""

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage


@case(
    "duplicates.running",
    Level.ONE,
    "A repeated `steps` of a running item is accepted again, and does not run again",
    "10 (W3)",
    needs="conform.wait",
    cause="a repeated message is ignored: the broker would send it for ever",
)
def running(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 1200}))
    batch.accepted()
    batch.again()
    batch.accepted()
    batch.result()


@case(
    "duplicates.done",
    Level.ONE,
    "A repeated `steps` of a finished item is answered with its results, at once",
    "10 (W3)",
    needs="conform.echo",
    cause="a finished item is forgotten before its ack, or its results wait for their timer",
)
def done(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    stage.until(lambda: len(stage.watch.copies[rid]) >= 3, "third copy of the results", within_s=10)
    count = len(stage.watch.copies[rid])
    batch.again()
    stage.until(lambda: len(stage.watch.copies[rid]) > count, "results again, at once", within_s=1.2)
    stage.ack([rid])


@case(
    "duplicates.acknowledged",
    Level.ONE,
    "A repeated `steps` of an acknowledged item is refused as `stale`, and does not run again",
    "10 (W3)",
    needs="conform.echo",
    cause="no tombstone is kept after the ack",
)
def acknowledged(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.echo", {}))
    batch.result()
    stage.until_gone(batch.item)
    batch.again()
    batch.refused("stale")


@case(
    "duplicates.at_once",
    Level.ONE,
    "The same `steps` five times in a row runs once",
    "10",
    needs="conform.echo",
)
def at_once(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.echo", {"a": 1}))
    for _ in range(4):
        batch.again()
    batch.result()
    stage.wait(0.5)


@case(
    "duplicates.new_delivery",
    Level.ONE,
    "Another delivery of the same step is another item, and runs",
    "4 and 10",
    needs="conform.echo",
    cause="items are kept by their step_id alone",
)
def new_delivery(stage: Stage) -> None:
    first = stage.step("conform.echo", {"try": 1})
    stage.steps(first).result()
    second = {**first, "delivery": 2, "task_context": {"try": 2}}
    output = stage.steps(second).result().get("output")
    if output != {"try": 2}:
        raise RuleBroken(f"delivery 2 gave {output!r}")


@case(
    "duplicates.part_known",
    Level.ONE,
    "A repeated `steps` is answered item by item",
    "10 (W3)",
    needs=("conform.echo", "conform.wait"),
)
def part_known(stage: Stage) -> None:
    stage.broker.acks_results = True
    batch = stage.steps(stage.step("conform.echo", {}), stage.step("conform.wait", {"ms": 2500}))
    stage.result_of(batch.items[0])
    stage.until_gone(batch.items[0])
    stage.drop_seen()
    batch.again()
    batch.accepted()
    refused = stage.expect("refuse", batch_id=batch.id)
    if refused["code"] != "stale" or refused["items"] != [list(batch.items[0])]:
        raise RuleBroken(f"the acknowledged item is answered with {refused!r}")
    stage.result_of(batch.items[1])


@case(
    "duplicates.heartbeat_ack",
    Level.ONE,
    "The same `heartbeat_ack` again changes nothing",
    "1",
    needs="conform.echo",
)
def heartbeat_ack(stage: Stage) -> None:
    beat = stage.expect("heartbeat")
    for _ in range(5):
        stage.ack_heartbeat(beat)
    stage.run("conform.echo", {})
