"""`stepwire task list`: lists tasks by filters."""

import click

from stepwire_broker.cli import output
from stepwire_broker.cli.connection import all_pages, broker_client
from stepwire_broker.cli.options import Options, StepwireCommand


@click.command(name="list", cls=StepwireCommand)
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
