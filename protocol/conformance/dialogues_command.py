"""`python -m conformance -- DRIVER …`: play every dialogue that drives a worker against a driver, and report."""

import argparse
import sys
from collections.abc import Sequence

from . import dialogue as dialogues
from .driver_process import REPLY_TIMEOUT_S
from .worker_stage import DriverUnderTest


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code. 0: every required dialogue passed. 1: at least one failed. 2: nothing could be played."""
    options = _parser().parse_args(arguments)
    selected = [d for d in dialogues.load() if "worker" in d.drives and options.only in d.name]
    if options.list:
        for dialogue in selected:
            print(f"{dialogue.strength:6}  {dialogue.name}")
        return 0
    if not selected or not options.command:
        print("nothing to play: no dialogue fits --only" if not selected else "no command of a driver", file=sys.stderr)
        return 2
    passed = failed = warned = 0
    with DriverUnderTest(options.command, options.timeout_s) as driver:
        for dialogue in selected:
            try:
                reason = driver.grade(dialogue)
            except OSError as error:
                print(f"the driver cannot be started: {error}", file=sys.stderr)
                return 2
            if reason is None:
                passed += 1
                print(f"pass  {dialogue.name}", flush=True)
            elif dialogue.strength == "should":
                warned += 1
                print(f"WARN  {dialogue.name}\n      {_indented(reason)}", flush=True)
            else:
                failed += 1
                print(f"FAIL  {dialogue.name}\n      {_indented(reason)}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {warned} recommended only" if warned else ""))
    return 1 if failed else 0


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Play the dialogues of protocol/vectors against the session of an SDK, through its driver. "
        "Other commands: lockstep, hostile.",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="play only dialogues with TEXT in their name")
    parser.add_argument("--list", action="store_true", help="list the dialogues and exit")
    add_driver_arguments(parser)
    return parser


def add_driver_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout-s",
        metavar="N",
        type=float,
        default=REPLY_TIMEOUT_S,
        help="seconds that the driver may take for one reply (default: %(default)g)",
    )
    parser.add_argument(
        "command", nargs="*", metavar="DRIVER", help="the command of the driver and its arguments, after --"
    )
