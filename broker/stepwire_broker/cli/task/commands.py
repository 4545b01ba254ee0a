"""`stepwire task cancel`, `pause`, `resume` and `retry`: commands that change a task."""

from typing import Any

import click

from stepwire_broker.cli import output
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.options import Options, StepwireCommand


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the history.")
@click.pass_obj
def cancel(options: Options, task_id: int, reason: str) -> None:
    """Cancel a task: start no further steps, and ask running steps to stop.

    Compensating steps, such as a refund, do not start either.
    """
    with broker_client(options) as client:
        _print_change(options, client.cancel(task_id, reason))


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int)
@click.pass_obj
def pause(options: Options, task_id: int) -> None:
    """Pause a task: start no further steps until it is resumed. Running steps finish."""
    with broker_client(options) as client:
        _print_change(options, client.pause(task_id))


@click.command(cls=StepwireCommand)
@click.argument("task_id", metavar="ID", type=int)
@click.pass_obj
def resume(options: Options, task_id: int) -> None:
    """Resume a paused task."""
    with broker_client(options) as client:
        _print_change(options, client.resume(task_id))


@click.command(cls=StepwireCommand)
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


def _print_change(options: Options, task: dict[str, Any]) -> None:
    attention = f", {task['attention']}" if task["attention"] else ""
    output.one(options, task, f"task {task['task_id']} is {task['state']}{attention}")
