"""`stepwire task watch`: a task as it goes on. A tree that moves on a terminal, elsewhere a line for each change."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from stepwire.client import Client, ClientError, WaitTimeout

from . import output
from .connection import broker
from .failure import Exit, leave
from .options import Options, StepwireCommand
from .waiting import exit_of, seconds

if TYPE_CHECKING:
    from rich.tree import Tree

LOOK_EVERY_S: Final = 0.3


class Look(NamedTuple):
    sign: str
    style: str


LOOKS: Final = {
    "waiting": Look("·", "dim"),
    "ready": Look("○", ""),
    "dispatched": Look("▸", "cyan"),
    "retry_wait": Look("↻", "yellow"),
    "completed": Look("✓", "green"),
    "failed": Look("✗", "red"),
    "held": Look("‖", "magenta"),
    "cancelled": Look("⊘", "yellow"),
    "skipped": Look("↷", "dim"),
}
_UNKNOWN: Final = Look("?", "")


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int)
@click.option("--timeout", metavar="DURATION", help="Stop watching after this time, e.g. 30s.")
@click.pass_obj
def watch(options: Options, task_id: int, timeout: str | None) -> None:
    """Show how a task goes on, until it has ended or waits on a held step; the exit code says how.

    With -o jsonl each change is a line; with -o json the task is printed when it is over.
    """
    with broker(options) as client:
        document = follow(options, client, task_id, seconds(timeout))
    if options.output == "json":
        output.one(options, document, "")
    leave(exit_of(document))


def follow(options: Options, client: Client, task_id: int, wait_s: float | None = None) -> dict[str, Any]:
    """Show the task until nothing more will happen by itself, the time is over, or Ctrl-C. Gives it as it was last."""
    seen: list[dict[str, Any]] = [client.task(task_id)]
    try:
        show(options, client, seen, wait_s)
    except KeyboardInterrupt:
        output.note(options, f"task {task_id} goes on: stepwire task watch {task_id}")
    return seen[-1]


def show(options: Options, client: Client, seen: list[dict[str, Any]], wait_s: float | None = None) -> None:
    """The task that was seen last, from there on. As it is at each look, it replaces what was seen."""
    if options.output == "text" and output.is_terminal():
        _draw(client, seen, wait_s)
    else:
        for change in _changes(_documents(client, seen, wait_s)):
            _tell(options, change)


def _documents(client: Client, seen: list[dict[str, Any]], wait_s: float | None) -> Iterator[dict[str, Any]]:
    """The task as it is, again and again. The last one stays in `seen`."""
    until_s = None if wait_s is None else time.monotonic() + wait_s
    task_id = seen[-1]["task_id"]
    yield seen[-1]
    while exit_of(seen[-1]) is Exit.TASK_RUNS and (until_s is None or time.monotonic() < until_s):
        try:
            seen[:] = [client.wait(task_id, LOOK_EVERY_S)]
        except WaitTimeout:
            seen[:] = [client.task(task_id)]
        yield seen[-1]


# -- lines ------------------------------------------------------------------------------------------------------------


def _changes(documents: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is different from one look to the next: a step's state, attempt or worker, and the task's state."""
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


def _tell(options: Options, change: dict[str, Any]) -> None:
    if options.output == "json":
        return  # one document, at the end
    if options.output == "jsonl":
        click.echo(msgspec.json.encode(change).decode())
        return
    if "name" not in change:
        attention = f", {change['attention']}" if change["attention"] else ""
        click.echo(f"{change['at'][11:23]} task {change['task_id']} is {change['state']}{attention}")
        return
    more = f" (attempt {change['attempt']})" if change["attempt"] else ""
    worker = ""
    if change["worker"] and change["state"] == "dispatched":
        worker = f" {'and runs on' if change['started_at'] else 'to'} {change['worker']}"
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
    """Each step hangs below the last of the steps that it waits for; what else it waits for is said beside it."""
    from rich.text import Text
    from rich.tree import Tree

    attention = f", {document['attention']}" if document["attention"] else ""
    title = f"task {document['task_id']}  {document['namespace']}::{document['workflow']} {document['version']}"
    root = Tree(
        Text.assemble(title, "  ", (f"{document['state']}{attention}", _look(document["state"]).style or "bold"))
    )
    branches: dict[str, Tree] = {}
    for step in document["steps"]:  # in the order of the workflow, where what is waited for may come later
        branches[step["name"]] = Tree(_label(step, parents.get(step["name"], [])))
    for name, branch in branches.items():
        above = [parent for parent in parents.get(name, []) if parent in branches]
        (branches[above[-1]] if above else root).children.append(branch)
    return root


def _label(step: dict[str, Any], parents: list[str]) -> Any:
    from rich.text import Text

    look = _look(step["state"])
    label = Text.assemble((f"{look.sign} {output.shortened(step['name'], 80)}", look.style))
    label.append(f"  {step['state']}", style="dim")
    if step["started_at"] is not None:
        label.append(f"  {_took(step)}", style="dim")
    if step["worker"]:
        label.append(f"  by {output.shortened(step['worker'].partition(':')[0], 50)}", style="dim")
    if step["attempt"]:
        label.append(f"  attempt {step['attempt']}", style="yellow")
    if step["error"] and step["state"] in ("failed", "held", "retry_wait"):
        label.append(f"  {_message(step['error'])}", style=look.style)
    if len(parents) > 1:
        label.append(f"  after {', '.join(parents)}", style="dim")
    return label


def _parents(client: Client, document: dict[str, Any]) -> dict[str, list[str]]:
    """By step, what it depends on. Without its workflow (it may have been removed) the tree is flat."""
    try:
        found = client.workflow(document["workflow"], namespace=document["namespace"], version=document["version"])
        return {step["name"]: list(step.get("depends_on", [])) for step in found["document"]["steps"]}
    except (ClientError, KeyError, TypeError):
        return {}


def _look(state: str) -> Look:
    return LOOKS.get(state, _UNKNOWN)


def _took(step: dict[str, Any]) -> str:
    begun = datetime.fromisoformat(step["started_at"])
    ended = datetime.fromisoformat(step["finished_at"]) if step["finished_at"] else datetime.now(UTC)
    took_s = max(0.0, (ended - begun).total_seconds())
    return f"{took_s * 1000:.0f} ms" if took_s < 1 else f"{took_s:.1f} s"


def _message(error: Any) -> str:
    text = error.get("message") or error.get("code") if isinstance(error, dict) else error
    return output.shortened(text or "failed", 200)


def _now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
