"""Level 1 full: drain, quit, quiet and silence."""

import json
import signal
import time
from typing import Final

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.stage import Batch, Stage

LAST_S: Final = 1.5
SMALL_BYTES: Final = 100_000
LINGERING: Final = 8  # messages of 1 MB that wait in the worker's socket when it ends: more than the system buffers
END_S: Final = 15.0  # for a worker that has nothing left to do
TERM = "the program does not handle SIGTERM, or waits for something"


def _running(stage: Stage, ms: int = 1_500) -> Batch:
    batch = stage.steps(stage.step("conform.wait", {"ms": ms}))
    stage.until_holding(batch.item, "running")
    return batch


@case("drain.term", Level.FULL, "On SIGTERM an idle worker sends `bye` and ends", "15.1", fresh=True, cause=TERM)
def term(stage: Stage) -> None:
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    stage.expect("bye")
    stage.until_ended(within_s=END_S)


@case(
    "drain.code",
    Level.FULL,
    "After SIGTERM the worker exits with code 0",
    "15.1",
    strength="should",
    fresh=True,
)
def code(stage: Stage) -> None:
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    code = stage.until_ended(within_s=END_S)
    if code != 0:
        raise RuleBroken(f"the exit code is {code}")


@case(
    "drain.int", Level.FULL, "SIGINT drains as SIGTERM does", "SDK_GUIDE 11", fresh=True, cause=TERM, strength="should"
)
def interrupt(stage: Stage) -> None:
    stage.may_end = True
    stage.signal(signal.SIGINT)
    stage.expect("bye")
    stage.until_ended(within_s=END_S)


@case(
    "drain.second_int",
    Level.FULL,
    "A second SIGINT ends the worker at once",
    "SDK_GUIDE 11",
    needs="conform.wait",
    fresh=True,
    strength="should",
    lasts_s=2,
)
def second_interrupt(stage: Stage) -> None:
    _running(stage, 60_000)
    stage.may_end = True
    stage.signal(signal.SIGINT)
    stage.wait(0.5)
    stage.signal(signal.SIGINT)
    code = stage.until_ended(within_s=END_S)
    if code != 130:
        raise RuleBroken(f"the exit code is {code}, and 130 is usual")


@case(
    "drain.running",
    Level.FULL,
    "A draining worker finishes its running steps, and ends when their results are acknowledged",
    "15.1",
    needs="conform.wait",
    fresh=True,
    lasts_s=2,
    cause="SIGTERM ends the process while steps run",
)
def running(stage: Stage) -> None:
    batch = _running(stage)
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    result = batch.result()
    if result["status"] != "completed" or result["output"]["stopped"] is not None:
        raise RuleBroken(f"a drain must not stop a run at once: {result!r}")
    stage.until_ended(within_s=END_S)


@case(
    "drain.queued",
    Level.FULL,
    "A draining worker refuses its unstarted steps as `draining`",
    "15.1",
    needs="conform.limited",
    fresh=True,
    lasts_s=2,
    cause="queued steps are run before the end, or forgotten",
)
def queued(stage: Stage) -> None:
    first, second = stage.queued(ms=1_500)
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    second.refused("draining")
    for item in first.items:
        stage.result_of(item)
    stage.until_ended(within_s=END_S)


@case(
    "drain.new",
    Level.FULL,
    "A draining worker refuses steps that arrive as `draining`",
    "10 and 15.1",
    needs=("conform.wait", "conform.echo"),
    fresh=True,
    lasts_s=2,
)
def new(stage: Stage) -> None:
    first = _running(stage)
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    stage.expect("bye")
    stage.steps(stage.step("conform.echo", {})).refused("draining")
    first.result()
    stage.until_ended(within_s=END_S)


@case(
    "drain.outbox",
    Level.FULL,
    "A draining worker does not end before its results are acknowledged",
    "15.1",
    needs="conform.wait",
    fresh=True,
    lasts_s=4,
    cause="the process ends when nothing runs, and the last results are lost",
)
def outbox(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = _running(stage, 600)
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    rid = batch.message()["rid"]
    stage.wait(1.5)
    if stage.running.exit_code() is not None:
        raise RuleBroken("the program ended although no broker has acknowledged its results")
    stage.broker.acks_results = True
    stage.ack([rid])
    stage.until_ended(within_s=END_S)


@case(
    "drain.no_credit",
    Level.FULL,
    "A draining worker offers no credit",
    "15.1",
    needs="conform.wait",
    fresh=True,
    lasts_s=2,
)
def no_credit(stage: Stage) -> None:
    batch = _running(stage)
    stage.may_end = True
    stage.signal(signal.SIGTERM)
    stage.expect("bye")
    beat = stage.expect("heartbeat", where=lambda m: m.at_s > stage.seen("bye")[0].at_s)
    if beat["free"].get("b1"):
        raise RuleBroken(f"a draining worker offers {beat['free']!r}")
    batch.result()
    stage.until_ended(within_s=END_S)


@case(
    "drain.quit",
    Level.FULL,
    "`heartbeat_ack` with `quit` orders a drain, and the end",
    "6 and 15.1",
    fresh=True,
    cause="`quit` in a `heartbeat_ack` is ignored",
)
def quit_order(stage: Stage) -> None:
    stage.may_end = True
    stage.broker.ack_members = {"quit": True}
    stage.expect("bye")
    stage.until_ended(within_s=END_S)


@case(
    "drain.lingers",
    Level.FULL,
    "The last messages of a worker that ends are delivered: LINGER is 2000 ms at the end",
    "20",
    needs="conform.big",
    transport="tcp",  # over ipc, libzmq drops what it has not read when the other side closes
    lasts_s=5,
    cause="LINGER is 0 when the sockets are closed, or the process ends without closing them",
)
def lingers(stage: Stage) -> None:
    broker = stage.broker
    stage.end_program()
    broker.close()
    stage.forget_sessions()
    broker.open(hwm=1, receive_buffer=16_384)
    stage.start()
    stage.until_session(within_s=25)
    beat = stage.expect("heartbeat", where=lambda m: bool(m["sessions"]))
    stage.may_end = True
    broker.reads_results = False  # nothing is read, so the messages pile up at the worker
    stage.steps(*[stage.step("conform.big", {"bytes": 1_000_000}) for _ in range(LINGERING)])
    stage.wait(0.8)
    stage.ack(list(range(1, LINGERING + 1)))
    stage.ack_heartbeat(beat, quit=True)
    stage.wait(0.5)
    # A worker lingers for 2 s, so these frames are read at once, and looked at later.
    last = [frame for frame in broker.read_raw(LAST_S) if len(frame) < SMALL_BYTES]
    if not any(json.loads(frame.partition(b" ")[2])["type"] == "bye" for frame in last):
        raise RuleBroken("no `bye` arrived: it was sent while much was still to be sent")
    broker.reads_results = True
    stage.until_ended(within_s=END_S)


@case(
    "drain.overdue",
    Level.FULL,
    "A run that ignores everything ends the drain late, but does not prevent the end: after 25 s runs are asked"
    " to stop, and 2 s later the worker ends",
    "15.1 and SDK_GUIDE 11",
    needs="conform.wait",
    fresh=True,
    lasts_s=29,
    strength="should",
    cause="the program waits for its handlers for ever",
)
def overdue(stage: Stage) -> None:
    _running(stage, 120_000)
    stage.may_end = True
    began_s = time.monotonic()
    stage.signal(signal.SIGTERM)
    stage.until_ended(within_s=40)
    if time.monotonic() - began_s < 15:
        raise RuleBroken(f"the run was ended {time.monotonic() - began_s:.1f} s after SIGTERM, and 25 s are given")


@case(
    "drain.overdue_quit",
    Level.FULL,
    "The same limit holds after `quit`",
    "15.1 and SDK_GUIDE 11",
    needs="conform.wait",
    fresh=True,
    lasts_s=29,
    strength="should",
    cause="the limit of a drain is set by the signal only",
)
def overdue_quit(stage: Stage) -> None:
    _running(stage, 120_000)
    stage.may_end = True
    stage.broker.ack_members = {"quit": True}
    stage.until_ended(within_s=40)


@case(
    "quiet.order",
    Level.FULL,
    "While `heartbeat_ack` has `quiet`, the worker offers this broker no credit; without it, credit returns",
    "6",
    cause="`quiet` is ignored, or lasts for ever",
)
def quiet(stage: Stage) -> None:
    stage.broker.ack_members = {"quiet": True}
    stage.wait(0.5)
    stage.drop_seen()
    stage.expect("heartbeat", where=lambda m: m["free"].get("b1") == 0, what="`heartbeat` with free 0")
    stage.broker.ack_members = {}
    stage.expect("heartbeat", where=lambda m: m["free"].get("b1", 0) > 0, what="`heartbeat` with credit")


@case(
    "quiet.still_runs",
    Level.FULL,
    "Steps that arrive at a quiet worker all the same are accepted and run",
    "6 and 15.1",
    needs="conform.echo",
    cause="`quiet` is taken for a drain",
)
def quiet_runs(stage: Stage) -> None:
    stage.broker.ack_members = {"quiet": True}
    stage.wait(0.5)
    stage.run("conform.echo", {})
    stage.broker.ack_members = {}
    stage.expect("heartbeat", where=lambda m: m["free"].get("b1", 0) > 0)


@case(
    "quiet.tstp",
    Level.FULL,
    "On SIGTSTP the worker only offers no credit",
    "SDK_GUIDE 11",
    fresh=True,
    strength="should",
    cause="SIGTSTP is not handled: it stops the process",
)
def tstp(stage: Stage) -> None:
    stage.signal(signal.SIGTSTP)
    stage.wait(0.5)
    stage.drop_seen()
    stage.expect("heartbeat", where=lambda m: m["free"].get("b1") == 0, what="`heartbeat` with free 0", within_s=6)


@case(
    "rebuild.silent",
    Level.FULL,
    "After 15 s without `welcome` or `heartbeat_ack`, the worker disconnects and connects both endpoints again",
    "20",
    fresh=True,
    lasts_s=19,
    cause="a silent connection is kept for ever: after a refused handshake libzmq never retries by itself",
)
def rebuild(stage: Stage) -> None:
    broker = stage.broker
    broker.acks_heartbeats = broker.welcomes = False
    before = dict(broker.greeted)
    stage.until(
        lambda: all(broker.greeted[name] > before[name] for name in before),
        "new connection to both endpoints of a silent broker",
        within_s=24,
    )
    broker.welcomes = broker.acks_heartbeats = True
    stage.forget_sessions()
    stage.until_session()
