"""`stepwire step`: find the held ones, and say what became of them."""

from typing import Any, Final

import click
import msgspec
from stepwire.client import Client, WrongState
from stepwire_protocol import patterns

from . import output
from .asking import confirm
from .connection import all_pages, broker
from .failure import Exit, Failure, leave, usage
from .options import Options, StepwireGroup

RESOLVED_MAX: Final = 10_000  # steps at once

COLUMNS = [
    output.Column("step", "step_id"),
    output.Column("task", "task_id"),
    output.Column("name", "name"),
    output.Column("handler", "handler_class"),
    output.Column("state", "state"),
    output.Column("worker", "worker"),
    output.Column("why", "why"),
]


@click.group(cls=StepwireGroup)
def step() -> None:
    """Look at steps across tasks, and resolve held ones."""


@step.command(name="list")
@click.option("--state", default="held", show_default=True, help="held, failed, …")
@click.option("--handler-class", metavar="NAME", help="Only steps of this handler.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="So many at most.")
@click.pass_obj
def list_steps(options: Options, state: str, handler_class: str | None, limit: int) -> None:
    """Print the steps in a state."""
    with broker(options) as client:
        filters = {"state": state, "handler_class": handler_class}
        steps, has_more = all_pages(client.steps, "steps", limit, filters)
    output.several(options, _rows(options, steps), COLUMNS, f"no step is {state}")
    if has_more:
        output.note(options, f"there are more than these {limit}: raise --limit")


@step.command()
@click.argument("reference", metavar="STEP")
@click.pass_obj
def show(options: Options, reference: str) -> None:
    """Print a step: STEP is its id, or TASK/NAME."""
    with broker(options) as client:
        document = client.step(find(client, reference))
    output.one(
        options, document, "\n".join(f"{name:<14} {output.shortened(value)}" for name, value in document.items())
    )


@step.command()
@click.argument("references", metavar="[STEP]..", nargs=-1)
@click.option("--handler-class", metavar="NAME", help="Every held step of this handler; NAME may be a pattern.")
@click.option("--task", "task_id", type=int, metavar="ID", help="Every held step of this task.")
@click.option("--all", "all_held", is_flag=True, help="Every held step.")
@click.option("--dry-run", is_flag=True, help="Only say which steps it would be.")
@click.option("--completed", metavar="JSON", help="It ran, and this is its output.")
@click.option("--failed", metavar="TEXT", help="It did not do its work, and this is why.")
@click.option("--retry", is_flag=True, help="It did not run, or may run twice: run it again.")
@click.option("--new-key", is_flag=True, help="With --retry: under a new idempotency key.")
@click.option("--reason", metavar="TEXT", required=True, help="How you know. For whoever reads the history.")
@click.pass_obj
def resolve(
    options: Options,
    references: tuple[str, ...],
    handler_class: str | None,
    task_id: int | None,
    all_held: bool,
    dry_run: bool,
    completed: str | None,
    failed: str | None,
    retry: bool,
    new_key: bool,
    reason: str,
) -> None:
    """Say what became of held steps: STEP is an id, or TASK/NAME.

    Steps that are chosen by a filter are shown first, and are resolved once you have agreed, or said --yes.
    """
    said = _said(completed, failed, retry, new_key)
    is_filter = handler_class is not None or task_id is not None or all_held
    if bool(references) == is_filter:
        usage("name the steps, or choose them by --handler-class, --task or --all")
    with broker(options) as client:
        if references:
            steps = [client.step(find(client, reference)) for reference in references]
        else:
            steps = _held(client, handler_class, task_id)
        if not steps:
            output.several(options, [], COLUMNS, "no such step is held")
            return
        if dry_run or not references:
            if options.output == "text" or dry_run:
                output.several(options, _rows(options, steps), COLUMNS, "")
            count = f"{len(steps)} held step{'s' * (len(steps) > 1)}"
            if dry_run:
                output.note(options, f"{count} would be resolved; nothing has changed")
                return
            if not confirm(options, f"Resolve {count} as {said['outcome']}?"):
                output.note(options, "nothing has changed")
                leave(Exit.FAILURE)
        _resolve_all(options, client, steps, {**said, "reason": reason}, is_single=len(references) == 1)


def _said(completed: str | None, failed: str | None, retry: bool, new_key: bool) -> dict[str, Any]:
    if new_key and not retry:
        usage("--new-key is for a step that runs again: use it with --retry")
    match (completed, failed, retry):
        case (str(), None, False):
            return {"outcome": "completed", "output": _json(completed or "")}
        case (None, str(), False):
            return {"outcome": "failed", "message": failed}
        case (None, None, True):
            return {"outcome": "retry", "new_key": new_key}
        case _:
            usage("say one of --completed JSON, --failed TEXT and --retry")


def _held(client: Client, handler_class: str | None, task_id: int | None) -> list[dict[str, Any]]:
    if task_id is None:
        filters = {"state": "held", "handler_class": handler_class}
        return all_pages(client.steps, "steps", RESOLVED_MAX, filters)[0]
    offers = (lambda _: True) if handler_class is None else patterns.compile_pattern(handler_class).matches
    steps = client.task(task_id)["steps"]
    return [one for one in steps if one["state"] == "held" and offers(one["handler_class"])]


def _resolve_all(
    options: Options, client: Client, steps: list[dict[str, Any]], said: dict[str, Any], *, is_single: bool
) -> None:
    """One after the other; what another operator resolved meanwhile stops nobody. A single one fails as itself."""
    results: list[dict[str, Any]] = []
    with output.progress(options, "resolved", len(steps)) as advance:
        for one in steps:
            name = {"step_id": one["step_id"], "task_id": one["task_id"], "name": one["name"]}
            try:
                changed = client.resolve(one["step_id"], **said)
            except WrongState as error:
                if is_single:
                    raise
                results.append({**name, "resolved": False, "error": error.message})
            else:
                results.append({**name, "resolved": True, "state": changed["state"], "error": None})
            advance(1)
    if options.output != "text":
        if is_single:
            output.one(options, results[0], "")
        else:
            output.several(options, results, COLUMNS, "")
    for result in results if options.output == "text" else []:
        step = f"step {result['task_id']}/{output.shortened(result['name'])}"
        if result["resolved"]:
            click.echo(f"{step} is resolved; task {result['task_id']} is {result['state']}")
        else:
            click.echo(f"stepwire: {step}: {result['error']}", err=True)
    if not all(result["resolved"] for result in results):
        leave(Exit.FAILURE)


def _rows(options: Options, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if options.output != "text":
        return steps
    return [{**one, "why": one["reason"] and one["reason"]["message"]} for one in steps]


def find(client: Client, reference: str) -> int:
    """The id behind `8127` or `6591/process_payment`."""
    if reference.isascii() and reference.isdigit():
        return int(reference)
    task_id, slash, name = reference.partition("/")
    if not (slash and name and task_id.isascii() and task_id.isdigit()):
        usage(f"{reference!r} is not a step: it needs a form like 8127, or 6591/process_payment")
    for one in client.task(int(task_id))["steps"]:
        if one["name"] == name:
            return int(one["step_id"])
    raise Failure(Exit.NOT_FOUND, f"task {task_id} has no step {name!r}", f"see: stepwire task show {task_id}")


def _json(text: str) -> Any:
    try:
        msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        usage(f"--completed is not JSON: {error}", """a text needs its quotes: --completed '"done"'""")
    return msgspec.Raw(text.encode())
