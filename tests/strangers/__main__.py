"""The strangers' matrix: `python -m tests.strangers`. Each attack on the bus, by each way in that it applies to.

A row holds if the stranger has learned and changed nothing, if the broker counts it under its name, if a worker joins
within 3 s meanwhile, and if honest steps end as always. `--way shared` shows that the matrix notices what is not
protected: there, stranger and victim are the same principal. Exit code 1: a row does not hold.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.attacks.bus_peers import JOIN_S_MAX, Joins

from .deployment import Deployment, deployed, spoken
from .rows import ACCOUNT, ROWS, SHARED, WAYS, Row

ATTACK_BOUND_S: Final = 60.0
COUNTED_S: Final = 3.0
MAY_JOIN: Final = ("foreign-namespaces", "flood-of-hellos")


class Verdict(NamedTuple):
    row: str
    way: str
    achieved: list[str]  # empty: the row holds
    counted: dict[str, int]
    join_s: float


def chosen(ways: Iterable[str], names: Iterable[str] = ()) -> list[tuple[Row, str]]:
    names = set(names)
    return [
        (row, way)
        for row in ROWS
        for way in ways
        if (way in row.ways or (way == SHARED and len(row.ways) == len(WAYS))) and (not names or row.name in names)
    ]


def judge(row: Row, way: str) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="strangers-") as name, deployed(Path(name), row, way) as (honest, access):
        known = honest.known(row, access)
        own = honest.offer_own() if row.name == "foreign-namespaces" else None
        before = honest.counts()
        joins = Joins(honest.target)
        command = [sys.executable, "-m", f"{__package__}.stranger"]
        done = subprocess.run(command, input=spoken(known), stdout=subprocess.PIPE, timeout=ATTACK_BOUND_S)
        achieved = [] if done.returncode == 0 else [f"the attack itself failed: {done.returncode}"]
        heard: list[str] = json.loads(done.stdout or b"[]")
        achieved += _learned(row, heard)
        if own is not None and "outside_grant" not in honest.why(own):
            achieved.append("`why` does not say outside_grant")
        counted = _counted(honest, row, before)
        achieved += honest.changed()
        join_s = joins.end()["join_max_s"]
        if join_s > JOIN_S_MAX:
            achieved.append(f"a worker joined in {join_s} s, at most {JOIN_S_MAX}")
        if row.refused_as and not any(code in counted for code in row.refused_as):
            achieved.append(f"none of {', '.join(row.refused_as)} is counted")
        try:
            honest.serves()
            achieved += honest.finish()
        except AssertionError as stuck:
            achieved.append(str(stuck))
    return Verdict(row.name, way, achieved, counted, join_s)


def _counted(honest: Deployment, row: Row, before: dict[str, int]) -> dict[str, int]:
    """The refusals that the broker has counted since `before`. The stranger's last frames may be on their way when it ends."""
    until_s = time.monotonic() + COUNTED_S
    while True:
        counted = {code: count - before.get(code, 0) for code, count in sorted(honest.counts().items())}
        counted = {code: count for code, count in counted.items() if count}
        if not row.refused_as or any(code in counted for code in row.refused_as) or time.monotonic() > until_s:
            return counted
        time.sleep(0.1)


def _learned(row: Row, heard: list[str]) -> list[str]:
    own = f"@{row.attack or row.name}:"
    learned = [frame for frame in heard if not frame.startswith(own) or '"type":"steps"' in frame]
    if row.name not in MAY_JOIN:
        learned += [frame for frame in heard if '"type":"welcome"' in frame]
    return [f"heard {frame[:120]}" for frame in learned[:2]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description=__doc__)
    parser.add_argument("--way", action="append", choices=[*WAYS, SHARED], help="default: all but shared")
    parser.add_argument("--only", action="append", default=[], choices=[row.name for row in ROWS], help="these rows")
    options = parser.parse_args()
    ways = options.way or list(WAYS)
    if os.geteuid() != 0 and ACCOUNT in ways:
        print(f"left out: {ACCOUNT}, because only root can become another user")
        ways.remove(ACCOUNT)
    broken = count = 0
    for row, way in chosen(ways, options.only):
        verdict = judge(row, way)
        count += 1
        broken += bool(verdict.achieved)
        counted = ", ".join(f"{code} {n}" for code, n in verdict.counted.items())
        state = "ACHIEVED" if verdict.achieved else "held"
        print(f"{state:9} {way:8} {row.name:24} join {verdict.join_s:4.2f} s  {counted}", flush=True)
        for text in verdict.achieved:
            print(f"          {text}", flush=True)
    print(f"{count} rows, {broken} achieved something")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
