"""Many more open steps than the broker may hold in memory: all complete, and its memory stays bounded.

python -m tests.system.memory --steps 200000 --active 1000
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.checker import Verdict, judge, the_history_replays

from .chaos import open_tasks
from .harness import Program, Site, eventually, workflow

STEPS_A_TASK: Final = 10
TASKS_A_BATCH: Final = 2_000
RUN_BOUND_S: Final = 600.0

WIDE: Final = workflow("wide", *({"name": f"s{i}", "handler_class": "system.quick"} for i in range(STEPS_A_TASK)))


class Measured(NamedTuple):
    submitted_s: float
    ran_s: float
    before_bytes: int  # when all tasks are submitted and none runs
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"submitted in {self.submitted_s:.1f} s, ran in {self.ran_s:.1f} s; "
            f"broker {self.before_bytes / 1e6:.0f} MB with all of them open, {self.peak_bytes / 1e6:.0f} MB at its peak"
        )


def settings(active_tasks: int) -> dict[str, int]:
    return {"limits.max_active_tasks": active_tasks}


def run(site: Site, steps: int, report: Callable[[str], None]) -> Measured:
    broker = site.start_broker()
    site.apply(WIDE)
    client = site.recorded_client()
    began = time.monotonic()
    tasks = steps // STEPS_A_TASK
    for start in range(0, tasks, TASKS_A_BATCH):
        keys = [f"k{i}" for i in range(start, min(tasks, start + TASKS_A_BATCH))]
        client.submit_many_until_stored("wide", keys)
    submitted_s = time.monotonic() - began
    before = broker.rss_bytes()
    began = time.monotonic()
    site.start_worker("quick", slots=100, prefetch=400, is_synced=False)
    eventually(lambda: _all_ended(site, broker, report), "every task to end", RUN_BOUND_S)
    return Measured(submitted_s, time.monotonic() - began, before, broker.rss_peak_bytes())


def _all_ended(site: Site, broker: Program, report: Callable[[str], None]) -> bool:
    left = open_tasks(site)
    report(f"{left} tasks open, broker {broker.rss_bytes() / 1e6:.0f} MB")
    time.sleep(0.1)  # counting them is work for the same disk
    return left == 0


def verdict_of(site: Site, *, is_replayed: bool) -> Verdict:
    return judge(site.database, site.ledgers, without=() if is_replayed else (the_history_replays,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--active", type=int, default=1_000)
    options = parser.parse_args()
    with Site(settings=settings(options.active)) as site:
        print(run(site, options.steps, lambda text: print(f"\r{text}   ", end="", file=sys.stderr, flush=True)))
        verdict = verdict_of(site, is_replayed=True)
        print(verdict)
    sys.exit(bool(verdict.violations))


if __name__ == "__main__":
    main()
