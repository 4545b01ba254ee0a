"""How soon the lanes of a broker have a new owner, and its steps are dispatched again, after it ends in some way.

    python -m tests.several.takeover kill --count 50               # kill -9; the others see that the process has ended
    python -m tests.several.takeover kill --count 50 --apart       # kill -9 in another pid namespace: the lease decides
    python -m tests.several.takeover term --count 50               # SIGTERM
    python -m tests.several.takeover pause --count 3 --pause-s 60  # SIGSTOP: what the broker sends when it wakes

Each round, tasks are submitted to one of three brokers, which then ends. Their steps run, and go on meanwhile; the next
steps are dispatched by the new owner. At the end, the ledgers show whether a step ran twice.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from tests.checker import page
from tests.postgres.server import PostgresServer
from tests.system.harness import RecordedClient, eventually, workflow
from tests.system.ledger import now_ns, read

from .brokers import BOUND_S, SCHEMA, Broker, Brokers, Shape

RUNNING: Final = 4  # steps that run while their broker ends
CHAINS: Final = 4  # tasks whose next steps the new owner dispatches
LINKS: Final = 60
SLOTS: Final = 20
LOOK_S: Final = 0.01
HEARD_S: Final = 5.0  # after a suspended broker goes on


class Round(NamedTuple):
    owner_ms: float  # from the signal until other brokers own all lanes of the broker
    dispatch_ms: float  # from the signal until a worker has begun a step that the new owner has dispatched


def chain(name: str) -> dict[str, Any]:
    """A workflow of short steps, one after the other."""
    steps = [
        {"name": f"s{i}", "depends_on": [f"s{i - 1}"] if i else [], "handler_config": {"work_ms": 100}}
        for i in range(LINKS)
    ]
    return workflow(name, *steps)


class Scene:
    """Three brokers with one worker, and rounds."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self._ledger = brokers.ledger("client")
        self._rounds = 0

    def begin(self) -> None:
        self.brokers.start()
        self.brokers.start_worker("all", "--slots", str(SLOTS), "--prefetch", "0")
        self.await_sessions()
        self.brokers.await_shares()
        self.brokers.first.apply(chain("chain"))

    def await_sessions(self) -> None:
        for broker in self.brokers:
            eventually(lambda broker=broker: broker.site.workers() or None, "a session with each broker", BOUND_S)  # type: ignore[misc]

    def round(self, victim: Broker, end: Callable[[Broker], int]) -> Round:
        """End the broker while steps of it run. Returns when the others have dispatched again."""
        number, self._rounds = self._rounds, self._rounds + 1
        site, lanes = victim.site, self.brokers.lanes_of(victim.id)
        once = {"handler_config": {"gate": f"gate{number}"}, "delivery_mode": "at_most_once"}
        site.apply(workflow(f"long{number}", {"name": "only", **once}))
        door = RecordedClient(site, self._ledger)
        tasks = door.submit_many_until_stored(f"long{number}", [f"long{number}-{i}" for i in range(RUNNING)], BOUND_S)
        tasks += door.submit_many_until_stored("chain", [f"chain{number}-{i}" for i in range(CHAINS)], BOUND_S)
        eventually(lambda: set(tasks) <= {run["task_id"] for run in self._started()} or None, "the runs", BOUND_S)
        at = end(victim)
        owned_at = self._await_new_owners(victim, lanes)
        dispatched_at = eventually(lambda: self._first_after(owned_at, set(tasks)), "a dispatch", BOUND_S)
        site.open_gate(f"gate{number}")
        self.brokers.first.open_gate(f"gate{number}")
        return Round((owned_at - at) / 1e6, (dispatched_at - at) / 1e6)

    def _started(self) -> list[dict[str, Any]]:
        return self.brokers.first.runs("started")

    def _first_after(self, owned_at: int, tasks: set[int]) -> int | None:
        return next((run["at"] for run in self._started() if run["at"] > owned_at and run["task_id"] in tasks), None)

    def _await_new_owners(self, victim: Broker, lanes: list[int]) -> int:
        query = f"SELECT count(*) FROM {SCHEMA}.lanes WHERE id = ANY(%s) AND (owner IS NULL OR owner = %s)"  # noqa: S608
        deadline_s = time.monotonic() + BOUND_S
        with self.brokers.server.connect() as connection:
            while True:
                row = connection.execute(query.encode(), (lanes, victim.id)).fetchone()
                if row is not None and row[0] == 0:
                    return now_ns()
                assert time.monotonic() < deadline_s, f"lanes {lanes} of {victim.id} have no new owner"
                time.sleep(LOOK_S)


def kill(scene: Scene, victim: Broker, options: argparse.Namespace) -> Round:
    taken = scene.round(victim, Broker.kill9)
    victim.start()
    return taken


def term(scene: Scene, victim: Broker, options: argparse.Namespace) -> Round:
    taken = scene.round(victim, Broker.ask_to_end)
    victim.await_end()
    victim.start()
    return taken


def pause(scene: Scene, victim: Broker, options: argparse.Namespace) -> Round:
    """Suspend the broker, and print what it does when it goes on."""
    taken = scene.round(victim, Broker.pause)
    time.sleep(max(0.0, options.pause_s - taken.dispatch_ms / 1000))
    woken_at = victim.go_on()
    time.sleep(HEARD_S)
    heard = [
        line
        for line in read(scene.brokers.first.ledgers, "wire-")
        if line["event"] == "heard" and line["broker"] == victim.id
    ]
    later = [(round((line["at"] - woken_at) / 1e6), line["type"]) for line in heard if line["at"] > woken_at]
    print(f"{victim.id}: ms after it went on, message: {later[:12]}")
    known = [name for name in ("broker_dark", "broker_not_dark", "lane_lost") if victim.logged(name)]
    print(f"{victim.id}: log: {known}, lanes lost: {len(victim.logged('lane_lost'))}")
    return taken


ENDS: Final = {"kill": kill, "term": term, "pause": pause}


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    cuts = quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 99
    return {"p50": round(cuts[49]), "p99": round(cuts[98]), "longest": round(ordered[-1])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("end", choices=sorted(ENDS))
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--lease-ms", type=int, default=2_000, help="of the brokers")
    parser.add_argument("--worker-lease-ms", type=int, default=5_000)
    parser.add_argument("--apart", action="store_true", help="no broker sees the end of another's process")
    parser.add_argument("--pause-s", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"settings: {json.dumps({**vars(options), 'json': None})}", flush=True)
    shape = Shape(lease_ms=options.lease_ms, worker_lease_ms=options.worker_lease_ms, is_apart=options.apart)
    rounds: list[Round] = []
    with PostgresServer() as server, Brokers(server, shape) as brokers:
        scene = Scene(brokers)
        scene.begin()
        for number in range(options.count):
            victim = brokers[number % len(brokers.all)]
            rounds.append(ENDS[options.end](scene, victim, options))
            victim.await_listening()
            scene.await_sessions()
            brokers.await_shares()
            print(f"round {number + 1}: {victim.id}, {rounds[-1]}", flush=True)
        eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", BOUND_S)
        verdict = brokers.judge()
    found = {
        "settings": {**vars(options), "json": None},
        "owner_ms": summary([each.owner_ms for each in rounds]),
        "dispatch_ms": summary([each.dispatch_ms for each in rounds]),
        "rounds": rounds,
        "started_again": verdict.figures["started again"],
        "held": verdict.figures["held"],
        "violations": [str(each) for each in verdict.violations],
    }
    print(json.dumps({**found, "rounds": len(rounds)}))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if verdict.violations:
        print(page(verdict))
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
