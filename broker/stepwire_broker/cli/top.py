"""`stepwire top`: what goes on now, in a table that moves."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from stepwire.client import Client

from . import output
from .connection import broker
from .options import Options, StepwireCommand
from .waiting import seconds
from .worker import row

if TYPE_CHECKING:
    from rich.console import Group

COUNTED_MAX: Final = 500  # of one state; more are "500+"

COLUMNS: Final = [
    output.Column("worker", "worker"),
    output.Column("handlers", "handlers"),
    output.Column("slots", "slots"),
    output.Column("running", "running"),
    output.Column("holding", "holding"),
    output.Column("done/s", "completed_per_s"),
    output.Column("failed/s", "failed_per_s"),
    output.Column("heard", "heard"),
    output.Column("state", "state"),
]


@click.command(cls=StepwireCommand)
@click.option("--interval", metavar="DURATION", default="1s", show_default=True, help="How often to look.")
@click.option("-n", "count", type=click.IntRange(1), help="Stop after so many looks.")
@click.pass_obj
def top(options: Options, interval: str, count: int | None) -> None:
    """Show workers, tasks and held steps as they change, until Ctrl-C. Without a terminal, one look and its rates."""
    every_s = seconds(interval, "--interval") or 1.0
    with broker(options) as client:
        looks = _looks(client, every_s, count)
        try:
            if options.output == "text" and output.is_terminal():
                _draw(looks)
            else:
                _print(options, looks, count)
        except KeyboardInterrupt:
            pass  # that is how it is ended


def _looks(client: Client, every_s: float, count: int | None) -> Iterator[dict[str, Any]]:
    """Each with the rates since the one before, so it takes two to begin with."""
    before, before_s = _look(client), time.monotonic()
    made = 0
    while count is None or made < count:
        time.sleep(every_s)
        now, now_s = _look(client), time.monotonic()
        yield {**now, "workers": list(_with_rates(before["workers"], now["workers"], now_s - before_s))}
        before, before_s = now, now_s
        made += 1


def _look(client: Client) -> dict[str, Any]:
    readiness = client.readiness()
    tasks = {state: len(client.tasks(state=state, limit=COUNTED_MAX)["tasks"]) for state in ("running", "paused")}
    held = len(client.steps(state="held", limit=COUNTED_MAX)["steps"])
    return {**readiness, "tasks": tasks, "held_steps": held, "workers": client.workers()["workers"]}


def _with_rates(before: list[dict[str, Any]], now: list[dict[str, Any]], took_s: float) -> Iterator[dict[str, Any]]:
    known = {one["session"]: one for one in before}
    for one in now:
        last = known.get(one["session"], {"completed": 0, "failed": 0})
        rates = {f"{name}_per_s": round((one[name] - last[name]) / took_s, 1) for name in ("completed", "failed")}
        yield {**one, **rates}


def _print(options: Options, looks: Iterator[dict[str, Any]], count: int | None) -> None:
    for number, look in enumerate(looks, 1):
        if options.output == "text":
            click.echo(_headline(look))
            output.several(options, [row(one) for one in look["workers"]], COLUMNS, "no worker is connected")
        else:
            click.echo(msgspec.json.encode(look).decode())
        if count is None or number == count:
            return


def _draw(looks: Iterator[dict[str, Any]]) -> None:
    from rich.live import Live

    with Live("looking …", auto_refresh=False, screen=False) as live:
        for look in looks:
            live.update(_table(look), refresh=True)


def _table(look: dict[str, Any]) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        is_number = column.title in ("slots", "running", "holding", "done/s", "failed/s")
        drawn.add_column(column.title, justify="right" if is_number else "left", overflow="ellipsis", no_wrap=True)
    for one in sorted(look["workers"], key=lambda one: (-one["running"], one["worker"])):
        shown = row(one)
        style = {"stuck": "red", "draining": "yellow"}.get(shown["state"], "")
        drawn.add_row(*(Text(output.shortened(shown[column.member], 60), style=style) for column in COLUMNS))
    return Group(Text(_headline(look), style="" if look["ready"] else "red"), drawn)


def _headline(look: dict[str, Any]) -> str:
    state = "ready" if look["ready"] else f"accepts nothing: {', '.join(look['reasons'])}"
    tasks = ", ".join(f"{_counted(count)} {name}" for name, count in look["tasks"].items())
    rate = sum(one["completed_per_s"] for one in look["workers"])
    return (
        f"{state} · tasks: {tasks} · held steps: {_counted(look['held_steps'])}"
        f" · {len(look['workers'])} workers · {rate:.1f} steps/s"
    )


def _counted(count: int) -> str:
    return f"{count}+" if count >= COUNTED_MAX else str(count)
