"""Three brokers under load while the server crashes for ever and its standby takes over.

    python -m tests.several.failover synchronous      # nothing that was acknowledged is lost, and the brokers go on
    python -m tests.several.failover lost             # the standby lacks the last seconds of commits

With lost commits, every lane must stop and say so. Then the brokers end, `stepwire db accept-loss` is run, the brokers
start again, and the load goes on. No step that is declared at_most_once may be started twice, and no id may be used
twice; tasks whose commits were lost are counted.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.checker import page
from tests.postgres.server import PostgresServer
from tests.postgres.standby import PRIMARY, StandbyServer
from tests.system.harness import eventually
from tests.system.ledger import read

from .brokers import BOUND_S, Brokers, Shape
from .load import Load
from .workers import WORKFLOWS, configuration, start_bus_worker, start_level0_handler, start_poll_worker

LOAD_S: Final = 15.0
LAG_S: Final = 5.0


def begin(brokers: Brokers) -> None:
    brokers.configure(configuration(brokers.first.ledgers))
    brokers.start()
    brokers.await_shares()
    for _, definition in WORKFLOWS.values():
        brokers.first.apply(definition)
    for number in range(2):
        start_bus_worker(brokers, f"w{number}", 30)
    for number in range(len(brokers.all)):
        start_poll_worker(brokers, number, 6)
    start_level0_handler(brokers)
    for broker in brokers:
        eventually(lambda broker=broker: len(broker.site.workers()) >= 2 or None, "workers at every broker", BOUND_S)  # type: ignore[misc]


def synchronous(options: argparse.Namespace) -> dict[str, Any]:
    shape = Shape(lease_ms=4_000, worker_lease_ms=5_000)
    with (
        PostgresServer(PRIMARY) as primary,
        StandbyServer(primary, is_synchronous=True) as standby,
        Brokers(primary, shape, standby.failover_url()) as brokers,
    ):
        begin(brokers)
        load = Load(brokers, options.seed, options.rate, 12, 600)
        time.sleep(LOAD_S)
        before = load.acknowledged
        began_s = time.monotonic()
        standby.take_over()
        brokers.go_on_at(standby)
        eventually(lambda: load.acknowledged > before + 20 or None, "further tasks", BOUND_S)
        again_s = time.monotonic() - began_s
        time.sleep(LOAD_S)
        load.stop()
        eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", BOUND_S)
        for broker in brokers:
            broker.assert_running()
        changes = {broker.id: len(broker.logged("database_timeline_changed")) for broker in brokers}
        stops = {broker.id: len(broker.logged("lane_stopped")) for broker in brokers}
        verdict = brokers.judge()
    if verdict.violations:
        print(page(verdict))
    return {
        "acknowledged": load.acknowledged,
        "acknowledged_before": before,
        "accepted_again_after_s": round(again_s, 1),
        "timeline_changes_logged": changes,
        "lanes_stopped": stops,
        "figures": verdict.figures,
        "violations": [str(each) for each in verdict.violations],
        "failed": bool(verdict.violations),
    }


def lost(options: argparse.Namespace) -> dict[str, Any]:
    shape = Shape(lease_ms=4_000, worker_lease_ms=5_000)
    with (
        PostgresServer(PRIMARY) as primary,
        StandbyServer(primary) as standby,
        Brokers(primary, shape, standby.failover_url()) as brokers,
    ):
        begin(brokers)
        load = Load(brokers, options.seed, options.rate, 12, 600)
        time.sleep(LOAD_S)
        standby.catch_up()
        standby.lag()
        time.sleep(LAG_S)
        before = load.acknowledged
        standby.take_over()
        brokers.go_on_at(standby)
        lanes = {f"lost_commits in lane {lane}" for lane in range(1, shape.lanes + 1)}

        def named() -> bool | None:
            """Every lane is named as stopped by some broker."""
            found: set[str] = set()
            for broker in brokers:
                answer = broker.ask("GET", "/readyz")
                found |= set(answer.body.get("reasons", ())) if isinstance(answer.body, dict) else set()
            return lanes <= found or None

        eventually(named, "every lane to stop and to say so", BOUND_S)
        stops = sum(len(broker.logged("lane_stopped")) for broker in brokers)
        refused = brokers.first.administer("db", "accept-loss", "--yes")
        for broker in brokers:
            broker.kill9()
        accepted = brokers.first.administer("db", "accept-loss", "--yes")
        assert accepted.returncode == 0, accepted
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.await_listening()
        brokers.await_shares()
        after = load.acknowledged
        eventually(lambda: load.acknowledged > after + 20 or None, "further tasks", BOUND_S)
        time.sleep(LOAD_S)
        load.stop()
        eventually(lambda: brokers.open_tasks() == 0 or None, "every task to end", BOUND_S)
        stored = {int(row[0]) for row in standby.sql("SELECT id FROM several.tasks")}
        ((held,),) = standby.sql("SELECT count(*) FROM several.steps WHERE state = 'held'")
        lines = read(brokers.first.ledgers)
    once = Counter(
        (line["task_id"], line["step"])
        for line in lines
        if line["event"] == "started" and line.get("mode") == "at_most_once"
    )
    twice = [step for step, count in once.items() if count > 1]
    acknowledged: dict[int, set[str]] = {}
    for line in lines:
        if line["event"] == "acknowledged":
            acknowledged.setdefault(line["task_id"], set()).add(line["key"])
        elif line["event"] == "acknowledged_many":
            for task_id, key in zip(line["task_ids"], line["keys"], strict=True):
                acknowledged.setdefault(task_id, set()).add(key)
    reused = [task_id for task_id, keys in acknowledged.items() if len(keys) > 1]
    return {
        "acknowledged": len(acknowledged),
        "acknowledged_before": before,
        "acknowledged_and_lost": len(acknowledged.keys() - stored),
        "lanes_stopped": stops,
        "accept_loss_beside_live_brokers": refused.returncode,
        "held": held,
        "at_most_once_started": len(once),
        "at_most_once_started_twice": len(twice),
        "ids_used_twice": len(reused),
        "failed": bool(twice or reused or refused.returncode == 0),
    }


KINDS: Final = {"synchronous": synchronous, "lost": lost}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"settings: {json.dumps({**vars(options), 'json': None})}", flush=True)
    found = {"settings": {**vars(options), "json": None}, **KINDS[options.kind](options)}
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(found["failed"])


if __name__ == "__main__":
    sys.exit(main())
