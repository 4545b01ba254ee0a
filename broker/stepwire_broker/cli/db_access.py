"""Shared by the commands on a database: where it is, its refusals as failures, and texts of sizes and times."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import output
from .config_commands import load
from .failure import Exit, Failure
from .options import Options

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings
    from stepwire_broker.store.stored_state import StoredState


def on_server(settings: "Settings") -> bool:
    """Return whether `database.url` leads to PostgreSQL."""
    from stepwire_broker.store.errors import StoreRefused
    from stepwire_broker.store.urls import POSTGRESQL, scheme_of

    try:
        return scheme_of(settings.database.url) == POSTGRESQL
    except StoreRefused as error:
        raise Failure(Exit.USAGE, str(error)) from None


@contextmanager
def stored_state(options: Options) -> "Iterator[StoredState]":
    """Open the database for reading, wherever it is."""
    settings = load(options).settings
    with refusals():
        if on_server(settings):
            from stepwire_broker.store.postgres.stored_state import open_state

            with open_state(settings.database, "command") as state:
                yield state
            return
        from stepwire_broker.store.sqlite import backup
        from stepwire_broker.store.sqlite.stored_state import SqliteState

        with closing(backup.open_stored(database_of(options)[1])) as connection:
            yield SqliteState(connection)


def database_of(options: Options, instead: str = "") -> "tuple[Settings, Path]":
    """Return the settings and the file of the database. `instead`: what an operator of PostgreSQL does."""
    from stepwire_broker.store.errors import StoreRefused
    from stepwire_broker.store.sqlite.opening import path_of

    settings = load(options).settings
    if on_server(settings):
        text = "this command works on the file of a SQLite database, and database.url leads to PostgreSQL"
        raise Failure(Exit.USAGE, text, instead)
    try:
        return settings, path_of(settings.database.url)
    except StoreRefused as error:
        raise Failure(Exit.USAGE, str(error)) from None


@contextmanager
def refusals() -> Iterator[None]:
    """Turn an error of the store into a Failure with the matching exit code."""
    from stepwire_broker.store.errors import InUse, NotThere, StoreRefused, WouldReplace

    try:
        yield
    except NotThere as error:
        hint = "`stepwire serve` creates it; `stepwire config show` prints where"
        raise Failure(Exit.NOT_FOUND, str(error), hint) from None
    except (InUse, WouldReplace) as error:
        raise Failure(Exit.WRONG_STATE, str(error)) from None
    except StoreRefused as error:
        raise Failure(Exit.FAILURE, str(error)) from None
    except sqlite3.Error as error:
        raise Failure(Exit.FAILURE, f"the database cannot be read: {error}", "stepwire db check") from None


@contextmanager
def bars(options: Options) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows one progress bar per kind of work, one after the other."""
    with ExitStack() as stack:
        current: str | None = None
        advance: Callable[[int], None] = lambda more: None  # noqa: E731
        shown = 0

        def show(what: str, done: int, total: int) -> None:
            nonlocal current, advance, shown
            if what != current:
                stack.close()
                advance = stack.enter_context(output.progress(options, what, total))
                current, shown = what, 0
            advance(done - shown)
            shown = done

        yield show


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def time_text(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def size_text(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def counts_text(by_name: dict[str, int], none: str) -> str:
    return ", ".join(f"{name} {count}" for name, count in by_name.items()) or none
