"""`stepwire top`: a live table of workers, tasks and held steps."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from stepwire.client import Client

from stepwire_broker.core.phrases import counted

from . import output, step_texts
from .connection import broker_client
from .options import Options, StepwireCommand
from .readiness_texts import with_meaning
from .task.waiting import seconds
from .worker import row

if TYPE_CHECKING:
    from rich.console import Group

COUNTED_MAX: Final = 500  # tasks or steps of one state; more are shown as "500+"

WIDE: Final = 100  # characters of a terminal with all columns
GAP: Final = 2  # characters between two columns
HANDLERS_MIN: Final = 12  # with less space, the list of handlers is left out
WORKER_MIN: Final = 8
PROGRESS_MAX: Final = 10  # running steps with progress that are shown

COLUMNS: Final = [
    output.Column("worker", "worker"),
    output.Column("handlers", "handlers"),
    output.Column("slots", "slots", is_figure=True),
    output.Column("running", "running", is_figure=True),
    output.Column("holding", "holding", is_extra=True, is_figure=True),
    output.Column("done/s", "completed_per_s", is_figure=True),
    output.Column("failed/s", "failed_per_s", is_figure=True),
    output.Column("last seen", "last_seen", is_extra=True),
    output.Column("state", "state"),
]


@click.command(cls=StepwireCommand)
@click.option("--interval", metavar="DURATION", default="1s", show_default=True, help="Time between updates.")
@click.option("-n", "count", type=click.IntRange(1), help="Stop after N updates.")
@click.pass_obj
def top(options: Options, interval: str, count: int | None) -> None:
    """Show workers, tasks and held steps as they change, until Ctrl-C. Without a terminal, print one update."""
    every_s = seconds(interval, "--interval") or 1.0
    with broker_client(options) as client:
        snapshots = _snapshots_with_rates(client, every_s, count)
        try:
            if options.output == "text" and output.is_terminal():
                _draw(snapshots)
            else:
                _print(options, snapshots, count)
        except KeyboardInterrupt:
            pass  # Ctrl-C is the normal end


def _snapshots_with_rates(client: Client, every_s: float, count: int | None) -> Iterator[dict[str, Any]]:
    """Snapshots with the rates since the one before, so the first appears after one interval."""
    before, before_s = _snapshot(client), time.monotonic()
    yielded = 0
    while count is None or yielded < count:
        time.sleep(every_s)
        now, now_s = _snapshot(client), time.monotonic()
        yield {**now, "workers": list(_with_rates(before["workers"], now["workers"], now_s - before_s))}
        before, before_s = now, now_s
        yielded += 1


def _snapshot(client: Client) -> dict[str, Any]:
    readiness = client.readiness()
    tasks = {state: len(client.tasks(state=state, limit=COUNTED_MAX)["tasks"]) for state in ("running", "paused")}
    held = len(client.steps(state="held", limit=COUNTED_MAX)["steps"])
    health = client.orchestration()
    return {
        **readiness,
        "health": {"status": health["status"], "reason": health["reason"]},
        "tasks": tasks,
        "held_steps": held,
        "workers": client.workers()["workers"],
    }


def _with_rates(before: list[dict[str, Any]], now: list[dict[str, Any]], took_s: float) -> Iterator[dict[str, Any]]:
    # A session's number is unique for one worker only.
    known = {(one["worker"], one["session"]): one for one in before}
    for one in now:
        last = known.get((one["worker"], one["session"]), {"completed": 0, "failed": 0})
        rates = {f"{name}_per_s": round((one[name] - last[name]) / took_s, 1) for name in ("completed", "failed")}
        yield {**one, **rates}


def _print(options: Options, snapshots: Iterator[dict[str, Any]], count: int | None) -> None:
    for number, snapshot in enumerate(snapshots, 1):
        if options.output == "text":
            output.echo(_headline(snapshot))
            output.several(options, [row(one) for one in snapshot["workers"]], COLUMNS, "no worker is connected")
            for line in _progress_lines(snapshot):
                output.echo(line)
        else:
            click.echo(msgspec.json.encode(snapshot).decode())
        if count is None or number == count:
            return


def _draw(snapshots: Iterator[dict[str, Any]]) -> None:
    from rich.live import Live

    with Live("loading …", auto_refresh=False, screen=False) as live:
        for snapshot in snapshots:
            live.update(_table(snapshot, live.console.width), refresh=True)


def _table(snapshot: dict[str, Any], width: int) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    workers = sorted(snapshot["workers"], key=lambda one: (-one["running"], one["worker"]))
    rows = [row(one) for one in workers]
    widths = _widths(rows, width)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, cells in widths.items():
        drawn.add_column(
            column.title,
            justify="right" if column.is_figure else "left",
            overflow="ellipsis",
            no_wrap=True,
            width=cells,
        )
    for shown in rows:
        style = {"stuck": "red", "draining": "yellow"}.get(shown["state"], "")
        drawn.add_row(*(Text(output.cell(shown[column.member]), style=style) for column in widths))
    running = [Text(line, overflow="ellipsis", no_wrap=True) for line in _progress_lines(snapshot)]
    headline = Text(_headline(snapshot), style="" if snapshot["ready"] else "red")
    if snapshot["held_steps"]:
        headline.highlight_regex(r"held steps: \S+", output.STATE_COLOURS["held"])
    return Group(headline, drawn, *running)


def _widths(rows: list[dict[str, Any]], width: int) -> dict[output.Column, int]:
    """The columns that a terminal of this width shows, with their widths. Figures and states are never shortened:
    first the list of handlers gets less space or is left out, then the worker's id is shortened."""
    from rich.cells import cell_len

    columns = [column for column in COLUMNS if width >= WIDE or not column.is_extra]
    widths = {
        column: max(cell_len(text) for text in (column.title, *(output.cell(one[column.member]) for one in rows)))
        for column in columns
    }
    worker, handlers = COLUMNS[:2]
    room = width - sum(widths[column] + GAP for column in columns if column not in (worker, handlers))
    left = room - widths[worker] - GAP
    if left >= min(HANDLERS_MIN, widths[handlers]):
        widths[handlers] = min(widths[handlers], left)
    else:
        del widths[handlers]
        widths[worker] = min(widths[worker], max(WORKER_MIN, room))
    return widths


def _progress_lines(snapshot: dict[str, Any]) -> list[str]:
    """The running steps that report progress, the newest report first."""
    reports = [(report, one["worker"]) for one in snapshot["workers"] for report in one["progress"]]
    reports.sort(key=lambda each: str(each[0]["at"]), reverse=True)
    lines = []
    for report, worker in reports[:PROGRESS_MAX]:
        step = output.shortened(f"{report['task_id']}/{report['step']}", 60)
        text = step_texts.printable(step_texts.progress(report))
        lines.append(f"{step}  {text}  on {output.shortened(worker.partition(':')[0], 50)}")
    return lines


def _headline(snapshot: dict[str, Any]) -> str:
    state = "ready" if snapshot["ready"] else f"accepts no work: {', '.join(map(with_meaning, snapshot['reasons']))}"
    tasks = ", ".join(f"{_counted(count)} {name}" for name, count in snapshot["tasks"].items())
    insecure = f" · insecure: {', '.join(snapshot['insecure'])}" if snapshot.get("insecure") else ""
    health = snapshot.get("health", {"status": "healthy", "reason": None})
    if health["status"] not in ("healthy", "starting"):
        state = f"{state} · {health['status']}: {health['reason']}"
    rate = sum(one["completed_per_s"] for one in snapshot["workers"])
    return (
        f"{state} · tasks: {tasks} · held steps: {_counted(snapshot['held_steps'])}"
        f" · {counted(len(snapshot['workers']), 'worker')} · {rate:.1f} steps/s{insecure}"
    )


def _counted(count: int) -> str:
    return f"{count}+" if count >= COUNTED_MAX else str(count)
