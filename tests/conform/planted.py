"""Runs the planted faulty workers, and reports which case caught each: `python -m tests.conform.planted`.

A fault counts as caught if the case that names it does not pass. `--only FAULT` runs some, `--jobs N` several at
a time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from stepwire_conform.case import CaseVerdict
from stepwire_conform.grading import grade

from .faults import FAULTS
from .level0_faults import LEVEL0_FAULTS

PATIENCE = 0.6
PYTHON_WORKER = [sys.executable, "-m", "stepwire.conform"]
ARRIVAL = "arrival:"
UNREADABLE = "the case could not read"  # a fault of the case itself


def command_of(fault: str) -> list[str]:
    module = "tests.conform.loop_at_level0" if fault in LEVEL0_FAULTS else "tests.conform.faulty_worker"
    return [sys.executable, "-m", module, fault.removeprefix("level0_") if fault in LEVEL0_FAULTS else fault]


def case_of(fault: str) -> str:
    return LEVEL0_FAULTS[fault] if fault in LEVEL0_FAULTS else FAULTS[fault].case


def names() -> list[str]:
    return [*FAULTS, *LEVEL0_FAULTS]


class Seen(NamedTuple):
    """The outcome of one faulty worker."""

    verdict: str  # of the case that names the fault
    what: str
    problem: str  # why the worker was not graded at all


def run(fault: str) -> Seen:
    """Grade the faulty worker with the case that names its fault."""
    expected = case_of(fault)
    only = (expected,) if not expected.startswith(ARRIVAL) else ("hello.versions",)
    result = grade(command_of(fault), only=only, patience=PATIENCE, lanes=1)
    if not result.outcomes:
        return Seen("", "", result.problem)
    outcome = result.outcomes[0]
    return Seen(outcome.verdict.value, outcome.what, result.problem)


def why_not_caught(fault: str, seen: Seen) -> str | None:
    """None if the fault was caught as expected; otherwise what happened instead."""
    expected = case_of(fault)
    if expected.startswith(ARRIVAL):
        words = expected.removeprefix(ARRIVAL)
        return None if words in seen.problem else f"no problem with {words!r}: {seen.problem or 'it was graded'}"
    if seen.what.startswith(UNREADABLE):
        return seen.what
    if seen.problem:
        return f"not graded: {seen.problem}"
    if seen.verdict in (CaseVerdict.FAIL.value, CaseVerdict.NON_STRICT.value):
        return None
    return f"{expected} has the verdict {seen.verdict} {seen.what}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conform.planted", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="FAULT")
    parser.add_argument("--jobs", type=int, default=3)
    options = parser.parse_args(arguments)
    chosen = [name for name in names() if not options.only or any(part in name for part in options.only)]
    missed = 0
    began_s = time.monotonic()
    # In processes: each run ends what it started, and would end the programs of another run in its process.
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, result in zip(chosen, pool.map(run, chosen), strict=True):
            why = why_not_caught(name, result)
            missed += why is not None
            what = (result.what or result.problem).split("\n")[0]
            print(f"{'caught' if why is None else 'MISSED'}  {name}: {case_of(name)}: {why or what}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught in {time.monotonic() - began_s:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
