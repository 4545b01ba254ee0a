"""`stepwire tap`: prints the messages of the bus live, one line per message."""

from typing import Any

import click
import msgspec

from . import output
from .connection import broker_client
from .options import Options, StepwireCommand


@click.command(cls=StepwireCommand)
@click.option("--topic", metavar="GLOB", help="Only topics that match: '@ruby-*', 'results*'.")
@click.option("--task", "task_id", type=int, metavar="ID", help="Only messages about this task.")
@click.option("-n", "count", type=click.IntRange(1), help="Stop after N messages.")
@click.pass_obj
def tap(options: Options, topic: str | None, task_id: int | None, count: int | None) -> None:
    """Print the messages of the bus live, until Ctrl-C."""
    seen = 0
    with broker_client(options) as client:
        try:
            for message in client.tap(topic=topic, task=task_id):
                if "dropped" in message:
                    output.note(options, f"{message['dropped']} messages were dropped: they came too fast to print")
                    continue
                click.echo(_line(message) if options.output == "text" else msgspec.json.encode(message).decode())
                seen += 1
                if seen == count:
                    return
        except KeyboardInterrupt:
            pass  # Ctrl-C is the normal end


def _line(message: dict[str, Any]) -> str:
    arrow = "→" if message["direction"] == "out" else "←"
    refused = f"  REFUSED {message['refused']}" if message.get("refused") else ""
    if message.get("reason"):
        refused += f": {output.shortened(message['reason'], 300)}"
    body = message.get("message", message.get("text"))
    time_of_day = message["at"][11:23]
    return f"{time_of_day} {arrow} {output.shortened(message['topic'], 80)} {output.shortened(body)}{refused}"
