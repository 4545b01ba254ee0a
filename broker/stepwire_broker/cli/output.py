"""Data on stdout, in the form that was asked for: `json` one document, `jsonl` one line an item, `text` for people."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
import msgspec

from .options import Options


class Column(NamedTuple):
    title: str
    member: str


def is_terminal() -> bool:
    return sys.stdout.isatty()


def one(options: Options, item: Any, text: str) -> None:
    """One item: its JSON, or a sentence about it."""
    click.echo(text if options.output == "text" else msgspec.json.encode(item).decode())


def several(options: Options, items: Sequence[dict[str, Any]], columns: Sequence[Column], none: str) -> None:
    """Items in a table; without any, a sentence on stderr says so."""
    if options.output == "json":
        click.echo(msgspec.json.encode(items).decode())
    elif options.output == "jsonl":
        for item in items:
            click.echo(msgspec.json.encode(item).decode())
    elif items:
        table(columns, ([_cell(item.get(column.member)) for column in columns] for item in items))
    elif options.verbosity >= 0:
        click.echo(none, err=True)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Drawn by rich for a terminal; columns of plain text, which `awk` and `cut` understand, for anything else."""
    if not is_terminal():
        for row in [[column.title.upper() for column in columns], *rows]:
            click.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column.title)
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


@contextmanager
def progress(options: Options, what: str, count: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for work that takes long; nothing when nobody is there to see it. Call the result with how much
    more is done."""
    if options.verbosity < 0 or not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=count)
        yield lambda more: bar.advance(task, more)


def note(options: Options, text: str) -> None:
    """For people, on stderr; gone with -q."""
    if options.verbosity >= 0:
        click.echo(text, err=True)


def shortened(value: Any, characters_max: int = 500) -> str:
    """A value on one line of bounded length."""
    text = _cell(value)
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text)} characters; see -o json)"


def _cell(value: Any) -> str:
    """Control characters of somebody else's text must not reach the terminal."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
