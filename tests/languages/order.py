"""The example of six languages: `examples/order_fulfillment/run.sh` with all of them, and with Python alone.

    python -m tests.languages.order

A language that is missing fails in CI (`CI=true`); elsewhere the example must run its step in Python, and say so.
"""

import os
import re
import signal
import subprocess
import sys
import time
from typing import Final, NoReturn

from .sdks import ROOT, SDKS

SCRIPT: Final = ROOT / "examples" / "order_fulfillment" / "run.sh"
BOUND_S: Final = 600.0
EXPECTED: Final = {
    "validate": "python",
    "reserve": "go",
    "screen": "rust",
    "charge": "java",
    "pack": "ruby",
    "ship": "node",
}
STEP: Final = re.compile(r"^ +(\w+) +(\w+|-) +(completed|failed|skipped)", re.MULTILINE)
MISSING: Final = re.compile(r"^(\w+): cannot be built here, so Python runs orders\.\w+; Debian: ", re.MULTILINE)


def main() -> None:
    began = time.monotonic()
    printed = run()
    missing = set(MISSING.findall(printed))
    if missing and os.environ.get("CI") == "true":
        fail(f"missing in CI: {', '.join(sorted(missing))}", printed)
    check(printed, {step: "python" if lang in missing else lang for step, lang in EXPECTED.items()})
    print(f"all languages{f' except {missing}' if missing else ''}: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    check(run("python"), dict.fromkeys(EXPECTED, "python"))
    print(f"Python alone: {time.monotonic() - began:.1f} s")


def run(*languages: str) -> str:
    """Run the example, and return its output. All its processes must have ended with it."""
    process = subprocess.Popen(
        ["sh", str(SCRIPT), *languages],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=BOUND_S)  # returns once no process has the pipe open
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        fail(f"not within {BOUND_S:g} s", process.communicate(timeout=60)[0])
    if process.returncode != 0:
        fail(f"run.sh ended with {process.returncode}", printed)
    return printed


def check(printed: str, worker_of: dict[str, str]) -> None:
    """Four orders, each step by the expected worker. `screen` refuses one of them before its money is charged."""
    steps = STEP.findall(printed)
    refused = [("screen", worker_of["screen"], "failed")]
    skipped = [(name, "-", "skipped") for name in ("charge", "pack", "ship")]
    before = [(name, worker_of[name], "completed") for name in ("validate", "reserve")]
    good = [(name, worker_of[name], "completed") for name in EXPECTED]
    if sorted(steps) != sorted([*good, *good, *good, *before, *refused, *skipped]):
        fail(f"expected each step of {worker_of}", printed)
    if not printed.endswith("4 of 4 orders ended as expected\nthe broker and all workers have ended\n"):
        fail("the end is missing", printed)


def fail(text: str, printed: str) -> NoReturn:
    sys.exit(f"{text}\n{printed}")


if __name__ == "__main__":
    assert set(EXPECTED.values()) == set(SDKS)
    main()
