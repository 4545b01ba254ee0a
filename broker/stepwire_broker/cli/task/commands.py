"""`stepwire task cancel`, `pause`, `resume` and `retry`: commands that change tasks."""

from typing import Any

import click
from stepwire.client import Client

from stepwire_broker.cli import completing, output
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.options import Options, StepwireCommand

from . import bulk
from .ids import task_id_of
from .selection import filter_options


@click.command(cls=StepwireCommand)
@click.argument("task_ids", metavar="[ID]..", type=task_id_of, nargs=-1, shell_complete=completing.open_tasks)
@filter_options
@bulk.bulk_options
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the history.")
@click.pass_obj
def cancel(
    options: Options, /, task_ids: tuple[int, ...], dry_run: bool, limit: int | None, reason: str, **values: str | None
) -> None:
    """Cancel tasks: start no further steps, and ask running steps to stop.

    Compensating steps, such as a refund, do not start either.

    Name the tasks by their ids, or select them by the filters of `stepwire task list`. A filter without --state selects
    tasks that have not ended. They are cancelled after you confirm, or with --yes. A refusal does not stop the others;
    refusals are listed at the end, and the exit code is then 1.
    """

    def change(client: Client, task_id: int) -> dict[str, Any]:
        return client.cancel(task_id, reason)

    if bulk.is_single(task_ids, values, dry_run):
        with broker_client(options) as client:
            _print_change(options, change(client, task_ids[0]))
        return
    bulk.run(options, bulk.CANCEL, task_ids, values, dry_run=dry_run, limit=limit, change=change)


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=task_id_of, shell_complete=completing.open_tasks)
@click.pass_obj
def pause(options: Options, task_id: int) -> None:
    """Pause a task: start no further steps until it is resumed. Running steps finish."""
    with broker_client(options) as client:
        _print_change(options, client.pause(task_id))


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=task_id_of, shell_complete=completing.paused_tasks)
@click.pass_obj
def resume(options: Options, task_id: int) -> None:
    """Resume a paused task."""
    with broker_client(options) as client:
        _print_change(options, client.resume(task_id))


@click.command(cls=StepwireCommand)
@click.argument("task_ids", metavar="[ID]..", type=task_id_of, nargs=-1, shell_complete=completing.failed_tasks)
@click.option("--from", "from_step", metavar="STEP", help="Run this step again, and all steps that depend on it.")
@click.option("--again", is_flag=True, help="Also rerun completed at_most_once steps. Their effects happen again!")
@click.option("--new-key", is_flag=True, help="Use new idempotency keys. External effects may happen again!")
@filter_options
@bulk.bulk_options
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the history.")
@click.pass_obj
def retry(
    options: Options,
    /,
    task_ids: tuple[int, ...],
    dry_run: bool,
    limit: int | None,
    from_step: str | None,
    again: bool,
    new_key: bool,
    reason: str,
    **values: str | None,
) -> None:
    """Retry tasks: run their failed, cancelled and skipped steps again.

    Name the tasks by their ids, or select them by the filters of `stepwire task list`. A filter without --state selects
    failed tasks. They are retried after you confirm, or with --yes. A refusal does not stop the others; refusals are
    listed at the end, and the exit code is then 1.
    """

    def change(client: Client, task_id: int) -> dict[str, Any]:
        return client.retry(task_id, from_step=from_step, again=again, new_key=new_key, reason=reason)

    if bulk.is_single(task_ids, values, dry_run):
        with broker_client(options) as client:
            _print_change(options, change(client, task_ids[0]))
        return
    bulk.run(options, bulk.RETRY, task_ids, values, dry_run=dry_run, limit=limit, change=change)


def _print_change(options: Options, task: dict[str, Any]) -> None:
    attention = f", {task['attention']}" if task["attention"] else ""
    output.one(options, task, f"task {task['task_id']} is {task['state']}{attention}")
