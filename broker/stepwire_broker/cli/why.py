"""`stepwire why`: one sentence about what a task or a step waits for."""

from typing import Any

import click
from stepwire.client import Client, NotFound

from . import output
from .connection import broker
from .failure import usage
from .hints import next_text
from .options import Options, StepwireCommand

SENTENCE_CHARACTERS_MAX = 2_000


@click.command(cls=StepwireCommand)
@click.argument("reference", metavar="TASK[/STEP]")
@click.pass_obj
def why(options: Options, reference: str) -> None:
    """Say why a task or a step is not running: `6591`, `6591/process_payment`, or a step's own id."""
    number, slash, name = reference.partition("/")
    if not (number.isascii() and number.isdigit()) or (slash and not name):
        usage(f"{reference!r} is no task and no step: it needs a form like 6591, or 6591/process_payment")
    with broker(options) as client:
        reason = client.why(int(number), name) if name else _of_number(client, int(number))
    if reason["next"] is not None:
        reason["hint"] = next_text(reason["next"], reason["hint"])
    sentence = reason["message"] if reason["hint"] is None else f"{reason['message']}; {reason['hint']}"
    output.one(options, reason, output.shortened(sentence, SENTENCE_CHARACTERS_MAX))


def _of_number(client: Client, number: int) -> dict[str, Any]:
    """Tasks and steps are numbered in one sequence, so a number that is no task may be a step."""
    try:
        return client.why(number)
    except NotFound as no_such_task:
        try:
            step = client.step(number)
        except NotFound:
            raise no_such_task from None
        return client.why(step["task_id"], step["name"])
