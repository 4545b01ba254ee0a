"""`stepwire task watch`: shows a running task, as a live tree on a terminal or as one line per change."""

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from stepwire.client import Client, ClientError

from stepwire_broker.cli import completing, output, step_texts
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.failure import leave
from stepwire_broker.cli.options import Options, StepwireCommand

from .ids import task_id_of
from .waiting import Quiet, exit_of, seconds, task_goes_on, why_line

if TYPE_CHECKING:
    from rich.tree import Tree

POLL_S: Final = 0.3
PROGRESS_EVERY_S: Final = 1.0
NO_WORKER_OFFERS: Final = "no_worker_offers"  # the code of a reason: stepwire_broker.core.why


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
@click.argument("task_id", metavar="ID", type=task_id_of, shell_complete=completing.tasks)
@click.option("--timeout", metavar="DURATION", help="Stop watching after this time, e.g. 30s.")
@click.pass_obj
def watch(options: Options, task_id: int, timeout: str | None) -> None:
    """Show the progress of a task until it has ended or waits on a held step. The exit code tells how it ended.

    With -o jsonl each change is one line; with -o json only the task's last state is printed.
    """
    with broker_client(options, waits=True) as client, task_goes_on(task_id):
        document = follow(options, client, task_id, seconds(timeout))
    if options.output == "json":
        output.one(options, document, "")
    leave(exit_of(document))


def follow(options: Options, client: Client, task_id: int, wait_s: float | None = None) -> dict[str, Any]:
    """Show the task until it has ended, waits on a held step, or the wait times out. Returns its last state."""
    watching = Watching(client, client.watch(task_id, wait_s, every_s=POLL_S))
    if options.output == "text" and output.is_terminal():
        _draw(watching)
    else:
        _print_changes(options, watching)
    return watching.task


class Watching:
    """The task's states, one per poll. `task` is the last one, and `why` explains it while it does not move."""

    def __init__(self, client: Client, states: Iterator[dict[str, Any]]) -> None:
        self.client = client
        self.task: dict[str, Any] = {}
        self.new_why: str | None = None
        self._states = states
        self._quiet = Quiet(client)

    @property
    def why(self) -> str | None:
        return self._quiet.sentence

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for task in self._states:
            self.task = task
            self.new_why = self._quiet.look(task)
            yield task


# -- lines ------------------------------------------------------------------------------------------------------------


def _print_changes(options: Options, watching: Watching) -> None:
    for change in _changes(watching):
        if change is not None:
            _print_change(options, change)
        elif watching.new_why is not None:
            output.note(options, why_line(watching.task["task_id"], watching.new_why))


def _changes(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any] | None]:
    """The changes between polls: changes of a step's state, attempt, worker or progress, and of the task's state.

    After each poll, None.
    """
    steps: dict[int, tuple[Any, ...]] = {}
    reports = Reports()
    task: tuple[Any, ...] | None = None
    for document in documents:
        for step in document["steps"]:
            step_id, progress = step["step_id"], step.get("progress")
            now = (step["state"], step["attempt"], step["worker"], step["started_at"] is not None)
            is_changed = steps.get(step_id) != now and (now[0] != "waiting" or step_id in steps)
            if is_changed or reports.is_due(step_id, progress):
                names = ("task_id", "step_id", "name", "state", "attempt", "worker", "started_at", "error")
                yield {"at": _now_text(), **{name: step[name] for name in names}, "progress": progress}
                reports.note(step_id, progress)
            steps[step_id] = now
        if task != (document["state"], document["attention"]):
            task = (document["state"], document["attention"])
            yield {"at": _now_text(), **{name: document[name] for name in ("task_id", "state", "attention")}}
        yield None


class Reports:
    """The progress reports that were printed: at most one a second for each step, and each only once."""

    def __init__(self) -> None:
        self._printed: dict[int, tuple[float, Any]] = {}  # by step id: when, and the report

    def is_due(self, step_id: int, progress: Any) -> bool:
        printed_s, printed = self._printed.get(step_id, (0.0, None))
        return progress is not None and progress != printed and time.monotonic() - printed_s >= PROGRESS_EVERY_S

    def note(self, step_id: int, progress: Any) -> None:
        if progress is not None:
            self._printed[step_id] = (time.monotonic(), progress)


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
    next_one = " comes next" if change["state"] == "retry_wait" else ""
    more = f" (attempt {change['attempt'] + 1}{next_one})" if change["attempt"] else ""
    worker = ""
    if change["worker"] and change["state"] == "dispatched":
        worker = f" {'and running on' if change['started_at'] else 'to'} {change['worker']}"
    error = f": {_message(change['error'])}" if change["error"] else ""
    progress = f", {output.shortened(step_texts.progress(change['progress']))}" if change["progress"] else ""
    step = output.shortened(change["name"])
    click.echo(f"{change['at'][11:23]} {step} is {change['state']}{worker}{more}{progress}{error}")


# -- the tree ---------------------------------------------------------------------------------------------------------


def _draw(watching: Watching) -> None:
    from rich.console import Console
    from rich.live import Live

    parents: dict[str, list[str]] | None = None
    with Live(console=Console(), refresh_per_second=8, transient=False) as live:
        for task in watching:
            parents = _parents(watching.client, task) if parents is None else parents
            live.update(tree(task, parents, watching.why), refresh=True)


def tree(document: dict[str, Any], parents: dict[str, list[str]], why: str | None = None) -> "Tree":
    """The task as a tree. Each step is below the last of its dependencies, and names all of them if there are
    several. The last line explains a task that does not move."""
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
    if why is not None:
        root.add(Text(f"why: {output.shortened(why)}", "yellow"))
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
    if step.get("progress"):
        label.append(f"  {output.shortened(step_texts.progress(step['progress']), 80)}", style="cyan")
    if step["attempt"]:
        next_one = " comes next" if step["state"] == "retry_wait" else ""
        label.append(f"  attempt {step_texts.attempt(step)}{next_one}", style="yellow")
    if step["error"] and step["state"] in ("failed", "held", "retry_wait"):
        label.append(f"  {_message(step['error'])}", style=style.style)
    if obstacle := _obstacle(step):
        label.append("  " if step["state"] == "ready" else "\n").append(obstacle, style="yellow")
    if len(parents) > 1:
        label.append(f"  after {', '.join(parents)}", style="dim")
    return label


def _obstacle(step: dict[str, Any]) -> str | None:
    """The text of an obstacle that the user must remove: no worker offers the handler, or the step is held."""
    reason = step.get("reason")
    if step["state"] == "ready" and reason and reason["code"] == NO_WORKER_OFFERS:
        return output.shortened(reason["message"].partition(" (")[0], 200)  # without the list of other workers
    return f"find out what it did, then: stepwire step resolve {step['step_id']}" if step["state"] == "held" else None


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
