"""`stepwire executor`: list, pause and resume executors; set routing rules."""

from typing import Any, Final

import click

from . import completing, output
from .connection import broker_client
from .options import Options, StepwireGroup
from .route import routes, set_route, shadows

COLUMNS: Final = [
    output.Column("executor", "executor"),
    output.Column("active", "active"),
    output.Column("max", "max_concurrent", is_extra=True),
    output.Column("executed", "total_executed", is_extra=True),
    output.Column("failed", "total_failed", is_extra=True),
    output.Column("mean", "mean", is_extra=True),
    output.Column("95 %", "p95", is_extra=True),
    output.Column("workers", "workers"),
    output.Column("state", "state"),
]


COMPARED: Final = ("equal", "differs", "failed", "not_compared", "lost", "dropped")


@click.group(cls=StepwireGroup)
def executor() -> None:
    """List, pause and resume executors; set routing rules."""


executor.add_command(set_route)
executor.add_command(routes)
executor.add_command(shadows)


@executor.command(name="list")
@output.columns_option
@click.pass_obj
def list_executors(options: Options) -> None:
    """List the executors of this broker, with their counts since it started."""
    with broker_client(options) as client:
        executors = client.executors()["executors"]
    shown = executors if options.output != "text" else [row(one) for one in executors]
    output.several(options, shown, COLUMNS, "no executor is configured")


@executor.command()
@click.argument("key", metavar="EXECUTOR", shell_complete=completing.executors)
@click.pass_obj
def show(options: Options, key: str) -> None:
    """Print an executor."""
    with broker_client(options) as client:
        document = client.executor(key)
        comparisons = [one for one in client.shadows()["shadows"] if one["executor"] == key]
    lines = [f"{name:<15} {output.shortened(value)}" for name, value in document.items()]
    for one in comparisons:
        counts = ", ".join(f"{one[name]} {name.replace('_', ' ')}" for name in COMPARED if one[name])
        lines.append(f"shadows         {one['handler_class']} by {one['match']}: {counts}")
        lines += [f"                task {each['task_id']} {each['what']}" for each in one["lately"][-3:]]
    output.one(options, {**document, "shadows": comparisons}, "\n".join(lines))


@executor.command()
@click.argument("key", metavar="EXECUTOR", shell_complete=completing.executors)
@click.pass_obj
def pause(options: Options, key: str) -> None:
    """Dispatch no new steps to an executor; its running steps finish. Steps routed to it stay ready.

    The pause ends with `resume`. It is stored, so a restart of the broker does not end it.
    """
    with broker_client(options) as client:
        document = client.pause_executor(key)
    output.one(options, document, f"{key} is paused: it gets no new steps; next: stepwire executor resume {key}")


@executor.command()
@click.argument("key", metavar="EXECUTOR", shell_complete=completing.executors)
@click.pass_obj
def resume(options: Options, key: str) -> None:
    """Dispatch steps to a paused executor again."""
    with broker_client(options) as client:
        document = client.resume_executor(key)
    output.one(options, document, f"{key} is resumed: it gets steps again")


def row(one: dict[str, Any]) -> dict[str, Any]:
    """An executor as a row of the text table."""
    state = "paused" if one["paused_since"] is not None else "open" if one["has_capacity"] else "full"
    if not one["workers"]:
        state = "no workers"
    return {**one, "mean": _time(one["mean_ms"]), "p95": _time(one["p95_ms"]), "state": state}


def _time(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:.0f} s"
