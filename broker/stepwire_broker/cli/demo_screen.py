"""The output of `stepwire demo`: headings, commands, sentences, held steps and the progress of many orders."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from . import output
from .options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from stepwire_broker.demo.shop import Language

PAUSE_S: Final = 1.5  # before each act on a terminal, so that a person can read along

HELD_COLUMNS: Final = [
    output.Column("step", "step_id"),
    output.Column("task", "task_id"),
    output.Column("name", "name"),
    output.Column("why", "why"),
]


class Screen:
    """Prints for people. With JSON output, the screen prints nothing."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._console = _console(options)

    def title(self, title: str, about: str) -> None:
        if self._console.is_terminal:
            time.sleep(PAUSE_S)
        self.line(f"\n[bold cyan]{title}[/]\n[dim]{about}[/]")

    def command(self, text: str) -> None:
        from rich.markup import escape

        self.line(f"[yellow]$ {escape(text)}[/]")

    def line(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)

    def point(self, sign: str, text: str) -> None:
        """Print a sentence after a sign. Further lines of the sentence are indented."""
        from rich.table import Table

        if not self._console.is_terminal:
            self.line(f"{sign} {text}")
            return
        row = Table.grid(padding=(0, 1))
        row.add_row(sign, text)
        self._console.print(row, highlight=False)

    def held_steps(self, held: list[dict[str, Any]]) -> None:
        if self._options.output == "text":
            rows = [{**step, "why": step["reason"]["message"]} for step in held]
            output.several(self._options, rows, HELD_COLUMNS, "")

    def missing_languages(self, missing: "list[Language]") -> None:
        for language in missing:
            self.line(f"           [dim]not installed: {language.name} ({language.install})[/]")

    @contextmanager
    def progress(self, total: int, count_done: Callable[[], int]) -> Iterator[Callable[[], int]]:
        """A progress bar on a terminal. Call the result to count the finished orders and update the bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        is_hidden = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=is_hidden) as bar:
            shown = bar.add_task("orders done", total=total)

            def update() -> int:
                done = count_done()
                bar.update(shown, completed=done)
                return done

            yield update


def _console(options: Options) -> "Console":
    from rich.console import Console

    return Console(quiet=options.output != "text")
