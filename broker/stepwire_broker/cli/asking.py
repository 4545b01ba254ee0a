"""Before something is done that cannot be undone: ask a person who is there, and nobody else."""

import sys

import click

from .failure import usage
from .options import Options


def confirm(options: Options, question: str) -> bool:
    """Yes with --yes; else whoever sits at the terminal decides. Without one, a script has to say --yes."""
    if options.yes:
        return True
    if options.no_input or not sys.stdin.isatty():
        usage(f"{question} Nothing has changed: there is nobody to ask", "if that is what you want, add --yes")
    return click.confirm(question, err=True)
