"""Workers over HTTP under faults: killed, suspended, a third of their answers lost, and the broker killed.

The judge reads the result.

    python -m tests.system.chaos_polling --seed 1 --faults 10 --tasks 200
"""

import argparse
import random
import sys
import time

from tests.checker import Verdict, judge, page

from .harness import Program, Site, eventually, workflow

LEASE_MS = 1_500
WORKERS = 3
LOST = 0.3


def run(seed: int, faults: int, tasks: int) -> Verdict:
    chance = random.Random(seed)
    settings = {
        "bus.lease_ms": LEASE_MS,
        "bus.heartbeat_ms": LEASE_MS // 10,
        "bus.lost_sessions_max": 50,  # workers are killed at random here, not by the steps they run
        "execution.default_executor": "poll",
    }
    with Site(settings=settings) as site:
        site.start_broker()
        busy = {"handler_config": {"work_ms": 60}}
        once = {"delivery_mode": "at_most_once"}
        after = {"depends_on": ["a"]}
        site.apply(
            workflow("busy", {"name": "a", **busy}, {"name": "b", **busy, **once}, {"name": "c", **busy, **after})
        )
        workers = [start(site, i, chance) for i in range(WORKERS)]
        site.recorded_client().submit_many_until_stored("busy", [f"k{i}" for i in range(tasks)])
        for _ in range(faults):
            time.sleep(chance.random() * LEASE_MS / 1000)
            i = chance.randrange(WORKERS)
            match chance.choice(("broker", "kill", "kill", "stop")):
                case "broker":
                    assert site.broker is not None
                    site.broker.kill9()
                    site.start_broker()
                case "kill":
                    workers[i].kill9()
                    workers[i] = start(site, i, chance)
                case _:
                    workers[i].pause()
                    time.sleep(chance.choice((0.2, 1.5)) * LEASE_MS / 1000)
                    workers[i].go_on()
        eventually(lambda: is_settled(site), "only held steps to be left", 120)
        return judge(site.database, site.ledgers, all_ended=False, lease_ms=LEASE_MS)


def start(site: Site, number: int, chance: random.Random) -> Program:
    module = [sys.executable, "-m", "tests.system.poll_worker", str(site.directory), f"p{number}", site.url]
    argv = [*module, "--loses", str(LOST), "--seed", str(chance.randrange(2**31))]
    return site._start("worker", f"worker-p{number}-{len(site.programs)}", argv, {})


def is_settled(site: Site) -> bool:
    answers = [site.ask("GET", f"/v1/steps?state={state}&limit=1") for state in ("ready", "dispatched", "retry_wait")]
    return all(answer.status == 200 and not answer.body["steps"] for answer in answers)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    failed_seeds = 0
    for seed in range(options.seed, options.seed + options.count):
        verdict = run(seed, options.faults, options.tasks)
        print(f"seed {seed}: {verdict}", flush=True)
        if verdict.violations:
            failed_seeds += 1
            print(page(verdict), flush=True)
    return min(failed_seeds, 1)


if __name__ == "__main__":
    sys.exit(main())
