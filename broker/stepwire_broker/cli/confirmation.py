"""Asks the person at the terminal before a command makes a change that cannot be undone."""

import sys

import click

from .failure import usage
from .options import Options


def confirm(options: Options, question: str) -> bool:
    """True with --yes; otherwise the answer of the person at the terminal. Without a terminal, the command fails."""
    if options.yes:
        return True
    if options.no_input or not sys.stdin.isatty():
        usage(f"{question} Nothing has changed: there is no terminal to confirm at", "to go ahead, add --yes")
    return click.confirm(question, err=True)
