"""Level 1: heartbeats, and the lease that their acks renew."""

import time

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Stage


@case(
    "heartbeat.interval",
    Level.ONE,
    "Heartbeats come at the smaller of the worker's own interval and that of `welcome`",
    "5 and 6",
    cause="`welcome.heartbeat_ms` is ignored",
)
def interval(stage: Stage) -> None:
    stage.drop_seen()
    stage.wait(3.0)
    count = len([m for m in stage.inbox if m.kind == "heartbeat" and not m.is_taken])
    if count < 3:
        raise RuleBroken(f"{count} heartbeats in 3 s, and `welcome` asks for one every 200 ms")


@case(
    "heartbeat.not_too_often",
    Level.ONE,
    "Heartbeats come every `heartbeat_ms` ± 10 %, at most one each 100 ms besides those that report a change",
    "5",
    strength="should",
)
def not_too_often(stage: Stage) -> None:
    stage.wait(0.5)
    stage.drop_seen()
    stage.wait(2.0)
    count = len([m for m in stage.inbox if m.kind == "heartbeat" and not m.is_taken])
    if count > 30:
        raise RuleBroken(f"{count} heartbeats in 2 s of an idle worker, and 10 are expected")


@case(
    "heartbeat.sessions",
    Level.ONE,
    "A heartbeat names the worker's open sessions and its current number for each broker",
    "5",
)
def sessions(stage: Stage) -> None:
    beat = stage.expect("heartbeat", where=lambda m: bool(m.get("sessions")))
    if beat["sessions"].get("b1") != stage.session() or beat.get("next", {}).get("b1") is None:
        raise RuleBroken(f"sessions is {beat['sessions']!r} and next is {beat.get('next')!r}")


@case(
    "heartbeat.after_welcome",
    Level.ONE,
    "A heartbeat follows at once after a session opened: it carries the credit",
    "5",
    strength="should",
    fresh=True,
    auto=False,
)
def after_welcome(stage: Stage) -> None:
    stage.broker.heartbeat_ms = 2_000
    stage.broker.lease_ms = 10_000
    stage.open_session()
    stage.expect("heartbeat", within_s=1.5, where=lambda m: bool(m.get("free")))


@case(
    "heartbeat.holding",
    Level.ONE,
    "`holding` lists every item that the worker holds, with its state and age",
    "4 and 5",
    needs="conform.wait",
    cause="`holding` is left out of heartbeats",
)
def holding(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.wait", {"ms": 1500}))
    beat = stage.until_holding(batch.item, "running")
    age = next(held[3] for held in beat["holding"] if (held[0], held[1]) == batch.item)
    if age > 30_000:
        raise RuleBroken(f"a run of this second has the age {age} ms")
    batch.result()


@case(
    "heartbeat.done",
    Level.ONE,
    "An item whose result is not acknowledged is held as `done`",
    "4 and 10",
    needs="conform.echo",
    cause="finished items are left out of `holding`",
)
def done(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    stage.until_holding(batch.item, "done")
    stage.ack([rid])
    stage.until_gone(batch.item)


@case(
    "heartbeat.computing",
    Level.ONE,
    "Heartbeats go on while a handler computes without yielding",
    "8 and SDK_GUIDE 2",
    needs="conform.compute",
    lasts_s=4,
    cause="the handler runs on the thread of the sockets",
)
def computing(stage: Stage) -> None:
    batch = stage.steps(stage.step("conform.compute", {"ms": 3000}))
    stage.until_holding(batch.item, "running")
    stage.drop_seen()
    began_s = time.monotonic()
    stage.until(
        lambda: (
            len([m for m in stage.inbox if m.kind == "heartbeat" and not m.is_taken]) >= 3
            or any(m.kind == "results" and not m.is_taken for m in stage.inbox)
        ),
        "heartbeats while a handler computes",
        within_s=10,
    )
    beats = [m for m in stage.inbox if m.kind == "heartbeat" and not m.is_taken]
    if len(beats) < 3:
        raise RuleBroken(f"{len(beats)} heartbeats in {time.monotonic() - began_s:.1f} s of computing")
    batch.result(within_s=20)


@case(
    "lease.ends",
    Level.ONE,
    "Without acks the lease ends `lease_ms` × 0.97 after the last acknowledged message was sent: the worker drops the"
    " session, adds 1 to its number and sends `hello`",
    "8.1, 8.3 and 7",
    fresh=True,
    auto=False,
    lasts_s=4,
    cause="the worker never checks its lease, or heartbeats renew it without an ack",
)
def lease_ends(stage: Stage) -> None:
    stage.broker.lease_ms = 1_500
    stage.open_session()
    stage.wait(0.5)
    stage.broker.acks_heartbeats = stage.broker.welcomes = False
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2, within_s=8)


@case(
    "lease.lasts",
    Level.ONE,
    "The lease is not over before `lease_ms` × 0.97",
    "8.1",
    strength="should",
    fresh=True,
    auto=False,
    lasts_s=4,
)
def lease_lasts(stage: Stage) -> None:
    stage.broker.lease_ms = 10_000
    stage.open_session()
    stage.wait(1.0)
    stage.broker.acks_heartbeats = stage.broker.welcomes = False
    stage.nothing("hello", for_s=2.5, where=lambda m: m["next"].get("b1") == 2, why="the lease lasts 10 s")


@case(
    "lease.shorter",
    Level.ONE,
    "A new session begins with its own lease, even if that ends earlier: a broker may restart with a shorter one",
    "8.1",
    fresh=True,
    lasts_s=4,
    cause="the lease of the earlier session is kept",
)
def shorter(stage: Stage) -> None:
    stage.broker.lease_ms = 1_500
    stage.broker.epoch += 1
    stage.send(stage.broker.here())
    stage.until_session(number=1)
    stage.broker.acks_heartbeats = stage.broker.welcomes = False
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2, within_s=6)


@case(
    "lease.other_session",
    Level.ONE,
    "An ack of another session does not renew the lease",
    "7 (W2)",
    fresh=True,
    auto=False,
    lasts_s=5,
    cause="`heartbeat_ack` is taken without a look at its session",
)
def other_session(stage: Stage) -> None:
    stage.broker.lease_ms = 2_000
    stage.open_session()
    stage.wait(0.4)
    stage.broker.welcomes = False
    stage.broker.ack_members = {"session": f"{stage.broker.epoch}.77"}
    stage.drop_seen()
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2, within_s=8)


@case(
    "lease.unsent_number",
    Level.ONE,
    "An ack of a number that the worker never sent does not renew the lease",
    "8.1",
    fresh=True,
    auto=False,
    lasts_s=5,
    cause="the lease is counted from the receipt of the ack, not from the sending of `n`",
)
def unsent_number(stage: Stage) -> None:
    stage.broker.lease_ms = 2_000
    stage.open_session()
    stage.wait(0.4)
    stage.broker.welcomes = False
    stage.broker.ack_members = {"n": 999_999}
    stage.drop_seen()
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2, within_s=8)


@case(
    "lease.from_sending",
    Level.ONE,
    "The lease runs from the time at which the worker sent the acknowledged `n`, not from the receipt of the ack",
    "8.1",
    fresh=True,
    auto=False,
    lasts_s=6,
    cause="the lease is counted from the receipt of the ack",
)
def from_sending(stage: Stage) -> None:
    broker = stage.broker
    broker.lease_ms = 3_000
    stage.open_session()
    stage.wait(0.4)
    old = stage.seen("heartbeat")[-1] if stage.seen("heartbeat") else stage.expect("heartbeat")
    broker.acks_heartbeats = broker.welcomes = False
    began_s = time.monotonic()
    while time.monotonic() - began_s < 7 and not any(m["next"].get("b1") == 2 for m in stage.seen("hello")):
        stage.ack_heartbeat(old)  # the same old number again, which must not extend the lease
        stage.wait(0.2)
    if not any(m["next"].get("b1") == 2 for m in stage.seen("hello")):
        raise RuleBroken("acks of one old heartbeat kept a lease of 3 s for 7 s")


@case(
    "lease.not_started_after",
    Level.ONE,
    "No step starts after the end of the lease",
    "8.3 (W1)",
    needs="conform.limited",
    fresh=True,
    auto=False,
    lasts_s=9,
    cause="the lease is not checked before a step starts",
)
def not_started_after(stage: Stage) -> None:
    stage.broker.lease_ms = 3_000
    stage.open_session()
    first, second = stage.queued(ms=7_000)
    number = int(second.session.partition(".")[2])
    stage.broker.acks_heartbeats = stage.broker.welcomes = False
    stage.expect("hello", where=lambda m: m["next"].get("b1", 0) > number, within_s=8)
    stage.result_of(first.items[0])
    stage.nothing(
        "results", for_s=1.0, where=lambda m: m["batch_id"] == second.id, why="it waited when its session ended"
    )
