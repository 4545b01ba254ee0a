"""Checks every SDK: build, style, tests, vectors, sessions, sockets, faults, mistakes, pages and packages.

`python -m tests.languages` checks all of them, `python -m tests.languages go --case conform,chaos` some. Each SDK's
`check.sh` installs what is missing. A language that cannot be built here fails in CI (`CI=true`), and is skipped by
name elsewhere. The last line has the totals.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from .sdks import ROOT, SDKS, Sdk

AT_ONCE: Final = 2
CASE_BOUND_S: Final = 900.0
SHOWN_LINES_MAX: Final = 120
PROTOCOL: Final = ROOT / "protocol"


class Call(NamedTuple):
    """A command of a case, and the directory in which it runs."""

    words: tuple[str, ...]
    directory: Path = ROOT


def _check(part: str) -> Callable[[Sdk], Call]:
    return lambda sdk: Call(("sh", "check.sh", part), sdk.folder)


def _kit(*words: str) -> Callable[[Sdk], Call]:
    return lambda sdk: Call((sys.executable, "-m", "conformance", *words, "--", *sdk.driver), PROTOCOL)


def _simulation(sdk: Sdk) -> Call:
    """The whole system in simulated time, with this SDK's session in every worker. pytest does it for Python's."""
    return Call((sys.executable, "-m", "tests.simulation", "--session", sdk.name, "--seeds", "50", "--jobs", "1"))


def _conform(sdk: Sdk) -> Call:
    return Call((sys.executable, "-m", "tests.languages.graded", sdk.name))


def _features(sdk: Sdk) -> Call:
    return Call((sys.executable, "-m", "tests.languages.features", "--check", sdk.name))


def _module(name: str) -> Callable[[Sdk], Call]:
    return lambda sdk: Call((sys.executable, "-m", f"tests.languages.{name}", sdk.name))


def _chaos(sdk: Sdk) -> Call:
    return Call((sys.executable, "-m", "tests.languages.chaos", "--lang", sdk.name, "--seconds", "15"))


# In this order for each SDK. Python's own style, build and tests are those of `tests/run.sh`, its packages those of
# `tests/packages`.
CASES: Final[dict[str, Callable[[Sdk], Call]]] = {
    "build": _check("build"),
    "lint": _check("lint"),
    "test": _check("test"),
    "vectors": _check("vectors"),
    "hostile": _kit("hostile", "--seeds", "100"),
    "lockstep": _kit("lockstep", "--seeds", "200", "--jobs", "1"),
    "simulation": _simulation,
    "mistakes": _module("mistakes"),
    "conform": _conform,
    "features": _features,  # reads the report of `conform`
    "chaos": _chaos,
    "page": _module("page"),
    "readme": _module("readme"),
    "package": _module("release"),
    "new": _module("new"),
}
# Once, after those of all SDKs.
TOGETHER: Final = {"order": Call((sys.executable, "-m", "tests.languages.order"))}
NOT_OF_PYTHON: Final = frozenset({"build", "lint", "test", "vectors", "lockstep", "simulation", "package", "new"})


class Tally:
    """Prints one line for each case, and counts."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0
        self._lock = threading.Lock()

    def add(self, verdict: str, seconds: float, name: str, output: str = "") -> None:
        with self._lock:
            match verdict:
                case "ok":
                    self.passed += 1
                case "skipped":
                    self.skipped += 1
                case _:
                    self.failed += 1
            print(f"{verdict:<8} {seconds:4.0f} s  {name}", flush=True)
            if output:
                print("\n".join(f"    {line}" for line in output.splitlines()[-SHOWN_LINES_MAX:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("languages", nargs="*", help=f"from {', '.join(SDKS)}; all by default")
    names = (*CASES, *TOGETHER)
    parser.add_argument("--case", help=f"comma-separated, from {', '.join(names)}")
    options = parser.parse_args()
    cases = options.case.split(",") if options.case else [*CASES, *(() if options.languages else TOGETHER)]
    for name, known in (*((one, SDKS) for one in options.languages), *((one, names) for one in cases)):
        if name not in known:
            parser.error(f"{name}: there are {', '.join(known)}")
    tally = Tally()
    with ThreadPoolExecutor(AT_ONCE) as at_once:
        for done in [at_once.submit(check, SDKS[name], cases, tally) for name in options.languages or SDKS]:
            done.result()
    for name in (one for one in TOGETHER if one in cases):
        perform(TOGETHER[name], name, tally)
    print(f"{tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped")
    sys.exit(bool(tally.failed))


def check(sdk: Sdk, cases: list[str], tally: Tally) -> None:
    """Run the cases of one SDK. Without a build, none of the others can run."""
    for case in CASES:
        if case not in cases or (sdk.name == "python" and case in NOT_OF_PYTHON):
            continue
        may_be_missing = case == "build" and os.environ.get("CI") != "true"
        is_ok = perform(CASES[case](sdk), f"{sdk.name} {case}", tally, "skipped" if may_be_missing else "FAILED")
        if case == "build" and not is_ok:
            return


def perform(call: Call, name: str, tally: Tally, otherwise: str = "FAILED") -> bool:
    """Run one case, and print its verdict. True if it passed."""
    began = time.monotonic()
    code, output = run(call)
    took_s = time.monotonic() - began
    if code == 0:
        tally.add("ok", took_s, name)
    else:
        tally.add(otherwise, took_s, name, output)
    return code == 0


def run(call: Call) -> tuple[int, str]:
    """The exit code and the output of a command, which has CASE_BOUND_S."""
    environ = os.environ | {"PYTHON": sys.executable}
    try:
        done = subprocess.run(
            call.words,
            cwd=call.directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=CASE_BOUND_S,
        )
    except subprocess.TimeoutExpired as late:
        return 124, f"{late.stdout or ''}\nnot within {CASE_BOUND_S:g} s: {' '.join(call.words)}"
    return done.returncode, done.stdout


if __name__ == "__main__":
    main()
