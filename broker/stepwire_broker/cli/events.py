"""`stepwire task events`: what happened to a task, and with --follow what happens to it, until it has ended."""

from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec
from stepwire.client import Client

from . import output
from .connection import broker
from .options import Options, StepwireCommand

BEGINNING: Final = "0"
PAGE_EVENTS: Final = 500
HEAD: Final = frozenset({"id", "at", "kind", "task_id", "namespace", "workflow", "step_id", "step"})


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int)
@click.option("--follow", is_flag=True, help="Go on until the task has ended, also when the broker restarts.")
@click.pass_obj
def events(options: Options, task_id: int, follow: bool) -> None:
    """Print what happened to a task, the oldest first."""
    with broker(options) as client:
        told = _followed(client, task_id) if follow else _listed(client, task_id)
        if options.output == "json" and not follow:
            click.echo(msgspec.json.encode(list(told)).decode())
            return
        for event in told:
            click.echo(_line(event) if options.output == "text" else msgspec.json.encode(event).decode())


def _listed(client: Client, task_id: int) -> Iterator[dict[str, Any]]:
    cursor: str | None = BEGINNING
    while cursor is not None:
        page = client.task_events(task_id, limit=PAGE_EVENTS, cursor=cursor)
        yield from page["events"]
        cursor = page["next_cursor"]


def _followed(client: Client, task_id: int) -> Iterator[dict[str, Any]]:
    """A task may be opened again after it has ended: it is over when it is over now."""
    client.task_events(task_id, limit=1)  # there has to be one to be followed
    for event in client.events(after=BEGINNING, task_id=task_id):
        yield event
        if event["kind"] == "ended" and client.task(task_id)["finished_at"] == event["at"]:
            return


def _line(event: dict[str, Any]) -> str:
    said = "  ".join(f"{name} {output.shortened(value, 200)}" for name, value in event.items() if name not in HEAD)
    return f"{event['at']}  {event.get('step') or '-'}  {event['kind']}  {said}".rstrip()
