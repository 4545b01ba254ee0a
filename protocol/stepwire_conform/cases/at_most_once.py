"""Level 1 full: at_most_once steps run only after a grant, and once."""

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage


@case(
    "at_most_once.asks",
    Level.FULL,
    "An at_most_once step takes a slot, and the worker sends `start` before it runs",
    "12",
    cause="`delivery_mode` is ignored",
)
def asks(stage: Stage) -> None:
    batch = stage.asking()
    stage.nothing("results", for_s=0.8, where=lambda m: m["batch_id"] == batch.id, why="no `go` was sent")
    stage.cancel([batch.item], "not_granted")
    batch.refused("stale")


@case("at_most_once.state", Level.FULL, "Until `go` the item is held as `asking`", "10")
def state(stage: Stage) -> None:
    batch = stage.asking()
    stage.until_holding(batch.item, "asking")
    stage.cancel([batch.item], "not_granted")
    stage.until_gone(batch.item)


@case("at_most_once.runs", Level.FULL, "The step runs on `go`", "12", needs="conform.echo")
def runs(stage: Stage) -> None:
    batch = stage.asking("conform.echo", {"amount": 5})
    stage.go([batch.item])
    output = batch.result().get("output")
    if output != {"amount": 5}:
        raise RuleBroken(f"conform.echo gave {output!r}")


@case(
    "at_most_once.asks_again",
    Level.FULL,
    "`start` is sent again after 300 ms, doubling to 3 s, until `go`, `cancel` or a drop",
    "10 and 12",
    lasts_s=3,
    cause="`start` is sent once: when it is lost, the step waits for ever",
)
def asks_again(stage: Stage) -> None:
    batch = stage.asking()
    stage.expect_start(batch.item, within_s=4)
    stage.expect_start(batch.item, within_s=6)
    stage.cancel([batch.item], "not_granted")
    stage.until_gone(batch.item)


@case(
    "at_most_once.asks_no_more",
    Level.FULL,
    "After `go`, `start` is not sent again",
    "10",
    needs="conform.wait",
    lasts_s=3,
)
def asks_no_more(stage: Stage) -> None:
    batch = stage.asking("conform.wait", {"ms": 2_000})
    stage.go([batch.item])
    stage.until_holding(batch.item, "running")
    stage.drop_seen("start")
    stage.nothing("start", for_s=1.2, why="the step was granted")
    batch.result()


@case(
    "at_most_once.go_again",
    Level.FULL,
    "A second `go` changes nothing",
    "12",
    needs="conform.wait",
    cause="each `go` starts a run",
)
def go_again(stage: Stage) -> None:
    batch = stage.asking("conform.wait", {"ms": 400})
    for _ in range(3):
        stage.go([batch.item])
    batch.result()
    stage.go([batch.item])
    stage.wait(0.8)


@case(
    "at_most_once.cancelled",
    Level.FULL,
    "`cancel` of an asking item: it gets a tombstone, `refuse` `stale` answers, and a later `go` starts nothing",
    "12 and 13",
    needs="conform.echo",
    cause="`cancel` of an item that did not start is ignored",
)
def cancelled(stage: Stage) -> None:
    batch = stage.asking("conform.echo", {})
    stage.cancel([batch.item], "not_granted")
    refusal = batch.refused("stale")
    if refusal["items"] != [list(batch.item)]:
        raise RuleBroken(f"refuse names {refusal['items']!r}, and the item is {list(batch.item)}")
    stage.go([batch.item])
    stage.nothing("results", for_s=0.8, where=lambda m: m["batch_id"] == batch.id, why="it was cancelled before")


@case(
    "at_most_once.other_session",
    Level.FULL,
    "A `go` of another session starts nothing",
    "7 (W2)",
    needs="conform.echo",
    cause="the session of `go` is not compared",
)
def other_session(stage: Stage) -> None:
    batch = stage.asking("conform.echo", {})
    message = stage.broker.message("go", session=f"{stage.broker.epoch}.77", items=[list(batch.item)])
    stage.send(message)
    stage.nothing("results", for_s=0.8, where=lambda m: m["batch_id"] == batch.id, why="the session is another one")
    stage.cancel([batch.item], "not_granted")
    stage.until_gone(batch.item)


@case(
    "at_most_once.other_delivery",
    Level.FULL,
    "A `go` of another delivery of the step starts nothing",
    "4 and 12",
    needs="conform.echo",
    cause="`go` is matched by the step_id alone",
)
def other_delivery(stage: Stage) -> None:
    batch = stage.asking("conform.echo", {})
    stage.send(stage.broker.message("go", session=stage.session(), items=[[batch.item[0], 9], [99_999, 1]]))
    stage.nothing("results", for_s=0.8, where=lambda m: m["batch_id"] == batch.id, why="another delivery was granted")
    stage.cancel([batch.item], "not_granted")
    stage.until_gone(batch.item)


@case(
    "at_most_once.takes_a_slot",
    Level.FULL,
    "An asking item has a slot: at most `slots` items ask or run",
    "10 and 12",
    lasts_s=2,
    cause="every at_most_once step is asked for when it arrives",
)
def takes_a_slot(stage: Stage) -> None:
    slots = stage.watch.slots
    name = stage.some_handler()
    batch = stage.steps(*[stage.step(name, {}, delivery_mode="at_most_once") for _ in range(slots + 2)])
    stage.expect("start")
    stage.wait(0.8)
    asked = {tuple(item) for m in stage.seen("start") for item in m["items"]} & set(batch.items)
    stage.cancel(batch.items, "not_granted")
    if len(asked) > slots:
        raise RuleBroken(f"{len(asked)} items ask at a time, with {slots} slots")


@case(
    "at_most_once.dropped",
    Level.FULL,
    "A dropped session ends the asking: the item gets a tombstone, and a `go` in the new session starts nothing",
    "7 and 10",
    needs="conform.echo",
    fresh=True,
    lasts_s=2,
    cause="asking items survive the drop of their session",
)
def dropped(stage: Stage) -> None:
    batch = stage.asking("conform.echo", {})
    stage.broker.welcomes = True
    stage.send(stage.broker.message("reset", next=1, code="expired"))
    stage.until_session(number=2)
    stage.go([batch.item])
    stage.nothing("results", for_s=1.0, where=lambda m: m["batch_id"] == batch.id, why="its session was dropped")


@case(
    "at_most_once.failure",
    Level.FULL,
    "A reported failure of an at_most_once step is a verdict of its handler, and keeps its code",
    "12",
    needs="conform.fail",
)
def failure(stage: Stage) -> None:
    batch = stage.asking("conform.fail", {"kind": "permanent"})
    stage.go([batch.item])
    result = batch.result()
    if result["status"] != "failed" or (result.get("error") or {}).get("code") != "conform":
        raise RuleBroken(f"Permanent with the code `conform` gave {result!r}")


@case(
    "at_most_once.bad_output",
    Level.FULL,
    "An output of an at_most_once step that cannot be encoded is `outcome_unknown`: the handler had its effect",
    "12",
    needs="conform.bad_output",
    cause="the SDK's own failure is reported as a verdict, so the step could be repeated",
)
def bad_output(stage: Stage) -> None:
    batch = stage.asking("conform.bad_output", {"kind": "object"})
    stage.go([batch.item])
    result = batch.result()
    if result["status"] == "completed":
        return  # the language has made valid JSON of it
    if (result.get("error") or {}).get("code") != "outcome_unknown":
        raise RuleBroken(f"it is reported as {result!r}")


@case(
    "at_most_once.timeout",
    Level.FULL,
    "A failure of an at_most_once step after its timeout is `outcome_unknown`",
    "12",
    needs="conform.wait",
)
def timeout(stage: Stage) -> None:
    batch = stage.asking("conform.wait", {"ms": 20_000}, metadata={"timeout_ms": 300})
    stage.go([batch.item])
    result = batch.result()
    if result["status"] != "completed" and (result.get("error") or {}).get("code") != "outcome_unknown":
        raise RuleBroken(f"it is reported as {result!r}")


@case(
    "at_most_once.repeated",
    Level.FULL,
    "A repeated `steps` of an asking or granted item does not start it",
    "10 (W3)",
    needs="conform.wait",
)
def repeated(stage: Stage) -> None:
    batch = stage.asking("conform.wait", {"ms": 800})
    batch.again()
    batch.accepted()
    stage.go([batch.item])
    stage.until_holding(batch.item, "running")
    batch.again()
    batch.result()
    stage.wait(0.5)
