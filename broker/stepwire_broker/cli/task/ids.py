"""The argument that names a task by its id. The id of a step is refused with the command for steps."""

import click


def task_id_of(text: str) -> int:
    number, slash, step = text.partition("/")
    if not (number.isascii() and number.isdigit()):
        raise click.UsageError(f"{text!r} is not the id of a task: use a number like 6591")
    if slash:
        raise click.UsageError(f"{text} is a step: stepwire step show {text}" if step else f"name the task: {number}")
    return int(number)
