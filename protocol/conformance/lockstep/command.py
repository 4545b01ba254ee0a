"""`python -m conformance lockstep -- DRIVER …`: compare every reply of a session with Python's, over random courses."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from conformance.dialogues_command import add_driver_arguments
from conformance.driver_process import DriverProcess, Failed, Op, Reply
from conformance.jobs import outcomes

from .compare import first_difference
from .reference import ReferenceFailed, generate, replay
from .shorten import shorten

SHOWN_MAX: Final = 5  # differing seeds that are shortened and shown
OPS_SHOWN_MAX: Final = 40


class Outcome(NamedTuple):
    """What one seed has shown."""

    seed: int
    ops: int
    report: str | None  # None: no difference. Empty: a difference that is counted and not shown


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code. 0: no difference. 1: at least one. 2: nothing was compared."""
    options = _parser().parse_args(arguments)
    if not options.command:
        print("no command of a driver", file=sys.stderr)
        return 2
    seeds = ops = differing = 0
    try:
        DriverProcess(options.command, options.timeout_s).close()  # raises OSError here, and not in a job
        wanted = range(options.first, options.first + options.seeds)
        for outcome in outcomes(partial(_compare, options), wanted, options.jobs):
            seeds += 1
            ops += outcome.ops
            if outcome.report is not None:
                differing += 1
                if outcome.report:
                    print(outcome.report, flush=True)
                if differing >= options.stop_after:
                    break
    except OSError as error:
        print(f"the driver cannot be started: {error}", file=sys.stderr)
        return 2
    print(f"{seeds} seeds, {ops} ops, {differing} differ")
    return 1 if differing else 0


def _compare(options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[Outcome]:
    with OtherDriver(options.command, options.timeout_s) as other:
        shown = 0
        for seed in seeds:
            try:
                ops, expected = generate(seed)
            except ReferenceFailed as failed:
                yield Outcome(seed, len(failed.ops), f"seed {seed}: Python's session failed: {failed}")
                continue
            found = first_difference(ops, expected, other.replies(ops))
            if found is None:
                yield Outcome(seed, len(ops), None)
            elif shown < SHOWN_MAX:
                shown += 1
                yield Outcome(seed, len(ops), report(seed, ops, other))
            else:
                yield Outcome(seed, len(ops), "")


class OtherDriver:
    """The driver under test: started when needed, and again after it failed."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command, self._timeout_s = command, timeout_s
        self._process: DriverProcess | None = None

    def __enter__(self) -> "OtherDriver":
        return self

    def __exit__(self, *args: object) -> None:
        if self._process is not None:
            self._process.close()

    def replies(self, ops: Sequence[Op]) -> list[Reply]:
        """Its replies. If it fails, the last one is the failure."""
        if self._process is None:
            self._process = DriverProcess(self._command, self._timeout_s)
        replies: list[Reply] = []
        try:
            self._process.exchange_all(ops, replies)
        except Failed as failed:
            self._process.close()
            self._process = None
            replies.append({"error": str(failed)})
        return replies


def report(seed: int, ops: Sequence[Op], other: OtherDriver) -> str:
    """The shortest list of ops that was found to differ, and both replies."""

    def differs(some: Sequence[Op]) -> int | None:
        found = first_difference(some, replay(some), other.replies(some))
        return None if found is None else found[0]

    short = shorten(ops, differs)
    expected, seen = replay(short), other.replies(short)
    found = first_difference(short, expected, seen)
    if found is None:
        return f"seed {seed}: a difference that does not show again: the driver keeps something between two sessions"
    number, how = found
    skipped = max(0, number + 1 - OPS_SHOWN_MAX)
    lines = [f"seed {seed}: reply {number + 1} of {len(short)} ops differs: {how}"]
    lines += [f"  ({skipped} earlier ops)"] if skipped else []
    lines += [f"  op       {_json(op)}" for op in short[skipped : number + 1]]
    lines += [f"  python   {_json(_without_logs(expected[number]))}"]
    lines += [f"  driver   {_json(_without_logs(seen[number])) if number < len(seen) else 'no reply'}"]
    return "\n".join(lines)


def _without_logs(reply: Reply) -> Reply:
    if not isinstance(reply.get("actions"), list):
        return reply
    return reply | {"actions": [a for a in reply["actions"] if not isinstance(a, dict) or a.get("action") != "log"]}


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= 3000 else text[:3000] + "…"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance lockstep",
        description="Send the same random ops to Python's session and to a driver, and compare every reply.",
    )
    parser.add_argument("--seeds", metavar="N", type=int, default=300, help="number of courses (default: %(default)s)")
    parser.add_argument("--first", metavar="K", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument(
        "--stop-after", metavar="N", type=int, default=5, help="end after N differing seeds (default: %(default)s)"
    )
    add_driver_arguments(parser)
    return parser
