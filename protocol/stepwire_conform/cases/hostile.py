"""Hardened: lost, doubled and late messages, a broker that never acknowledges, a process that is stopped."""

import os
import random
import signal
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from stepwire_conform.account import Account
from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.program import descendants_of, resident_bytes
from stepwire_conform.stage import Stage

STEPS_HOSTILE: Final = 12
HOSTILE_S: Final = 30.0
STEPS_MANY: Final = 100_000
MANY_S: Final = 45.0
STEPS_MIN: Final = 20_000
BATCH_MANY: Final = 50
IN_FLIGHT: Final = 8
GROWTH_MAX_BYTES: Final = 48 * 1024 * 1024


class _Weather:
    """A connection with faults: some frames are lost, doubled or held back. The seed makes the faults repeatable."""

    def __init__(self, seed: int, *, lost: float = 0.0, doubled: float = 0.0, late: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._lost = lost
        self._doubled = doubled
        self._late = late
        self._held: deque[bytes] = deque()
        self.is_over = False

    def __call__(self, broker: str, frame: bytes) -> Iterable[bytes]:
        if self.is_over:
            held, self._held = list(self._held), deque()
            return [*held, frame]
        if self._random.random() < self._lost:
            return []
        if self._random.random() < self._late:
            self._held.append(frame)
            return []
        frames = [frame, frame] if self._random.random() < self._doubled else [frame]
        if self._held and self._random.random() < 0.5:
            frames.append(self._held.popleft())
        return frames


def _through(stage: Stage, outgoing: _Weather, incoming: _Weather, *, mode: str = "at_least_once") -> None:
    """Send steps through bad weather. As a broker does, send each again until it is answered, and dispatch a refused
    one once more."""
    stage.watch.allows_lost_order = True
    stage.broker.grants = mode == "at_most_once"
    stage.outgoing_filter, stage.incoming_filter = outgoing, incoming
    steps = [stage.step("conform.echo", {"number": i}, delivery_mode=mode) for i in range(STEPS_HOSTILE)]
    batches = {step["step_id"]: stage.steps(step) for step in steps}
    until_s = time.monotonic() + HOSTILE_S * stage.setting.patience
    open_steps = steps
    while open_steps and time.monotonic() < until_s:
        stage.wait(0.4)
        answered = {r["step_id"] for m in stage.seen("results") for r in m["results"]}
        refused = {(item[0], item[1]) for m in stage.seen("refuse") for item in m["items"]}
        open_steps = [step for step in steps if step["step_id"] not in answered]
        for step in open_steps:
            if (step["step_id"], step["delivery"]) in refused:
                step["delivery"] += 1
                batches[step["step_id"]] = stage.steps(step)
            else:
                batches[step["step_id"]].again()
    outgoing.is_over = incoming.is_over = True
    if open_steps:
        missing = [step["step_id"] for step in open_steps]
        raise RuleBroken(f"{len(missing)} of {len(steps)} steps have no result after {HOSTILE_S:g} s: {missing[:5]!r}")
    _expect_one_result_each(stage, steps)


def _expect_one_result_each(stage: Stage, steps: list[dict[str, Any]]) -> None:
    results: dict[int, dict[int, Any]] = {}
    for message in stage.seen("results"):
        for result in message["results"]:
            results.setdefault(result["step_id"], {})[message["rid"]] = result
    for step in steps:
        own = list(results[step["step_id"]].values())
        if len(own) > 1:
            raise RuleBroken(f"step {step['step_id']} has {len(own)} results: {own!r}")
        if own[0].get("output") != step["task_context"]:
            raise RuleBroken(f"step {step['step_id']} with {step['task_context']!r} gave {own[0]!r}")


_EVERY_CAUSE: Final = "a message that was lost is not sent again, or one that came twice is taken twice"


@case(
    "hostile.loss",
    Level.HARDENED,
    "With one frame in four lost, in both directions, every step is answered once",
    "1 and 22",
    needs="conform.echo",
    fresh=True,
    lasts_s=8,
    cause=_EVERY_CAUSE,
)
def loss(stage: Stage) -> None:
    _through(stage, _Weather(1, lost=0.25), _Weather(2, lost=0.25))


@case(
    "hostile.doubled",
    Level.HARDENED,
    "With every frame doubled, in both directions, every step runs once",
    "1 and 22",
    needs="conform.echo",
    fresh=True,
    lasts_s=5,
    cause=_EVERY_CAUSE,
)
def doubled(stage: Stage) -> None:
    _through(stage, _Weather(3, doubled=1.0), _Weather(4))


@case(
    "hostile.late",
    Level.HARDENED,
    "With one frame in three late and out of order, every step is answered once",
    "1 and 22",
    needs="conform.echo",
    fresh=True,
    lasts_s=8,
    cause=_EVERY_CAUSE,
)
def late(stage: Stage) -> None:
    _through(stage, _Weather(5, late=0.33), _Weather(6, late=0.33))


@case(
    "hostile.everything",
    Level.HARDENED,
    "With loss, duplicates and delay together, at_most_once steps run once",
    "12 and 22",
    needs="conform.echo",
    fresh=True,
    lasts_s=12,
    cause=_EVERY_CAUSE,
)
def everything(stage: Stage) -> None:
    _through(
        stage,
        _Weather(7, lost=0.15, doubled=0.3, late=0.15),
        _Weather(8, lost=0.15, doubled=0.0, late=0.15),
        mode="at_most_once",
    )


@case(
    "hostile.never_ack",
    Level.HARDENED,
    "A broker that never acknowledges results gets them again at growing intervals, up to 5 s, and no storm",
    "10 and 11",
    needs="conform.echo",
    fresh=True,
    lasts_s=12,
    cause="the interval does not double, or results are sent without a pause",
)
def never_ack(stage: Stage) -> None:
    stage.broker.acks_results = False
    batch = stage.steps(stage.step("conform.echo", {}))
    rid = batch.message()["rid"]
    stage.wait(10.0)
    own = [copy for copy in stage.watch.copies[rid] if copy.topic == "results@b1 "]
    if len(own) < 3:
        raise RuleBroken(f"the results were sent {len(own)} times in 10 s without an ack")
    if len(own) > 9:
        raise RuleBroken(f"the results were sent {len(own)} times in 10 s; 500 ms, doubling to 5 s, gives 5")
    stage.ack([rid])


@case(
    "hostile.stopped",
    Level.HARDENED,
    "A process that was stopped for three leases drops its session before it does anything else: waiting steps never"
    " start, and the running one reports in a new session",
    "8.3 (W1)",
    needs="conform.limited",
    fresh=True,
    auto=False,
    lasts_s=10,
    cause="messages are processed before the lease is checked, or the clock stops with the process",
)
def stopped(stage: Stage) -> None:
    stage.broker.lease_ms = 1_500
    stage.open_session()
    first, second = stage.queued(ms=2_500)
    for pid in (stage.running.pid, *descendants_of(stage.running.pid)):
        _signal(pid, signal.SIGSTOP)
    stage.wait(4.5)
    late = stage.steps(stage.step("conform.limited", {"ms": 1}))
    for pid in (stage.running.pid, *descendants_of(stage.running.pid)):
        _signal(pid, signal.SIGCONT)
    stage.expect("hello", where=lambda m: m["next"].get("b1") == 2)
    for item in first.items:
        stage.result_of(item)
    stage.nothing(
        "results",
        for_s=1.0,
        where=lambda m: m["batch_id"] in (second.id, late.id),
        why="the session was over when the process was stopped",
    )


@case(
    "hostile.restarts",
    Level.HARDENED,
    "Over eight restarts of the broker in a row, every step is answered once and nothing runs twice",
    "14 and 22",
    needs=("conform.wait", "conform.echo"),
    fresh=True,
    lasts_s=8,
    cause="a new epoch while the last session opens confuses the worker",
)
def restarts(stage: Stage) -> None:
    waiting = stage.steps(*[stage.step("conform.wait", {"ms": 3_000}) for _ in range(2)])
    stage.until_holding(waiting.items[1], "running")
    for number in range(8):
        stage.broker.close()
        stage.wait(0.1 + 0.1 * (number % 3))
        stage.broker.epoch += 1
        stage.forget_sessions()
        stage.broker.open()
        stage.wait(0.2 * (number % 4))
    stage.until_session(number=1)
    for item in waiting.items:
        if stage.result_of(item)["status"] != "completed":
            raise RuleBroken(f"{list(item)} did not complete")
    stage.run("conform.echo", {})


@case(
    "hostile.many",
    Level.HARDENED,
    "100,000 steps leave the memory of the worker flat",
    "10 (the floor)",
    needs="conform.echo",
    fresh=True,
    lasts_s=45,
    cause="finished items, results or tombstones are kept without a limit",
)
def many(stage: Stage) -> None:
    stage.note_frames = False
    done, half, memory_half = _many(stage)
    memory = resident_bytes(_pid(stage))
    growth = memory - memory_half
    if done < STEPS_MIN:
        raise RuleBroken(f"{done} steps in {MANY_S:g} s: too slow to judge the memory")
    if growth > GROWTH_MAX_BYTES:
        raise RuleBroken(
            f"{memory_half >> 20} MiB after {half} steps, and {memory >> 20} MiB after {done}:"
            f" {growth // (done - half)} bytes for each further step"
        )


def _many(stage: Stage) -> tuple[int, int, int]:
    """Send steps as fast as the worker's credit allows. Returns the steps done, and steps and memory at the half."""
    done = half = memory_half = 0
    account = Account(stage.expect("heartbeat", where=lambda m: "b1" in m["free"])["free"]["b1"])
    until_s = time.monotonic() + MANY_S
    while done < STEPS_MANY and time.monotonic() < until_s:
        while count := min(BATCH_MANY, IN_FLIGHT * BATCH_MANY - account.open, account.usable):
            account.sent(stage.steps(*[stage.step("conform.echo", {"n": i}) for i in range(count)]))
        stage.pump(0.2)
        for message in stage.inbox:
            is_again = message.kind == "results" and stage.watch.copies[message["rid"]][0] is not message
            if not is_again:
                done += account.heard(message)
        stage.inbox.clear()
        stage.watch.forget(keep=20 * IN_FLIGHT * BATCH_MANY)
        if not half and done >= STEPS_MANY * 2 // 5:
            half, memory_half = done, resident_bytes(_pid(stage))
    if not half:
        half, memory_half = done, resident_bytes(_pid(stage))
    return done, half, memory_half


def _pid(stage: Stage) -> int:
    hello = stage.watch.hello
    pid: int = hello.get("pid", 0) if hello is not None else 0
    return pid or stage.running.pid


@case(
    "fork.connection",
    Level.HARDENED,
    "When the worker's process dies, its connections end, also while its children live: they never inherit the"
    " descriptors of its sockets",
    "4 and 15.3",
    fresh=True,
    lasts_s=2,
    cause="handler processes are forked with the sockets open: a dead worker looks alive until its lease is over",
)
def connection(stage: Stage) -> None:
    if stage.setting.has("conform.echo"):
        stage.run("conform.echo", {})
    stage.may_end = True
    stage.broker.unsubscriptions.clear()
    _signal(_pid(stage), signal.SIGKILL)
    stage.until(lambda: bool(stage.broker.unsubscriptions), "end of the dead worker's connection", within_s=8)


@case(
    "fork.orphans",
    Level.HARDENED,
    "With `proof`, no process of the worker outlives it",
    "15.3",
    fresh=True,
    lasts_s=3,
    cause="`proof` is true although handler processes outlive the worker: set it to false",
)
def orphans(stage: Stage) -> None:
    hello = stage.watch.hello
    if hello is None or not hello.get("proof"):
        return  # the lease decides
    if stage.setting.has("conform.wait"):
        batch = stage.steps(stage.step("conform.wait", {"ms": 30_000}))
        stage.until_holding(batch.item, "running")
    children = descendants_of(_pid(stage))
    stage.may_end = True
    _signal(_pid(stage), signal.SIGKILL)
    stage.until(lambda: not any(_is_alive(pid) for pid in children), "end of the worker's children", within_s=6)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
