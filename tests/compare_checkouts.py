"""`python -m tests.compare_checkouts BEFORE AFTER --pairs 9`: the speed of two checkouts, measured in turn.

BEFORE and AFTER are clones of the repository. `stepwire bench --rounds 1` of each runs with this Python, and the order
alternates, so that a slower machine slows both. Options after `--` are passed to it. For each figure the medians are
printed, and the median of the ratios within a pair. Exit code 1: fewer steps a second than the least ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = ("broker", "protocol", "handlers_sdk/python")
STEPS_PER_S: Final = ("best settings, steps/s", "default settings, steps/s")
FIGURES: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    STEPS_PER_S[0]: lambda medians: medians["best_steps_per_s"],
    STEPS_PER_S[1]: lambda medians: medians["default_steps_per_s"],
    "best settings, broker µs/step": lambda medians: medians["best_cpu_us_per_step"]["broker"],
    "default settings, broker µs/step": lambda medians: medians["default_cpu_us_per_step"]["broker"],
    "best settings, p50 ms": lambda medians: medians["best_latency_ms"]["p50"],
    "default settings, p50 ms": lambda medians: medians["default_latency_ms"]["p50"],
}


def measure(checkout: Path, options: list[str]) -> dict[str, float]:
    """Run one round of a checkout's bench."""
    # `bench` keeps the user's settings away by itself.
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(str(checkout / package) for package in PACKAGES)
    command = [sys.executable, "-m", "stepwire", "-q", "-o", "json", "bench", "--rounds", "1", *options]
    with tempfile.TemporaryDirectory(prefix="compare-") as directory:
        done = subprocess.run(command, cwd=directory, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    medians = json.loads(done.stdout)["medians"]
    return {name: figure(medians) for name, figure in FIGURES.items()}


def compared(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The medians of each figure, and of its ratios within a pair."""
    rows = {}
    for name in FIGURES:
        ratios = sorted(after[name] / before[name] for before, after in pairs)
        rows[name] = {
            "before": statistics.median(before[name] for before, _ in pairs),
            "after": statistics.median(after[name] for _, after in pairs),
            "ratio": statistics.median(ratios),
            "lowest": ratios[0],
            "highest": ratios[-1],
        }
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compare_checkouts", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--least", type=float, default=0.97, help="the least ratio of steps/s")
    given = sys.argv[1:]
    ours = given[: given.index("--")] if "--" in given else given
    options, bench = parser.parse_args(ours), given[len(ours) + 1 :]
    checkouts = [options.before.resolve(), options.after.resolve()]
    for checkout in checkouts:
        if not (checkout / "broker/stepwire_broker").is_dir():
            parser.error(f"{checkout} is no clone of the repository")
    pairs = []
    for number in range(options.pairs):
        order = checkouts if number % 2 == 0 else checkouts[::-1]
        measured = {checkout: measure(checkout, bench) for checkout in order}
        pairs.append((measured[checkouts[0]], measured[checkouts[1]]))
        print(json.dumps({"pair": number + 1, "before": pairs[-1][0], "after": pairs[-1][1]}), file=sys.stderr)
    rows = compared(pairs)
    print(f"{'median of ' + str(options.pairs):34} {'before':>10} {'after':>10} {'ratio':>7}  lowest to highest")
    for name, row in rows.items():
        values = f"{row['before']:10,.1f} {row['after']:10,.1f} {row['ratio']:7.3f}"
        print(f"{name:34} {values}  {row['lowest']:.3f} – {row['highest']:.3f}")
    return 0 if all(rows[name]["ratio"] >= options.least for name in STEPS_PER_S) else 1


if __name__ == "__main__":
    sys.exit(main())
