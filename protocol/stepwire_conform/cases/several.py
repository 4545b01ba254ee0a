"""Level 1 full: several brokers."""

from typing import Any

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage


def _free(stage: Stage, broker: str) -> int:
    beat = stage.expect("heartbeat", where=lambda m: broker in m["free"])
    free: int = beat["free"][broker]
    return free


@case(
    "brokers.sessions",
    Level.FULL,
    "A worker has a session, a lease and a credit with each broker of its lists",
    "14",
    brokers=2,
    cause="only the first endpoint of STEPWIRE_STEPS is used",
)
def sessions(stage: Stage) -> None:
    beat = stage.expect("heartbeat", where=lambda m: len(m["sessions"]) == 2)
    if beat["sessions"] != stage.sessions:
        raise RuleBroken(f"sessions is {beat['sessions']!r}, and they are {stage.sessions!r}")


@case(
    "brokers.credit",
    Level.FULL,
    "The credit is split over the brokers: their sum is at most `slots` and the room for steps that wait",
    "9",
    brokers=2,
    cause="every broker is offered everything",
)
def credit(stage: Stage) -> None:
    stage.wait(1.0)
    stage.drop_seen()
    beat = stage.expect("heartbeat", where=lambda m: {"b1", "b2"} <= m["free"].keys())
    at_once = beat.get("slots_free", {})
    total = sum(at_once.get(b, beat["free"][b]) for b in ("b1", "b2"))
    if at_once and total > stage.watch.slots:
        raise RuleBroken(f"slots_free is {at_once!r}, with {stage.watch.slots} slots")
    hello = stage.watch.hello
    assert hello is not None
    capacity = hello["slots"] + max(hello.get("prefetch", 0), 4_000)
    if sum(beat["free"].values()) > capacity:
        raise RuleBroken(f"free is {beat['free']!r}, and there is room for {capacity}")


@case(
    "brokers.promised",
    Level.FULL,
    "A place is promised to one broker at a time: it moves when its former holder has acknowledged a smaller `free`",
    "9",
    brokers=2,
    fresh=True,
    auto=False,
    lasts_s=3,
    cause="the credit is divided at once, although the first broker may still send by the earlier `free`",
)
def promised(stage: Stage) -> None:
    stage.open_brokers()
    first, second = stage.brokers
    second.welcomes = False
    stage.start()
    stage.until_session(first, within_s=25)
    capacity = _free(stage, "b1")
    stage.wait(0.5)  # until the first broker has acknowledged that it has everything
    first.acks_heartbeats = False
    second.welcomes = True
    stage.until_session(second)
    stage.drop_seen()
    for _ in range(4):
        beat = stage.expect("heartbeat", where=lambda m: "b2" in m["sessions"])
        if beat["free"].get("b2", 0) > 0:
            raise RuleBroken(
                f"free is {beat['free']!r}, and b1 has acknowledged no heartbeat since it was offered {capacity}"
            )
    first.acks_heartbeats = True
    stage.expect("heartbeat", where=lambda m: m["free"].get("b2", 0) > 0, what="credit for b2")


@case(
    "brokers.turns",
    Level.FULL,
    "Of three brokers, each is offered credit, and all of them together at most the capacity",
    "9",
    brokers=3,
    fresh=True,
    lasts_s=3,
    cause="the last broker of the list is offered nothing",
)
def turns(stage: Stage) -> None:
    hello = stage.watch.hello
    assert hello is not None
    capacity = hello["slots"] + hello.get("prefetch", 0)
    stage.wait(1.0)
    stage.drop_seen()
    offered: set[str] = set()
    for _ in range(6):
        free = stage.expect("heartbeat", where=lambda m: len(m["sessions"]) == 3)["free"]
        if sum(free.values()) > capacity:
            raise RuleBroken(f"free is {free!r}, and the worker has run nothing and room for {capacity}")
        offered |= {broker for broker, places in free.items() if places > 0}
    if len(offered) < 3:
        raise RuleBroken(f"three brokers have sessions, and credit is offered to {sorted(offered)!r}")


@case(
    "brokers.owner",
    Level.FULL,
    "Results go to the broker that sent the step",
    "11",
    brokers=2,
    needs="conform.echo",
    cause="all results go to the first broker",
)
def owner(stage: Stage) -> None:
    for broker in stage.brokers:
        batch = stage.steps(stage.step("conform.echo", {"to": broker.id}), broker=broker)
        message = stage.expect("results", batch_id=batch.id)
        if message.topic != f"results@{broker.id} " or message["session"] != stage.session(broker):
            raise RuleBroken(f"the result of a step of {broker.id} is {message!r}")


@case(
    "brokers.one_away",
    Level.FULL,
    "A broker that is away does not delay the work of another one",
    "14",
    brokers=2,
    needs="conform.echo",
    lasts_s=3,
)
def one_away(stage: Stage) -> None:
    stage.brokers[1].close()
    stage.wait(0.5)
    for number in range(3):
        result = stage.run("conform.echo", {"number": number})
        if result.get("output") != {"number": number}:
            raise RuleBroken(f"conform.echo gave {result!r}")


@case(
    "brokers.third_try",
    Level.FULL,
    "From the third try on, results reach every broker",
    "11 and 14",
    brokers=2,
    needs="conform.echo",
    lasts_s=4,
)
def third_try(stage: Stage) -> None:
    stage.broker.acks_results = False
    stage.brokers[1].acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    stage.expect("results", batch_id=batch.id, broker="b2", within_s=12)
    stage.ack([1, *[m["rid"] for m in stage.seen("results")]])


@case(
    "brokers.adopt",
    Level.FULL,
    "A broker that adopts a running item owns it: its result goes to that broker",
    "14",
    brokers=2,
    needs="conform.wait",
    lasts_s=2,
    cause="the owner of an item never changes",
)
def adopt(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 1_200}))
    stage.until_holding(batch.item, "running")
    stage.adopt([batch.item], broker=stage.brokers[1])
    stage.expect("adopted", broker="b2")
    message = stage.expect("results", batch_id=batch.id)
    if message.topic != "results@b2 ":
        raise RuleBroken(f"b2 has adopted the item, and its result goes to {message.topic!r}")


@case(
    "brokers.adopt_done",
    Level.FULL,
    "Results of adopted items are sent to the adopting broker",
    "14",
    brokers=2,
    needs="conform.echo",
    lasts_s=2,
    cause="the outbox keeps the first owner",
)
def adopt_done(stage: Stage) -> None:
    stage.watch.allows_second_answer = True
    for broker in stage.brokers:
        broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    stage.expect("results", batch_id=batch.id)
    stage.adopt([batch.item], broker=stage.brokers[1])
    stage.expect("adopted", broker="b2")
    message = stage.expect("results", where=lambda m: m.topic == "results@b2 ", what="results on `results@b2 `")
    for broker in stage.brokers:
        broker.acks_results = True
    stage.ack([message["rid"]], broker=stage.brokers[1])


@case(
    "brokers.moved",
    Level.FULL,
    "A part of the database moves: after a `reset`, unstarted steps never start, and the run's result goes to the "
    "broker that adopts it",
    "7 and 14",
    brokers=2,
    needs="conform.limited",
    fresh=True,
    lasts_s=4,
    cause="a drop ends the run, keeps the steps that wait, or the owner of an item never changes",
)
def moved(stage: Stage) -> None:
    first, second = stage.brokers
    running, waiting = stage.queued(ms=2_500)
    stage.send(first.message("reset", next=1, code="expired"))
    stage.until_session(first, number=2)
    stage.adopt([*running.items, waiting.item], broker=second)
    answer = stage.expect("adopted", broker="b2")
    states = {(step_id, delivery): state for step_id, delivery, state, _ in answer["items"]}
    if states[waiting.item] != "unknown":
        raise RuleBroken(f"the session was reset, and the step that waited is {states[waiting.item]!r}")
    for item in running.items:
        result = stage.result_of(item)
        if result["status"] != "completed" or result["output"]["stopped"] is not None:
            raise RuleBroken(f"a lost session must not stop a run: {result!r}")
    late = [m for m in stage.seen("results") if m.topic != "results@b2 "]
    if late:
        raise RuleBroken(f"b2 has adopted the items, and a result goes to {late[0].topic!r}")


@case(
    "brokers.listed",
    Level.FULL,
    "The worker connects to the brokers that a `welcome` lists",
    "6 and 14",
    brokers=2,
    auto=False,
    cause="`welcome.brokers` is ignored",
)
def listed(stage: Stage) -> None:
    stage.open_brokers()
    first, second = stage.brokers
    first.listed = [_entry(first), _entry(second)]
    stage.start(STEPWIRE_STEPS=first.steps_endpoint, STEPWIRE_RESULTS=first.results_endpoint)
    stage.until_session(second, within_s=25)


@case(
    "brokers.listed_later",
    Level.FULL,
    "The worker connects to brokers that a `heartbeat_ack` lists",
    "6 and 14",
    brokers=2,
    auto=False,
    strength="should",
    cause="`heartbeat_ack.brokers` is ignored",
)
def listed_later(stage: Stage) -> None:
    stage.open_brokers()
    first, second = stage.brokers
    stage.start(STEPWIRE_STEPS=first.steps_endpoint, STEPWIRE_RESULTS=first.results_endpoint)
    stage.until_session(within_s=25)
    first.ack_members = {"brokers": [_entry(first), _entry(second)]}
    stage.until_session(second)


@case(
    "brokers.listed_empty",
    Level.FULL,
    "An entry with empty endpoints in `welcome.brokers` is ignored",
    "6",
    fresh=True,
    auto=False,
    needs="conform.echo",
    strength="should",
)
def listed_empty(stage: Stage) -> None:
    stage.broker.listed = [_entry(stage.broker), {"broker": "b9", "steps": "", "results": ""}]
    stage.open_session()
    stage.run("conform.echo", {})


@case(
    "brokers.lost",
    Level.FULL,
    "The lease of one broker ends without the session of the other",
    "7 and 8",
    brokers=2,
    needs="conform.echo",
    lasts_s=4,
)
def lost(stage: Stage) -> None:
    first, second = stage.brokers
    second.lease_ms = 1_500
    second.epoch += 1
    stage.send(second.here(), broker=second)
    stage.until_session(second, number=1)
    second.acks_heartbeats = second.welcomes = False
    stage.expect("hello", where=lambda m: m["next"].get("b2") == 2, within_s=8)
    beat = stage.expect("heartbeat", where=lambda m: "b1" in m["sessions"])
    if beat["sessions"]["b1"] != stage.session(first):
        raise RuleBroken(f"the session with b1 is now {beat['sessions']!r}")
    stage.run("conform.echo", {})


def _entry(broker: Any) -> dict[str, Any]:
    return {"broker": broker.id, "steps": broker.steps_endpoint, "results": broker.results_endpoint}
