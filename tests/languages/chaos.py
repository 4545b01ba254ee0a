"""A fault campaign against the conformance worker of an SDK; the judge of `tests/checker` reads the result.

    python -m tests.languages.chaos --lang go --seconds 300 --lease-ms 2500 --seed 7

Workers and the broker are killed with -9, or suspended past the lease, the next as soon as work flows again. At the end
all tasks have time to finish. Every broken promise is printed, and the exit code is then 1. A killed worker whose death
is provable must not delay its steps by more than AGAIN_MAX_S.
"""

import argparse
import sys
import time
from typing import Any, Final

from tests.checker import page
from tests.checker.judge import Verdict
from tests.system.chaos import Campaign, Cycle, run
from tests.system.harness import Site, Stuck
from tests.system.ledger import read

from .sdks import SDKS, Sdk

FAULTS: Final = ("broker", "worker", "pause", "freeze")
AGAIN_MAX_S: Final = 2.0
CYCLES_MAX: Final = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lang", choices=sorted(SDKS), required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="time in which faults are injected")
    parser.add_argument("--cycles", type=int, default=CYCLES_MAX, help="maximum number of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease-ms", type=int, default=2_500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=25)
    options = parser.parse_args()
    sys.exit(not campaign(SDKS[options.lang], options))


def campaign(sdk: Sdk, options: argparse.Namespace) -> bool:
    """Run one campaign. True if every promise was kept."""
    settings = {"bus.lease_ms": options.lease_ms, "bus.heartbeat_ms": options.lease_ms // 5}
    wanted = Campaign(
        seed=options.seed,
        cycles=options.cycles,
        faults=FAULTS,
        in_flight=options.in_flight,
        workers=options.workers,
        slots=options.slots,
        lease_ms=options.lease_ms,
        transport=sdk.transport,
        backlog=120,
        command=sdk.conform,
    )
    began = time.monotonic()
    with Site(sdk.transport, settings) as site:
        try:
            verdict, cycles = run(site, wanted, lambda text: print(text, flush=True), until_s=began + options.seconds)
        except (Stuck, AssertionError) as error:
            print(f"{sdk.name}, seed {options.seed}: {error}")
            for name, text in site.transcripts():
                print(f"--- {name}\n{text}")
            return False
        delays = again_after_s(read(site.ledgers, "worker-"), read(site.ledgers, "faults-"))
        return _report(sdk, options.seed, verdict, cycles, delays, time.monotonic() - began)


def again_after_s(runs: list[dict[str, Any]], faults: list[dict[str, Any]]) -> list[float]:
    """For each at_least_once step that ran on a worker when it was killed: the time from the kill to its next start."""
    delays = []
    for kill in (one for one in faults if one["event"] == "killed" and one["role"] == "worker"):
        open_runs: dict[int, dict[str, Any]] = {}
        for line in runs:
            if line["pid"] == kill["pid"] and line["at"] < kill["at"]:
                if line["event"] == "started":
                    open_runs[line["step_id"]] = line
                elif line["event"] in ("finished", "failed", "stopped"):
                    open_runs.pop(line["step_id"], None)
        for step_id, line in open_runs.items():
            if line["mode"] == "at_least_once":
                after = [r["at"] for r in runs if r["step_id"] == step_id and r["event"] == "started"]
                later = [at for at in after if at > kill["at"]]
                if later and not _is_disturbed(kill["at"], min(later), kill["pid"], faults):
                    delays.append((min(later) - kill["at"]) / 1e9)
    return delays


def _is_disturbed(since: int, until: int, pid: int, faults: list[dict[str, Any]]) -> bool:
    """Whether another fault happened in this time, which would explain a longer delay."""
    return any(
        since < one["at"] < until and one["pid"] != pid and one["event"] in ("killed", "paused", "resumed")
        for one in faults
    )


def _report(sdk: Sdk, seed: int, verdict: Verdict, cycles: list[Cycle], delays: list[float], took_s: float) -> bool:
    print(f"{sdk.name}, seed {seed}: {len(cycles)} faults in {took_s:.0f} s: {verdict}")
    slow = [delay for delay in delays if delay > AGAIN_MAX_S]
    if delays:
        print(f"steps of killed workers started again: {len(delays)}, the last after {max(delays):.2f} s")
    if slow:
        print(f"{len(slow)} of them later than {AGAIN_MAX_S:g} s, although the death was provable")
    if verdict.violations:
        print(page(verdict))
    return not verdict.violations and not slow


if __name__ == "__main__":
    main()
