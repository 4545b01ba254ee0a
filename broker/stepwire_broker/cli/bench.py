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

from . import output
from .failure import Exit, Failure
from .options import Options, StepwireCommand

if TYPE_CHECKING:
    from stepwire_broker.bench.load import Progress, Workload

SYNCS: Final = 50
SWITCH_INTERVAL_S: Final = 0.0002  # for the bare loop; `serve` sets the same for the product

COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s"),
    output.Column("tasks/s", "tasks_per_s"),
    output.Column("vs bare loop", "of_bare"),
]
ROUTES_COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s"),
    output.Column("tasks/s", "tasks_per_s"),
    output.Column("vs plain", "of_plain"),
]
LATENCY_COLUMNS: Final = [
    output.Column("latency of one task of four steps", "measured"),
    output.Column("p50 ms", "p50_ms"),
    output.Column("p95 ms", "p95_ms"),
    output.Column("p99 ms", "p99_ms"),
    output.Column("p50 vs bare loop", "of_bare"),
]


@click.command(cls=StepwireCommand)
@click.option("--quick", is_flag=True, help="Run a short measurement of about 20 seconds.")
@click.option("--routes", is_flag=True, help="Measure the cost of routing instead: four executors and twelve rules.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Number of rounds; their medians are printed.")
@click.option("--tasks", type=click.IntRange(100, 10_000_000), help="Tasks of four steps in each round.")
@click.option("--window", type=click.IntRange(1, 50_000), help="Tasks in flight.")
@click.option("--batch", "batch_steps", type=click.IntRange(1, 1_000), help="Maximum number of steps in one message.")
@click.option("--slots", type=click.IntRange(1, 10_000), help="Slots of the worker; with --routes, of both workers.")
@click.pass_obj
def bench(
    options: Options,
    quick: bool,
    routes: bool,
    rounds: int | None,
    tasks: int | None,
    window: int | None,
    batch_steps: int | None,
    slots: int | None,
) -> None:
    """Measure the bus alone, a bare durable loop, and the product with broker, worker and client in separate processes.

    With --routes, measure only the product: once with four executors and twelve rules, and once without them.

    All files are in temporary directories on the disk of $TMPDIR and are removed afterwards.
    """
    import msgspec

    from stepwire_broker.bench.load import QUICK, BenchFailed, Workload

    changes = {"rounds": rounds, "tasks": tasks, "window": window, "batch_steps": batch_steps, "slots": slots}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    load = msgspec.structs.replace(QUICK if quick else Workload(), **given)
    if load.submit_tasks > load.window:
        load = msgspec.structs.replace(load, submit_tasks=load.window)
    try:
        measured = _measure_routes(options, load) if routes else _measure(options, load)
    except BenchFailed as error:
        raise Failure(Exit.FAILURE, f"the measurement failed: {error}") from None
    report = {
        "machine": _machine(),
        "load": msgspec.to_builtins(load),
        "medians": _medians_of_routes(measured) if routes else _medians(measured),
        "rounds": measured,
    }
    if options.output == "text":
        (_print_routes if routes else _print)(options, report)
    else:
        output.one(options, report, "")


def _measure(options: Options, load: "Workload") -> list[dict[str, Any]]:
    """Run the rounds. Each round runs all three measurements, so that a slower machine slows all of them."""
    from stepwire_broker.bench import bare, echo, peer, product
    from stepwire_broker.bench.routes import cpu_us_per_step

    rounds = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with peer.echoing() as sockets, _bar(options, 4 * load.rounds * load.tasks) as step:
            for number in range(1, load.rounds + 1):
                round_of = f"{number} of {load.rounds}"
                with tempfile.TemporaryDirectory(prefix="stepwire-bench-") as name:
                    directory = Path(name)
                    bus = echo.run(sockets, load, step(f"bus alone, {round_of}"))
                    loop, bare_latencies_ms = bare.run(sockets, directory, load, step(f"bare loop, {round_of}"))
                    shown = step(f"product, {round_of}")
                    with product.running(directory, load) as running:
                        whole, cpu = running.run(load, shown)
                        latencies_ms = running.latencies_ms(load.lone_tasks)
                    checked = product.check(directory, step(f"replaying the history, {round_of}"))
                rounds.append(
                    {
                        "echo_steps_per_s": bus.steps_per_s,
                        "bare_steps_per_s": loop.steps_per_s,
                        "product_steps_per_s": whole.steps_per_s,
                        "cpu_us_per_step": cpu_us_per_step(cpu, whole.steps),
                        "bare_latencies_ms": bare_latencies_ms,
                        "latencies_ms": latencies_ms,
                        "tasks_replayed": checked,
                    }
                )
    finally:
        sys.setswitchinterval(before)
    return rounds


def _measure_routes(options: Options, load: "Workload") -> list[dict[str, Any]]:
    from stepwire_broker.bench import routes

    with _bar(options, 4 * load.rounds * load.tasks) as step:
        return [routes.run(load, number, step) for number in range(1, load.rounds + 1)]


def _medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    def median(figure: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(figure(one) for one in rounds)

    medians: dict[str, Any] = {
        name: median(lambda one, name=name: one[name])  # type: ignore[misc]
        for name in ("echo_steps_per_s", "bare_steps_per_s", "product_steps_per_s")
    }
    medians["product_of_bare"] = median(lambda one: one["product_steps_per_s"] / one["bare_steps_per_s"])
    medians["cpu_us_per_step"] = {
        process: median(lambda one, process=process: one["cpu_us_per_step"][process])  # type: ignore[misc]
        for process in rounds[0]["cpu_us_per_step"]
    }
    for latency, name in (("bare_latency_ms", "bare_latencies_ms"), ("latency_ms", "latencies_ms")):
        ordered = sorted(ms for one in rounds for ms in one[name])
        medians[latency] = {f"p{percent}": _percentile(ordered, percent) for percent in (50, 95, 99)}
    medians["latency_of_bare"] = median(
        lambda one: statistics.median(one["latencies_ms"]) / statistics.median(one["bare_latencies_ms"])
    )
    medians["tasks_replayed"] = sum(one["tasks_replayed"] for one in rounds)
    return medians


def _medians_of_routes(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and of the ratio within each round, which a slow round does not distort."""
    medians: dict[str, Any] = {}
    for kind in ("plain", "routed"):
        medians[f"{kind}_steps_per_s"] = statistics.median(one[f"{kind}_steps_per_s"] for one in rounds)
        cpu = [one[f"{kind}_cpu_us_per_step"] for one in rounds]
        medians[f"{kind}_cpu_us_per_step"] = {
            process: statistics.median(each[process] for each in cpu) for process in cpu[0]
        }
    ratios = [one["routed_steps_per_s"] / one["plain_steps_per_s"] for one in rounds]
    medians["routed_of_plain"] = statistics.median(ratios)
    for name in ("canary_steps", "other_steps"):
        medians[name] = sum(one[name] for one in rounds)
    medians["tasks_replayed"] = sum(one["plain_tasks_replayed"] + one["routed_tasks_replayed"] for one in rounds)
    return medians


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _print(options: Options, report: dict[str, Any]) -> None:
    medians = report["medians"]
    _print_settings(report, "one worker with {slots} slots")
    _print_throughput(options, medians)
    click.echo()
    _print_latency(options, medians)
    click.echo()
    cpu = ", ".join(f"{process} {us:.1f}" for process, us in medians["cpu_us_per_step"].items())
    click.echo(f"CPU time of the product per step, µs: {cpu}")
    _print_replayed(medians)


def _print_throughput(options: Options, medians: dict[str, Any]) -> None:
    bare = medians["bare_steps_per_s"]
    rows = [
        ("bus alone (nothing stored)", "echo_steps_per_s"),
        ("bare durable loop (no promises)", "bare_steps_per_s"),
        ("product, over HTTP", "product_steps_per_s"),
    ]
    output.several(
        options,
        [
            {
                "measured": name,
                "steps_per_s": f"{medians[key]:,.0f}",
                "tasks_per_s": f"{medians[key] / 4:,.0f}",
                "of_bare": f"{medians[key] / bare:.2f}",
            }
            for name, key in rows
        ],
        COLUMNS,
        "",
    )


def _print_latency(options: Options, medians: dict[str, Any]) -> None:
    rows = [
        ("bare durable loop, until its last commit", "bare_latency_ms", 1.0),
        ("product, until the client has the outputs", "latency_ms", medians["latency_of_bare"]),
    ]
    output.several(
        options,
        [
            {
                "measured": name,
                **{f"{percentile}_ms": f"{ms:.2f}" for percentile, ms in medians[key].items()},
                "of_bare": f"{ratio:.2f}",
            }
            for name, key, ratio in rows
        ],
        LATENCY_COLUMNS,
        "",
    )


def _print_routes(options: Options, report: dict[str, Any]) -> None:
    from stepwire_broker.bench.routes import EXECUTORS, RULES

    medians = report["medians"]
    _print_settings(report, "two workers with {slots} slots in total")
    rows = [
        ("product, no rules, bus only", "plain", "1.00"),
        (f"product, {len(RULES)} rules, {len(EXECUTORS)} executors", "routed", f"{medians['routed_of_plain']:.2f}"),
    ]
    output.several(
        options,
        [
            {
                "measured": name,
                "steps_per_s": f"{medians[f'{kind}_steps_per_s']:,.0f}",
                "tasks_per_s": f"{medians[f'{kind}_steps_per_s'] / 4:,.0f}",
                "of_plain": of_plain,
            }
            for name, kind, of_plain in rows
        ],
        ROUTES_COLUMNS,
        "",
    )
    click.echo()
    cpu = ", ".join(f"{kind} {medians[f'{kind}_cpu_us_per_step']['broker']:.1f}" for _, kind, _ in rows)
    click.echo(f"CPU time of the broker per step, µs: {cpu}")
    click.echo(
        f"executors {', '.join(EXECUTORS)}; every step matched the last rule:"
        f" {medians['canary_steps']} went to its canary, {medians['other_steps']} did not"
    )
    _print_replayed(medians)


def _print_settings(report: dict[str, Any], workers: str) -> None:
    machine, load = report["machine"], report["load"]
    click.echo(
        f"{machine['cpus']} CPUs, Python {machine['python']}, SQLite {machine['sqlite']}, libzmq {machine['libzmq']};"
        f" one fdatasync takes {machine['fdatasync_ms']:.2f} ms"
    )
    click.echo(
        f"{load['rounds']} rounds of {load['tasks']} tasks of 4 steps, {load['window']} in flight,"
        f" submitted {load['submit_tasks']} at a time; at most {load['batch_steps']} steps per message,"
        f" {workers.format(slots=load['slots'])}; SQLite synchronous=FULL"
    )
    click.echo()


def _print_replayed(medians: dict[str, Any]) -> None:
    click.echo(
        f"{medians['tasks_replayed']} tasks replayed from their history: all completed, no difference from the tables"
    )


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
