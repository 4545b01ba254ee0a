"""`stepwire task`: submits tasks, prints them, waits for them, and changes them."""

import click

from stepwire_broker.cli.options import StepwireGroup

_HERE = "stepwire_broker.cli.task"


@click.group(
    cls=StepwireGroup,
    lazy={
        "submit": f"{_HERE}.submit:submit",
        "show": f"{_HERE}.show:show",
        "result": f"{_HERE}.show:result",
        "list": f"{_HERE}.listing:list_tasks",
        "cancel": f"{_HERE}.commands:cancel",
        "pause": f"{_HERE}.commands:pause",
        "resume": f"{_HERE}.commands:resume",
        "retry": f"{_HERE}.commands:retry",
        "erase": f"{_HERE}.erase:erase",
        "watch": f"{_HERE}.watch:watch",
        "events": f"{_HERE}.events:events",
    },
)
def task() -> None:
    """Submit, print, wait for and change tasks. A task is one run of a workflow."""
