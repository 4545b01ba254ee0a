"""`stepwire bench --langs`: the options and the table of the measurement of SDKs."""

from typing import Any, Final

import click

from . import output
from .failure import usage
from .options import Options

BUS_COLUMNS: Final = [
    output.Column("language", "language"),
    output.Column("bare 1", "bare_1", is_figure=True),
    output.Column("SDK 1", "sdk_1", is_figure=True),
    output.Column("of bare", "of_bare_1", is_figure=True),
    output.Column("bare 10", "bare_10", is_figure=True),
    output.Column("SDK 10", "sdk_10", is_figure=True),
    output.Column("of bare ", "of_bare_10", is_figure=True),
    output.Column("product", "product", is_figure=True),
    output.Column("of Python", "of_python", is_figure=True),
]
COST_COLUMNS: Final = [
    output.Column("language", "language"),
    output.Column("bare p50 ms", "bare_p50", is_figure=True),
    output.Column("SDK p50 ms", "sdk_p50", is_figure=True),
    output.Column("SDK p99 ms", "sdk_p99", is_figure=True),
    output.Column("CPU µs/step", "cpu_us", is_figure=True),
    output.Column("idle %", "idle", is_figure=True),
    output.Column("RSS MB", "rss", is_figure=True),
]


def measure(options: Options, names: str, is_quick: bool, rounds: int | None) -> dict[str, Any]:
    """Run the measurement. Returns the report without the description of the machine."""
    import msgspec

    from stepwire_broker.bench import languages

    chosen = list(languages.LANGUAGES) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in languages.LANGUAGES:
            usage(f"--langs: there is no SDK for {name!r}", f"`all`, or some of {', '.join(languages.LANGUAGES)}")
    load = languages.QUICK if is_quick else languages.LanguagesLoad()
    if rounds is not None:
        load = msgspec.structs.replace(load, rounds=rounds)
    with output.progress(options, "measuring", 3 * load.rounds * len(chosen)) as advance:
        measured = languages.run(load, chosen, lambda done: advance(int(done)))
    environ = {name: " ".join(languages.environ_words(name)[1:]) for name in chosen}
    load_and_environ = msgspec.to_builtins(load) | {
        "environ": {name: words for name, words in environ.items() if words}
    }
    return {"load": load_and_environ, "medians": languages.medians(measured), "rounds": measured}


def show(options: Options, report: dict[str, Any]) -> None:
    load, machine = report["load"], report["machine"]
    output.echo(
        f"{machine['cpus']} CPUs, tcp, {load['rounds']} rounds; to loop and SDK {load['batches']:,} batches of each"
        f" size with {load['window']} in flight; in the product {load['tasks']:,} tasks of four steps"
    )
    for name, words in load["environ"].items():
        output.echo(f"{name}: {words}, for the loop and for the SDK")
    output.echo("steps per second, at 1 and at 10 steps in a message; the ratios are medians of those within a round")
    click.echo()
    output.several(options, [_rates(name, of) for name, of in report["medians"].items()], BUS_COLUMNS, "")
    click.echo()
    output.several(options, [_costs(name, of) for name, of in report["medians"].items()], COST_COLUMNS, "")


def _rates(name: str, of: dict[str, float]) -> dict[str, str]:
    ratio = of.get("product_of_python")
    return {
        "language": name,
        **{f"bare_{size}": f"{of[f'bare_{size}_steps_per_s']:,.0f}" for size in (1, 10)},
        **{f"sdk_{size}": f"{of[f'sdk_{size}_steps_per_s']:,.0f}" for size in (1, 10)},
        **{f"of_bare_{size}": f"{of[f'sdk_of_bare_{size}']:.2f}" for size in (1, 10)},
        "product": f"{of['product_steps_per_s']:,.0f}",
        "of_python": output.EMPTY if ratio is None else f"{ratio:.2f}",
    }


def _costs(name: str, of: dict[str, float]) -> dict[str, str]:
    return {
        "language": name,
        "bare_p50": f"{of['bare_p50_ms']:.2f}",
        "sdk_p50": f"{of['sdk_p50_ms']:.2f}",
        "sdk_p99": f"{of['sdk_p99_ms']:.2f}",
        "cpu_us": f"{of['sdk_10_cpu_us_per_step']:.1f}",
        "idle": f"{of['idle_percent']:.1f}",
        "rss": f"{of['rss_mb']:,.0f}",
    }
