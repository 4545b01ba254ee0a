"""The search for planted bugs, and the table of the seeds that found them."""

import functools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation.world import World

from . import (
    audit_bugs,
    authority_bugs,
    broker_bugs,
    cluster_bugs,
    erasure_bugs,
    key_bugs,
    lane_bugs,
    order_bugs,
    quota_bugs,
    real_bugs,
    worker_bugs,
)
from .plant import Bug, planted

BUGS: Final = (
    *broker_bugs.BUGS,
    *worker_bugs.BUGS,
    *real_bugs.BUGS,
    *authority_bugs.BUGS,
    *audit_bugs.BUGS,
    *erasure_bugs.BUGS,
    *quota_bugs.BUGS,
    *key_bugs.BUGS,
    *cluster_bugs.BUGS,
    *lane_bugs.BUGS,
    *order_bugs.BUGS,
)
NOTED: Final = Path(__file__).parents[1] / "planted.json"  # by bug: the seed that found it when it was last noted


class Hunt(NamedTuple):
    """The result of the search for one bug."""

    name: str
    was_real: bool
    seed: int | None
    tried: int
    violation: str
    seconds: float


def hunt(bug: Bug, first: int, seeds: int, always: frozenset[str] = frozenset()) -> Hunt:
    """Search for the first seed that finds the bug. `always`: kinds of faults that every seed has."""
    began = time.monotonic()
    with planted(bug):
        for seed in range(first, first + seeds):
            report = World(seed, always=always | bug.always, brokers=bug.brokers).run()
            if report.violation is not None:
                took = time.monotonic() - began
                return Hunt(bug.name, bug.was_real, seed, seed - first + 1, report.violation, took)
    return Hunt(bug.name, bug.was_real, None, seeds, "", time.monotonic() - began)


def hunt_again(bug: Bug, seeds: int) -> Hunt:
    """Try the noted seed first: as long as nothing changed the run of that seed, it finds the bug at once."""
    noted = json.loads(NOTED.read_text()).get(bug.name)
    if noted is not None and (result := hunt(bug, noted, 1)).seed is not None:
        return result
    return hunt(bug, 0, seeds)


def hunt_all(
    first: int, seeds: int, jobs: int, only: str | None = None, always: frozenset[str] = frozenset()
) -> Iterator[Hunt]:
    """Search for every bug, from seed `first` on."""
    hunter = functools.partial(_hunt_numbered, always=always)
    yield from _on_processes(hunter, [(i, first, seeds) for i in _numbers(only)], jobs)


def hunt_all_again(seeds: int, jobs: int) -> Iterator[Hunt]:
    """Search for every bug that is not rare, with its noted seed first."""
    numbers = [i for i in _numbers(None) if not BUGS[i].is_rare]
    yield from _on_processes(_hunt_numbered_again, [(i, 0, seeds) for i in numbers], jobs)


def _numbers(only: str | None) -> list[int]:
    return [i for i, bug in enumerate(BUGS) if only is None or only in bug.name]


def _hunt_numbered(task: tuple[int, int, int], always: frozenset[str] = frozenset()) -> Hunt:
    number, first, seeds = task
    return hunt(BUGS[number], first, seeds, always)


def _hunt_numbered_again(task: tuple[int, int, int]) -> Hunt:
    number, _, seeds = task
    return hunt_again(BUGS[number], seeds)


def _on_processes(
    hunter: Callable[[tuple[int, int, int]], Hunt], tasks: list[tuple[int, int, int]], jobs: int
) -> Iterator[Hunt]:
    if jobs == 1:
        yield from map(hunter, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(hunter, tasks)


def report(
    first: int,
    seeds: int,
    jobs: int,
    only: str | None = None,
    notes: bool = False,
    always: frozenset[str] = frozenset(),
) -> int:
    """Print the table and, with `notes`, note the seeds for the tests. Return 1 if a bug was not found, else 0."""
    hunted = missed = 0
    noted = json.loads(NOTED.read_text()) if NOTED.exists() else {}
    print("| planted bug | found by seed no. | as |\n|---|---|---|")
    for each in hunt_all(first, seeds, jobs, only, always):
        hunted += 1
        missed += each.seed is None
        noted |= {each.name: each.seed} if each.seed is not None else {}
        number = f"not in {each.tried}" if each.seed is None else str(each.tried)
        real = " (was real)" if each.was_real else ""
        print(f"| {each.name}{real} | {number} | {each.violation.partition(':')[0]} |", flush=True)
    print(f"\n{hunted - missed} of {hunted} found")
    if notes:
        kept = {bug.name: noted[bug.name] for bug in BUGS if bug.name in noted}
        NOTED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return 1 if missed else 0
