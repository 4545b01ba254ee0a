"""One broker, one conformance worker of each SDK, a steady load: the memory of each worker must not grow.

    python -m tests.languages.soak --seconds 3600 --rate 30

Each task has three steps of `conform.echo`, and a worker of each SDK gets its turn. The memory of each process is
sampled every 5 s. The report compares the median of the last tenth of the run with that of the tenth that begins at a
sixth of it (after 10 minutes of an hour); growth above GROWTH_MAX fails.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.system.chaos import open_tasks
from tests.system.harness import Program, Site, eventually, workflow

from .sdks import SDKS, Sdk

GROWTH_MAX: Final = 0.05
# V8 collects the old generation first when it is many times larger than what is in use, which takes more than an hour
# of this load. With these options it collects when 16 MB are full, or a tenth more than after the last collection.
V8_OPTIONS: Final = ("--initial-old-space-size=16", "--heap-growing-percent=10")
YOUNG_OPTIONS: Final = ("--min-semi-space-size=16", "--max-semi-space-size=16")  # as bin/conform has them
SAMPLE_S: Final = 5.0
OPEN_MAX: Final = 2_000
BATCH: Final = 10


class Sample(NamedTuple):
    at_s: float
    rss_bytes: dict[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=30.0, help="tasks a second")
    parser.add_argument("--langs", default=",".join(SDKS), help="comma-separated")
    options = parser.parse_args()
    chosen = [SDKS[name] for name in options.langs.split(",")]
    with Site("tcp") as site:
        site.start_broker()
        site.apply(_three_steps())
        workers = {sdk.name: site.start_other_worker(f"soak-{sdk.name}", _command(sdk), slots=4) for sdk in chosen}
        load = Load(site, options.rate)
        try:
            samples = _sample(workers, options.seconds)
        finally:
            load.stop()
        eventually(lambda: open_tasks(site) == 0 or None, "every task to end", 120.0)
        by_worker = {w["worker"].partition(":")[0]: w["completed"] for w in site.workers()}
    print(f"{load.submitted:,} tasks of three steps in {options.seconds:.0f} s")
    grown = [name for name in workers if not _report(name, samples, by_worker.get(f"soak-{name}", 0))]
    sys.exit(bool(grown))


def _command(sdk: Sdk) -> Sequence[str]:
    if sdk.name == "node":
        return ("node", *V8_OPTIONS, *YOUNG_OPTIONS, str(sdk.folder / "bin/conform.js"))
    return sdk.conform


def _three_steps() -> dict[str, object]:
    echo = {"handler_class": "conform.echo"}
    return workflow("soak", {"name": "a", **echo}, {"name": "b", "depends_on": ["a"], **echo}, {"name": "c", **echo})


class Load:
    """Submits tasks at a steady rate, while few enough are open."""

    def __init__(self, site: Site, rate: float) -> None:
        self.submitted = 0
        self._site = site
        self._pause_s = BATCH / rate
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)

    def _run(self) -> None:
        client = self._site.client()
        next_s = time.monotonic()
        while not self._is_over.is_set():
            next_s += self._pause_s
            if open_tasks(self._site) < OPEN_MAX:
                client.submit_many([{"workflow": "soak", "context": {"n": self.submitted + i}} for i in range(BATCH)])
                self.submitted += BATCH
            self._is_over.wait(max(0.0, next_s - time.monotonic()))


def _sample(workers: dict[str, Program], seconds: float) -> list[Sample]:
    began = time.monotonic()
    samples = []
    while (at_s := time.monotonic() - began) < seconds:
        for worker in workers.values():
            assert worker.is_running, f"{worker.name} ended:\n{worker.stderr[-3000:]}"
        samples.append(Sample(at_s, {name: worker.rss_bytes() for name, worker in workers.items()}))
        time.sleep(min(SAMPLE_S, seconds / 40))
    return samples


def _report(name: str, samples: list[Sample], completed: int) -> bool:
    """Print one line. True if the memory did not grow by more than GROWTH_MAX."""
    end_s = samples[-1].at_s
    early = [s.rss_bytes[name] for s in samples if end_s / 6 <= s.at_s < end_s / 6 + end_s / 10]
    late = [s.rss_bytes[name] for s in samples if s.at_s >= end_s * 0.9]
    before, after = statistics.median(early), statistics.median(late)
    growth = after / before - 1
    print(f"{name:<7} {before / 1e6:7.1f} MB -> {after / 1e6:7.1f} MB  {growth:+.1%}  {completed:,} steps")
    return growth <= GROWTH_MAX


if __name__ == "__main__":
    main()
