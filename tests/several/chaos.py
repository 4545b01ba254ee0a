"""A campaign: three brokers, workers of every kind, clients of all brokers, and faults of every kind at random times.

    python -m tests.several.chaos --seed 1 --seconds 600 --rate 40 --json FILE

The server of PostgreSQL is crashed (`pg_ctl stop -m immediate`) every 5 to 40 s. Meanwhile, brokers are killed,
suspended past their lease, asked to end, and cut off from the server in one direction or both. Workers are killed and
suspended, backends are terminated, COMMITs and their answers are lost or come late, and a transaction keeps old rows
from being removed. At the end all faults stop, every task must end, and the judge compares the rows with the ledgers of
clients and handlers. The exit code is 1 if a promise was broken or a task did not end.
"""

import argparse
import contextlib
import faulthandler
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import psycopg

from tests.checker import Verdict, page
from tests.postgres.proxy import Direction, Plan
from tests.postgres.server import PostgresServer
from tests.system.harness import Program, Stuck, eventually

from .brokers import Broker, Brokers, Shape
from .load import Load
from .workers import (
    WORKFLOWS,
    configuration,
    start_bus_worker,
    start_level0_handler,
    start_poll_worker,
)

SETTLE_BOUND_S: Final = 240.0
OWNERS_EVERY_S: Final = 0.5
CRASH_AFTER_S: Final = 5.0  # at least, since the last start
OUTAGES_LEASES: Final = (0.0, 0.0, 0.0, 0.2, 0.6, 1.6)  # how long the server stays away, in leases of the brokers
PLANS: Final[tuple[Plan, ...]] = ("lose_answer", "lose_commit", "hold", "mute")
CUTS: Final[tuple[tuple[Direction, ...], ...]] = (("to_server",), ("to_client",), ("to_server", "to_client"))

Fault = Literal["kill", "end", "freeze", "cut", "backends", "commit", "worker", "pause", "loop"]
# How often each fault is chosen, relative to the others.
WEIGHTS: Final[dict[Fault, int]] = {
    "kill": 8,
    "end": 1,
    "freeze": 2,
    "cut": 4,
    "backends": 3,
    "commit": 6,
    "worker": 2,
    "pause": 2,
    "loop": 1,
}


class Campaign(NamedTuple):
    seed: int
    seconds: float
    rate: float
    clients: int
    backlog: int
    fault_every_s: float
    lanes: int
    lease_ms: int
    worker_lease_ms: int
    crashes_server: bool
    crash_most_s: float


class Chaos:
    """The faults of one run. Each of them has ended when its method returns, but for brokers that start again."""

    def __init__(self, brokers: Brokers, campaign: Campaign) -> None:
        self.brokers = brokers
        self.campaign = campaign
        self.counts: Counter[str] = Counter()
        self.is_over = threading.Event()
        self.workers = [start_bus_worker(brokers, f"w{i}", 30) for i in range(2)]
        self.pollers = [start_poll_worker(brokers, i, 6) for i in range(len(brokers.all))]
        self.loop = start_level0_handler(brokers)
        self._names = 0
        self._busy: set[str] = set()  # brokers with a fault that lasts
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(self._fault_after_fault,))]
        self._threads += [threading.Thread(target=self._guarded, args=(self._hold_xmin,))]
        self._threads += [threading.Thread(target=self._guarded, args=(self._record_owners,))]
        if campaign.crashes_server:
            self._threads.append(threading.Thread(target=self._guarded, args=(self._crash_again_and_again,)))
        self._lasting: list[threading.Thread] = []

    def run(self, report: Callable[[str], None]) -> None:
        for thread in self._threads:
            thread.start()
        until_s = time.monotonic() + self.campaign.seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self._errors:
            time.sleep(min(30.0, left_s))
            report(f"{self.campaign.seconds - left_s:.0f} s: {dict(self.counts)}")
        self.is_over.set()
        for thread in (*self._threads, *self._lasting):
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._errors.append(error)
            raise

    # -- the server ---------------------------------------------------------------------------------------------------

    def _crash_again_and_again(self) -> None:
        chance = random.Random(f"{self.campaign.seed}/server")
        while not self.is_over.wait(chance.uniform(CRASH_AFTER_S, self.campaign.crash_most_s)):
            self.brokers.stop_server()
            self.counts["server crashed"] += 1
            away = chance.choice(OUTAGES_LEASES)
            if away > 1:
                self.counts["server away for longer than a lease"] += 1
            self.is_over.wait(away * self.campaign.lease_ms / 1000)
            self.brokers.start_server()

    def _record_owners(self) -> None:
        """Record the owner of each lane, for the judge, as soon as it has changed."""
        known: dict[int, str | None] = {}
        while not self.is_over.wait(OWNERS_EVERY_S):
            with contextlib.suppress(psycopg.OperationalError):
                known = self.brokers.record_owners(known)

    def _hold_xmin(self) -> None:
        """Keep a transaction with a snapshot open. A crash of the server ends it, and another one begins."""
        while not self.is_over.is_set():
            with contextlib.suppress(psycopg.OperationalError), self.brokers.server.connect() as holder:
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT txid_current()")
                self.counts["transactions that held xmin"] += 1
                while not self.is_over.wait(1.0):
                    holder.execute("SELECT 1")
            self.is_over.wait(0.5)

    # -- brokers and workers ------------------------------------------------------------------------------------------

    def _fault_after_fault(self) -> None:
        chance = random.Random(f"{self.campaign.seed}/faults")
        faults = list(WEIGHTS)
        weights = list(WEIGHTS.values())
        while not self.is_over.wait(chance.expovariate(1 / self.campaign.fault_every_s)):
            (fault,) = chance.choices(faults, weights)
            private = random.Random(chance.random())
            if fault in ("kill", "end", "freeze", "cut", "commit"):
                self._on_broker(fault, private)
            else:
                _ON_OTHERS[fault](self, private)

    def _on_broker(self, fault: Fault, chance: random.Random) -> None:
        """Begin a fault of a broker that has none. Meanwhile, other faults may hit the other brokers."""
        with self._lock:
            free = [broker for broker in self.brokers if broker.id not in self._busy]
            if not free:
                return
            broker = chance.choice(free)
            self._busy.add(broker.id)

        def last() -> None:
            _ON_BROKER[fault](self, broker, chance)
            with self._lock:
                self._busy.discard(broker.id)

        thread = threading.Thread(target=self._guarded, args=(last,))
        self._lasting.append(thread)
        thread.start()

    def kill(self, broker: Broker, chance: random.Random) -> None:
        broker.kill9()
        self.counts["brokers killed"] += 1
        self._start_again(broker, chance.choice((0.0, 0.0, 3.0, 12.0)))

    def end(self, broker: Broker, chance: random.Random) -> None:
        broker.ask_to_end()
        self.counts["brokers asked to end"] += 1
        broker.await_end()
        self._start_again(broker, chance.choice((0.0, 3.0)))

    def _start_again(self, broker: Broker, after_s: float) -> None:
        """Start the broker. It ends by itself if the server is away, and is then started again."""
        self.is_over.wait(after_s)
        broker.start()
        deadline_s = time.monotonic() + SETTLE_BOUND_S
        while "\n" not in broker.program.stdout:
            if not broker.is_running:
                self.counts["starts that failed"] += 1
                text = broker.program.stderr
                assert time.monotonic() < deadline_s, text
                assert "Traceback" not in text, text
                time.sleep(1.0)
                broker.start()
            time.sleep(0.05)

    def freeze(self, broker: Broker, chance: random.Random) -> None:
        """Suspend the broker, mostly past its lease."""
        broker.pause()
        self.counts["brokers suspended"] += 1
        time.sleep(self.campaign.lease_ms / 1000 * chance.choice((0.6, 1.3, 1.6)))
        broker.go_on()
        time.sleep(2.0)
        broker.assert_running()

    def cut(self, broker: Broker, chance: random.Random) -> None:
        """Let nothing pass between the broker and the server, in one direction or both."""
        assert broker.proxy is not None
        directions = chance.choice(CUTS)
        broker.site.fault("cut", broker.program)
        broker.proxy.silence(*directions)
        self.counts[f"cuts {' and '.join(directions)}"] += 1
        time.sleep(chance.choice((1.0, 3.0, self.campaign.lease_ms / 1000 * 1.4)))
        broker.proxy.heal()
        broker.site.fault("healed", broker.program)
        time.sleep(1.0)
        broker.assert_running()

    def cut_commit(self, broker: Broker, chance: random.Random) -> None:
        """Cut the connection at a COMMIT."""
        assert broker.proxy is not None
        plan = chance.choice(PLANS)
        broker.proxy.plan(plan)
        self.counts[f"COMMITs: {plan}"] += 1
        if plan == "hold":
            held_s = time.monotonic() + chance.choice((0.5, 3.0, 8.0))
            while time.monotonic() < held_s or (not broker.proxy.commits_held and time.monotonic() < held_s + 5):
                time.sleep(0.1)
            with contextlib.suppress(OSError, AssertionError):  # the server may have crashed meanwhile
                broker.proxy.release()

    def terminate_backends(self, chance: random.Random) -> None:
        broker = chance.choice(self.brokers.all)
        with contextlib.suppress(psycopg.OperationalError):
            ended = self.brokers.server.terminate_backends(f"stepwire {broker.id} %")
            self.counts["backends terminated"] += ended

    def kill_worker(self, chance: random.Random) -> None:
        if chance.random() < 0.6:
            index = chance.randrange(len(self.workers))
            self.workers[index].kill9()
            self._names += 1
            self.workers[index] = start_bus_worker(self.brokers, f"k{self._names}", 30)
        else:
            index = chance.randrange(len(self.pollers))
            self.pollers[index].kill9()
            self.pollers[index] = start_poll_worker(self.brokers, index, 6)
        self.counts["workers killed"] += 1

    def pause_worker(self, chance: random.Random) -> None:
        worker: Program = chance.choice([*self.workers, *self.pollers])
        worker.pause()
        self.counts["workers suspended"] += 1
        time.sleep(self.campaign.worker_lease_ms / 1000 * chance.choice((0.3, 1.2)))
        worker.go_on()

    def kill_loop(self, chance: random.Random) -> None:
        self.loop.kill9()
        self.loop = start_level0_handler(self.brokers)
        self.counts["level-0 handlers killed"] += 1


_ON_BROKER: Final[dict[Fault, Callable[[Chaos, Broker, random.Random], None]]] = {
    "kill": Chaos.kill,
    "end": Chaos.end,
    "freeze": Chaos.freeze,
    "cut": Chaos.cut,
    "commit": Chaos.cut_commit,
}
_ON_OTHERS: Final[dict[Fault, Callable[[Chaos, random.Random], None]]] = {
    "backends": Chaos.terminate_backends,
    "worker": Chaos.kill_worker,
    "pause": Chaos.pause_worker,
    "loop": Chaos.kill_loop,
}


class Outcome(NamedTuple):
    verdict: Verdict
    counts: dict[str, int]
    acknowledged: int
    tries_failed: int
    settled_s: float  # from the end of the faults to the end of the last task
    events: dict[str, int]  # of the brokers' logs


LOGGED: Final = ("lane_taken", "lane_lost", "broker_died", "broker_dark", "broker_not_dark", "worker_lost")


def run(brokers: Brokers, campaign: Campaign, report: Callable[[str], None]) -> Outcome:
    brokers.configure(configuration(brokers.first.ledgers))
    brokers.start()
    brokers.await_shares()
    for _, definition in WORKFLOWS.values():
        brokers.first.apply(definition)
    chaos = Chaos(brokers, campaign)
    for broker in brokers:
        eventually(lambda broker=broker: len(broker.site.workers()) >= 2 or None, "workers at every broker", 60.0)  # type: ignore[misc]
    load = Load(brokers, campaign.seed, campaign.rate, campaign.clients, campaign.backlog)
    try:
        chaos.run(report)
    finally:
        chaos.is_over.set()
        load.stop()
    healed_s = time.monotonic()
    eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", SETTLE_BOUND_S)
    settled_s = time.monotonic() - healed_s
    for broker in brokers:
        broker.assert_running()
    events = Counter[str]()
    for broker in brokers:
        for path in (broker.site.directory / "logs").glob("broker-*.err"):
            with path.open(errors="replace") as lines:
                events.update(name for line in lines for name in LOGGED if f'"{name}"' in line)
    return Outcome(brokers.judge(), dict(chaos.counts), load.acknowledged, load.tries_failed, settled_s, dict(events))


def document(campaign: Campaign, outcome: Outcome, took_s: float) -> dict[str, Any]:
    return {
        "settings": campaign._asdict(),
        "took_s": round(took_s, 1),
        "violations": [str(each) for each in outcome.verdict.violations],
        "figures": outcome.verdict.figures,
        "faults": outcome.counts,
        "acknowledged": outcome.acknowledged,
        "tries_failed": outcome.tries_failed,
        "settled_s": round(outcome.settled_s, 1),
        "events": outcome.events,
    }


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # where a run that does not end waits
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0, help="tasks a second")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--backlog", type=int, default=600, help="the largest number of open tasks")
    parser.add_argument("--fault-every-s", type=float, default=3.0)
    parser.add_argument("--lanes", type=int, default=6)
    parser.add_argument("--lease-ms", type=int, default=4_000, help="of the brokers")
    parser.add_argument("--worker-lease-ms", type=int, default=5_000)
    parser.add_argument("--no-crashes", dest="crashes_server", action="store_false", help="the server keeps running")
    parser.add_argument("--crash-most-s", type=float, default=40.0, help="the longest time between two crashes")
    parser.add_argument("--json", type=Path, help="write settings and figures to this file")
    parser.add_argument("--keep", type=Path, help="copy ledgers and logs to this new directory if a promise was broken")
    options = vars(parser.parse_args())
    keep: Path | None = options.pop("keep")
    to_file: Path | None = options.pop("json")
    campaign = Campaign(**options)
    print(f"settings: {json.dumps(campaign._asdict())}", flush=True)
    shape = Shape(
        lanes=campaign.lanes, lease_ms=campaign.lease_ms, worker_lease_ms=campaign.worker_lease_ms, is_proxied=True
    )
    began_s = time.monotonic()
    with PostgresServer() as server, Brokers(server, shape) as brokers:
        try:
            outcome = run(brokers, campaign, lambda text: print(text, flush=True))
            if outcome.verdict.violations and keep is not None:
                brokers.copy_to(keep)
        except (Stuck, AssertionError) as error:
            if keep is not None:
                brokers.copy_to(keep)
            print(f"seed {campaign.seed}: {error}")
            print(page(brokers.judge(all_ended=False)))
            for name, text in brokers.transcripts():
                print(f"--- {name}\n{text}")
            return 1
    found = document(campaign, outcome, time.monotonic() - began_s)
    print(json.dumps(found, indent=1))
    if to_file is not None:
        to_file.write_text(json.dumps(found, indent=1) + "\n")
    if outcome.verdict.violations:
        print(page(outcome.verdict))
    print(f"seed {campaign.seed}, {found['took_s']} s: {outcome.verdict}")
    return int(bool(outcome.verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
