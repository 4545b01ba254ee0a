"""`stepwire executor`: where steps can go, how it does there, and the word that it is to rest for a while."""

from typing import Any, Final

import click

from . import output
from .connection import broker
from .options import Options, StepwireGroup
from .route import routes, set_route, shadows

COLUMNS: Final = [
    output.Column("executor", "executor"),
    output.Column("active", "active"),
    output.Column("at most", "max_concurrent"),
    output.Column("executed", "total_executed"),
    output.Column("failed", "total_failed"),
    output.Column("mean", "mean"),
    output.Column("95 %", "p95"),
    output.Column("workers", "workers"),
    output.Column("state", "state"),
]


COMPARED: Final = ("equal", "differs", "failed", "not_compared", "lost", "dropped")


@click.group(cls=StepwireGroup)
def executor() -> None:
    """Look at what runs steps, have it rest, and say which steps go there."""


executor.add_command(set_route)
executor.add_command(routes)
executor.add_command(shadows)


@executor.command(name="list")
@click.pass_obj
def list_executors(options: Options) -> None:
    """Print the executors of this broker, with what they have done since its start."""
    with broker(options) as client:
        executors = client.executors()["executors"]
    shown = executors if options.output != "text" else [row(one) for one in executors]
    output.several(options, shown, COLUMNS, "there is no executor")


@executor.command()
@click.argument("key", metavar="EXECUTOR")
@click.pass_obj
def show(options: Options, key: str) -> None:
    """Print an executor."""
    with broker(options) as client:
        found = client.executor(key)
        compared = [one for one in client.shadows()["shadows"] if one["executor"] == key]
    lines = [f"{name:<15} {output.shortened(value)}" for name, value in found.items()]
    for one in compared:
        counts = ", ".join(f"{one[name]} {name.replace('_', ' ')}" for name in COMPARED if one[name])
        lines.append(f"shadows         {one['handler_class']} by {one['match']}: {counts}")
        lines += [f"                task {each['task_id']} {each['what']}" for each in one["lately"][-3:]]
    output.one(options, {**found, "shadows": compared}, "\n".join(lines))


@executor.command()
@click.argument("key", metavar="EXECUTOR")
@click.pass_obj
def pause(options: Options, key: str) -> None:
    """Hand it nothing new; what it has it finishes. Steps that go there stay ready.

    Until it is resumed, or the broker restarts: a pause is not stored.
    """
    with broker(options) as client:
        done = client.pause_executor(key)
    output.one(options, done, f"{key} is handed nothing new; next: stepwire executor resume {key}")


@executor.command()
@click.argument("key", metavar="EXECUTOR")
@click.pass_obj
def resume(options: Options, key: str) -> None:
    """Hand it steps again."""
    with broker(options) as client:
        done = client.resume_executor(key)
    output.one(options, done, f"{key} is handed steps again")


def row(one: dict[str, Any]) -> dict[str, Any]:
    """An executor on one line, for people."""
    state = "paused" if one["paused_since"] is not None else "open" if one["has_capacity"] else "full"
    if not one["workers"]:
        state = "nobody there"
    return {**one, "mean": _time(one["mean_ms"]), "p95": _time(one["p95_ms"]), "state": state}


def _time(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:.0f} s"
