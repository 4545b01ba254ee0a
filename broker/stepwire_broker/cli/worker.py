"""`stepwire worker`: lists the connected workers, and drains them without losing their steps."""

import time
from collections.abc import Iterator
from typing import Any, Final

import click
from stepwire.client import Client, NotFound

from . import completing, output, step_texts
from .connection import broker_client
from .failure import Exit, Failure, leave
from .options import Options, StepwireGroup
from .task.waiting import seconds

POLL_S: Final = 0.25
LABEL_WIDTH: Final = 18

COLUMNS: Final = [
    output.Column("worker", "worker"),
    output.Column("executor", "executor", is_extra=True),
    output.Column("handlers", "handlers"),
    output.Column("slots", "slots"),
    output.Column("running", "running"),
    output.Column("holding", "holding", is_extra=True),
    output.Column("completed", "completed", is_extra=True),
    output.Column("failed", "failed", is_extra=True),
    output.Column("last seen", "last_seen", is_extra=True),
    output.Column("state", "state"),
]


@click.group(cls=StepwireGroup, lazy={"autoscale": "stepwire_broker.cli.autoscale:autoscale"})
def worker() -> None:
    """List and drain workers, the processes that offer handlers, and start as many as their backlog needs."""


@worker.command(name="list")
@output.columns_option
@click.pass_obj
def list_workers(options: Options) -> None:
    """List the workers that are connected to this broker."""
    with broker_client(options) as client:
        answer = client.workers()
    workers = answer["workers"]
    shown = workers if options.output != "text" else [row(one) for one in workers]
    output.several(options, shown, COLUMNS, "no worker is connected")
    for principal, reasons in answer["disconnections"].items():
        output.note(options, f"disconnected in the last 10 min: {principal or 'unknown peers'} ({_counts(reasons)})")


@worker.command()
@click.argument("reference", metavar="WORKER", shell_complete=completing.workers)
@click.pass_obj
def show(options: Options, reference: str) -> None:
    """Print a worker. WORKER is its id, or its name if the name is unique."""
    with broker_client(options) as client:
        workers = _find(client, reference)
    if len(workers) > 1:
        ids = ", ".join(one["worker"] for one in workers)
        raise Failure(Exit.USAGE, f"{len(workers)} workers are called {reference}", f"use an id: {ids}")
    lines = [f"{label:<{LABEL_WIDTH}}{output.shortened(text)}" for label, text in _lines(workers[0])]
    output.one(options, workers[0], "\n".join(lines), indent=LABEL_WIDTH)


@worker.command()
@click.argument("references", metavar="WORKER..", nargs=-1, required=True, shell_complete=completing.workers)
@click.option("--wait", is_flag=True, help="Stop each worker once it holds no steps, and wait until it has ended.")
@click.option("--timeout", metavar="DURATION", help="Maximum time to wait, e.g. 30s.")
@click.pass_obj
def drain(options: Options, references: tuple[str, ...], wait: bool, timeout: str | None) -> None:
    """Send workers no new steps; they finish the steps that they hold. WORKER is an id, or the name of one or more.

    With --wait each worker is stopped once it holds no steps. If the wait times out, the exit code is 12.
    """
    wait_s = seconds(timeout)
    with broker_client(options) as client:
        workers = {one["worker"]: one for reference in references for one in _find(client, reference)}
        drained = []
        for name, one in workers.items():
            try:
                drained.append({**client.drain_worker(name, quit=wait), "holding": one["holding"]})
            except NotFound:  # the worker has ended meanwhile, which is the aim
                drained.append({"worker": name, "quit": wait, "holding": 0})
        left = _wait(client, set(workers), wait_s) if wait else {}
    rows = [{**one, "holding": left.get(one["worker"], 0 if wait else one["holding"])} for one in drained]
    rows = [{**one, "ended": wait and one["worker"] not in left} for one in rows]
    output.several(options, rows, [], "") if options.output != "text" else _print_drained(rows)
    if left:
        leave(Exit.TASK_RUNS)


def row(one: dict[str, Any]) -> dict[str, Any]:
    """A worker as a row of the text table."""
    state = "stuck" if one["stuck"] else "draining" if one["draining"] else "live"
    last_seen = f"{one['heard_ms_ago'] / 1000:.1f} s ago"
    return {**one, "handlers": ", ".join(one["handlers"]), "last_seen": last_seen, "state": state}


def _lines(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The members of a worker as labels and texts for people."""
    shown = row(one)
    in_words = {"worker", "since", "heard_ms_ago", "draining", "stuck", "progress"}
    in_words |= {"disconnections", "death_provable", "death_unprovable_because"}
    yield "worker", one["worker"]
    yield "state", shown["state"]
    yield "connected", f"{step_texts.duration(step_texts.since(one['since']))} ago"
    yield "last seen", shown["last_seen"]
    for name, value in one.items():
        if name not in in_words:
            yield name.replace("_", " "), _value_text(value)
    because = one["death_unprovable_because"]
    yield "death provable", f"no, because {because}" if because else "yes"
    yield "disconnections", _counts(one["disconnections"]) or "none in the last 10 min"
    for report in one["progress"]:
        yield "progress", f"{report['task_id']}/{report['step']}: {step_texts.progress(report)}"


def _counts(reasons: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or output.EMPTY
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or output.EMPTY
    return output.cell(value)


def _find(client: Client, reference: str) -> list[dict[str, Any]]:
    """The connected workers with this id or name. Raises Failure if there is none."""
    connected = client.workers()["workers"]
    workers = [one for one in connected if reference in (one["worker"], one["worker"].partition(":")[0])]
    if not workers:
        raise Failure(Exit.NOT_FOUND, f"no worker {reference} is connected", "see: stepwire worker list")
    return workers


def _wait(client: Client, names: set[str], wait_s: float | None) -> dict[str, int]:
    """The workers that are still connected when the wait ends, each with the number of steps that it holds."""
    until_s = None if wait_s is None else time.monotonic() + wait_s
    while True:
        left = {one["worker"]: int(one["holding"]) for one in client.workers()["workers"] if one["worker"] in names}
        if not left or (until_s is not None and time.monotonic() >= until_s):
            return left
        time.sleep(POLL_S)


def _print_drained(rows: list[dict[str, Any]]) -> None:
    for one in rows:
        if one["ended"]:
            output.echo(f"{one['worker']} has ended")
        else:
            output.echo(f"{one['worker']} gets no new steps; it holds {one['holding']}")
