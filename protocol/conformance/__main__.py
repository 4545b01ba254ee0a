"""`python -m conformance -- COMMAND …`: play every dialogue that drives a worker against a subject, and report."""

import argparse
import sys
from collections.abc import Sequence

from . import dialogue as dialogues
from .subject import REPLY_TIMEOUT_S, grade


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. 0: every required dialogue passed. 1: at least one failed. 2: nothing could be played."""
    options = _parser().parse_args(arguments)
    selected = [d for d in dialogues.load() if "worker" in d.drives and options.only in d.name]
    if options.list:
        for dialogue in selected:
            print(f"{dialogue.strength:6}  {dialogue.name}")
        return 0
    if not selected or not options.command:
        print(
            "nothing to play: no dialogue fits --only" if not selected else "no command of a subject", file=sys.stderr
        )
        return 2
    passed = failed = warned = 0
    for dialogue in selected:
        try:
            reason = grade(dialogue, options.command, options.timeout_s)
        except OSError as error:
            print(f"the subject cannot be started: {error}", file=sys.stderr)
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
        description="Play the dialogues of protocol/vectors against the session of an SDK.",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="play only dialogues with TEXT in their name")
    parser.add_argument("--list", action="store_true", help="list the dialogues and exit")
    parser.add_argument(
        "--timeout-s",
        metavar="N",
        type=float,
        default=REPLY_TIMEOUT_S,
        help="seconds that the subject may take for one reply (default: %(default)g)",
    )
    parser.add_argument(
        "command", nargs="*", metavar="COMMAND", help="the subject's command and its arguments, after --"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
