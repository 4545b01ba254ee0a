"""`stepwire tap`: the live wire, one line a message."""

from typing import Any

import click
import msgspec

from . import output
from .connection import broker
from .options import Options, StepwireCommand


@click.command(cls=StepwireCommand)
@click.option("--topic", metavar="GLOB", help="Only topics like this: '@ruby-*', 'results*'.")
@click.option("--task", "task_id", type=int, metavar="ID", help="Only what concerns this task.")
@click.option("-n", "count", type=click.IntRange(1), help="Stop after so many messages.")
@click.pass_obj
def tap(options: Options, topic: str | None, task_id: int | None, count: int | None) -> None:
    """Show the messages of the bus as they pass, until Ctrl-C."""
    seen = 0
    with broker(options) as client:
        try:
            for message in client.tap(topic=topic, task=task_id):
                if "dropped" in message:
                    output.note(options, f"{message['dropped']} messages were too many and are not shown")
                    continue
                click.echo(_line(message) if options.output == "text" else msgspec.json.encode(message).decode())
                seen += 1
                if seen == count:
                    return
        except KeyboardInterrupt:
            pass  # that is how it is ended


def _line(message: dict[str, Any]) -> str:
    arrow = "→" if message["direction"] == "out" else "←"
    refused = f"  REFUSED {message['refused']}" if message.get("refused") else ""
    body = message.get("message", message.get("text"))
    time_of_day = message["at"][11:23]
    return f"{time_of_day} {arrow} {output.shortened(message['topic'], 80)} {output.shortened(body)}{refused}"
