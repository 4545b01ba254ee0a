"""`stepwire task show` and `stepwire task result`: print one task, or only its result."""

from typing import Any, Final

import click
import msgspec
from stepwire.client import Client
from stepwire.sealing import NotUnsealed

from stepwire_broker.cli import completing, output, step_texts
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.failure import Exit, Failure
from stepwire_broker.cli.options import Options, StepwireCommand

from .ids import task_id_of
from .listing import own_key
from .waiting import exit_of, seconds, task_goes_on, until_settled

STEP_COLUMNS: Final = [
    output.Column("step", "name"),
    output.Column("id", "step_id", is_extra=True),
    output.Column("state", "state"),
    output.Column("attempt", "attempt", is_extra=True),
    output.Column("ran", "ran"),
    output.Column("queued", "queued", is_extra=True),
    output.Column("worker", "worker", is_extra=True),
    output.Column("why", "why"),
]


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=task_id_of, shell_complete=completing.tasks)
@click.option(
    "--unseal", is_flag=True, help="Print the plaintext of sealed payloads, with the keys of $STEPWIRE_SEAL_KEYS_FILE."
)
@click.pass_obj
def show(options: Options, task_id: int, unseal: bool) -> None:
    """Print a task and its steps."""
    with broker_client(options) as client:
        document = client.task(task_id)
        print_task(options, _unsealed(client, document) if unseal else document)


def _unsealed(client: Client, document: dict[str, Any]) -> dict[str, Any]:
    """The task with plaintext. The errors of steps are read one by one: a task's document has no backtraces."""
    steps = [client.step(step["step_id"]) if step["error"] else step for step in document["steps"]]
    try:
        return client.unsealed({**document, "steps": steps})
    except NotUnsealed as error:
        raise Failure(Exit.FAILURE, str(error), "use the file of keys with which the task was sealed") from None


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=task_id_of, shell_complete=completing.tasks)
@click.option("--wait", is_flag=True, help="Wait until the task has ended or waits on a held step.")
@click.option("--timeout", metavar="DURATION", help="Maximum time to wait, e.g. 30s.")
@click.pass_obj
def result(options: Options, task_id: int, wait: bool, timeout: str | None) -> None:
    """Print the result of a completed task as JSON. Without a result, the exit code tells why."""
    wait_s = seconds(timeout)
    with broker_client(options, waits=wait) as client:
        if wait:
            with task_goes_on(task_id):
                document = until_settled(options, client, task_id, wait_s)
        else:
            document = client.task(task_id)
    code = exit_of(document)
    if code is not Exit.OK:
        attention = f", {document['attention']}" if document["attention"] else ""
        hint = f"see: stepwire task show {task_id}"
        if code is Exit.TASK_RUNS and not wait:
            hint += f"; or: stepwire task result {task_id} --wait"
        raise Failure(code, f"task {task_id} has no result: it is {document['state']}{attention}", hint)
    if "result" not in document:
        raise Failure(Exit.DENIED, f"the result of task {task_id} is not shown: {step_texts.NOT_INSPECTED}")
    click.echo(msgspec.json.encode(document["result"]).decode())


def print_task(options: Options, document: dict[str, Any]) -> None:
    if options.output != "text":
        output.one(options, document, "")
        return
    click.echo(f"task {document['task_id']}  {document['namespace']}::{document['workflow']} {document['version']}")
    _print_state(document)
    if document["erased_at"]:
        step_texts.print_line("erased", f"{document['erased_at']}: the payloads of this task are gone")
    step_texts.print_line("key", own_key(document))
    step_texts.print_line("labels", ", ".join(f"{name}={value}" for name, value in document["labels"].items()) or None)
    for name in ("context", "result"):
        if document.get(name) is not None:
            output.echo(f"{name:<8} {output.shortened(document[name])}", indent=9)
    click.echo()
    rows = [{**step, **_texts(step)} for step in document["steps"]]
    output.several(options, rows, STEP_COLUMNS, "no steps")
    if "context" not in document:
        output.note(options, f"context, result and outputs are not shown: {step_texts.NOT_INSPECTED}")
    for step in document["steps"]:
        if step["state"] == "held":
            output.note(
                options,
                f"{step['name']} is held. Find out whether it ran, then: stepwire step resolve {step['step_id']}"
                " --completed JSON | --failed TEXT | --retry, with --reason TEXT",
            )


def _print_state(document: dict[str, Any]) -> None:
    """Print the task's state and times, and who cancelled it."""
    attention = f", {document['attention']}" if document["attention"] else ""
    colour = "held" if document["attention"] else document["state"]
    step_texts.print_line("state", f"{document['state']}{attention}", output.STATE_COLOURS.get(colour, ""))
    created, finished, cancel = document["created_at"], document["finished_at"], document["cancel"]
    step_texts.print_line("created", f"{created}  ({step_texts.duration(step_texts.since(created))} ago)")
    if finished:
        step_texts.print_line(
            "finished", f"{finished}  (after {step_texts.duration(step_texts.between(created, finished))})"
        )
    if cancel:
        by = f" by {cancel['by']}" if cancel["by"] else ""
        reason = f": {cancel['reason']}" if cancel["reason"] else ""
        step_texts.print_line("cancel", f"asked{by} at {cancel['at']}{reason}")


def _texts(step: dict[str, Any]) -> dict[str, Any]:
    """The members of a step's row that are texts for people."""
    why = step_texts.why(step)
    return {
        "attempt": step_texts.attempt(step),
        "ran": step_texts.ran(step),
        "queued": step_texts.queued(step),
        "why": None if why is None else output.shortened(why),
    }
