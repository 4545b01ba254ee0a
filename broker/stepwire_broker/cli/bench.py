"""`stepwire bench`: measures the limits of this machine and the product next to them, in alternating rounds."""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from . import bench_languages, bench_report, output
from .failure import Exit, Failure
from .options import Options, StepwireCommand

if TYPE_CHECKING:
    from stepwire_broker.bench.load import Progress, Workload

SYNCS: Final = 50
SWITCH_INTERVAL_S: Final = 0.0002  # for the bare loop; `serve` sets the same for the product
IDLE_TASKS_MAX: Final = 10_000_000
KEYS_ROUNDS: Final = 9  # the difference is small


class Counts(click.ParamType[list[int]]):
    """Numbers, separated by commas."""

    name = "N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and int(part) <= IDLE_TASKS_MAX for part in parts):
            self.fail(f"{value!r}: use numbers from 0 to {IDLE_TASKS_MAX}, separated by commas", param, ctx)
        return [int(part) for part in parts]


@click.command(cls=StepwireCommand)
@click.option("--quick", is_flag=True, help="Run a short measurement of about 20 seconds.")
@click.option("--routes", is_flag=True, help="Measure the cost of routing instead: four executors and twelve rules.")
@click.option(
    "--keys", is_flag=True, help="Measure the cost of keys instead: tcp with CURVE and without keys, nine rounds."
)
@click.option(
    "--idle-tasks",
    type=Counts(),
    help="Measure the throughput next to this many open tasks that no worker can run instead: 100,100000,1000000.",
)
@click.option(
    "--langs",
    metavar="LANG,..",
    help="Measure the SDK of each of these languages instead, or of `all`: next to a loop without SDK, and in the"
    " product. Needs a clone of the repository, in which the SDKs are built.",
)
@click.option("--rounds", type=click.IntRange(1, 100), help="Number of rounds; their medians are printed.")
@click.option("--tasks", type=click.IntRange(100, 10_000_000), help="Tasks of four steps in each round.")
@click.option("--window", type=click.IntRange(1, 50_000), help="Tasks in flight.")
@click.option("--batch", "batch_steps", type=click.IntRange(1, 1_000), help="Maximum number of steps in one message.")
@click.option("--slots", type=click.IntRange(1, 10_000), help="Slots of the worker; with --routes, of both workers.")
@click.pass_obj
def bench(
    options: Options,
    /,
    quick: bool,
    routes: bool,
    keys: bool,
    idle_tasks: list[int] | None,
    langs: str | None,
    **changes: int | None,
) -> None:
    """Measure the bus alone, a bare durable loop, and the product with broker, workers and client in separate
    processes.

    The product runs twice in each round: with settings for the highest throughput (--batch, --slots, one worker), and
    with two workers and every setting at its default. The default measurement takes one to two minutes.

    With --routes, measure only the product: once with four executors and twelve rules, and once without them. With
    --keys, measure only the product: with CURVE and without keys, in turn. With --idle-tasks, measure only the product
    with default settings: one broker for each number, with that many open tasks.

    All files are in temporary directories on the disk of $TMPDIR and are removed afterwards.
    """
    import msgspec

    from stepwire_broker.bench.load import QUICK, BenchFailed, Workload

    if sum(map(bool, (routes, keys, idle_tasks, langs))) > 1:
        raise Failure(
            Exit.USAGE, "--routes, --keys, --idle-tasks and --langs are different measurements: use one of them"
        )
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if langs:
        _bench_languages(options, langs, quick, given)
        return
    if keys and not quick:
        given = {"rounds": KEYS_ROUNDS, **given}
    load = msgspec.structs.replace(QUICK if quick else Workload(), **given)
    if load.submit_tasks > load.window:
        load = msgspec.structs.replace(load, submit_tasks=load.window)
    try:
        if routes:
            report_of, measured = bench_report.ROUTES, _measure_routes(options, load)
        elif keys:
            report_of, measured = bench_report.KEYS, _measure_keys(options, load)
        elif idle_tasks:
            report_of, measured = bench_report.IDLE, _measure_idle(options, load, idle_tasks)
        else:
            report_of, measured = bench_report.ALL, _measure(options, load)
    except BenchFailed as error:
        raise Failure(Exit.FAILURE, f"the measurement failed: {error}") from None
    report = {
        "machine": _machine(),
        "load": msgspec.to_builtins(load),
        "medians": report_of.medians(measured),
        "rounds": measured,
    }
    if options.output == "text":
        report_of.show(options, report)
    else:
        output.one(options, report, "")


def _bench_languages(options: Options, langs: str, quick: bool, given: dict[str, Any]) -> None:
    from stepwire_broker.bench.load import BenchFailed

    others = [f"--{name}" for name in given if name != "rounds"]
    if others:
        raise Failure(Exit.USAGE, f"{', '.join(others)} has no effect with --langs: its settings are fixed")
    try:
        report = {"machine": _machine(), **bench_languages.measure(options, langs, quick, given.get("rounds"))}
    except BenchFailed as error:
        raise Failure(Exit.FAILURE, f"the measurement failed: {error}") from None
    if options.output == "text":
        bench_languages.show(options, report)
    else:
        output.one(options, report, "")


def _measure(options: Options, load: "Workload") -> list[dict[str, Any]]:
    """Run the rounds. Each round runs all measurements, so that a slower machine slows all of them."""
    from stepwire_broker.bench import bare, echo, peer

    rounds = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with peer.echoing() as sockets, _bar(options, 6 * load.rounds * load.tasks) as step:
            for number in range(1, load.rounds + 1):
                round_of = f"{number} of {load.rounds}"
                with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
                    bus = echo.run(sockets, load, step(f"bus alone, {round_of}"))
                    loop, bare_latencies_ms = bare.run(sockets, Path(name), load, step(f"bare loop, {round_of}"))
                rounds.append(
                    {
                        "echo_steps_per_s": bus.steps_per_s,
                        "bare_steps_per_s": loop.steps_per_s,
                        "bare_latencies_ms": bare_latencies_ms,
                        **_measure_product(load, number, step),
                    }
                )
    finally:
        sys.setswitchinterval(before)
    return rounds


def _measure_product(load: "Workload", number: int, step: Callable[[str], "Progress"]) -> dict[str, Any]:
    """Run the product with both setups. The order alternates, because the first one affects the disk of the second."""
    from stepwire_broker.bench import product
    from stepwire_broker.bench.load import DEFAULT, tuned
    from stepwire_broker.bench.routes import cpu_us_per_step

    figures: dict[str, Any] = {"tasks_replayed": 0}
    setups = [("best", tuned(load)), ("default", DEFAULT)]
    for kind, setup in setups if number % 2 else reversed(setups):
        round_of = f"{kind} settings, {number} of {load.rounds}"
        with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
            with product.running(Path(name), load, setup) as running:
                whole, cpu = running.run(load, step(f"product, {round_of}"))
                figures[f"{kind}_latencies_ms"] = running.latencies_ms(load.lone_tasks)
            figures["tasks_replayed"] += product.check(Path(name), step(f"replaying the history, {round_of}"))
        figures[f"{kind}_steps_per_s"] = whole.steps_per_s
        figures[f"{kind}_cpu_us_per_step"] = cpu_us_per_step(cpu, whole.steps)
    return figures


def _measure_routes(options: Options, load: "Workload") -> list[dict[str, Any]]:
    from stepwire_broker.bench import routes

    with _bar(options, 4 * load.rounds * load.tasks) as step:
        return [routes.run(load, number, step) for number in range(1, load.rounds + 1)]


def _measure_keys(options: Options, load: "Workload") -> list[dict[str, Any]]:
    from stepwire_broker.bench import keys

    with _bar(options, 4 * load.rounds * load.tasks) as step:
        return [keys.run(load, number, step) for number in range(1, load.rounds + 1)]


def _measure_idle(options: Options, load: "Workload", idle_tasks: list[int]) -> list[dict[str, Any]]:
    from stepwire_broker.bench import idle

    with _bar(options, sum(idle_tasks) + 2 * len(idle_tasks) * load.rounds * load.tasks) as step:
        return idle.run(load, idle_tasks, step)


def _machine() -> dict[str, Any]:
    """The properties of the machine that the figures depend on."""
    import platform
    import sqlite3

    import zmq

    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "libzmq": zmq.zmq_version(),
        "fdatasync_ms": _sync_ms(),
    }


def _sync_ms() -> float:
    """The median time to append a page and sync it, which is what a commit waits for."""
    durations_ms = []
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(prefix="stepwire-bench-") as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            started = time.perf_counter()
            sync(file.fileno())
            durations_ms.append((time.perf_counter() - started) * 1000)
    return statistics.median(durations_ms)


@contextmanager
def _bar(options: Options, tasks: int) -> Iterator[Callable[[str], "Progress"]]:
    """A progress bar on stderr, on a terminal. The result starts a named measurement and returns its task counter."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    hidden = not console.is_terminal or options.verbosity < 0
    with Bar(console=console, disable=hidden, transient=True) as bar:
        shown = bar.add_task("starting", total=tasks)

        def step(name: str) -> "Progress":
            bar.update(shown, description=name)
            return lambda tasks: bar.advance(shown, tasks)

        yield step
