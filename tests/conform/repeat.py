"""Grades a program many times, several at a time: `python -m tests.conform.repeat --times N --at-a-time M -- CMD`.

A good worker must pass every time. A case that does not pass once is flaky: in the worker, or in the kit.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

RUN_S = 300


def run(command: Sequence[str], level: str, only: Sequence[str]) -> dict[str, Any]:
    """One run in a process of its own. Returns its JSON."""
    words = [sys.executable, "-m", "stepwire", "handler", "conform", "-o", "json"]
    words += ["--level", level] if level else []
    words += [word for case in only for word in ("--only", case)]
    done = subprocess.run([*words, "--", *command], capture_output=True, text=True, timeout=RUN_S, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"problem": done.stderr or done.stdout, "cases": [], "seconds": 0, "counts": {}}
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conform.repeat", description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--level", default="")
    parser.add_argument("--only", action="append", default=[], metavar="CASE")
    parser.add_argument("--details", action="store_true", help="print the frames of cases that do not pass")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    failed: Counter[str] = Counter()
    good = 0
    with ThreadPoolExecutor(options.at_a_time) as pool:
        for result in pool.map(lambda _: run(options.command, options.level, options.only), range(options.times)):
            wrong = [one for one in result["cases"] if one["verdict"] in ("fail", "non-strict")]
            good += not wrong and not result["problem"]
            print(f"{result['seconds']:6.1f} s  {result['counts']}  {result['problem'] or ''}", flush=True)
            for one in wrong:
                failed[one["case"]] += 1
                print(f"          {one['verdict']} {one['case']} ({one['transport']}): {one['what'].splitlines()[0]}")
                if options.details:
                    print("\n".join(f"            {line}" for line in [*one["what"].splitlines(), *one["frames"]]))
    print(f"{good} of {options.times} runs passed in {time.monotonic() - began_s:.0f} s; {dict(failed)}")
    return 0 if good == options.times else 1


if __name__ == "__main__":
    sys.exit(main())
