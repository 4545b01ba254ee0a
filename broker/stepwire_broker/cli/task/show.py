"""`stepwire task show` and `stepwire task result`: print one task, or only its result."""

from typing import Any, Final

import click
import msgspec

from stepwire_broker.cli import completing, output
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.failure import Exit, Failure
from stepwire_broker.cli.options import Options, StepwireCommand

from .waiting import exit_of, seconds, until_settled

STEP_COLUMNS: Final = [
    output.Column("step", "name"),
    output.Column("id", "step_id"),
    output.Column("state", "state"),
    output.Column("attempt", "attempt"),
    output.Column("worker", "worker"),
    output.Column("why", "why"),
]


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int, shell_complete=completing.tasks)
@click.pass_obj
def show(options: Options, task_id: int) -> None:
    """Print a task and its steps."""
    with broker_client(options) as client:
        print_task(options, client.task(task_id))


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int, shell_complete=completing.tasks)
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


def print_task(options: Options, document: dict[str, Any]) -> None:
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
