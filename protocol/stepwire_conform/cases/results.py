"""Level 1: steps, accept, and results until their ack."""

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage


@case(
    "steps.accept",
    Level.ONE,
    "`accept` answers a batch that the worker keeps, in the current session, with its credit",
    "5 and 10",
    needs="conform.wait",
)
def accept(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 1200}))
    accepted = batch.accepted()
    if accepted["session"] != stage.session():
        raise RuleBroken(f"accept names session {accepted['session']}, and the session is {stage.session()}")
    batch.result()


@case(
    "steps.credit",
    Level.ONE,
    "`free` in `accept` already counts the batch",
    "9",
    needs="conform.wait",
    cause="`free` counts the slots and not what is held",
)
def credit(stage: Stage) -> None:
    beat = stage.expect("heartbeat", where=lambda m: "b1" in m.get("free", {}))
    before = beat["free"]["b1"]
    batch = stage.steps(*[stage.step("conform.wait", {"ms": 1500}) for _ in range(3)])
    after = batch.accepted()["free"]
    if after > max(0, before - 3) and after >= before:
        raise RuleBroken(f"free was {before}, three steps were sent, and accept says {after}")
    for item in batch.items:
        stage.result_of(item)


@case(
    "steps.full_credit",
    Level.ONE,
    "A worker whose slots and room are taken offers no credit",
    "9",
    needs="conform.wait",
    cause="`free` never falls: what is held is not counted",
)
def full_credit(stage: Stage) -> None:
    beat = stage.expect("heartbeat", where=lambda m: "b1" in m.get("free", {}))
    count = min(beat["free"]["b1"], 60)
    batch = stage.steps(*[stage.step("conform.wait", {"ms": 900}) for _ in range(count)])
    accepted = batch.accepted()
    if accepted["free"] > 60 and count < 60:
        raise RuleBroken(f"{count} steps filled the credit, and accept offers {accepted['free']} more")
    if count < 60 and accepted["free"] >= count:
        raise RuleBroken(f"free was {count}, {count} steps were sent, and accept says {accepted['free']}")
    stage.cancel(batch.items)
    stage.watch.allows_second_answer = True
    stage.wait(0.5)


@case("results.form", Level.ONE, "`results` has every member of section 5", "5", needs="conform.echo")
def form(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.echo", {"order_id": 12345}))
    message = batch.message()
    wrong = {
        name: message.get(name)
        for name, value in {
            "session": stage.session(),
            "deployment": stage.broker.deployment,
            "protocol_version": "2.0",
            "batch_id": batch.id,
        }.items()
        if message.get(name) != value
    }
    if wrong:
        raise RuleBroken(f"these members of results are wrong: {wrong!r}")
    result = message["results"][0]
    if result["status"] != "completed" or result.get("output") != {"order_id": 12345}:
        raise RuleBroken(f"conform.echo of {{'order_id': 12345}} gave {result!r}")


@case("results.rid", Level.ONE, "`rid` begins at 1", "4", strength="should", needs="conform.echo", fresh=True)
def rid(stage: Stage) -> None:
    message = stage.steps(stage.step("conform.echo", 1)).message()
    if message["rid"] != 1:
        raise RuleBroken(f"the first results message has rid {message['rid']}")


@case(
    "results.resent",
    Level.ONE,
    "Results are sent again until `ack`, with the same content",
    "10 and 11",
    needs="conform.echo",
    lasts_s=3,
    cause="results are sent once and forgotten",
)
def resent(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {"a": 1}))
    message = batch.message()
    stage.until(lambda: len(stage.watch.copies[message["rid"]]) >= 2, "second copy of the results", within_s=5)
    stage.ack([message["rid"]])


@case(
    "results.broadcast",
    Level.ONE,
    "From the third try on, results also go to `results `: their broker may be gone",
    "11",
    needs="conform.echo",
    lasts_s=4,
    cause="results always go to the broker that sent the step",
)
def broadcast(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {"a": 1}))
    rid = batch.message()["rid"]
    stage.until(
        lambda: any(copy.topic == "results " for copy in stage.watch.copies[rid]), "copy on `results `", within_s=10
    )
    stage.wait(0.3)
    copies = stage.watch.copies[rid]
    first_s = next(copy.at_s for copy in copies if copy.topic == "results ")
    tries = sum(copy.topic == "results@b1 " and copy.at_s < first_s + 0.25 for copy in copies)
    if tries < 3:
        raise RuleBroken(f"results go to `results ` with try {tries}")
    stage.ack([rid])


@case(
    "results.ack_ends",
    Level.ONE,
    "After `ack` of its rid, a results message is not sent again",
    "6",
    needs="conform.echo",
    lasts_s=3,
)
def ack_ends(stage: Stage) -> None:
    stage.broker.acks_results = False
    rid = stage.steps(stage.step("conform.echo", {})).message()["rid"]
    stage.ack([rid])
    stage.wait(0.4)
    stage.drop_seen()
    stage.nothing("results", for_s=2.0, why=f"rid {rid} is acknowledged")


@case(
    "results.unknown_ack",
    Level.ONE,
    "Unknown rids in `ack` are ignored, and the known ones in the same message count",
    "6",
    needs="conform.echo",
)
def unknown_ack(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    stage.ack([900_001, rid, 900_002])
    stage.until_gone(batch.item)


@case(
    "results.ack_again",
    Level.ONE,
    "The same `ack` again changes nothing",
    "1 and 6",
    needs="conform.echo",
)
def ack_again(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    for _ in range(3):
        stage.ack([rid])
    _expect_echo(stage)


@case(
    "results.one_message",
    Level.ONE,
    "Results of one batch that end together go in one message",
    "11",
    strength="should",
    needs="conform.echo",
)
def one_message(stage: Stage) -> None:
    for _ in range(3):
        batch = stage.steps(*[stage.step("conform.echo", i) for i in range(4)])
        for item in batch.items:
            stage.result_of(item)
        if len([m for m in stage.seen("results") if m["batch_id"] == batch.id and len(m["results"]) > 1]):
            return
    raise RuleBroken("three batches of four short steps were answered by a message for each step")


@case(
    "results.batch",
    Level.ONE,
    "Each result names its own step, whatever the order in which the runs end",
    "5",
    needs=("conform.echo", "conform.wait"),
    cause="answers are matched by their order",
)
def batch_of_several(stage: Stage) -> None:
    slow = stage.step("conform.wait", {"ms": 600})
    fast = [stage.step("conform.echo", {"number": i}) for i in range(3)]
    batch = stage.steps(slow, *fast)
    for number, item in enumerate(batch.items[1:]):
        output = stage.result_of(item).get("output")
        if output != {"number": number}:
            raise RuleBroken(f"the result of {list(item)} has the output {output!r}, and its input was {number}")
    if "ms" not in (stage.result_of(batch.item).get("output") or {}):
        raise RuleBroken("conform.wait has another step's output")


@case(
    "results.two_batches",
    Level.ONE,
    "A results message never contains steps of two batches",
    "5",
    needs="conform.echo",
)
def two_batches(stage: Stage) -> None:
    for _ in range(5):
        batches = [stage.steps(stage.step("conform.echo", i)) for i in range(4)]
        for batch in batches:
            batch.result()


@case(
    "results.execution_time",
    Level.ONE,
    "`metadata.execution_time_ms` is the duration of the run",
    "5",
    strength="should",
    needs="conform.wait",
)
def execution_time(stage: Stage) -> None:
    result = stage.run("conform.wait", {"ms": 300})
    took_ms = (result.get("metadata") or {}).get("execution_time_ms")
    if took_ms is None or not 200 <= took_ms <= 20_000:
        raise RuleBroken(f"a run of 300 ms has execution_time_ms {took_ms!r}")


@case(
    "results.burst",
    Level.ONE,
    "All frames that have arrived are read, however many one wake-up brings",
    "SDK_GUIDE 13",
    needs="conform.echo",
    lasts_s=3,
    cause="one frame is read for each wake-up: the socket's descriptor is edge-triggered",
)
def burst(stage: Stage) -> None:
    stage.wait(0.3)
    stage.broker.acks_heartbeats = stage.broker.acks_results = False
    stage.drop_seen()
    batches = [stage.steps(stage.step("conform.echo", i)) for i in range(10)]
    stage.until(
        lambda: (
            len({(r["step_id"], r["delivery"]) for m in stage.seen("results") for r in m["results"]})
            + sum(len(m["items"]) for m in stage.seen("refuse"))
            >= len(batches)
        ),
        "answers to ten batches that arrived together",
        within_s=4,
    )
    stage.ack([m["rid"] for m in stage.seen("results")])


@case(
    "results.slots",
    Level.ONE,
    "At most `slots` steps run at a time, and that many do",
    "9",
    needs="conform.wait",
    lasts_s=3,
)
def slots(stage: Stage) -> None:
    count = stage.watch.slots
    batch = stage.steps(*[stage.step("conform.wait", {"ms": 1_500}) for _ in range(count + 3)])
    stage.until(
        lambda: any(
            sum(state == "running" for state in stage.holding_of(m).values()) == count for m in stage.seen("heartbeat")
        ),
        f"heartbeat with {count} running steps",
    )
    stage.wait(0.8)
    stage.watch.allows_second_answer = True
    stage.cancel(batch.items)
    stage.wait(0.5)


def _expect_echo(stage: Stage) -> None:
    result = stage.run("conform.echo", {"still": "here"})
    if result.get("output") != {"still": "here"}:
        raise RuleBroken(f"afterwards conform.echo gave {result!r}")
