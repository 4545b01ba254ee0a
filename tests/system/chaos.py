"""A campaign: processes are killed under continuous load, cycle after cycle, and the judge reads the result.

    python -m tests.system.chaos --seed 7 --cycles 100
    python -m tests.system.chaos --seed 7 --cycles 100 --faults broker,commit,worker,pause,freeze --lease-ms 2500

Every cycle waits until enough deliveries are in flight, then injects one of the chosen faults. `broker` kills the
broker at any moment, `commit` just before or just after a COMMIT. `worker` kills a worker and starts another. `pause`
suspends a worker past its lease, `freeze` the broker. With `--postgres`, `server` crashes the server of the database.
Clients repeat every submission until it is acknowledged. At the end all tasks have time to finish. Every broken promise
is printed, and the exit code is then 1.
"""

import argparse
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from tests.checker import Verdict, judge, page

from .harness import END_BOUND_S, Program, Site, Stuck, eventually, workflow
from .ledger import now_ns

FAULTS: Final = ("broker", "commit", "worker", "pause", "freeze", "server")
CYCLE_BOUND_S: Final = 60.0
SETTLE_BOUND_S: Final = 120.0
TASKS_AT_ONCE: Final = 8
SPREAD_MS: Final = 300  # a kill comes at a random moment within this time from the start of its cycle
COMMITS_MAX: Final = 40  # a broker killed at a commit has written at most this many groups


class Campaign(NamedTuple):
    seed: int
    cycles: int
    faults: tuple[str, ...] = ("broker",)
    in_flight: int = 100
    workers: int = 2
    slots: int = 80
    clients: int = 4
    lease_ms: int = 10_000
    transport: str = "ipc"
    backlog: int = 400  # maximum number of open tasks
    command: tuple[str, ...] = ()  # a worker program in any language that offers `conform.book`; (): the tests' own


class Cycle(NamedTuple):
    fault: str
    in_flight: int
    ready_s: float  # from the start of the next broker until it is ready
    down_s: float


def mixed(name: str, handler_class: str = "system.work") -> dict[str, Any]:
    """Return a workflow of some hundreds of milliseconds, with an at_most_once step and a step that fails once."""
    steps: list[dict[str, Any]] = [
        {"name": "take", "handler_config": {"work_ms": 150}},
        {"name": "pay", "depends_on": ["take"], "handler_config": {"work_ms": 250}, "delivery_mode": "at_most_once"},
        {
            "name": "pack",
            "depends_on": ["take"],
            "handler_config": {"work_ms": 100, "failures": 1},
            "backoff": {"kind": "constant", "base_ms": 50, "jitter": "none"},
        },
        {"name": "ship", "depends_on": ["pay", "pack"], "handler_config": {"work_ms": 200}},
    ]
    return workflow(name, *({"handler_class": handler_class, **step} for step in steps))


def run(
    site: Site, campaign: Campaign, report: Callable[[str], None], *, until_s: float = math.inf
) -> tuple[Verdict, list[Cycle]]:
    """Run the campaign: all its cycles, or as many as begin before `until_s`, a time of the monotonic clock. Afterwards
    every acknowledged task has ended; otherwise Stuck is raised."""
    chance = random.Random(campaign.seed)
    is_faulty = "commit" in campaign.faults
    site.start_broker(with_faults=is_faulty)
    site.apply(mixed("mixed", "conform.book" if campaign.command else "system.work"))
    workers = [_start_worker(site, f"w{i}", campaign) for i in range(campaign.workers)]
    load = Load(site, campaign.clients, campaign.backlog)
    cycles: list[Cycle] = []
    try:
        for number in range(campaign.cycles):
            if time.monotonic() >= until_s:
                break
            fault = chance.choice(campaign.faults)
            try:
                in_flight = eventually(
                    lambda: _in_flight(site, campaign), f"{campaign.in_flight} deliveries in flight", CYCLE_BOUND_S
                )
            except Stuck as error:
                raise Stuck(f"{error}; {_situation(site, load)}") from None
            time.sleep(chance.random() * SPREAD_MS / 1000)
            done = _FAULTS[fault](site, workers, chance, campaign)
            cycles.append(Cycle(fault, in_flight, *done))
            report(
                f"cycle {number + 1}: {fault}, {in_flight} in flight, {load.acknowledged} tasks acknowledged"
                + (f", ready again after {done[0]:.2f} s" if done[0] else "")
            )
    finally:
        load.stop()
    eventually(lambda: open_tasks(site) == 0 or None, "every task to end", SETTLE_BOUND_S)
    return judge(site.database, site.ledgers, lease_ms=campaign.lease_ms), cycles


class Load:
    """Clients that submit tasks, a few at a time, while few enough are open, and repeat each until acknowledged.

    On a busy machine, clients that submitted one task at a time would be slower than the broker that ends the tasks.
    """

    def __init__(self, site: Site, clients: int, backlog: int) -> None:
        self._site = site
        self._backlog = backlog
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(clients, "client")
        self.acknowledged = 0
        self._lock = threading.Lock()
        self._futures = [self._threads.submit(self._submit, i) for i in range(clients)]

    def stop(self) -> None:
        self._is_over.set()
        self._threads.shutdown()
        for future in self._futures:
            future.result()

    def _submit(self, client: int) -> None:
        recorded = self._site.recorded_client()
        number = 0
        while not self._is_over.is_set():
            if open_tasks(self._site) > self._backlog:
                self._is_over.wait(0.02)
                continue
            keys = [f"c{client}-{number + i}" for i in range(TASKS_AT_ONCE)]
            recorded.submit_many_until_acknowledged("mixed", keys, {"n": number}, CYCLE_BOUND_S)
            number += len(keys)
            with self._lock:
                self.acknowledged += len(keys)


Done = tuple[float, float]


def _kill_broker(site: Site, workers: list[Program], chance: random.Random, campaign: Campaign) -> Done:
    assert site.broker is not None
    site.broker.kill9()
    return _start_again(site, campaign)


def _kill_at_commit(site: Site, workers: list[Program], chance: random.Random, campaign: Campaign) -> Done:
    assert site.broker is not None
    order = site.faults / chance.choice(["kill_before", "kill_after"])
    order.write_text(str(chance.randrange(COMMITS_MAX)))
    site.broker.wait(END_BOUND_S)
    order.unlink(missing_ok=True)
    return _start_again(site, campaign)


def _start_again(site: Site, campaign: Campaign) -> Done:
    down_ns = now_ns()
    broker = site.start_broker(with_faults="commit" in campaign.faults)
    ready_ns = now_ns()
    return (ready_ns - broker.started_ns) / 1e9, (ready_ns - down_ns) / 1e9


def _kill_worker(site: Site, workers: list[Program], chance: random.Random, campaign: Campaign) -> Done:
    index = chance.randrange(len(workers))
    workers[index].kill9()
    workers[index] = _start_worker(site, f"w{len(site.programs)}", campaign)
    return 0.0, 0.0


def _start_worker(site: Site, name: str, campaign: Campaign) -> Program:
    if campaign.command:
        return site.start_other_worker(name, campaign.command, slots=campaign.slots)
    return site.start_worker(name, slots=campaign.slots, prefetch=20)


def _pause_worker(site: Site, workers: list[Program], chance: random.Random, campaign: Campaign) -> Done:
    _stop_past_the_lease(chance.choice(workers), chance, campaign)
    return 0.0, 0.0


def _freeze_broker(site: Site, workers: list[Program], chance: random.Random, campaign: Campaign) -> Done:
    """Suspend the broker past a lease: it receives nothing, although no worker is silent."""
    assert site.broker is not None
    _stop_past_the_lease(site.broker, chance, campaign)
    return 0.0, 0.0


def _stop_past_the_lease(program: Program, chance: random.Random, campaign: Campaign) -> None:
    program.pause()
    time.sleep(campaign.lease_ms * (1.1 + chance.random() / 2) / 1000)
    program.go_on()


def _crash_server(site: Site, workers: list[Program], chance: random.Random, campaign: Campaign) -> Done:
    """Crash the server of the database, which then recovers. Only a site with a server has this fault."""
    down_ns = now_ns()
    site.crash_server()
    return 0.0, (now_ns() - down_ns) / 1e9


_FAULTS: Final = {
    "broker": _kill_broker,
    "commit": _kill_at_commit,
    "worker": _kill_worker,
    "pause": _pause_worker,
    "freeze": _freeze_broker,
    "server": _crash_server,
}


def _in_flight(site: Site, campaign: Campaign) -> int | None:
    """The number of deliveries in flight, once they are enough, or as many tasks are open as may be."""
    holding = sum(worker["holding"] for worker in site.workers())
    if holding >= campaign.in_flight or (holding and open_tasks(site) >= campaign.backlog):
        return holding
    return None


def _situation(site: Site, load: Load) -> str:
    """Where the tasks are, and what the broker knows of the workers."""
    where = ("waiting", "ready", "dispatched", "retry_wait", "held")
    steps = {state: site.number(f"SELECT count(*) FROM steps WHERE state = '{state}'") for state in where}  # noqa: S608
    holding = {worker["worker"]: worker["holding"] for worker in site.workers()}
    readiness = site.ask("GET", "/readyz").body
    return f"{open_tasks(site)} open tasks, {load.acknowledged} acknowledged, steps {steps}, {holding}, {readiness}"


def open_tasks(site: Site) -> int:
    """Count the open tasks. A task that waits for a held step will not end by itself and is not counted."""
    return int(site.number("SELECT count(*) FROM tasks WHERE finished_ms IS NULL AND attention IS NULL"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--faults", default="broker", help=f"comma-separated, from {','.join(FAULTS)}")
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=80)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--backlog", type=int, default=400)
    parser.add_argument("--lease-ms", type=int, default=10_000)
    parser.add_argument("--transport", choices=["ipc", "tcp"], default="ipc")
    parser.add_argument("--postgres", action="store_true", help="store the state on a server of the campaign's own")
    options = parser.parse_args()
    faults = tuple(options.faults.split(","))
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"--faults: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    members = {name: value for name, value in vars(options).items() if name in Campaign._fields}
    campaign = Campaign(**{**members, "faults": faults})
    settings = {"bus.lease_ms": campaign.lease_ms, "bus.heartbeat_ms": campaign.lease_ms // 5}
    began = time.monotonic()
    with _site(options, settings) as site:
        try:
            verdict, cycles = run(site, campaign, lambda text: print(text, flush=True))
        except (Stuck, AssertionError) as error:
            print(f"seed {campaign.seed}: {error}")
            print(page(judge(site.database, site.ledgers, lease_ms=campaign.lease_ms, all_ended=False)))
            for name, text in site.transcripts():
                print(f"--- {name}\n{text}")
            sys.exit(1)
        ready_s = sorted(cycle.ready_s for cycle in cycles if cycle.ready_s)
        if ready_s:
            print(f"ready again after {ready_s[len(ready_s) // 2]:.2f} s (median), {ready_s[-1]:.2f} s (longest)")
        print(f"seed {campaign.seed}, {len(cycles)} cycles in {time.monotonic() - began:.0f} s: {verdict}")
        if verdict.violations:
            print(page(verdict))
        sys.exit(bool(verdict.violations))


@contextmanager
def _site(options: argparse.Namespace, settings: dict[str, Any]) -> Iterator[Site]:
    if not options.postgres:
        with Site(options.transport, settings) as site:
            yield site
        return
    from tests.postgres.server import PostgresServer
    from tests.postgres.site import PostgresSite

    with PostgresServer() as server, PostgresSite(server, "chaos", settings) as site:
        yield site


if __name__ == "__main__":
    main()
