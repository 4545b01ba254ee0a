"""`stepwire worker`: who offers handlers now, and how to let one go without losing what it does."""

import time
from typing import Any, Final

import click
from stepwire.client import Client, NotFound

from . import output
from .connection import broker
from .failure import Exit, Failure, leave
from .options import Options, StepwireGroup
from .waiting import seconds

LOOK_EVERY_S: Final = 0.25

COLUMNS: Final = [
    output.Column("worker", "worker"),
    output.Column("executor", "executor"),
    output.Column("handlers", "handlers"),
    output.Column("slots", "slots"),
    output.Column("running", "running"),
    output.Column("holding", "holding"),
    output.Column("completed", "completed"),
    output.Column("failed", "failed"),
    output.Column("heard", "heard"),
    output.Column("state", "state"),
]


@click.group(cls=StepwireGroup)
def worker() -> None:
    """Look at the processes that offer handlers, and let them go."""


@worker.command(name="list")
@click.pass_obj
def list_workers(options: Options) -> None:
    """Print the live sessions of this broker."""
    with broker(options) as client:
        workers = client.workers()["workers"]
    shown = workers if options.output != "text" else [row(one) for one in workers]
    output.several(options, shown, COLUMNS, "no worker is connected")


@worker.command()
@click.argument("reference", metavar="WORKER")
@click.pass_obj
def show(options: Options, reference: str) -> None:
    """Print a worker: WORKER is its id, or its name if only one has it."""
    with broker(options) as client:
        found = _find(client, reference)
    if len(found) > 1:
        ids = ", ".join(one["worker"] for one in found)
        raise Failure(Exit.USAGE, f"{len(found)} workers are called {reference}", f"say which: {ids}")
    lines = (f"{name:<13} {output.shortened(value)}" for name, value in found[0].items())
    output.one(options, found[0], "\n".join(lines))


@worker.command()
@click.argument("references", metavar="WORKER..", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Until it holds nothing and has ended: it is told to, then.")
@click.option("--timeout", metavar="DURATION", help="How long to wait at most, e.g. 30s.")
@click.pass_obj
def drain(options: Options, references: tuple[str, ...], wait: bool, timeout: str | None) -> None:
    """Give workers nothing new; what they hold they finish. WORKER is an id, or a name: then all that have it.

    With --wait each is told to end once it holds nothing. If it is not over in time, the exit code is 12.
    """
    wait_s = seconds(timeout)
    with broker(options) as client:
        found = {one["worker"]: one for reference in references for one in _find(client, reference)}
        drained = []
        for name, one in found.items():
            try:
                drained.append({**client.drain_worker(name, quit=wait), "holding": one["holding"]})
            except NotFound:  # it went meanwhile, which is what was asked for
                drained.append({"worker": name, "quit": wait, "holding": 0})
        left = _wait(client, set(found), wait_s) if wait else {}
    rows = [{**one, "holding": left.get(one["worker"], 0 if wait else one["holding"])} for one in drained]
    rows = [{**one, "ended": wait and one["worker"] not in left} for one in rows]
    output.several(options, rows, [], "") if options.output != "text" else _say(rows)
    if left:
        leave(Exit.TASK_RUNS)


def row(one: dict[str, Any]) -> dict[str, Any]:
    """A worker on one line, for people."""
    state = "stuck" if one["stuck"] else "draining" if one["draining"] else "live"
    heard = f"{one['heard_ms_ago'] / 1000:.1f} s ago"
    return {**one, "handlers": ", ".join(one["handlers"]), "heard": heard, "state": state}


def _find(client: Client, reference: str) -> list[dict[str, Any]]:
    workers = client.workers()["workers"]
    found = [one for one in workers if reference in (one["worker"], one["worker"].partition(":")[0])]
    if not found:
        raise Failure(Exit.NOT_FOUND, f"no worker {reference} is connected", "see: stepwire worker list")
    return found


def _wait(client: Client, names: set[str], wait_s: float | None) -> dict[str, int]:
    """Those that are still there when the time is over, and how much they hold."""
    until_s = None if wait_s is None else time.monotonic() + wait_s
    while True:
        left = {one["worker"]: int(one["holding"]) for one in client.workers()["workers"] if one["worker"] in names}
        if not left or (until_s is not None and time.monotonic() >= until_s):
            return left
        time.sleep(LOOK_EVERY_S)


def _say(rows: list[dict[str, Any]]) -> None:
    for one in rows:
        if one["ended"]:
            click.echo(f"{one['worker']} has ended")
        else:
            click.echo(f"{one['worker']} gets nothing new; it holds {one['holding']}")
