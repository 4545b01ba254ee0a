"""Prints data on stdout: `json` is one document, `jsonl` one line per item, `text` is for people."""

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
    """Print one item: its JSON, or the text about it."""
    click.echo(text if options.output == "text" else msgspec.json.encode(item).decode())


def several(options: Options, items: Sequence[dict[str, Any]], columns: Sequence[Column], none: str) -> None:
    """Print items as a table or as JSON. Without items, text output prints the sentence `none` on stderr."""
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
    """Print a table: drawn by rich on a terminal, otherwise tab-separated for `awk` and `cut`."""
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
    """A progress bar on stderr, if stderr is a terminal. Call the result with the number of newly finished items."""
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
    """Print a line for people on stderr; omitted with -q."""
    if options.verbosity >= 0:
        click.echo(text, err=True)


def shortened(value: Any, characters_max: int = 500) -> str:
    """A value on one line of bounded length."""
    text = _cell(value)
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text)} characters; see -o json)"


def _cell(value: Any) -> str:
    """The value as printable text: control characters of stored text must not reach the terminal."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
