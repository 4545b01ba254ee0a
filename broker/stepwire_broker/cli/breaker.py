"""`stepwire breaker`: the circuit breakers of handlers whose infrastructure fails."""

from typing import Any, Final

import click

from . import completing, output
from .connection import broker_client
from .options import Options, StepwireGroup

COLUMNS: Final = [
    output.Column("handler", "handler_class"),
    output.Column("state", "state"),
    output.Column("since", "since"),
    output.Column("next probe", "next_probe", is_extra=True),
    output.Column("failures", "failures"),
    output.Column("outcomes", "outcomes", is_extra=True),
    output.Column("retries left", "room", is_extra=True),
    output.Column("reason", "reason"),
]


@click.group(cls=StepwireGroup)
def breaker() -> None:
    """List the circuit breakers of handlers, and open or close them by hand."""


@breaker.command(name="list")
@output.columns_option
@click.pass_obj
def list_breakers(options: Options) -> None:
    """List the breakers of handlers that failed recently. All other breakers are closed."""
    with broker_client(options) as client:
        breakers = client.breakers()["breakers"]
    shown = breakers if options.output != "text" else [row(one) for one in breakers]
    output.several(options, shown, COLUMNS, "no handler has failed recently")


@breaker.command(name="open")
@click.argument("handler_class", metavar="HANDLER", shell_complete=completing.handlers)
@click.option("--reason", metavar="TEXT", default="", help="Reason; `stepwire why` prints it for the waiting steps.")
@click.pass_obj
def open_breaker(options: Options, handler_class: str, reason: str) -> None:
    """Stop dispatching steps of this handler until an operator closes the breaker. The steps stay ready.

    The setting is kept in the broker's memory only. It ends with `auto`, with `close`, or when the broker stops.
    """
    _set_breaker(options, handler_class, "open", reason)


@breaker.command(name="close")
@click.argument("handler_class", metavar="HANDLER", shell_complete=completing.handlers)
@click.option("--reason", metavar="TEXT", default="", help="Reason; `stepwire breaker list` prints it.")
@click.pass_obj
def close_breaker(options: Options, handler_class: str, reason: str) -> None:
    """Dispatch all steps of this handler, whatever fails, until an operator changes that.

    The setting is kept in the broker's memory only. It ends with `auto`, with `open`, or when the broker stops.
    """
    _set_breaker(options, handler_class, "closed", reason)


@breaker.command(name="auto")
@click.argument("handler_class", metavar="HANDLER", shell_complete=completing.handlers)
@click.pass_obj
def auto_breaker(options: Options, handler_class: str) -> None:
    """Close this handler's breaker, and return it to automatic control."""
    _set_breaker(options, handler_class, "auto", "")


def row(one: dict[str, Any]) -> dict[str, Any]:
    """A breaker as a row of the text table."""
    budget = one["retry_budget"]
    state = one["state"].replace("_", "-") + (" (forced)" if one["forced"] else "")
    return {**one, "state": state, "room": "" if budget is None else budget["room"]}


def _set_breaker(options: Options, handler_class: str, state: str, reason: str) -> None:
    with broker_client(options) as client:
        breaker = client.set_breaker(handler_class, state, reason=reason)
    how = "until an operator changes it" if breaker["forced"] else "under automatic control"
    output.one(options, breaker, f"the breaker for {handler_class} is {breaker['state']}, {how}")
