"""A campaign: many seeds on several processes, added up. Parts from other days or machines can be merged."""

import functools
import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from .driven import DriverCommand, Drivers
from .world import Report, World

CHUNK: Final = 20
PROGRESS_EVERY: Final = 2_000
COLLECT_EVERY: Final = 10

_since_collected = 0


class Broken(msgspec.Struct, frozen=True):
    """A seed that broke a promise, and the faults that suffice to reproduce it (None: not shrunk)."""

    seed: int
    violation: str
    kept: list[str] | None = None


class Sum(msgspec.Struct):
    session: str = "python"  # of the workers
    always: list[str] = []  # kinds of faults that every seed had
    brokers: int = 1  # of every seed
    commits: list[str] = []
    ranges: list[tuple[int, int]] = []  # first seed and count; set when the campaign has ended
    seeds: int = 0
    violations: list[Broken] = []
    counted: dict[str, dict[str, int]] = {}
    figures: dict[str, int] = {}
    events: int = 0
    simulated_ms: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        return Counter({(what, which): n for what, of in self.counted.items() for which, n in of.items()})

    @property
    def faults(self) -> int:
        return sum(self.counted.get("fault", {}).values())

    @property
    def is_whole(self) -> bool:
        """Every seed of its ranges is counted; a campaign that was cut short is not whole."""
        return self.seeds == sum(count for _, count in self.ranges) > 0

    def _count(self, what: str, which: str, n: int) -> None:
        of = self.counted.setdefault(what, {})
        of[which] = of.get(which, 0) + n

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.events += report.events
        self.simulated_ms += report.simulated_ms
        self.cpu_seconds += report.cpu_s
        for (what, which), n in report.counts.items():
            self._count(what, which, n)
        for kind, n in report.faults.items():
            self._count("fault", kind, n)
        for name, n in report.figures.items():
            self.figures[name] = self.figures.get(name, 0) + n

    def merge(self, other: "Sum") -> None:
        """Add another campaign. It must be whole, of the same session, and must not share a seed with this one."""
        if not other.is_whole:
            raise ValueError(f"the campaign of the seeds {other.ranges} was not ended: run it again")
        if self.ranges and other.session != self.session:
            raise ValueError(f"its workers have the session {other.session}, and those before {self.session}")
        if self.ranges and other.always != self.always:
            raise ValueError(f"its seeds always had the faults {other.always}, and those before {self.always}")
        if self.ranges and other.brokers != self.brokers:
            raise ValueError(f"its seeds had {other.brokers} brokers, and those before {self.brokers}")
        self.session, self.always, self.brokers = other.session, other.always, other.brokers
        for first, count in other.ranges:
            for ours, length in self.ranges:
                if first < ours + length and ours < first + count:
                    raise ValueError(f"the seeds from {max(first, ours)} are in two of the files")
        self.ranges = _joined(self.ranges + other.ranges)
        self.commits = list(dict.fromkeys(self.commits + other.commits))
        self.seeds += other.seeds
        self.violations += other.violations
        for what, of in other.counted.items():
            for which, n in of.items():
                self._count(what, which, n)
        for name, n in other.figures.items():
            self.figures[name] = self.figures.get(name, 0) + n
        self.events += other.events
        self.simulated_ms += other.simulated_ms
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds


def run(
    seeds: range,
    jobs: int,
    on_violation: Callable[[int, str], list[str] | None] | None = None,
    on_progress: Callable[[Sum], None] | None = None,
    driver: DriverCommand | None = None,
    always: frozenset[str] = frozenset(),
    brokers: int = 1,
) -> Sum:
    """Run the seeds. `on_violation` may return the faults that suffice to reproduce it; the campaign continues.

    `driver`: the session of the workers; None: Python's, in the process of the simulation. `always`: kinds of faults
    that every seed has. `brokers`: their number in every seed.
    """
    began = time.monotonic()
    total = Sum(session="python" if driver is None else driver.name, always=sorted(always), brokers=brokers)
    for report in _reports(seeds, jobs, functools.partial(run_seed, driver=driver, always=always, brokers=brokers)):
        total.add(report)
        if report.violation is not None:
            kept = None if on_violation is None else on_violation(report.seed, report.violation)
            total.violations.append(Broken(report.seed, report.violation, kept))
        if on_progress is not None and total.seeds % PROGRESS_EVERY == 0:
            total.seconds = time.monotonic() - began
            on_progress(total)
    total.seconds = time.monotonic() - began
    total.ranges = [(seeds.start, len(seeds))]
    return total


def run_seed(
    seed: int, driver: DriverCommand | None = None, always: frozenset[str] = frozenset(), brokers: int = 1
) -> Report:
    """Run one seed. The report leaves out the trace and the list of faults, which are long."""
    global _since_collected
    if gc.isenabled():
        gc.collect()
        gc.freeze()
        gc.disable()
    began = time.process_time()
    report = World(seed, drivers=_drivers(driver), always=always, brokers=brokers).run()
    _since_collected += 1
    if _since_collected >= COLLECT_EVERY:
        # All objects of a world refer to each other, so collecting pays only when a whole world is garbage.
        _since_collected = 0
        gc.collect()
    return report._replace(trace=[], fired=[], cpu_s=time.process_time() - began)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, count in sorted(ranges):
        if joined and sum(joined[-1]) == first:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        else:
            joined.append((first, count))
    return joined


@functools.cache
def _drivers(driver: DriverCommand | None) -> Drivers | None:
    """The processes of the driver that this process uses for all its seeds."""
    return None if driver is None else Drivers(driver)


def _reports(seeds: range, jobs: int, run_one: functools.partial[Report]) -> Iterator[Report]:
    if jobs == 1:
        try:
            yield from map(run_one, seeds)
        finally:
            gc.enable()
            drivers = _drivers(run_one.keywords["driver"])
            if drivers is not None:
                drivers.close()
        return
    # A process of the pool ends without a word, and its drivers end with their stdin.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_one, seeds, CHUNK)
