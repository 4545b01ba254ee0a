"""`stepwire breaker`: handlers that fail, and what a broker hands out of them."""

from typing import Any, Final

import click

from . import output
from .connection import broker
from .options import Options, StepwireGroup

COLUMNS: Final = [
    output.Column("handler", "handler_class"),
    output.Column("state", "state"),
    output.Column("since", "since"),
    output.Column("next probe", "next_probe"),
    output.Column("failures", "failures"),
    output.Column("outcomes", "outcomes"),
    output.Column("retries left", "room"),
    output.Column("reason", "reason"),
]


@click.group(cls=StepwireGroup)
def breaker() -> None:
    """Look at handlers that fail, and stop or start what goes to them."""


@breaker.command(name="list")
@click.pass_obj
def list_breakers(options: Options) -> None:
    """Print the breakers of handlers that failed lately. Those of all others are closed."""
    with broker(options) as client:
        breakers = client.breakers()["breakers"]
    shown = breakers if options.output != "text" else [row(one) for one in breakers]
    output.several(options, shown, COLUMNS, "no handler has failed lately")


@breaker.command(name="open")
@click.argument("handler_class", metavar="HANDLER")
@click.option("--reason", default="", help="Why, for whoever asks why its steps wait.")
@click.pass_obj
def open_breaker(options: Options, handler_class: str, reason: str) -> None:
    """Hand out nothing of this handler until it is told otherwise. Its steps stay ready.

    Kept in the broker's memory only: until `auto`, `close`, or the end of the broker.
    """
    _put(options, handler_class, "open", reason)


@breaker.command(name="close")
@click.argument("handler_class", metavar="HANDLER")
@click.option("--reason", default="", help="Why, for whoever looks.")
@click.pass_obj
def close_breaker(options: Options, handler_class: str, reason: str) -> None:
    """Hand out everything of this handler, whatever fails, until it is told otherwise.

    Kept in the broker's memory only: until `auto`, `open`, or the end of the broker.
    """
    _put(options, handler_class, "closed", reason)


@breaker.command(name="auto")
@click.argument("handler_class", metavar="HANDLER")
@click.pass_obj
def auto_breaker(options: Options, handler_class: str) -> None:
    """Close this handler's breaker, and leave it to itself again."""
    _put(options, handler_class, "auto", "")


def row(one: dict[str, Any]) -> dict[str, Any]:
    """A breaker on one line, for people."""
    budget = one["retry_budget"]
    state = one["state"].replace("_", "-") + (" (forced)" if one["forced"] else "")
    return {**one, "state": state, "room": "" if budget is None else budget["room"]}


def _put(options: Options, handler_class: str, state: str, reason: str) -> None:
    with broker(options) as client:
        done = client.set_breaker(handler_class, state, reason=reason)
    how = "until it is told otherwise, or this broker ends" if done["forced"] else "and opens by itself"
    output.one(options, done, f"the breaker for {handler_class} is {done['state']}, {how}")
