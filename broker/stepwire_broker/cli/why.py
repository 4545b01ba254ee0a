"""`stepwire why`: one sentence that explains what a task or a step waits for."""

from typing import Any

import click
from stepwire.client import Client, NotFound

from . import completing, output
from .connection import broker_client
from .failure import usage
from .hints import next_text
from .options import Options, StepwireCommand

SENTENCE_CHARACTERS_MAX = 2_000


@click.command(cls=StepwireCommand)
@click.argument("reference", metavar="TASK[/STEP]", shell_complete=completing.open_tasks)
@click.pass_obj
def why(options: Options, reference: str) -> None:
    """Explain why a task or a step is not running: `6591`, `6591/process_payment`, or the step's id."""
    number, slash, name = reference.partition("/")
    if not (number.isascii() and number.isdigit()) or (slash and not name):
        usage(f"{reference!r} names neither a task nor a step: use a form like 6591 or 6591/process_payment")
    with broker_client(options) as client:
        reason = client.why(int(number), name) if name else _why_number(client, int(number))
    output.one(options, reason, output.shortened(sentence_of(reason), SENTENCE_CHARACTERS_MAX))


def sentence_of(reason: dict[str, Any]) -> str:
    """The message with its hint for shell users, which replaces the hint in the reason."""
    if reason["next"] is not None:
        reason["hint"] = next_text(reason["next"], reason["hint"])
    message: str = reason["message"]
    return message if reason["hint"] is None else f"{message}; {reason['hint']}"


def _why_number(client: Client, number: int) -> dict[str, Any]:
    """The reason for a task's or a step's id. Both are numbered in one sequence, so a number is never both."""
    try:
        return client.why(number)
    except NotFound as no_such_task:
        try:
            step = client.step(number)
        except NotFound:
            raise no_such_task from None
        return client.why(step["task_id"], step["name"])
