"""`python -m conformance hostile -- DRIVER …`: a hostile broker in simulated time, and invariants."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from conformance.chaos.course import Course
from conformance.dialogues_command import add_driver_arguments
from conformance.driver_process import DriverProcess, Failed, Op, Reply
from conformance.jobs import outcomes

from .witness import Witness

OPS_SHOWN_MAX: Final = 12
TEXT_SHOWN_MAX: Final = 900

Exchange = Callable[[Op], Reply]


class Outcome(NamedTuple):
    """What one seed has shown."""

    seed: int
    ops: int
    report: str | None


def play(seed: int, exchange: Exchange) -> tuple[int, str | None]:
    """Play one course. Returns the number of ops, and the broken rule with the last ops before it."""
    course = Course(seed, always_settles=True)
    witness = Witness(course.start)
    last: list[tuple[Op, Reply]] = []
    count = 0
    try:
        for op in course.ops():
            count += 1
            reply = exchange(op)
            last = [*last, (op, reply)][-OPS_SHOWN_MAX:]
            try:
                witness.observe(op, reply)
                course.reply(op, reply)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Failed(f"the reply has not the form of DRIVER.md: {type(error).__name__}: {error}") from None
        witness.finish(broker.id for broker in course.brokers)
    except Failed as failed:
        lines = [f"seed {seed}, op {count}: {failed}"]
        for op, reply in last:
            lines += [f"  op     {_shown(op)}", f"  reply  {_shown(_without_logs(reply))}"]
        return count, "\n".join(lines)
    return count, None


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code. 0: no rule was broken. 1: at least one. 2: nothing was played."""
    options = _parser().parse_args(arguments)
    if not options.command:
        print("no command of a driver", file=sys.stderr)
        return 2
    seeds = ops = broken = 0
    try:
        DriverProcess(options.command, options.timeout_s).close()  # raises OSError here, and not in a job
        wanted = range(options.first, options.first + options.seeds)
        for outcome in outcomes(partial(_play_all, options), wanted, options.jobs):
            seeds += 1
            ops += outcome.ops
            if outcome.report is not None:
                broken += 1
                print(outcome.report, flush=True)
                if broken >= options.stop_after:
                    break
    except OSError as error:
        print(f"the driver cannot be started: {error}", file=sys.stderr)
        return 2
    print(f"{seeds} seeds, {ops} ops, {broken} broken")
    return 1 if broken else 0


def _play_all(options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[Outcome]:
    process: DriverProcess | None = None
    try:
        for seed in seeds:
            process = process or DriverProcess(options.command, options.timeout_s)
            ops, report = play(seed, process.exchange)
            if report is not None:
                process.close()  # its state is unknown
                process = None
            yield Outcome(seed, ops, report)
    finally:
        if process is not None:
            process.close()


def _without_logs(reply: Reply) -> Reply:
    return reply | {"actions": [action for action in reply.get("actions", []) if action.get("action") != "log"]}


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= TEXT_SHOWN_MAX else text[:TEXT_SHOWN_MAX] + "…"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance hostile",
        description="Play a hostile broker against a session, and check the rules that it must always keep.",
    )
    parser.add_argument("--seeds", metavar="N", type=int, default=300, help="number of courses (default: %(default)s)")
    parser.add_argument("--first", metavar="K", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument(
        "--stop-after", metavar="N", type=int, default=3, help="end after N failing seeds (default: %(default)s)"
    )
    add_driver_arguments(parser)
    return parser
