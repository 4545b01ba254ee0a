"""Prints data on stdout: `json` is one document, `jsonl` one line per item, `text` is for people."""

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, NamedTuple

import click
import msgspec

from .options import Options

EMPTY: Final = "-"  # the text of a value that is not there

# No bright colours and no yellow: they vanish on a white background.
STATE_COLOURS: Final = {
    "running": "cyan",
    "dispatched": "cyan",
    "completed": "green",
    "live": "green",
    "failed": "red",
    "stuck": "red",
    "held": "magenta",
    "cancelled": "dim",
    "skipped": "dim",
}


_COMMAND: Final = re.compile(r"\bstepwire [^;,|`()]+")
_LINE_END: Final = re.compile(r"[ \t]*(?:\r\n|[\r\n\v\f\x85\u2028\u2029])\s*")
_GLUE: Final = "\0"  # in place of a space at which no line may be broken


class Column(NamedTuple):
    title: str
    member: str
    is_extra: bool = False  # left out where the terminal is too narrow for all columns
    is_figure: bool = False  # text that is a number, so it is aligned like one


def is_terminal() -> bool:
    return sys.stdout.isatty()


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option of a command that prints a table: the members of the items to print."""

    def store(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(Options).columns = tuple(part.strip() for part in value.split(",") if part.strip())

    return click.option(
        "--columns",
        metavar="NAME,..",
        expose_value=False,
        callback=store,
        help="Print these members of the items, as -o json names them.",
    )(command)


def one(options: Options, item: Any, text: str, *, indent: int = 0) -> None:
    """Print one item: its JSON, or the text about it. `indent` is that of `echo`."""
    if options.output == "text":
        echo(text, indent=indent)
    else:
        click.echo(msgspec.json.encode(item).decode())


def several(options: Options, items: Sequence[dict[str, Any]], columns: Sequence[Column], none: str) -> None:
    """Print items as a table or as JSON. Without items, text output prints the sentence `none` on stderr."""
    if options.columns and items:
        columns = _chosen(options.columns, items)
        items = [{name: item.get(name) for name in options.columns} for item in items]
    if options.output == "json":
        click.echo(msgspec.json.encode(items).decode())
    elif options.output == "jsonl":
        for item in items:
            click.echo(msgspec.json.encode(item).decode())
    elif not items:
        note(options, none)
    elif is_terminal():
        from . import terminal_table

        left_out = terminal_table.draw(columns, items)
        if left_out:
            names = ", ".join(column.title for column in left_out)
            note(options, f"the terminal is too narrow for: {names}; see {_more_options()}")
    else:
        _print_tabs(columns, ([cell(item.get(column.member)) for column in columns] for item in items))


def _more_options() -> str:
    """The options of the current command that print what a table leaves out."""
    context = click.get_current_context(silent=True)
    has_columns = context is not None and any("--columns" in param.opts for param in context.command.params)
    return "--columns or -o json" if has_columns else "-o json"


def _print_tabs(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for `awk` and `cut`, with whole values."""
    for row in [[column.title.upper() for column in columns], *rows]:
        click.echo("\t".join(row))


def _chosen(names: Sequence[str], items: Sequence[dict[str, Any]]) -> list[Column]:
    from .failure import usage

    known = list(dict.fromkeys(name for item in items for name in item))
    for name in names:
        if name not in known:
            usage(f"--columns: there is no {name}", f"one of: {', '.join(known)}")
    return [Column(name, name) for name in names]


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
    if options.verbosity >= 0 and text:
        echo(text, err=True)


def echo(text: str, *, indent: int = 0, err: bool = False) -> None:
    """Print lines for people. A terminal gets lines that fit it; a pipe gets each line as it is."""
    stream = sys.stderr if err else sys.stdout
    click.echo(wrapped(text, _width(stream), indent) if stream.isatty() else text, err=err)


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """Break lines between words only, because names are copied, and a command only if it is longer than a line. Each
    further line has the indent of the line that it continues, and `indent` more characters."""
    lines = [part for line in text.split("\n") for part in _parts(line, width, indent)]
    return "\n".join(lines).replace(_GLUE, " ")


def _parts(line: str, width: int, indent: int) -> list[str]:
    margin = len(line) - len(line.lstrip(" ")) + indent
    parts = textwrap.wrap(
        _COMMAND.sub(lambda command: _glued(command[0], width - margin), line[margin:]),
        width,
        initial_indent=line[:margin],  # a label, which stays on the line of its text however long that is
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
        tabsize=1,
    )
    return parts or [line]


def _glued(command: str, characters_max: int) -> str:
    return command.replace(" ", _GLUE) if len(command.rstrip()) <= characters_max else command


def terminal_wrapped(text: str, indent: int = 0) -> str:
    """`text` in lines that fit the terminal of stdout."""
    return wrapped(text, _width(sys.stdout), indent)


def _width(stream: IO[str]) -> int:
    """The width of a terminal. COLUMNS has precedence, as it has for tables."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(stream.fileno()).columns or 80


def shortened(value: Any, characters_max: int = 500) -> str:
    """A value on one line of bounded length."""
    text = cell(value)
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text)} characters; see -o json)"


def cell(value: Any) -> str:
    """The value as printable text on one line: control characters of stored text must not reach the terminal. A line
    end, with the spaces around it, becomes one space."""
    if value is None:
        return EMPTY
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = _LINE_END.sub(" ", text).replace("\t", " ")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
