"""`stepwire step`: lists steps across tasks, and resolves held ones."""

import os
from typing import Any, Final

import click
import msgspec
from stepwire.client import Client, WrongState
from stepwire_protocol import patterns

from stepwire_broker.api.enumerations import HANDLER_ERROR

from . import completing, json_values, output, step_texts
from .confirmation import confirm
from .connection import all_pages, broker_client
from .failure import Exit, Failure, leave, usage
from .options import Options, StepwireGroup

RESOLVED_MAX: Final = 10_000  # steps at once

COLUMNS = [
    output.Column("step", "step_id"),
    output.Column("task", "task_id"),
    output.Column("name", "name"),
    output.Column("handler", "handler_class", is_extra=True),
    output.Column("state", "state"),
    output.Column("worker", "worker", is_extra=True),
    output.Column("why", "why"),
]


ATTEMPT_COLUMNS = [
    output.Column("attempt", "attempt"),
    output.Column("delivery", "delivery", is_extra=True),
    output.Column("outcome", "state"),
    output.Column("at", "at", is_extra=True),
    output.Column("ran", "ran"),
    output.Column("worker", "worker", is_extra=True),
    output.Column("error", "error"),
]


@click.group(cls=StepwireGroup)
def step() -> None:
    """List steps across tasks, and resolve held steps."""


@step.command(name="list")
@output.columns_option
@click.option(
    "--state",
    default="held",
    show_default=True,
    shell_complete=completing.step_states,
    help="Only steps in this state: held, failed, …",
)
@click.option("--handler-class", metavar="NAME", shell_complete=completing.handlers, help="Only steps of this handler.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of rows.")
@click.pass_obj
def list_steps(options: Options, state: str, handler_class: str | None, limit: int) -> None:
    """List the steps in a state."""
    with broker_client(options) as client:
        filters = {"state": state, "handler_class": handler_class}
        steps, has_more = all_pages(client.steps, "steps", limit, filters)
    output.several(options, _rows(options, steps), COLUMNS, f"no step is {state}")
    if has_more:
        output.note(options, f"there are more than {limit}: raise --limit")


@step.command()
@click.argument("reference", metavar="STEP", shell_complete=completing.steps)
@click.pass_obj
def show(options: Options, reference: str) -> None:
    """Print a step with its last error, its attempts and its standard error. STEP is its id, or TASK/NAME.

    The traceback begins at the handler's code; with -v it has the frames of Stepwire, too.
    """
    with broker_client(options) as client:
        document = client.step(find(client, reference))
    if options.output == "text":
        _print(options, document)
    else:
        output.one(options, document, "")


def _print(options: Options, step: dict[str, Any]) -> None:
    """Print a step for people: what it is, how its latest attempt went, all attempts, and standard error."""
    line = step_texts.print_line
    click.echo(f"step {step['step_id']}  {step_texts.printable(step['name'])} of task {step['task_id']}")
    tries = step_texts.attempt(step)
    line(
        "state", f"{step['state']}{f', attempt {tries}' if tries else ''}", output.STATE_COLOURS.get(step["state"], "")
    )
    line("handler", step["handler_class"])
    line("worker", step["worker"])
    line("queued", step_texts.queued(step))
    started = f"  (from {step['started_at']})" if step["started_at"] else ""
    ran = step_texts.ran(step)
    line("ran", None if ran is None else f"{ran}{started}")
    line("finished", step["finished_at"])
    line("next", step["not_before"] and f"not before {step['not_before']}")
    if step["progress"]:
        age = step_texts.duration(step_texts.since(step["progress"]["at"]))
        line("progress", f"{step_texts.progress(step['progress'])}  ({age} ago)")
    if step["reason"] and not (step["error"] and step["reason"]["code"] in (HANDLER_ERROR, step["error"].get("code"))):
        line("why", step["reason"]["message"])  # a reason that only repeats the error is left out
    if step["error"]:
        line("error", step_texts.error(step["error"]), output.STATE_COLOURS["failed"])
        step_texts.print_block(step_texts.traceback(step["error"], is_whole=options.verbosity > 0))
    if step["output_bytes"] and "output" in step:
        line("output", output.shortened(step["output"]))
    if step["attempts"]:
        click.echo()
        output.several(options, [_attempt_row(each) for each in step["attempts"]], ATTEMPT_COLUMNS, "")
    if step["attempts_omitted"]:
        output.note(options, f"{step['attempts_omitted']} earlier deliveries are not shown")
    stderr = step.get("stderr")
    if stderr and stderr["text"]:
        click.echo()
        click.echo(f"standard error of delivery {stderr['delivery']}:")
        step_texts.print_block(stderr["text"].splitlines())
    if "output" not in step:
        output.note(options, f"output, backtrace and standard error are not shown: {step_texts.NOT_INSPECTED}")


_OUTCOME_TEXTS: Final = {None: "running", "backed_off": "retried"}


def _attempt_row(attempt: dict[str, Any]) -> dict[str, Any]:
    return {
        "delivery": attempt["delivery"],
        "attempt": attempt["attempt"] + 1,
        "state": _OUTCOME_TEXTS.get(attempt["outcome"], attempt["outcome"]),
        "at": attempt["dispatched_at"] or attempt["ended_at"],
        "ran": step_texts.duration(attempt["run_ms"]),
        "worker": attempt["worker"],
        "error": attempt["message"] or attempt["code"],
    }


@step.command()
@click.argument("references", metavar="[STEP]..", nargs=-1, shell_complete=completing.held_steps)
@click.option(
    "--handler-class",
    metavar="NAME",
    shell_complete=completing.handlers,
    help="All held steps of this handler; NAME may be a pattern.",
)
@click.option("--task", "task_id", type=int, metavar="ID", help="All held steps of this task.")
@click.option("--all", "all_held", is_flag=True, help="All held steps.")
@click.option("--dry-run", is_flag=True, help="Only print the steps that would be resolved.")
@click.option("--completed", metavar="JSON", help="The step ran, and JSON is its output.")
@click.option("--failed", metavar="TEXT", help="The step did not do its work; TEXT is the reason.")
@click.option("--retry", is_flag=True, help="The step did not run, or may run twice: run it again.")
@click.option("--new-key", is_flag=True, help="With --retry: use a new idempotency key.")
@click.option("--reason", metavar="TEXT", required=True, help="How you know the outcome; recorded in the history.")
@click.pass_obj
def resolve(options: Options, /, references: tuple[str, ...], dry_run: bool, reason: str, **choices: Any) -> None:
    """Resolve held steps: record what became of them. STEP is an id, or TASK/NAME.

    Steps chosen by a filter are listed first. They are resolved after you confirm, or with --yes.
    """
    outcome = _outcome(choices["completed"], choices["failed"], choices["retry"], choices["new_key"])
    is_filter = choices["handler_class"] is not None or choices["task_id"] is not None or choices["all_held"]
    if bool(references) == is_filter:
        usage("name the steps, or choose them by --handler-class, --task or --all")
    with broker_client(options) as client:
        if references:
            steps = [client.step(find(client, reference)) for reference in references]
        else:
            steps = _held(client, choices["handler_class"], choices["task_id"])
        if not steps:
            output.several(options, [], COLUMNS, "no matching step is held")
            return
        if dry_run:
            output.several(options, _rows(options, steps), COLUMNS, "")
            output.note(options, f"{_count(steps)} would be resolved; nothing has changed")
            return
        if not references:
            _confirm_resolution(options, steps, outcome["outcome"])
        _resolve_all(options, client, steps, {**outcome, "reason": reason}, is_single=len(references) == 1)


def _confirm_resolution(options: Options, steps: list[dict[str, Any]], outcome: str) -> None:
    """List the steps and ask. Without a yes, the command ends."""
    if options.output == "text":
        output.several(options, _rows(options, steps), COLUMNS, "")
    if not confirm(options, f"Resolve {_count(steps)} as {outcome}?"):
        output.note(options, "nothing has changed")
        leave(Exit.FAILURE)


def _count(steps: list[dict[str, Any]]) -> str:
    return f"{len(steps)} held step{'s' * (len(steps) > 1)}"


def _outcome(completed: str | None, failed: str | None, retry: bool, new_key: bool) -> dict[str, Any]:
    if new_key and not retry:
        usage("--new-key needs --retry: only a step that runs again gets a new key")
    match (completed, failed, retry):
        case (str(), None, False):
            return {"outcome": "completed", "output": _json(completed or "")}
        case (None, str(), False):
            return {"outcome": "failed", "message": failed}
        case (None, None, True):
            return {"outcome": "retry", "new_key": new_key}
        case _:
            usage("choose one of --completed JSON, --failed TEXT and --retry")


def _held(client: Client, handler_class: str | None, task_id: int | None) -> list[dict[str, Any]]:
    if task_id is None:
        filters = {"state": "held", "handler_class": handler_class}
        return all_pages(client.steps, "steps", RESOLVED_MAX, filters)[0]
    offers = (lambda _: True) if handler_class is None else patterns.compile_pattern(handler_class).matches
    steps = client.task(task_id)["steps"]
    return [one for one in steps if one["state"] == "held" and offers(one["handler_class"])]


def _resolve_all(
    options: Options, client: Client, steps: list[dict[str, Any]], resolution: dict[str, Any], *, is_single: bool
) -> None:
    """Resolve the steps one by one. If another operator has resolved a step meanwhile, continue with the rest; a single
    step fails with its own error."""
    results: list[dict[str, Any]] = []
    with output.progress(options, "resolved", len(steps)) as advance:
        for one in steps:
            name = {"step_id": one["step_id"], "task_id": one["task_id"], "name": one["name"]}
            try:
                task = client.resolve(one["step_id"], **resolution)
            except WrongState as error:
                if is_single:
                    raise
                results.append({**name, "resolved": False, "error": error.message})
            else:
                results.append({**name, "resolved": True, "state": task["state"], "error": None})
            advance(1)
    if options.output != "text":
        if is_single:
            output.one(options, results[0], "")
        else:
            output.several(options, results, COLUMNS, "")
    for result in results if options.output == "text" else []:
        step = f"step {result['task_id']}/{output.shortened(result['name'])}"
        if result["resolved"]:
            output.echo(f"{step} is resolved; task {result['task_id']} is {result['state']}")
        else:
            output.echo(f"stepwire: {step}: {result['error']}", err=True)
    if not all(result["resolved"] for result in results):
        leave(Exit.FAILURE)


def _rows(options: Options, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if options.output != "text":
        return steps
    return [{**one, "why": step_texts.why(one)} for one in steps]


def find(client: Client, reference: str) -> int:
    """The step id for a reference like `8127` or `6591/process_payment`."""
    if reference.isascii() and reference.isdigit():
        return int(reference)
    task_id, slash, name = reference.partition("/")
    if not (slash and name and task_id.isascii() and task_id.isdigit()):
        usage(f"{reference!r} does not name a step: use a form like 8127 or 6591/process_payment")
    for one in client.task(int(task_id))["steps"]:
        if one["name"] == name:
            return int(one["step_id"])
    raise Failure(Exit.NOT_FOUND, f"task {task_id} has no step {name!r}", f"see: stepwire task show {task_id}")


def _json(text: str) -> Any:
    content = os.fsencode(text)
    json_values.decoded(content, "--completed", """a string needs quotes: --completed '"done"'""")
    return msgspec.Raw(content)
