"""`stepwire task watch`: shows a running task, as a live tree on a terminal or as one line per change."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from stepwire.client import Client, ClientError, WaitTimeout

from stepwire_broker.cli import completing, output, step_texts
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.failure import Exit, leave
from stepwire_broker.cli.options import Options, StepwireCommand

from .waiting import exit_of, seconds

if TYPE_CHECKING:
    from rich.tree import Tree

POLL_S: Final = 0.3


class StateStyle(NamedTuple):
    sign: str
    style: str


STATE_STYLES: Final = {
    "waiting": StateStyle("·", "dim"),
    "ready": StateStyle("○", ""),
    "dispatched": StateStyle("▸", "cyan"),
    "retry_wait": StateStyle("↻", "yellow"),
    "completed": StateStyle("✓", "green"),
    "failed": StateStyle("✗", "red"),
    "held": StateStyle("‖", "magenta"),
    "cancelled": StateStyle("⊘", "yellow"),
    "skipped": StateStyle("↷", "dim"),
}
_UNKNOWN: Final = StateStyle("?", "")


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int, shell_complete=completing.tasks)
@click.option("--timeout", metavar="DURATION", help="Stop watching after this time, e.g. 30s.")
@click.pass_obj
def watch(options: Options, task_id: int, timeout: str | None) -> None:
    """Show the progress of a task until it has ended or waits on a held step. The exit code tells how it ended.

    With -o jsonl each change is one line; with -o json only the task's last state is printed.
    """
    with broker_client(options) as client:
        document = follow(options, client, task_id, seconds(timeout))
    if options.output == "json":
        output.one(options, document, "")
    leave(exit_of(document))


def follow(options: Options, client: Client, task_id: int, wait_s: float | None = None) -> dict[str, Any]:
    """Show the task until it has ended, waits on a held step, the wait times out, or Ctrl-C. Returns its last state."""
    seen: list[dict[str, Any]] = [client.task(task_id)]
    try:
        show(options, client, seen, wait_s)
    except KeyboardInterrupt:
        output.note(options, f"task {task_id} is still running: stepwire task watch {task_id}")
    return seen[-1]


def show(options: Options, client: Client, seen: list[dict[str, Any]], wait_s: float | None = None) -> None:
    """Show the task, beginning with the state in `seen`. Each newer state replaces it, so `seen` holds the last one."""
    if options.output == "text" and output.is_terminal():
        _draw(client, seen, wait_s)
    else:
        for change in _changes(_documents(client, seen, wait_s)):
            _print_change(options, change)


def _documents(client: Client, seen: list[dict[str, Any]], wait_s: float | None) -> Iterator[dict[str, Any]]:
    """The task's states, one per poll. The last one stays in `seen`."""
    until_s = None if wait_s is None else time.monotonic() + wait_s
    task_id = seen[-1]["task_id"]
    yield seen[-1]
    while exit_of(seen[-1]) is Exit.TASK_RUNS and (until_s is None or time.monotonic() < until_s):
        try:
            seen[:] = [client.wait(task_id, POLL_S)]
        except WaitTimeout:
            seen[:] = [client.task(task_id)]
        yield seen[-1]


# -- lines ------------------------------------------------------------------------------------------------------------


def _changes(documents: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The changes between polls: changes of a step's state, attempt or worker, and of the task's state."""
    steps: dict[int, tuple[Any, ...]] = {}
    task: tuple[Any, ...] | None = None
    for document in documents:
        for step in document["steps"]:
            now = (step["state"], step["attempt"], step["worker"], step["started_at"] is not None)
            if steps.get(step["step_id"]) != now and (now[0] != "waiting" or step["step_id"] in steps):
                names = ("task_id", "step_id", "name", "state", "attempt", "worker", "started_at", "error")
                yield {"at": _now_text(), **{name: step[name] for name in names}}
            steps[step["step_id"]] = now
        if task != (document["state"], document["attention"]):
            task = (document["state"], document["attention"])
            yield {"at": _now_text(), **{name: document[name] for name in ("task_id", "state", "attention")}}


def _print_change(options: Options, change: dict[str, Any]) -> None:
    if options.output == "json":
        return  # the command prints one document at the end
    if options.output == "jsonl":
        click.echo(msgspec.json.encode(change).decode())
        return
    if "name" not in change:
        attention = f", {change['attention']}" if change["attention"] else ""
        click.echo(f"{change['at'][11:23]} task {change['task_id']} is {change['state']}{attention}")
        return
    more = f" (attempt {change['attempt'] + 1})" if change["attempt"] else ""
    worker = ""
    if change["worker"] and change["state"] == "dispatched":
        worker = f" {'and running on' if change['started_at'] else 'to'} {change['worker']}"
    error = f": {_message(change['error'])}" if change["error"] else ""
    click.echo(f"{change['at'][11:23]} {output.shortened(change['name'])} is {change['state']}{worker}{more}{error}")


# -- the tree ---------------------------------------------------------------------------------------------------------


def _draw(client: Client, seen: list[dict[str, Any]], wait_s: float | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    parents = _parents(client, seen[-1])
    with Live(tree(seen[-1], parents), console=console, refresh_per_second=8, transient=False) as live:
        for document in _documents(client, seen, wait_s):
            live.update(tree(document, parents), refresh=True)


def tree(document: dict[str, Any], parents: dict[str, list[str]]) -> "Tree":
    """The task as a tree. Each step is below the last of its dependencies, and names all of them if there are
    several."""
    from rich.text import Text
    from rich.tree import Tree

    attention = f", {document['attention']}" if document["attention"] else ""
    title = f"task {document['task_id']}  {document['namespace']}::{document['workflow']} {document['version']}"
    root = Tree(
        Text.assemble(title, "  ", (f"{document['state']}{attention}", _style(document["state"]).style or "bold"))
    )
    branches: dict[str, Tree] = {}
    for step in document["steps"]:  # in the order of the workflow: a step may come before what it depends on
        branches[step["name"]] = Tree(_label(step, parents.get(step["name"], [])))
    for name, branch in branches.items():
        above = [parent for parent in parents.get(name, []) if parent in branches]
        (branches[above[-1]] if above else root).children.append(branch)
    return root


def _label(step: dict[str, Any], parents: list[str]) -> Any:
    from rich.text import Text

    style = _style(step["state"])
    label = Text.assemble((f"{style.sign} {output.shortened(step['name'], 80)}", style.style))
    label.append(f"  {step['state']}", style="dim")
    if step["started_at"] is not None:
        label.append(f"  {_duration(step)}", style="dim")
    if step["worker"]:
        label.append(f"  by {output.shortened(step['worker'].partition(':')[0], 50)}", style="dim")
    if step["attempt"]:
        label.append(f"  attempt {step_texts.attempt(step)}", style="yellow")
    if step["error"] and step["state"] in ("failed", "held", "retry_wait"):
        label.append(f"  {_message(step['error'])}", style=style.style)
    if len(parents) > 1:
        label.append(f"  after {', '.join(parents)}", style="dim")
    return label


def _parents(client: Client, document: dict[str, Any]) -> dict[str, list[str]]:
    """The names of each step's dependencies, by step. Empty if the workflow cannot be read: the tree is flat then."""
    try:
        workflow = client.workflow(document["workflow"], namespace=document["namespace"], version=document["version"])
        return {step["name"]: list(step.get("depends_on", [])) for step in workflow["document"]["steps"]}
    except (ClientError, KeyError, TypeError):
        return {}


def _style(state: str) -> StateStyle:
    return STATE_STYLES.get(state, _UNKNOWN)


def _duration(step: dict[str, Any]) -> str:
    started = datetime.fromisoformat(step["started_at"])
    ended = datetime.fromisoformat(step["finished_at"]) if step["finished_at"] else datetime.now(UTC)
    duration_s = max(0.0, (ended - started).total_seconds())
    return f"{duration_s * 1000:.0f} ms" if duration_s < 1 else f"{duration_s:.1f} s"


def _message(error: Any) -> str:
    return output.shortened(step_texts.error(error), 200)


def _now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
