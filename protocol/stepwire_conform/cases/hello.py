"""Level 1: how a worker connects and introduces itself."""

import re
from typing import Final

from stepwire_protocol import host

from stepwire_conform.always import Watch
from stepwire_conform.case import Level, Missing, RuleBroken, case
from stepwire_conform.frames import Message
from stepwire_conform.program import descendants_of
from stepwire_conform.setting import NAME, SLOTS, START_S
from stepwire_conform.stage import Stage

HELLO_EARLY_S: Final = 0.1  # the shortest pause between two hellos that is no repetition without end


@case(
    "hello.subscribes",
    Level.ONE,
    "A worker subscribes `@<worker> ` and `brokers `, each with the space at its end, and no other topic",
    "2",
    fresh=True,
)
def subscribes(stage: Stage) -> None:
    expected = {f"@{stage.worker} ".encode(), b"brokers "}
    stage.until(lambda: set(stage.broker.subscriptions) >= expected, f"subscriptions of {sorted(expected)}")
    others = set(stage.broker.subscriptions) - expected
    if others:
        raise RuleBroken(f"the worker also subscribes {sorted(others)}")


@case("hello.not_level_0", Level.ONE, "A level-1 worker must not subscribe `steps `", "2")
def not_level_0(stage: Stage) -> None:
    if {b"steps", b"steps "} & set(stage.broker.subscriptions):
        raise RuleBroken("the worker subscribes `steps `")


@case("hello.versions", Level.ONE, '`hello` lists every version that the worker supports, and `v` is "2.0"', "5")
def versions(stage: Stage) -> None:
    hello = _hello(stage)
    if "2.0" not in hello["versions"] or hello["v"] != "2.0":
        raise RuleBroken(f"v is {hello['v']!r} and versions are {hello['versions']!r}")


@case("hello.name", Level.ONE, "The worker's name is STEPWIRE_NAME", "SDK_GUIDE 14", strength="should", fresh=True)
def name(stage: Stage) -> None:
    if stage.worker.partition(":")[0] != NAME:
        raise RuleBroken(f"the worker calls itself {stage.worker}, and STEPWIRE_NAME is {NAME}")


@case("hello.slots", Level.ONE, "`slots` is STEPWIRE_SLOTS", "SDK_GUIDE 14", strength="should", fresh=True)
def slots(stage: Stage) -> None:
    found = _hello(stage)["slots"]
    if found != SLOTS:
        raise RuleBroken(f"slots is {found}, and STEPWIRE_SLOTS is {SLOTS}")


@case("hello.labels", Level.ONE, "`labels` are those of STEPWIRE_LABELS", "SDK_GUIDE 14", strength="should")
def labels(stage: Stage) -> None:
    found = _hello(stage).get("labels", {})
    if found != {"kit": "conform", "region": "eu"}:
        raise RuleBroken(f"labels are {found!r}, and STEPWIRE_LABELS is kit=conform,region=eu")


@case(
    "hello.new_id",
    Level.ONE,
    "The 16 hexadecimal digits of `worker` are random, and new at each start of a process",
    "4",
    fresh=True,
    cause="the digits are derived from the name, the host or the process id",
)
def new_id(stage: Stage) -> None:
    first = stage.worker
    stage.end_program()
    stage.wait(0.5)
    stage.watch = Watch()  # messages with the first id are not ignored
    stage.open_session()
    if stage.worker == first:
        raise RuleBroken(f"two processes had the id {first}")


@case(
    "hello.resent",
    Level.ONE,
    "The worker sends `hello` again until every known broker has answered: PUB drops a message that is sent before the"
    " broker's subscription has arrived",
    "7 and 10",
    fresh=True,
    auto=False,
    lasts_s=3,
    cause="`hello` is sent once, at the start",
)
def resent(stage: Stage) -> None:
    stage.open_brokers()
    stage.broker.welcomes = False
    stage.start()
    stage.until(lambda: len(stage.seen("hello")) >= 4, "fourth `hello` without an answer", within_s=START_S)
    sent = stage.seen("hello")
    if len({hello["n"] for hello in sent}) != len(sent):
        raise RuleBroken("two hellos have the same `n`: `welcome` could not be told apart")


@case(
    "hello.slower",
    Level.ONE,
    "`hello` is sent again after 250 ms, doubling to 1 s, ± 20 %",
    "10",
    strength="should",
    fresh=True,
    auto=False,
    lasts_s=5,
    cause="the interval does not double, or `hello` is sent without a pause",
)
def slower(stage: Stage) -> None:
    stage.open_brokers()
    stage.broker.welcomes = False
    stage.start()
    stage.expect("hello", within_s=START_S)
    stage.wait(4)
    count = len(stage.seen("hello"))
    if count > 12:
        raise RuleBroken(f"{count} hellos in 4 s, and at most 8 are expected")


@case(
    "hello.ends",
    Level.ONE,
    "After `welcome` of every known broker, the worker sends no further `hello`",
    "7",
    lasts_s=1.5,
    fresh=True,
)
def ends(stage: Stage) -> None:
    stage.wait(1.0)
    stage.drop_seen()
    stage.nothing("hello", for_s=2.5, why="every broker has sent `welcome`")


@case(
    "hello.next",
    Level.ONE,
    "After `here`, `hello` names the broker in `next`, with number 1 first",
    "4 and 7",
    fresh=True,
)
def next_number(stage: Stage) -> None:
    found = _hello(stage)["next"].get("b1")
    if found != 1:
        raise RuleBroken(f"next.b1 is {found} in the first session of a new process")


@case("hello.here", Level.ONE, "The worker sends `hello` on a `here`", "5")
def here(stage: Stage) -> None:
    stage.drop_seen()
    stage.send(stage.broker.here())
    stage.expect("hello")


@case(
    "hello.free",
    Level.ONE,
    "`free` is at most `slots` plus the room for steps that wait, and `slots_free` at most `slots`",
    "9",
    fresh=True,
)
def free(stage: Stage) -> None:
    hello = _hello(stage)
    offered = hello.get("free", {}).get("b1", 0)
    beat = stage.expect("heartbeat")
    offered = beat.get("free", {}).get("b1", offered)
    if not 1 <= offered <= hello["slots"] + 4_000:
        raise RuleBroken(f"an idle worker with {hello['slots']} slots offers {offered} steps")
    at_once = beat.get("slots_free", {}).get("b1", offered - hello.get("prefetch", 0))
    if at_once > hello["slots"]:
        raise RuleBroken(f"slots_free is {at_once}, and slots is {hello['slots']}")


@case("hello.handlers", Level.ONE, "`handlers` are names or patterns of [A-Za-z0-9_.:*-]", "4 and 5")
def handlers(stage: Stage) -> None:
    for one in _hello(stage)["handlers"]:
        if not re.fullmatch(r"[A-Za-z0-9_.:*-]{1,128}", one):
            raise RuleBroken(f"handlers has {one!r}")


@case("hello.lang", Level.ONE, "`lang` and `sdk` name the worker's language and SDK", "5", strength="should")
def lang(stage: Stage) -> None:
    hello = _hello(stage)
    if not hello.get("lang") or not hello.get("sdk"):
        raise RuleBroken(f"lang is {hello.get('lang', '')!r} and sdk is {hello.get('sdk', '')!r}")


@case(
    "hello.process",
    Level.ONE,
    "`pid` is the worker's process; `pid_started` is its start time in clock ticks after boot (/proc/<pid>/stat, field"
    " 22), not in seconds",
    "5 and 15.3",
    cause="`pid_started` has Unix seconds: a broker takes the process for dead at once",
)
def process(stage: Stage) -> None:
    hello = _hello(stage)
    pid, started = hello.get("pid", 0), hello.get("pid_started", 0)
    if pid and pid not in (stage.running.pid, *descendants_of(stage.running.pid)):
        raise RuleBroken(f"pid is {pid}, and the program is {stage.running.pid}")
    if pid and started and started != host.started(pid):
        raise RuleBroken(f"pid_started is {started}, and /proc/{pid}/stat says {host.started(pid)}")


@case(
    "hello.host",
    Level.ONE,
    "With `proof`, `host` is `<boot id>:<pid namespace>:<time namespace>`, and `pid` and `pid_started` are known",
    "5 and 15.3",
    cause="`host` has another form: brokers never prove this worker's death",
)
def host_form(stage: Stage) -> None:
    hello = _hello(stage)
    if hello.get("proof") and not (hello.get("pid") and hello.get("pid_started")):
        raise RuleBroken("proof is true without pid and pid_started")
    if hello.get("proof") and hello.get("host") != host.identity():
        raise RuleBroken(f"proof is true, host is {hello.get('host')!r}, and here it is {host.identity()!r}")


@case(
    "hello.proof",
    Level.ONE,
    "`proof` is true where no handler process outlives the worker: a broker then runs the steps of a dead worker again"
    " at once",
    "5 and 15.3",
    strength="should",
)
def proof(stage: Stage) -> None:
    if not _hello(stage).get("proof"):
        raise Missing("proof is false: after a crash of the worker, its steps wait for the end of the lease")


@case(
    "hello.welcome_again",
    Level.ONE,
    "The same `welcome` again changes nothing",
    "7",
)
def welcome_again(stage: Stage) -> None:
    hello = _hello(stage)
    stage.drop_seen()
    for _ in range(3):
        stage.send(stage.broker.welcome(hello["n"], stage.session()))
    stage.nothing("hello", "bye", for_s=0.6)
    _expect_session(stage)


@case(
    "hello.another_number",
    Level.ONE,
    "A `welcome` with another number than the worker's current one is ignored",
    "7 (W2)",
    cause="the session of any `welcome` is taken",
)
def another_number(stage: Stage) -> None:
    session = stage.session()
    stage.send(stage.broker.welcome(_hello(stage)["n"], f"{stage.broker.epoch}.9"))
    stage.wait(0.5)
    stage.drop_seen()
    beat = stage.expect("heartbeat")
    if beat.get("sessions", {}).get("b1") != session:
        raise RuleBroken(f"the worker now has session {beat.get('sessions')!r}, and its own was {session}")


@case(
    "hello.old_welcome",
    Level.ONE,
    "A `welcome` whose `n` was sent before the last `here` is ignored",
    "7 (W2)",
    fresh=True,
    auto=False,
    cause="a welcome opens a session whatever hello it answers",
)
def old_welcome(stage: Stage) -> None:
    broker = stage.broker
    stage.open_brokers()
    broker.welcomes = False
    stage.start()
    old = stage.expect("hello", where=lambda m: "b1" in m["next"], within_s=START_S)
    broker.epoch += 1
    stage.send(broker.here())
    new = stage.expect("hello", where=lambda m: m["n"] > old["n"] + 1)
    stage.send(broker.welcome(old["n"], f"{broker.epoch}.1"))
    stage.nothing(
        "heartbeat", for_s=1.0, where=lambda m: bool(m.get("sessions")), why="the welcome answers an old hello"
    )
    assert new is not None
    broker.welcomes = True
    stage.until_session()


def _hello(stage: Stage) -> Message:
    assert stage.watch.hello is not None
    return stage.watch.hello


def _expect_session(stage: Stage) -> None:
    stage.expect("heartbeat", where=lambda m: m.get("sessions", {}).get("b1") == stage.session())
