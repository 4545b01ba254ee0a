"""`stepwire lane`: the lanes of the database and their owners."""

import time
from typing import Any, Final

import click
from stepwire import Client

from . import output
from .connection import broker_client
from .options import Options, StepwireGroup

COLUMNS: Final = [
    output.Column("lane", "lane"),
    output.Column("broker", "broker"),
    output.Column("commits", "commits"),
    output.Column("open steps", "open_steps"),
    output.Column("epoch", "epoch", is_extra=True),
    output.Column("stalled", "stalled", is_extra=True),
]
MOVE_S: Final = 60.0
LOOK_S: Final = 0.2


@click.group(cls=StepwireGroup)
def lane() -> None:
    """List the lanes of the database, and move a lane to another broker."""


@lane.command(name="list")
@output.columns_option
@click.pass_obj
def list_lanes(options: Options) -> None:
    """List the lanes with the broker that owns each."""
    with broker_client(options) as client:
        lanes = client.lanes()["lanes"]
    output.several(options, lanes, COLUMNS, "the database has no lane")


@lane.command()
@click.argument("number", metavar="LANE", type=click.IntRange(min=1))
@click.option("--to", metavar="BROKER", required=True, help="The broker that is to own the lane.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the owner has accepted the move.")
@click.pass_obj
def move(options: Options, number: int, to: str, no_wait: bool) -> None:
    """Move a lane to another broker, and wait until that broker owns it.

    The owner stops dispatching in the lane, and gives it up when no step of it waits at a worker. Running steps go on,
    and the new owner adopts them. Brokers share the lanes evenly, so another lane may move in the other direction.
    """
    with broker_client(options) as client:
        document = client.move_lane(number, to)
        is_moved = not no_wait and _is_owned(client, number, to)
    text = f"lane {number} is owned by {to}" if is_moved else f"lane {number} moves from {document['broker']} to {to}"
    output.one(options, document, text)


def _is_owned(client: Client, number: int, to: str) -> bool:
    """Wait until this broker owns the lane, for at most `MOVE_S`."""
    until_s = time.monotonic() + MOVE_S
    while time.monotonic() < until_s:
        lanes: list[dict[str, Any]] = client.lanes()["lanes"]
        if any(each["lane"] == number and each["broker"] == to for each in lanes):
            return True
        time.sleep(LOOK_S)
    return False
