"""`stepwire task`: submits tasks, prints them, waits for them, and changes them."""

import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec
from stepwire.client import Client

from . import output
from .connection import all_pages, broker_client
from .failure import Exit, Failure, leave, usage
from .options import Options, StepwireGroup
from .waiting import exit_of, seconds, until_settled
from .workflow import split_name

BATCH_TASKS_MAX: Final = 1000  # tasks in one request of `submit -n`; several requests let the progress bar advance

_CONTEXT_FORM: Final = """use a form like --context '{"order_id": 7}'"""

STEP_COLUMNS: Final = [
    output.Column("step", "name"),
    output.Column("id", "step_id"),
    output.Column("state", "state"),
    output.Column("attempt", "attempt"),
    output.Column("worker", "worker"),
    output.Column("why", "why"),
]


@click.group(
    cls=StepwireGroup,
    lazy={"watch": "stepwire_broker.cli.watch:watch", "events": "stepwire_broker.cli.events:events"},
)
def task() -> None:
    """Submit, print, wait for and change tasks. A task is one run of a workflow."""


@task.command()
@click.argument("workflow")
@click.option("--namespace", metavar="NAME", help="The workflow's namespace.")
@click.option("--version", metavar="VERSION", help="The workflow's version. [the active one]")
@click.option(
    "--context", metavar="J|@FILE|-", default="{}", help="A JSON object, the file that holds it, or - for stdin."
)
@click.option("--key", metavar="KEY", help="Idempotency key: submitting it again returns the same task.")
@click.option("--priority", type=int, help="-100 to 100; a higher priority runs sooner.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="Label for finding the task later.")
@click.option("--wait", is_flag=True, help="Wait until the task has ended or is held; the exit code tells which.")
@click.option("--follow", is_flag=True, help="Same as --wait, and show the progress.")
@click.option("--timeout", metavar="DURATION", help="Maximum time to wait, e.g. 30s.")
@click.option(
    "-n", "count", metavar="N", type=click.IntRange(1, 10_000_000), default=1, help="Submit N identical tasks."
)
@click.pass_obj
def submit(
    options: Options,
    /,
    workflow: str,
    key: str | None,
    count: int,
    wait: bool,
    follow: bool,
    timeout: str | None,
    **rest: Any,
) -> None:
    """Submit a task of WORKFLOW. WORKFLOW may have the form NAMESPACE::NAME."""
    request = _request(workflow, **rest)
    wait_s = seconds(timeout)
    if follow and count > 1:
        usage("--follow shows one task: for several, use --wait")
    with broker_client(options) as client:
        if count > 1:
            task_ids = _submit_many(options, client, request, key, count)
            if wait:
                leave(_wait_for_all(options, client, task_ids, wait_s))
            return
        submitted = client.submit(**request, key=key)
        if follow:
            _follow(options, client, submitted.task_id, wait_s)
        if wait:
            document = until_settled(client, submitted.task_id, wait_s)
            _show(options, document)
            leave(exit_of(document))
    existing = "" if submitted.created else " (an earlier submission has this key)"
    data = {"task_id": submitted.task_id, "created": submitted.created, "idempotency_key": submitted.key}
    output.one(options, data, f"task {submitted.task_id}{existing}")
    output.note(options, f"next: stepwire task show {submitted.task_id}")


def _request(
    workflow: str,
    namespace: str | None,
    version: str | None,
    context: str,
    priority: int | None,
    labels: tuple[str, ...],
) -> dict[str, Any]:
    """The arguments of `Client.submit` for these options, without the key."""
    namespace, workflow = split_name(workflow, namespace)
    return {
        "workflow": workflow,
        "context": _context(context),
        "namespace": namespace,
        "version": version,
        "priority": priority,
        "labels": dict(map(_label, labels)) or None,
    }


def _follow(options: Options, client: Client, task_id: int, wait_s: float | None) -> NoReturn:
    from .watch import follow

    document = follow(options, client, task_id, wait_s)
    if options.output == "json":
        output.one(options, document, "")
    leave(exit_of(document))


@task.command()
@click.argument("task_id", metavar="ID", type=int)
@click.pass_obj
def show(options: Options, task_id: int) -> None:
    """Print a task and its steps."""
    with broker_client(options) as client:
        _show(options, client.task(task_id))


@task.command()
@click.argument("task_id", metavar="ID", type=int)
@click.option("--wait", is_flag=True, help="Wait until the task has ended or waits on a held step.")
@click.option("--timeout", metavar="DURATION", help="Maximum time to wait, e.g. 30s.")
@click.pass_obj
def result(options: Options, task_id: int, wait: bool, timeout: str | None) -> None:
    """Print the result of a completed task as JSON. Without a result, the exit code tells why."""
    with broker_client(options) as client:
        wait_s = seconds(timeout)
        document = until_settled(client, task_id, wait_s) if wait else client.task(task_id)
    code = exit_of(document)
    if code is not Exit.OK:
        attention = f", {document['attention']}" if document["attention"] else ""
        hint = f"see: stepwire task show {task_id}" + ("" if wait else f"; or: stepwire task result {task_id} --wait")
        raise Failure(code, f"task {task_id} has no result: it is {document['state']}{attention}", hint)
    click.echo(msgspec.json.encode(document["result"]).decode())


@task.command(name="list")
@click.option("--state", help="Only tasks in this state.")
@click.option("--workflow", metavar="NAME", help="Only tasks of this workflow.")
@click.option("--namespace", metavar="NAME", help="Only tasks of this namespace.")
@click.option("--label", metavar="NAME=VALUE", help="Only tasks with this label.")
@click.option("--since", metavar="TIME", help="Only tasks created at or after TIME, e.g. 2026-11-18T10:00:00Z.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of rows.")
@click.pass_obj
def list_tasks(options: Options, /, limit: int, **filters: str | None) -> None:
    """List tasks, newest first."""
    with broker_client(options) as client:
        tasks, has_more = all_pages(client.tasks, "tasks", limit, filters)
    titles = ("workflow", "version", "state", "attention", "created_at", "finished_at")
    columns = [output.Column(title, title) for title in titles]
    output.several(options, tasks, [output.Column("task", "task_id"), *columns], "no matching tasks")
    if has_more:
        output.note(options, f"there are more than {limit}: raise --limit")


@task.command()
@click.argument("task_id", metavar="ID", type=int)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the history.")
@click.pass_obj
def cancel(options: Options, task_id: int, reason: str) -> None:
    """Cancel a task: start no further steps, and ask running steps to stop."""
    with broker_client(options) as client:
        _print_change(options, client.cancel(task_id, reason))


@task.command()
@click.argument("task_id", metavar="ID", type=int)
@click.pass_obj
def pause(options: Options, task_id: int) -> None:
    """Pause a task: start no further steps until it is resumed. Running steps finish."""
    with broker_client(options) as client:
        _print_change(options, client.pause(task_id))


@task.command()
@click.argument("task_id", metavar="ID", type=int)
@click.pass_obj
def resume(options: Options, task_id: int) -> None:
    """Resume a paused task."""
    with broker_client(options) as client:
        _print_change(options, client.resume(task_id))


@task.command()
@click.argument("task_id", metavar="ID", type=int)
@click.option("--from", "from_step", metavar="STEP", help="Run this step again, and all steps that depend on it.")
@click.option("--again", is_flag=True, help="Also rerun completed at_most_once steps. Their effects happen again!")
@click.option("--new-key", is_flag=True, help="Use new idempotency keys. External effects may happen again!")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the history.")
@click.pass_obj
def retry(options: Options, task_id: int, from_step: str | None, again: bool, new_key: bool, reason: str) -> None:
    """Retry a task: run its failed, cancelled and skipped steps again."""
    with broker_client(options) as client:
        _print_change(options, client.retry(task_id, from_step=from_step, again=again, new_key=new_key, reason=reason))


def _submit_many(options: Options, client: Client, request: dict[str, Any], key: str | None, count: int) -> list[int]:
    task_ids: list[int] = []
    with output.progress(options, "submitted", count) as advance:
        while len(task_ids) < count:
            numbers = range(len(task_ids), min(len(task_ids) + BATCH_TASKS_MAX, count))
            keys = [None if key is None else f"{key}/{n}" for n in numbers]
            task_ids += client.submit_many([{**request, "key": each} for each in keys])
            advance(len(numbers))
    if options.output == "jsonl":
        for task_id in task_ids:
            click.echo(msgspec.json.encode({"task_id": task_id}).decode())
    else:
        output.one(options, {"task_ids": task_ids}, f"{count} tasks, {task_ids[0]} to {task_ids[-1]}")
    return task_ids


def _wait_for_all(options: Options, client: Client, task_ids: list[int], wait_s: float | None) -> Exit:
    """Wait for every task. Returns the highest of their exit codes."""
    until_s = None if wait_s is None else time.monotonic() + wait_s
    worst = Exit.OK
    with output.progress(options, "finished", len(task_ids)) as advance:
        for task_id in task_ids:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            worst = max(worst, exit_of(until_settled(client, task_id, left_s)))
            advance(1)
    return worst


def _show(options: Options, document: dict[str, Any]) -> None:
    if options.output != "text":
        output.one(options, document, "")
        return
    attention = f", {document['attention']}" if document["attention"] else ""
    click.echo(f"task {document['task_id']}  {document['namespace']}::{document['workflow']} {document['version']}")
    click.echo(f"state    {document['state']}{attention}")
    click.echo(f"created  {document['created_at']}")
    if document["finished_at"]:
        click.echo(f"finished {document['finished_at']}")
    for name in ("context", "result"):
        if document[name] is not None:
            click.echo(f"{name:<8} {output.shortened(document[name])}")
    click.echo()
    rows = [{**step, "why": _why(step)} for step in document["steps"]]
    output.several(options, rows, STEP_COLUMNS, "no steps")
    for step in document["steps"]:
        if step["state"] == "held":
            output.note(
                options,
                f"{step['name']} is held. Find out whether it ran, then: stepwire step resolve {step['step_id']}"
                " --completed JSON | --failed TEXT | --retry, with --reason TEXT",
            )


def _why(step: dict[str, Any]) -> str | None:
    reason, error = step["reason"], step["error"]
    if error:
        return str(error.get("message") or error.get("code") or "failed") if isinstance(error, dict) else str(error)
    return reason["message"] if reason else None


def _print_change(options: Options, task: dict[str, Any]) -> None:
    attention = f", {task['attention']}" if task["attention"] else ""
    output.one(options, task, f"task {task['task_id']} is {task['state']}{attention}")


def _context(text: str) -> Any:
    """The JSON object of --context, from the command line, a file or stdin. An error names where it came from."""
    where = "--context"
    if text == "-":
        text, where = sys.stdin.read(), "stdin"
    elif text.startswith("@"):
        where = text[1:]
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            usage(f"--context {text}: the file cannot be read: {error}")
    try:
        value = msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        usage(f"{where} is not JSON: {error}", _CONTEXT_FORM)
    if not isinstance(value, dict):
        usage(f"{where} is not a JSON object", _CONTEXT_FORM)
    return msgspec.Raw(text.encode())  # the original text: 1.50 stays 1.50


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        usage(f"--label {text}: use a form like region=eu")
    return name, value
