"""`stepwire task events`: the history of a task; with --follow, new events until the task has ended."""

from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec
from stepwire.client import Client

from stepwire_broker.cli import completing, output, step_texts
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.options import Options, StepwireCommand

from .ids import task_id_of
from .waiting import task_goes_on

BEGINNING: Final = "0"
PAGE_EVENTS: Final = 500
HEAD: Final = frozenset({"id", "at", "kind", "task_id", "namespace", "workflow", "step_id", "step"})

LAST: Final = ("run_ms", "message")


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=task_id_of, shell_complete=completing.tasks)
@click.option("--follow", is_flag=True, help="Print new events until the task has ended, also across a broker restart.")
@click.pass_obj
def events(options: Options, task_id: int, follow: bool) -> None:
    """Print the events of a task, oldest first."""
    with broker_client(options, waits=follow) as client:
        if follow:
            with task_goes_on(task_id):
                _print(options, _followed(client, task_id))
        elif options.output == "json":
            click.echo(msgspec.json.encode(list(_stored(client, task_id))).decode())
        else:
            _print(options, _stored(client, task_id))


def _print(options: Options, task_events: Iterator[dict[str, Any]]) -> None:
    for event in task_events:
        click.echo(_line(event) if options.output == "text" else msgspec.json.encode(event).decode())


def _stored(client: Client, task_id: int) -> Iterator[dict[str, Any]]:
    cursor: str | None = BEGINNING
    while cursor is not None:
        page = client.task_events(task_id, limit=PAGE_EVENTS, cursor=cursor)
        yield from page["events"]
        cursor = page["next_cursor"]


def _followed(client: Client, task_id: int) -> Iterator[dict[str, Any]]:
    """Events until the task has ended. A retry may reopen an ended task, so an old `ended` event is not the end."""
    client.task_events(task_id, limit=1)  # fails if there is no such task
    for event in client.events(after=BEGINNING, task_id=task_id):
        yield event
        if event["kind"] == "ended" and client.task(task_id)["finished_at"] == event["at"]:
            return


def _line(event: dict[str, Any]) -> str:
    """The event's members in their order; a duration and a message come last, because they are longest."""
    facts = [f"{name} {output.shortened(value, 200)}" for name, value in event.items() if name not in (*HEAD, *LAST)]
    if "run_ms" in event:
        facts.append(f"took {step_texts.duration(event['run_ms'])}")
    if "message" in event:
        facts.append(f"message {output.shortened(event['message'], 200)}")
    return f"{event['at']}  {event.get('step') or '-'}  {event['kind']}  {'  '.join(facts)}".rstrip()
