"""`stepwire task erase`: erases the payloads of tasks, and then searches the database file for them."""

import time
from typing import Any, Final

import click
from stepwire.client import Client, WrongState

from stepwire_broker.cli import completing, output
from stepwire_broker.cli.connection import broker_client
from stepwire_broker.cli.failure import Exit, leave, usage
from stepwire_broker.cli.options import Options, StepwireCommand

from . import bulk
from .ids import task_id_of
from .selection import filter_options

ENDED: Final = ("completed", "failed", "cancelled")
OPEN: Final = ("running", "paused", "pending")
CANCEL_WAIT_S: Final = 60.0


@click.command(cls=StepwireCommand)
@click.argument("task_ids", metavar="[ID]..", type=task_id_of, nargs=-1, shell_complete=completing.tasks)
@filter_options
@bulk.bulk_options
@click.option("--cancel", "cancels", is_flag=True, help="Cancel open tasks first, and wait until they have ended.")
@click.option("--reason", metavar="TEXT", required=True, help="Reason, recorded in the history. It stays.")
@click.pass_obj
def erase(
    options: Options,
    /,
    task_ids: tuple[int, ...],
    dry_run: bool,
    limit: int | None,
    cancels: bool,
    reason: str,
    **values: str | None,
) -> None:
    """Erase the payloads of tasks: contexts, outputs, errors, labels, keys, messages and standard error.

    States, times and the history stay. Nothing brings the payloads back, except a backup made before.

    Name the tasks by their ids, or select them by the filters of `stepwire task list`. A filter without --state selects
    tasks that have ended; with --cancel, also open tasks. They are erased after you confirm, or with --yes. An
    interrupted command can be repeated: it continues with the tasks that are left.

    At the end the command searches the database file for words of the erased payloads. The exit code is 1 if a task was
    refused, or if the file may still hold something.
    """
    if not reason.strip():
        usage("--reason must not be empty")

    def change(client: Client, task_id: int) -> dict[str, Any]:
        try:
            return client.erase(task_id, reason)
        except WrongState:
            if not cancels:
                raise
        _end(client, task_id, reason)
        return client.erase(task_id, reason)

    verb = bulk.Verb("erase", "erased", (*ENDED, *OPEN) if cancels else ENDED)
    if bulk.is_single(task_ids, values, dry_run):
        with broker_client(options, waits=cancels) as client:
            task = change(client, task_ids[0])
        output.one(options, task, f"task {task['task_id']} is erased")
    elif not bulk.run(options, verb, task_ids, values, dry_run=dry_run, limit=limit, change=change, ends=False):
        _finish(options)
        leave(Exit.FAILURE)
    if not dry_run:
        _finish(options)


def _end(client: Client, task_id: int, reason: str) -> None:
    """Cancel a task, and wait until its running steps have ended."""
    try:
        client.cancel(task_id, reason)
    except WrongState:
        return  # it has ended meanwhile
    until_s = time.monotonic() + CANCEL_WAIT_S
    for task in client.watch(task_id, CANCEL_WAIT_S):
        if task["state"] in ENDED or task["attention"] or time.monotonic() > until_s:
            return


def _finish(options: Options) -> None:
    """Let the broker search its file, and tell the result."""
    with broker_client(options, waits=True) as client:
        finished = client.finish_erasures()
    size = f"{finished['bytes'] / 1e6:.1f} MB"
    skipped = f"; {finished['skipped']} short values were not searched for" if finished["skipped"] else ""
    output.note(
        options,
        f"searched {size} of the database for {finished['words']} words of the erased payloads:"
        f" {finished['places']} found{', after the file was rewritten' if finished['compacted'] else ''}{skipped}",
    )
    if not finished["is_clean"]:
        output.echo(f"the database file may still hold erased bytes: {finished['hint']}", err=True)
        leave(Exit.FAILURE)
