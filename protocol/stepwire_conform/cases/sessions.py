"""Level 1 full: reset, restart of a broker, adoption, another deployment."""

import time
from typing import Final

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Batch, Stage

QUEUED_SHARE: Final = 0.6  # those that were on their way when the connection broke may be lost
RESET: Final = "a `reset` is ignored, or taken without a look at its number and epoch"


def _running(stage: Stage, ms: int = 1_500) -> Batch:
    batch = stage.steps(stage.step("conform.wait", {"ms": ms}))
    stage.until_holding(batch.item, "running")
    return batch


def _until_number(stage: Stage, number: int) -> None:
    stage.until_session(number=number)


def _reset(stage: Stage, number: int = 1, code: str = "unknown_session", epoch: int | None = None) -> None:
    message = stage.broker.message("reset", next=number, code=code)
    stage.send(message if epoch is None else message | {"epoch": epoch})


@case(
    "reset.drops",
    Level.FULL,
    "A valid `reset` makes the worker drop the session: it adds 1 to its number, and sends `hello`",
    "7",
    fresh=True,
    cause=RESET,
)
def drops(stage: Stage) -> None:
    _reset(stage)
    _until_number(stage, 2)
    _reset(stage, 2, "expired")
    _until_number(stage, 3)


@case(
    "reset.other_number",
    Level.FULL,
    "A `reset` whose `next` is not the worker's current number is ignored",
    "6 and 7",
    fresh=True,
    cause=RESET,
)
def other_number(stage: Stage) -> None:
    _reset(stage, 5)
    _reset(stage, 9, "expired")
    stage.drop_seen()
    stage.nothing("hello", for_s=0.8, where=lambda m: m["next"].get("b1") != 1, why="the reset names another number")


@case("reset.older_epoch", Level.FULL, "A `reset` of an older epoch is ignored", "7", fresh=True, cause=RESET)
def older_epoch(stage: Stage) -> None:
    _reset(stage, 1, "expired", epoch=stage.broker.epoch - 1)
    stage.drop_seen()
    stage.nothing("hello", for_s=0.8, where=lambda m: m["next"].get("b1") != 1, why="the reset is of an older epoch")


@case(
    "reset.running",
    Level.FULL,
    "After a drop, running steps continue, and their results are sent in the next session",
    "7 and 11",
    needs="conform.wait",
    fresh=True,
    lasts_s=2,
    cause="a drop stops running handlers, or forgets them",
)
def reset_running(stage: Stage) -> None:
    batch = _running(stage)
    _reset(stage)
    _until_number(stage, 2)
    result = batch.result()
    if result["status"] != "completed" or result["output"]["stopped"] is not None:
        raise RuleBroken(f"a lost session must not stop a run: {result!r}")


@case(
    "reset.holding",
    Level.FULL,
    "`hello` lists everything that the worker still holds",
    "5 and 7 (B1)",
    needs="conform.wait",
    fresh=True,
    lasts_s=2,
    cause="`holding` is left out of `hello`: the broker would give the steps to another worker",
)
def holding(stage: Stage) -> None:
    batch = _running(stage)
    _reset(stage)
    hello = stage.expect("hello", where=lambda m: m["next"].get("b1") == 2)
    if stage.holding_of(hello).get(batch.item) != "running":
        raise RuleBroken(f"the worker runs {list(batch.item)}, and its hello holds {hello['holding']!r}")
    batch.result()


@case(
    "reset.queued",
    Level.FULL,
    "After a drop, queued steps get tombstones: they never start, and are refused as `stale` if they arrive again",
    "7",
    needs="conform.limited",
    fresh=True,
    lasts_s=3,
    cause="queued steps survive a drop, and run on two workers",
)
def reset_queued(stage: Stage) -> None:
    _, second = stage.queued(ms=2_500)
    step = stage.step("conform.limited", {"ms": 1}, step_id=second.item[0])
    _reset(stage)
    _until_number(stage, 2)
    stage.steps(step).refused("stale")
    stage.nothing("results", for_s=3.0, where=lambda m: m["batch_id"] == second.id, why="its session was dropped")


@case(
    "reset.done",
    Level.FULL,
    "Results survive a drop, and are sent again in the next session",
    "7 and 11",
    needs="conform.echo",
    fresh=True,
    lasts_s=2,
    cause="the outbox is emptied by a drop",
)
def reset_done(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {"a": 1}))
    rid = batch.message()["rid"]
    _reset(stage)
    _until_number(stage, 2)
    stage.until(
        lambda: any(copy["session"] == stage.session() for copy in stage.watch.copies[rid]),
        "the results again, with the new session",
    )
    stage.ack([rid])


@case(
    "reset.pauses",
    Level.FULL,
    "Repeated drops without an open session in between are paused: 250 ms, doubling to 5 s",
    "7",
    fresh=True,
    lasts_s=5,
    strength="should",
    cause="every `reset` is answered by a `hello` at once: hundreds in a second",
)
def pauses(stage: Stage) -> None:
    broker = stage.broker
    broker.welcomes = False
    _reset(stage)
    number = 2
    until_s = time.monotonic() + 4
    while time.monotonic() < until_s:
        stage.pump(0.05)
        hellos = [m for m in stage.seen("hello") if m["next"].get("b1") == number]
        if hellos:
            _reset(stage, number)
            number += 1
    if number > 12:
        raise RuleBroken(f"{number - 1} sessions were rejected within 4 s, each at once after the other")


@case(
    "reset.version",
    Level.FULL,
    "`reset` `version` does not end the worker: it goes on to say `hello`, every 5 s",
    "6 and 16",
    fresh=True,
    lasts_s=9,
    strength="should",
    cause="the worker gives up, or repeats `hello` at once",
)
def version(stage: Stage) -> None:
    stage.broker.welcomes = False
    message = stage.broker.message("reset", next=1, code="version", versions=["9.0"])
    stage.drop_seen()
    stage.send(message)
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2, within_s=9)


@case(
    "reset.shutdown",
    Level.FULL,
    "After `reset` `shutdown`, the worker sends `hello` until a broker answers",
    "15.2",
    fresh=True,
    lasts_s=3,
)
def shutdown(stage: Stage) -> None:
    stage.broker.welcomes = False
    _reset(stage, 1, "shutdown")
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2)
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2)
    stage.broker.welcomes = True
    _until_number(stage, 2)


@case(
    "restart.keeps",
    Level.FULL,
    "On `here` of a higher epoch the worker keeps its number and every item, and says `hello` with them",
    "14",
    needs="conform.wait",
    fresh=True,
    lasts_s=2,
    cause="a restart of the broker is taken for a drop: items are given up, or the number rises",
)
def restart_keeps(stage: Stage) -> None:
    batch = _running(stage)
    stage.broker.epoch += 1
    stage.send(stage.broker.here())
    hello = stage.expect("hello", where=lambda m: batch.item in stage.holding_of(m))
    if hello["next"].get("b1") != 1:
        raise RuleBroken(f"the number is {hello['next'].get('b1')} after a restart of the broker, and was 1")
    stage.until_session(number=1)
    batch.result()


@case(
    "restart.queued",
    Level.FULL,
    "Queued steps stay queued over a restart of the broker, and run",
    "14",
    needs="conform.limited",
    fresh=True,
    lasts_s=3,
)
def restart_queued(stage: Stage) -> None:
    _, second = stage.queued(ms=1_500)
    stage.broker.epoch += 1
    stage.send(stage.broker.here())
    stage.until_session(number=1)
    second.result()


@case("restart.older_here", Level.FULL, "A `here` of an older epoch is ignored", "7", fresh=True, lasts_s=2)
def older_here(stage: Stage) -> None:
    stage.wait(0.6)
    stage.drop_seen()
    stage.send(stage.broker.here() | {"epoch": stage.broker.epoch - 1})
    stage.nothing("hello", for_s=1.0, why="the epoch is older")
    beat = stage.expect("heartbeat")
    if beat["sessions"].get("b1") != stage.session():
        raise RuleBroken(f"the session is now {beat['sessions']!r}")


@case(
    "restart.sockets",
    Level.FULL,
    "After a broker's sockets were closed and bound again, the worker has a session within seconds",
    "14 and 20",
    needs="conform.echo",
    fresh=True,
    lasts_s=4,
    cause="the program does not reconnect, or does not answer `here`",
)
def sockets(stage: Stage) -> None:
    stage.run("conform.echo", {})
    stage.broker.close()
    stage.wait(1.0)
    stage.broker.epoch += 1
    stage.forget_sessions()
    stage.broker.open()
    stage.until_session(number=1)
    stage.run("conform.echo", {})


@case(
    "restart.queue",
    Level.FULL,
    "Messages that the worker sends while its broker is away arrive after the restart",
    "20",
    needs="conform.wait",
    fresh=True,
    lasts_s=6,
    cause="IMMEDIATE is 1, or the PUB socket is replaced by another: results are lost at each reconnect",
)
def queue(stage: Stage) -> None:
    batch = _running(stage, 1_200)
    stage.wait(0.3)
    last = max(m["n"] for m in stage.inbox if m.kind in ("heartbeat", "hello"))
    stage.broker.close()
    stage.wait(2.6)
    stage.broker.epoch += 1
    stage.forget_sessions()
    stage.inbox.clear()
    stage.broker.open()
    stage.until_session()
    hello = next(m for m in stage.seen("hello"))
    batch.result()
    sent = hello["n"] - last - 1  # all of them took a number: most while no broker listened
    arrived = len({m["n"] for m in stage.inbox if last < m["n"] < hello["n"]})
    if arrived < sent * QUEUED_SHARE:
        raise RuleBroken(
            f"the worker sent {sent} messages while no broker was there or had heard it, and {arrived} arrived"
        )


@case(
    "restart.results",
    Level.FULL,
    "Results that ended while the broker was away reach it after its restart",
    "14",
    needs="conform.wait",
    fresh=True,
    lasts_s=4,
)
def results(stage: Stage) -> None:
    batch = _running(stage, 600)
    stage.broker.close()
    stage.wait(1.5)
    stage.broker.epoch += 1
    stage.forget_sessions()
    stage.broker.open()
    if batch.result()["status"] != "completed":
        raise RuleBroken("the run did not complete")
    stage.until_gone(batch.item)


@case(
    "adopt.held",
    Level.FULL,
    "`adopt` is answered for each item: a held one with its state and age, any other with `unknown`",
    "6 and 14",
    needs="conform.wait",
    lasts_s=2,
    cause="`adopt` is ignored, or only known items are answered",
)
def adopt_held(stage: Stage) -> None:
    batch = _running(stage)
    unknown = (77_001, 1)
    stage.adopt([batch.item, unknown])
    adopted = stage.expect("adopted")
    answers = {(step_id, delivery): state for step_id, delivery, state, _ in adopted["items"]}
    if answers != {batch.item: "running", unknown: "unknown"}:
        raise RuleBroken(f"a running and an unknown item were asked for: {adopted['items']!r}")
    if adopted["session"] != stage.session():
        raise RuleBroken(f"adopted names session {adopted['session']}")
    batch.result()


@case(
    "adopt.unknown",
    Level.FULL,
    "An item that was answered with `unknown` never starts",
    "6 and 14",
    cause="no tombstone is made for `unknown`",
)
def adopt_unknown(stage: Stage) -> None:
    step = stage.step(stage.some_handler(), {}, delivery_mode="at_most_once")
    stage.adopt([(step["step_id"], 1)])
    stage.expect("adopted")
    stage.steps(step).refused("stale")


@case("adopt.done", Level.FULL, "A finished item is adopted as `done`", "14", needs="conform.echo", lasts_s=2)
def adopt_done(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    stage.adopt([batch.item])
    adopted = stage.expect("adopted")
    if adopted["items"][0][2] != "done":
        raise RuleBroken(f"a finished item is adopted as {adopted['items']!r}")
    stage.ack([rid])


@case("adopt.again", Level.FULL, "The same `adopt` again is answered again", "10", needs="conform.wait", lasts_s=2)
def adopt_again(stage: Stage) -> None:
    batch = _running(stage)
    for _ in range(2):
        stage.adopt([batch.item])
        stage.expect("adopted")
    batch.result()


@case(
    "deployment.results",
    Level.FULL,
    "Another deployment has another database: results of the earlier one are not sent to it",
    "14 (W4)",
    needs="conform.echo",
    fresh=True,
    lasts_s=3,
    cause="the outbox survives another deployment",
)
def deployment_results(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    batch.message()
    _replace(stage)
    stage.drop_seen()
    stage.nothing(
        "results", for_s=1.5, where=lambda m: m["batch_id"] == batch.id, why="its broker has another database"
    )


@case(
    "deployment.running",
    Level.FULL,
    "A run of the earlier deployment is no longer held, and its result is dropped",
    "14 (W4)",
    needs="conform.wait",
    fresh=True,
    lasts_s=4,
)
def deployment_running(stage: Stage) -> None:
    batch = _running(stage, 1_500)
    _replace(stage)
    stage.drop_seen()
    stage.nothing(
        "results", for_s=2.0, where=lambda m: m["batch_id"] == batch.id, why="its broker has another database"
    )


@case(
    "deployment.tombstones",
    Level.FULL,
    "Tombstones of the earlier deployment are forgotten: its numbers now name other steps",
    "14 (W4)",
    needs="conform.echo",
    fresh=True,
    lasts_s=2,
    cause="tombstones survive another deployment",
)
def deployment_tombstones(stage: Stage) -> None:
    stage.watch.allows_second_answer = True
    step = stage.step("conform.echo", {"a": 1})
    stage.steps(step).result()
    _replace(stage)
    again = stage.steps(step)
    stage.expect("results", batch_id=again.id)


def _replace(stage: Stage) -> None:
    """The broker comes back with another database."""
    broker = stage.broker
    broker.epoch += 1
    broker.deployment = "b2a90000c0ffee11"
    stage.forget_sessions()
    stage.send(broker.here())
    stage.until_session()
    stage.wait(0.2)
    broker.acks_results = True
