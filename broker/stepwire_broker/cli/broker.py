"""`stepwire broker`: the brokers of the deployment."""

import time
from typing import Any, Final

import click

from . import output
from .connection import broker_client
from .options import Options, StepwireGroup

COLUMNS: Final = [
    output.Column("broker", "broker"),
    output.Column("state", "state"),
    output.Column("beat", "beat"),
    output.Column("lanes", "owned"),
    output.Column("open steps", "open_steps"),
    output.Column("workers", "workers"),
    output.Column("version", "version", is_extra=True),
    output.Column("epoch", "epoch", is_extra=True),
    output.Column("controls", "controls", is_extra=True),
    output.Column("configuration", "configuration", is_extra=True),
]


WAIT_S: Final = 60.0
LOOK_S: Final = 0.2


@click.group(cls=StepwireGroup)
def broker() -> None:
    """List the brokers of the deployment."""


@broker.command(name="list")
@click.option(
    "--wait",
    is_flag=True,
    help="First wait until every living broker uses the latest rules, breakers, pauses, drained workers and workflows.",
)
@output.columns_option
@click.pass_obj
def list_brokers(options: Options, wait: bool) -> None:
    """List the brokers of the deployment, as the broker that answers sees them.

    On SQLite there is one. A broker without a beat for its whole lease is dead, and the others take its lanes.
    """
    with broker_client(options) as client:
        found = client.brokers()
        until_s = time.monotonic() + WAIT_S
        while wait and not _are_current(found) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            found = client.brokers()
    shown = found["brokers"]
    if options.output == "text":
        shown = [row(one, found["controls_revision"]) for one in shown]
    output.several(options, shown, COLUMNS, "no broker is known")
    for one in found["brokers"]:
        if one["config_differs"]:
            output.note(
                options,
                f"{one['broker']} has another configuration than {found['broker']}: routing and commands must be the "
                "same at every broker",
            )


def _are_current(found: dict[str, Any]) -> bool:
    living = [one for one in found["brokers"] if one["is_alive"]]
    return all(one["controls_revision"] >= found["controls_revision"] for one in living)


def row(one: dict[str, Any], revision: int) -> dict[str, Any]:
    """A broker as a row of the text table."""
    age_ms = one["beat_age_ms"]
    return {
        **one,
        "state": "dead" if not one["is_alive"] else "draining" if one["draining"] else "alive",
        "beat": "-" if age_ms is None else f"{age_ms / 1000:.1f} s ago",
        "owned": ", ".join(map(str, one["lanes"])) or "none",
        "controls": "current" if one["controls_revision"] >= revision else "older",
        "configuration": "differs" if one["config_differs"] else "same",
    }
