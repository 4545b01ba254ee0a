"""`stepwire task list`: lists tasks by filters."""

from typing import Any

import click
from stepwire.client.tasks import GENERATED_PREFIX

from stepwire_broker.cli import output
from stepwire_broker.cli.connection import broker_client, pages_from
from stepwire_broker.cli.options import Options, StepwireCommand

from .selection import filter_options, filters

COLUMNS = (
    output.Column("task", "task_id"),
    output.Column("workflow", "name"),
    output.Column("version", "version", is_extra=True),
    output.Column("state", "state"),
    output.Column("attention", "attention", is_extra=True),
    output.Column("key", "idempotency_key", is_extra=True),
    output.Column("created", "created_at"),
    output.Column("finished", "finished_at", is_extra=True),
)


@click.command(name="list", cls=StepwireCommand)
@filter_options
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of rows.")
@click.option("--cursor", metavar="CURSOR", help="Continue a list: the last line of the list before names the cursor.")
@output.columns_option
@click.pass_obj
def list_tasks(options: Options, /, limit: int, cursor: str | None, **values: str | None) -> None:
    """List tasks, newest first."""
    with broker_client(options) as client:
        tasks, next_cursor = pages_from(client.tasks, "tasks", limit, filters(values), cursor)
    output.several(options, list(map(row, tasks)) if options.output == "text" else tasks, COLUMNS, "no matching tasks")
    if next_cursor is not None:
        output.note(options, f"there are more than {limit}: raise --limit, or continue with --cursor {next_cursor}")


def row(task: dict[str, Any]) -> dict[str, Any]:
    """A task as a table row."""
    return {**task, "name": f"{task['namespace']}::{task['workflow']}", "idempotency_key": own_key(task)}


def own_key(task: dict[str, Any]) -> str | None:
    """The task's idempotency key. A key that a client generated means nothing to a reader."""
    key: str | None = task["idempotency_key"]
    return None if key is None or key.startswith(GENERATED_PREFIX) else key
