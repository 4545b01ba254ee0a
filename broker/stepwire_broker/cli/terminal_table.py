"""Draws a table that fits the terminal. Nothing is cut: what does not fit is wrapped, or left out by whole columns.

Times are ages here (`3m ago`) and true is `yes`; tables in a pipe and JSON have the whole time and `true`.
"""

import re
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from .output import EMPTY, STATE_COLOURS, Column, cell

GAP: Final = 2
WRAPPED_MIN: Final = 16  # characters that a wrapped column keeps
WRAPPED_FIRST: Final = 32  # a column that is wider than this is wrapped before other columns are left out
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def draw(columns: Sequence[Column], items: Sequence[dict[str, Any]], console: Console | None = None) -> list[Column]:
    """Print the items. Returns the columns that were left out."""
    console = console or Console(highlight=False)
    now = datetime.now(UTC)
    cells = {column: [_text(item.get(column.member), now) for item in items] for column in columns}
    shown = _that_fit(columns, cells, console.width)
    widths = _widths(shown, cells, console.width)
    if widths is None:
        _print_blocks(console, columns, cells, len(items))
        return []
    titles = [column.title.upper() for column in shown]
    is_right = [column.is_figure or all(_is_number(item.get(column.member)) for item in items) for column in shown]
    _print_line(console, [(title, "bold") for title in titles], widths, is_right)
    for row in range(len(items)):
        values = [(cells[column][row], _style(column, cells[column][row])) for column in shown]
        _print_line(console, values, widths, is_right)
    return [column for column in columns if column not in shown]


def age(at: datetime, now: datetime) -> str:
    """`3m ago`, `in 2h`: the time in its largest unit."""
    seconds = (now - at).total_seconds()
    whole = abs(int(seconds))
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), (1, "s"))
    return f"{whole // size}{unit} ago" if seconds >= 0 else f"in {whole // size}{unit}"


def _text(value: Any, now: datetime) -> str:
    if isinstance(value, str) and _TIME.fullmatch(value):
        return age(datetime.fromisoformat(value), now)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return cell(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _that_fit(columns: Sequence[Column], cells: dict[Column, list[str]], width: int) -> list[Column]:
    """The columns without as many extra ones, the last first, as the width requires. Long texts are wrapped instead."""
    shown = list(columns)
    for column in reversed(columns):
        if _sum(_least(shown, cells, WRAPPED_FIRST)) <= width:
            break
        if column.is_extra:
            shown.remove(column)
    return shown


def _natural(columns: Sequence[Column], cells: dict[Column, list[str]]) -> list[int]:
    return [max(map(cell_len, (column.title, *cells[column]))) for column in columns]


def _least(columns: Sequence[Column], cells: dict[Column, list[str]], most: int) -> list[int]:
    """The widths of columns that are wrapped to `most` characters. Words are not broken: ids must stay whole."""
    least = []
    for column, natural in zip(columns, _natural(columns, cells), strict=True):
        words = [cell_len(word) for text in (column.title, *cells[column]) for word in text.split()]
        least.append(min(natural, max(most, *words, 0)))
    return least


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: Sequence[Column], cells: dict[Column, list[str]], width: int) -> list[int] | None:
    """The width of each column. The widest are narrowed, and so wrapped; None if that is not enough."""
    widths, least = _natural(columns, cells), _least(columns, cells, WRAPPED_MIN)
    if _sum(least) > width:
        return None
    while _sum(widths) > width:
        widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _print_line(
    console: Console, values: Sequence[tuple[str, str]], widths: Sequence[int], is_right: Sequence[bool]
) -> None:
    wrapped = [_wrapped(text, width) for (text, _), width in zip(values, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        line = Text()
        for (_, style), parts, width, right in zip(values, wrapped, widths, is_right, strict=True):
            part = parts[number] if number < len(parts) else ""
            space = " " * (width - cell_len(part))
            line.append(space if right else "")
            line.append(part, style)
            line.append("" if right else space)
            line.append(" " * GAP)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]


def _print_blocks(console: Console, columns: Sequence[Column], cells: dict[Column, list[str]], count: int) -> None:
    """Print each item as lines of name and value, without empty ones: for a terminal that is too narrow for a table."""
    width = max(len(column.title) for column in columns) + GAP
    for row in range(count):
        if row:
            console.print()
        for column in columns:
            value = cells[column][row]
            if value == EMPTY:
                continue
            title = column.title.upper()
            for part in _wrapped(value, max(WRAPPED_MIN, console.width - width)):
                line = Text.assemble((f"{title:<{width}}", "bold"), (part, _style(column, value)))
                console.print(line, soft_wrap=True)
                title = ""


def _style(column: Column, value: str) -> str:
    return STATE_COLOURS.get(value, "") if column.member == "state" else ""
