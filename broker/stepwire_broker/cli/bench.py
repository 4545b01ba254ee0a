"""`stepwire bench`: what this machine can do, side by side and in turn, and what the product makes of it."""

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
SWITCH_INTERVAL_S: Final = 0.0002  # for the bare loop, as `serve` has it for the product

COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s"),
    output.Column("tasks/s", "tasks_per_s"),
    output.Column("of the bare loop", "of_bare"),
]
ROUTES_COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s"),
    output.Column("tasks/s", "tasks_per_s"),
    output.Column("of the plain", "of_plain"),
]
LATENCY_COLUMNS: Final = [
    output.Column("one task of four steps, alone", "measured"),
    output.Column("p50 ms", "p50_ms"),
    output.Column("p95 ms", "p95_ms"),
    output.Column("p99 ms", "p99_ms"),
    output.Column("p50 of the bare loop", "of_bare"),
]


@click.command(cls=StepwireCommand)
@click.option("--quick", is_flag=True, help="About 20 seconds.")
@click.option("--routes", is_flag=True, help="What routing costs, instead: four executors and twelve rules, or none.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Each measurement so often, in turn; medians are printed.")
@click.option("--tasks", type=click.IntRange(100, 10_000_000), help="Tasks of four steps in a round.")
@click.option("--window", type=click.IntRange(1, 50_000), help="Tasks in flight.")
@click.option(
    "--batch", "batch_steps", type=click.IntRange(1, 1_000), help="Steps in one message to a worker, at most."
)
@click.option("--slots", type=click.IntRange(1, 10_000), help="Of the one worker; with --routes, of both.")
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
    """Measure the bus alone, a bare durable loop, and the product: broker, worker and client in processes of their own.

    With --routes the product alone, with four executors and twelve rules, and with none.

    Everything runs in temporary directories, on the disk of $TMPDIR, and is gone afterwards.
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
        raise Failure(Exit.FAILURE, f"no figures: {error}") from None
    found = {
        "machine": _machine(),
        "load": msgspec.to_builtins(load),
        "medians": _medians_of_routes(measured) if routes else _medians(measured),
        "rounds": measured,
    }
    if options.output == "text":
        (_print_routes if routes else _print)(options, found)
    else:
        output.one(options, found, "")


def _measure(options: Options, load: "Workload") -> list[dict[str, Any]]:
    """The rounds: each of the three after the others, so that a change of the machine's mood is in all of them."""
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
    def median(of: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(of(one) for one in rounds)

    found: dict[str, Any] = {
        name: median(lambda one, name=name: one[name])  # type: ignore[misc]
        for name in ("echo_steps_per_s", "bare_steps_per_s", "product_steps_per_s")
    }
    found["product_of_bare"] = median(lambda one: one["product_steps_per_s"] / one["bare_steps_per_s"])
    found["cpu_us_per_step"] = {
        who: median(lambda one, who=who: one["cpu_us_per_step"][who])  # type: ignore[misc]
        for who in rounds[0]["cpu_us_per_step"]
    }
    for latency, name in (("bare_latency_ms", "bare_latencies_ms"), ("latency_ms", "latencies_ms")):
        ordered = sorted(ms for one in rounds for ms in one[name])
        found[latency] = {f"p{share}": _percentile(ordered, share) for share in (50, 95, 99)}
    found["latency_of_bare"] = median(
        lambda one: statistics.median(one["latencies_ms"]) / statistics.median(one["bare_latencies_ms"])
    )
    found["tasks_replayed"] = sum(one["tasks_replayed"] for one in rounds)
    return found


def _medians_of_routes(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each, and of the share that each round found: what slows a whole round down is not in that."""
    found: dict[str, Any] = {}
    for kind in ("plain", "routed"):
        found[f"{kind}_steps_per_s"] = statistics.median(one[f"{kind}_steps_per_s"] for one in rounds)
        cpu = [one[f"{kind}_cpu_us_per_step"] for one in rounds]
        found[f"{kind}_cpu_us_per_step"] = {who: statistics.median(each[who] for each in cpu) for who in cpu[0]}
    found["routed_of_plain"] = statistics.median(one["routed_steps_per_s"] / one["plain_steps_per_s"] for one in rounds)
    for name in ("canary_steps", "other_steps"):
        found[name] = sum(one[name] for one in rounds)
    found["tasks_replayed"] = sum(one["plain_tasks_replayed"] + one["routed_tasks_replayed"] for one in rounds)
    return found


def _percentile(ordered: list[float], share: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def _print(options: Options, found: dict[str, Any]) -> None:
    medians = found["medians"]
    _print_settings(found, "one worker with {slots} slots")
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
    click.echo()
    lone = [
        ("bare durable loop, until its last commit", "bare_latency_ms", 1.0),
        ("product, until its outputs are read over HTTP", "latency_ms", medians["latency_of_bare"]),
    ]
    output.several(
        options,
        [
            {
                "measured": name,
                **{f"{of}_ms": f"{ms:.2f}" for of, ms in medians[key].items()},
                "of_bare": f"{share:.2f}",
            }
            for name, key, share in lone
        ],
        LATENCY_COLUMNS,
        "",
    )
    click.echo()
    cpu = ", ".join(f"{who} {us:.1f}" for who, us in medians["cpu_us_per_step"].items())
    click.echo(f"CPU of the product, µs a step: {cpu}")
    _print_replayed(medians)


def _print_routes(options: Options, found: dict[str, Any]) -> None:
    from stepwire_broker.bench.routes import EXECUTORS, RULES

    medians = found["medians"]
    _print_settings(found, "two workers with {slots} slots together")
    rows = [
        ("product, no rules, the bus alone", "plain", "1.00"),
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
    click.echo(f"CPU of the broker, µs a step: {cpu}")
    click.echo(
        f"Executors {', '.join(EXECUTORS)}; the last rule took all steps, {medians['canary_steps']} of them to its"
        f" canary, {medians['other_steps']} not"
    )
    _print_replayed(medians)


def _print_settings(found: dict[str, Any], workers: str) -> None:
    machine, load = found["machine"], found["load"]
    click.echo(
        f"{machine['cpus']} CPUs, Python {machine['python']}, SQLite {machine['sqlite']}, libzmq {machine['libzmq']};"
        f" one fdatasync takes {machine['fdatasync_ms']:.2f} ms"
    )
    click.echo(
        f"{load['rounds']} rounds of {load['tasks']} tasks of 4 steps, {load['window']} in flight,"
        f" submitted {load['submit_tasks']} at a time; up to {load['batch_steps']} steps a message,"
        f" {workers.format(slots=load['slots'])}; SQLite synchronous=FULL"
    )
    click.echo()


def _print_replayed(medians: dict[str, Any]) -> None:
    click.echo(
        f"{medians['tasks_replayed']} tasks replayed from their history: all completed, no difference to the tables"
    )


def _machine() -> dict[str, Any]:
    """What the figures depend on."""
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
    """The median of appending a page and syncing it: what a commit waits for."""
    took_ms = []
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(prefix="stepwire-bench-") as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            started = time.perf_counter()
            sync(file.fileno())
            took_ms.append((time.perf_counter() - started) * 1000)
    return statistics.median(took_ms)


@contextmanager
def _bar(options: Options, tasks: int) -> Iterator[Callable[[str], "Progress"]]:
    """A progress bar on stderr for a terminal. Names the next measurement, and gives what counts its tasks."""
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
