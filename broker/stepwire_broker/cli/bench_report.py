"""The medians and tables of `stepwire bench`."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import click

from stepwire_broker.core.phrases import counted

from . import output
from .options import Options

COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s", is_figure=True),
    output.Column("lowest to highest", "spread", is_figure=True),
    output.Column("tasks/s", "tasks_per_s", is_figure=True),
    output.Column("vs bare loop", "of_bare", is_figure=True),
]
ROUTES_COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s", is_figure=True),
    output.Column("tasks/s", "tasks_per_s", is_figure=True),
    output.Column("vs plain", "of_plain", is_figure=True),
]
IDLE_COLUMNS: Final = [
    output.Column("idle tasks", "idle_tasks", is_figure=True),
    output.Column("submitted/s", "submitted_per_s", is_figure=True),
    output.Column("steps/s", "steps_per_s", is_figure=True),
    output.Column("lowest to highest", "spread", is_figure=True),
    output.Column("vs first", "of_first", is_figure=True),
    output.Column("broker µs/step", "broker_us", is_figure=True),
    output.Column("broker MB", "broker_mb", is_figure=True),
]
KEYS_COLUMNS: Final = [
    output.Column("measured", "measured"),
    output.Column("steps/s", "steps_per_s", is_figure=True),
    output.Column("lowest to highest", "spread", is_figure=True),
    output.Column("vs NULL", "of_null", is_figure=True),
    output.Column("p50 ms", "p50_ms", is_figure=True),
    output.Column("p50 vs NULL, ms", "more_ms", is_figure=True),
    output.Column("broker µs/step", "broker_us", is_figure=True),
]
LATENCY_COLUMNS: Final = [
    output.Column("latency of one task of four steps", "measured"),
    output.Column("p50 ms", "p50_ms", is_figure=True),
    output.Column("p95 ms", "p95_ms", is_figure=True),
    output.Column("p99 ms", "p99_ms", is_figure=True),
    output.Column("vs bare loop", "of_bare", is_figure=True),
]
RATES: Final = ("echo_steps_per_s", "bare_steps_per_s", "best_steps_per_s", "default_steps_per_s")


# -- all measurements -------------------------------------------------------------------------------------------------


def medians_of_all(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and of the ratios within each round, which a slow round does not distort."""
    medians: dict[str, Any] = {name: _median(rounds, name) for name in RATES}
    medians["spread"] = {name: _spread(one[name] for one in rounds) for name in RATES}
    ratios = [one["default_steps_per_s"] / one["best_steps_per_s"] for one in rounds]
    medians["default_of_best"] = statistics.median(ratios)
    medians["spread"]["default_of_best"] = _spread(ratios)
    for kind in ("echo", "best", "default"):
        medians[f"{kind}_of_bare"] = statistics.median(
            one[f"{kind}_steps_per_s"] / one["bare_steps_per_s"] for one in rounds
        )
    for kind in ("best", "default"):
        medians[f"{kind}_cpu_us_per_step"] = _median_of_each([one[f"{kind}_cpu_us_per_step"] for one in rounds])
        medians[f"{kind}_latency_of_bare"] = statistics.median(
            statistics.median(one[f"{kind}_latencies_ms"]) / statistics.median(one["bare_latencies_ms"])
            for one in rounds
        )
    for kind in ("bare", "best", "default"):
        ordered = sorted(ms for one in rounds for ms in one[f"{kind}_latencies_ms"])
        medians[f"{kind}_latency_ms"] = {f"p{percent}": _percentile(ordered, percent) for percent in (50, 95, 99)}
    medians["tasks_replayed"] = sum(one["tasks_replayed"] for one in rounds)
    return medians


def show_all(options: Options, report: dict[str, Any]) -> None:
    medians, load = report["medians"], report["load"]
    _show_settings(report)
    output.echo(
        f"best settings: one worker with {load['slots']} slots, at most {load['batch_steps']} steps per message"
    )
    output.echo(_default_settings())
    click.echo()
    _show_throughput(options, medians)
    low, high = medians["spread"]["default_of_best"]
    click.echo()
    output.echo(
        f"default settings reach {medians['default_of_best']:.2f} of the best settings ({low:.2f} to {high:.2f})"
    )
    click.echo()
    _show_latency(options, medians)
    click.echo()
    for kind in ("best", "default"):
        cpu = ", ".join(f"{process} {us:.1f}" for process, us in medians[f"{kind}_cpu_us_per_step"].items())
        output.echo(f"CPU time per step with {kind} settings, µs: {cpu}")
    _show_replayed(medians["tasks_replayed"])


def _show_throughput(options: Options, medians: dict[str, Any]) -> None:
    rows = [
        ("bus alone (nothing stored)", "echo", medians["echo_of_bare"]),
        ("bare durable loop (no promises)", "bare", 1.0),
        ("product, best settings", "best", medians["best_of_bare"]),
        ("product, default settings", "default", medians["default_of_bare"]),
    ]
    documents = [
        {
            "measured": name,
            "steps_per_s": f"{medians[f'{key}_steps_per_s']:,.0f}",
            "spread": _range(medians["spread"][f"{key}_steps_per_s"]),
            "tasks_per_s": f"{medians[f'{key}_steps_per_s'] / 4:,.0f}",
            "of_bare": f"{of_bare:.2f}",
        }
        for name, key, of_bare in rows
    ]
    output.several(options, documents, COLUMNS, "")


def _show_latency(options: Options, medians: dict[str, Any]) -> None:
    rows = [
        ("bare durable loop, until its last commit", "bare", 1.0),
        ("product, best settings, until the client has the outputs", "best", medians["best_latency_of_bare"]),
        ("product, default settings, the same", "default", medians["default_latency_of_bare"]),
    ]
    documents = [
        {
            "measured": name,
            **{f"{percentile}_ms": f"{ms:.2f}" for percentile, ms in medians[f"{kind}_latency_ms"].items()},
            "of_bare": f"{ratio:.2f}",
        }
        for name, kind, ratio in rows
    ]
    output.several(options, documents, LATENCY_COLUMNS, "")


# -- routes -----------------------------------------------------------------------------------------------------------


def medians_of_routes(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    medians: dict[str, Any] = {}
    for kind in ("plain", "routed"):
        medians[f"{kind}_steps_per_s"] = _median(rounds, f"{kind}_steps_per_s")
        medians[f"{kind}_cpu_us_per_step"] = _median_of_each([one[f"{kind}_cpu_us_per_step"] for one in rounds])
    ratios = [one["routed_steps_per_s"] / one["plain_steps_per_s"] for one in rounds]
    medians["routed_of_plain"] = statistics.median(ratios)
    for name in ("canary_steps", "other_steps"):
        medians[name] = sum(one[name] for one in rounds)
    medians["tasks_replayed"] = sum(one["plain_tasks_replayed"] + one["routed_tasks_replayed"] for one in rounds)
    return medians


def show_routes(options: Options, report: dict[str, Any]) -> None:
    from stepwire_broker.bench.routes import EXECUTORS, RULES

    medians, load = report["medians"], report["load"]
    _show_settings(report)
    output.echo(f"two workers with {load['slots']} slots in total, at most {load['batch_steps']} steps per message")
    click.echo()
    rows = [
        ("product, no rules, bus only", "plain", "1.00"),
        (f"product, {len(RULES)} rules, {len(EXECUTORS)} executors", "routed", f"{medians['routed_of_plain']:.2f}"),
    ]
    documents = [
        {
            "measured": name,
            "steps_per_s": f"{medians[f'{kind}_steps_per_s']:,.0f}",
            "tasks_per_s": f"{medians[f'{kind}_steps_per_s'] / 4:,.0f}",
            "of_plain": of_plain,
        }
        for name, kind, of_plain in rows
    ]
    output.several(options, documents, ROUTES_COLUMNS, "")
    click.echo()
    cpu = ", ".join(f"{kind} {medians[f'{kind}_cpu_us_per_step']['broker']:.1f}" for _, kind, _ in rows)
    output.echo(f"CPU time of the broker per step, µs: {cpu}")
    output.echo(
        f"executors {', '.join(EXECUTORS)}; every step matched the last rule:"
        f" {medians['canary_steps']} went to its canary, {medians['other_steps']} did not"
    )
    _show_replayed(medians["tasks_replayed"])


# -- keys -------------------------------------------------------------------------------------------------------------


def medians_of_keys(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and of the ratios and differences within each round."""
    medians: dict[str, Any] = {}
    for kind in ("null", "curve"):
        medians[f"{kind}_steps_per_s"] = _median(rounds, f"{kind}_steps_per_s")
        medians[f"{kind}_spread"] = _spread(one[f"{kind}_steps_per_s"] for one in rounds)
        medians[f"{kind}_p50_ms"] = statistics.median(statistics.median(one[f"{kind}_latencies_ms"]) for one in rounds)
        medians[f"{kind}_cpu_us_per_step"] = _median_of_each([one[f"{kind}_cpu_us_per_step"] for one in rounds])
    medians["curve_of_null"] = statistics.median(one["curve_steps_per_s"] / one["null_steps_per_s"] for one in rounds)
    medians["curve_more_ms"] = statistics.median(
        statistics.median(one["curve_latencies_ms"]) - statistics.median(one["null_latencies_ms"]) for one in rounds
    )
    medians["tasks_replayed"] = sum(one["null_tasks_replayed"] + one["curve_tasks_replayed"] for one in rounds)
    return medians


def show_keys(options: Options, report: dict[str, Any]) -> None:
    medians, load = report["medians"], report["load"]
    _show_settings(report)
    output.echo(
        f"tcp on loopback; one worker with {load['slots']} slots, at most {load['batch_steps']} steps per message;"
        f" p50: {load['lone_tasks']} tasks of four steps in each round, one at a time"
    )
    click.echo()
    documents = [
        {
            "measured": name,
            "steps_per_s": f"{medians[f'{kind}_steps_per_s']:,.0f}",
            "spread": _range(medians[f"{kind}_spread"]),
            "of_null": of_null,
            "p50_ms": f"{medians[f'{kind}_p50_ms']:.2f}",
            "more_ms": more_ms,
            "broker_us": f"{medians[f'{kind}_cpu_us_per_step']['broker']:.1f}",
        }
        for name, kind, of_null, more_ms in (
            ("product, NULL (no keys)", "null", "1.00", "0.00"),
            ("product, CURVE", "curve", f"{medians['curve_of_null']:.3f}", f"{medians['curve_more_ms']:+.2f}"),
        )
    ]
    output.several(options, documents, KEYS_COLUMNS, "")
    click.echo()
    _show_replayed(medians["tasks_replayed"])


# -- idle tasks ------------------------------------------------------------------------------------------------


def medians_of_idle(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """For each number of idle tasks: the median throughput, its ratio to the first number's in the same round, and
    costs."""
    first = measured[0]["rounds"]
    idle = [
        {
            "idle_tasks": one["idle_tasks"],
            "limits": one["limits"],
            "submitted_per_s": one["idle_tasks"] / one["submit_seconds"] if one["idle_tasks"] else 0.0,
            "steps_per_s": _median(one["rounds"], "steps_per_s"),
            "spread": _spread(each["steps_per_s"] for each in one["rounds"]),
            "of_first": statistics.median(
                each["steps_per_s"] / base["steps_per_s"] for each, base in zip(one["rounds"], first, strict=True)
            ),
            "cpu_us_per_step": _median_of_each([each["cpu_us_per_step"] for each in one["rounds"]]),
            "broker_mb": one["broker_mb"],
        }
        for one in measured
    ]
    return {"idle": idle, "tasks_replayed": sum(one["tasks_replayed"] for one in measured)}


def show_idle(options: Options, report: dict[str, Any]) -> None:
    medians = report["medians"]
    _show_settings(report)
    output.echo(_default_settings())
    limits = ", ".join(str(one["limits"]["max_open_steps"]) for one in medians["idle"])
    output.echo(f"limits.max_open_steps of the brokers: {limits}; every other limit has its default")
    click.echo()
    documents = [
        {
            "idle_tasks": f"{one['idle_tasks']:,}",
            "submitted_per_s": f"{one['submitted_per_s']:,.0f}",
            "steps_per_s": f"{one['steps_per_s']:,.0f}",
            "spread": _range(one["spread"]),
            "of_first": f"{one['of_first']:.2f}",
            "broker_us": f"{one['cpu_us_per_step']['broker']:.1f}",
            "broker_mb": f"{one['broker_mb']:,.0f}",
        }
        for one in medians["idle"]
    ]
    output.several(options, documents, IDLE_COLUMNS, "")
    click.echo()
    _show_replayed(medians["tasks_replayed"])


# -- shared -----------------------------------------------------------------------------------------------------------


def _show_settings(report: dict[str, Any]) -> None:
    machine, load = report["machine"], report["load"]
    output.echo(
        f"{machine['cpus']} CPUs, Python {machine['python']}, SQLite {machine['sqlite']}, libzmq {machine['libzmq']};"
        f" one fdatasync takes {machine['fdatasync_ms']:.2f} ms"
    )
    output.echo(
        f"{counted(load['rounds'], 'round')} of {load['tasks']} tasks of 4 steps, {load['window']} in flight,"
        f" submitted {load['submit_tasks']} at a time by one client; SQLite synchronous=FULL"
    )
    output.echo(
        "each `vs` figure is the median of the ratios within a round, so it can differ from the ratio of two figures"
        " of its table"
    )


def _default_settings() -> str:
    from stepwire.environment import SLOTS_DEFAULT

    from stepwire_broker.bench.load import DEFAULT
    from stepwire_broker.core.definitions.settings import BatchSettings

    return (
        f"default settings: {len(DEFAULT.workers)} workers with {SLOTS_DEFAULT} slots each,"
        f" at most {BatchSettings().max_steps} steps per message"
    )


def _show_replayed(tasks: int) -> None:
    output.echo(f"{tasks} tasks replayed from their history: all completed, no difference from the tables")


def _median(rounds: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(one[name] for one in rounds))


def _median_of_each(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def _spread(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[0], ordered[-1]]


def _range(spread: list[float]) -> str:
    return f"{spread[0]:,.0f} – {spread[1]:,.0f}"


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Report(NamedTuple):
    """The medians of a measurement, and how they are printed."""

    medians: Callable[[list[dict[str, Any]]], dict[str, Any]]
    show: Callable[[Options, dict[str, Any]], None]


ALL: Final = Report(medians_of_all, show_all)
ROUTES: Final = Report(medians_of_routes, show_routes)
IDLE: Final = Report(medians_of_idle, show_idle)
KEYS: Final = Report(medians_of_keys, show_keys)
