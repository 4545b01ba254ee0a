"""`stepwire help`: the help of a command, for those who expect it under this name."""

import click

from .failure import usage
from .options import Options, StepwireCommand, unknown_command


@click.command(name="help", cls=StepwireCommand)
@click.argument("words", metavar="[COMMAND]..", nargs=-1)
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of a command; without one, of the program."""
    at = context.find_root()
    for word in words:
        command = at.command.get_command(at, word) if isinstance(at.command, click.Group) else None
        if command is None:
            usage(unknown_command(at, word), f"see: {at.command_path} --help")
        at = click.Context(command, info_name=word, parent=at, obj=Options())
    click.echo(at.get_help())
