"""`stepwire db`: look at the database, check it, copy it, put a copy back, and have it tidied.

Everything but `restore` works beside a running broker. Whatever only reads does so by itself; what has to be written is
the running broker's to write, and is asked of it.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from . import asking, output
from .config_commands import load
from .connection import broker
from .failure import Exit, Failure, leave
from .options import Options, StepwireGroup

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings
    from stepwire_broker.store.retention import Pruned
    from stepwire_broker.store.sqlite.restore import RestoredBackup
    from stepwire_broker.store.sqlite.status import Status

POLL_S: Final = 0.2
STUCK_S: Final = 60.0  # without any progress a broker is not waited for

FILE = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=StepwireGroup)
def db() -> None:
    """The database: look at it, check it, back it up, restore it, prune it."""


# -- status -----------------------------------------------------------------------------------------------------------


@db.command()
@click.pass_obj
def status(options: Options) -> None:
    """Print how large the database is, what is in it, and who writes it. A broker may run or not."""
    from stepwire_broker.store.sqlite import backup
    from stepwire_broker.store.sqlite.status import status as read

    settings, path = _database(options)
    with _refusals(), closing(backup.open_stored(path)) as connection:
        found = read(connection, path.absolute(), settings.retention, _now_ms())
    lines = "\n".join(f"{name:<12} {text}" for name, text in _described(found))
    output.one(options, found, lines)
    if found.held_steps:
        output.note(options, "next: stepwire step list --state held")


def _described(found: "Status") -> Iterator[tuple[str, str]]:
    yield "database", f"{found.path}, {_size(found.bytes)} ({_size(found.free_bytes)} of it free)"
    yield "log", _size(found.log_bytes)
    process = found.process
    yield "written by", "nobody now" if process is None else f"process {process or 'unknown'}"
    upgrade = "" if found.schema == found.schema_known else f"; this program's is {found.schema_known}: see db upgrade"
    yield "schema", f"{found.schema}{upgrade}"
    yield "deployment", found.deployment
    yield "last epochs", _counts(found.brokers, "none")
    yield "tasks", _counts(found.tasks, "none")
    yield "open steps", _counts(found.open_steps, "none")
    yield "held steps", str(found.held_steps)
    if found.oldest_open_task is not None and found.oldest_open_since_ms is not None:
        yield "oldest open", f"task {found.oldest_open_task}, since {_time(found.oldest_open_since_ms)}"
    yield "parked", f"{found.parked} refused inputs"
    yield "to prune", f"{found.expired_tasks} tasks"
    yield "last prune", "never" if found.last_prune is None else _pruned(found.last_prune)
    if found.restored is not None:
        made = "" if found.last_backup_ms is None else f", from a backup of {_time(found.last_backup_ms)}"
        yield "restored", f"{_time(found.restored['restored_ms'])}{made}"


def _pruned(last: dict[str, Any]) -> str:
    counts = ", ".join(f"{last[name]} {name}" for name in ("tasks", "steps", "parked"))
    return f"{_time(last['ended_ms'])}: {counts}, in {(last['ended_ms'] - last['started_ms']) / 1000:.1f} s"


# -- check ------------------------------------------------------------------------------------------------------------


@db.command()
@click.option("--sample", metavar="N", type=click.IntRange(min=1), help="Replay only N histories, drawn at random.")
@click.pass_obj
def check(options: Options, sample: int | None) -> None:
    """Check the file, what refers to what, and that every task's history replays to its rows. Exits 1 when not."""
    from stepwire_broker.store.sqlite import backup
    from stepwire_broker.store.sqlite.check import check as run

    _, path = _database(options)
    with _refusals(), closing(backup.open_stored(path)) as connection, _bars(options) as show:
        checked = run(connection, sample, lambda done, total: show("tasks replayed", done, total))
    sentences = [*checked.findings, *(["and there may be more"] if checked.is_cut else [])]
    looked = f"{checked.tasks} tasks, {checked.tasks_replayed} histories replayed"
    output.one(options, checked, "\n".join(sentences) or f"{looked}: all is as it should be")
    if sentences:
        if options.output == "text":
            output.note(
                options, f"{looked}. Keep a copy of the files; a backup is restored by: stepwire db restore FILE"
            )
        leave(Exit.FAILURE)


# -- backup and restore -----------------------------------------------------------------------------------------------


@db.command()
@FILE
@click.pass_obj
def backup(options: Options, file: Path) -> None:
    """Copy the database into FILE, as of one moment, while the broker goes on. FILE must not be there yet."""
    from stepwire_broker.store.sqlite.backup import backup as make

    _, path = _database(options)
    with _refusals(), _bars(options) as show:
        made = make(path, file, wall_ms=_now_ms(), progress=show)
    output.one(options, made, f"{file}: {_size(made.bytes)}, in {made.took_ms / 1000:.1f} s, whole and checked")
    output.note(options, f"back from it, with the broker stopped: stepwire db restore {file}")


@db.command()
@FILE
@click.pass_obj
def restore(options: Options, file: Path) -> None:
    """Put the backup FILE in the database's place, with no broker running. What was there is kept beside.

    The restored database is a new deployment. At_most_once steps that were not over when the backup was made may have
    been started since: they are held until somebody says what became of them.
    """
    from stepwire_broker.store.sqlite.opening import holder
    from stepwire_broker.store.sqlite.restore import restore as put_back

    settings, path = _database(options)
    process = holder(path)
    if process is not None:
        raise Failure(
            Exit.WRONG_STATE,
            f"{path} is in use by process {process or 'unknown'}",
            "stop the broker first: kill -TERM its process, and wait until it has ended",
        )
    if path.exists() and not asking.confirm(
        options, f"Replace {path} by {file}? What happened since that was made is then not known any more."
    ):
        leave(Exit.FAILURE)
    with _refusals(), _bars(options) as show:
        restored = put_back(
            file,
            path,
            settings.broker.id,
            may_replace=True,
            wall_ms=_now_ms(),
            entropy=int.from_bytes(os.urandom(16), "big"),
            progress=show,
        )
    output.one(options, restored, "\n".join(_what_was_restored(path, file, restored)))
    for line in _what_next(restored):
        output.note(options, line)


def _what_was_restored(path: Path, file: Path, restored: "RestoredBackup") -> Iterator[str]:
    made = "" if restored.made_ms is None else f", made {_time(restored.made_ms)}"
    yield f"{path} is {file}{made}: {restored.open_tasks} open tasks"
    yield f"it is deployment {restored.deployment} from now on; in the backup it was {restored.deployment_before}"
    if restored.held_steps:
        yield f"{restored.held_steps} at_most_once steps of {restored.held_tasks} tasks are held, reason `restored`"
    for kept in restored.replaced:
        yield f"what was there is kept: {kept}"


def _what_next(restored: "RestoredBackup") -> Iterator[str]:
    yield "next: stepwire db check, then stepwire serve"
    if restored.held_steps:
        yield "then, for each held step, find out whether it ran: stepwire step list --state held"
        yield "  and say so: stepwire step resolve STEP --completed JSON | --failed TEXT | --retry, with --reason TEXT"
    yield "tasks that were submitted after the backup was made are not known any more: submitted again, they run again"


# -- prune ------------------------------------------------------------------------------------------------------------


@db.command()
@click.option("--dry-run", is_flag=True, help="Only say how many tasks it would remove.")
@click.option("--compact", is_flag=True, help="Then give free space back to the file system. With no broker running.")
@click.pass_obj
def prune(options: Options, dry_run: bool, compact: bool) -> None:
    """Remove what is over and older than `retention` says, now. A running broker does so by itself all the time."""
    from stepwire_broker.store.sqlite import backup, pruning
    from stepwire_broker.store.sqlite.opening import holder
    from stepwire_broker.store.sqlite.status import expired

    from . import logs

    settings, path = _database(options)
    with _refusals():
        with closing(backup.open_stored(path)) as connection:
            count = expired(connection, settings.retention, _now_ms())
            if dry_run:
                output.one(options, {"tasks": count}, f"{count} tasks are over and older than they are kept for")
                return
            if holder(path) is not None:
                if compact:
                    raise Failure(
                        Exit.WRONG_STATE, f"{path} is in use, and cannot be compacted", "stop the broker first"
                    )
                _prune_by_the_broker(options, connection)
                return
        logs.set_up("warning", options.verbosity)
        with _bars(options) as show:
            done = pruning.prune_now(path, settings.retention, lambda run: show("tasks", run.tasks, count))
        if compact:
            pruning.compact(path)
    output.one(options, done, _removed(done))


def _removed(done: "Pruned") -> str:
    return f"removed {done.tasks} tasks with {done.steps} steps, {done.parked} refused inputs"


def _prune_by_the_broker(options: Options, connection: sqlite3.Connection) -> None:
    """Ask it, and watch what is left until it is done, by the broker's own retention."""
    from stepwire_broker.core.definitions.settings import RetentionSettings
    from stepwire_broker.store.sqlite.status import expired

    with broker(options) as client:
        asked = client.prune()
    kept = RetentionSettings(asked["completed_ms"], asked["failed_ms"])
    total = left = expired(connection, kept, asked["now_ms"])
    changed_s = time.monotonic()
    with _bars(options) as show:
        while left:
            show("tasks", total - left, total)
            time.sleep(POLL_S)
            before, left = left, expired(connection, kept, asked["now_ms"])
            if left < before:
                changed_s = time.monotonic()
            elif time.monotonic() - changed_s > STUCK_S:
                raise Failure(Exit.FAILURE, f"the broker does not get on: {left} tasks are left", "see its log")
    output.one(options, {"tasks": total}, f"the broker removed {total} tasks")


# -- upgrade ----------------------------------------------------------------------------------------------------------


@db.command()
@click.pass_obj
def upgrade(options: Options) -> None:
    """Say which schema the database has. `serve` brings a SQLite database to its own when it starts."""
    from stepwire_broker.store.sqlite import backup
    from stepwire_broker.store.sqlite.migrate import HEAD, revision

    _, path = _database(options)
    with _refusals(), closing(backup.open_stored(path)) as connection:
        at = revision(connection)
    text = f"{path} has schema {at}, which is this program's"
    if at != HEAD:
        text = f"{path} has schema {at}; `stepwire serve` brings it to {HEAD} when it starts: make a backup before"
    output.one(options, {"schema": at, "schema_known": HEAD}, text)


# -- below them --------------------------------------------------------------------------------------------------------


def _database(options: Options) -> "tuple[Settings, Path]":
    from stepwire_broker.store.errors import StoreRefused
    from stepwire_broker.store.sqlite.opening import path_of

    settings = load(options).settings
    try:
        return settings, path_of(settings.database.url)
    except StoreRefused as error:
        raise Failure(Exit.USAGE, str(error)) from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Whatever the store refuses ends the command with its exit code."""
    from stepwire_broker.store.errors import InUse, NotThere, StoreRefused, WouldReplace

    try:
        yield
    except NotThere as error:
        raise Failure(
            Exit.NOT_FOUND, str(error), "`stepwire serve` makes it; `stepwire config show` says where"
        ) from None
    except (InUse, WouldReplace) as error:
        raise Failure(Exit.WRONG_STATE, str(error)) from None
    except StoreRefused as error:
        raise Failure(Exit.FAILURE, str(error)) from None
    except sqlite3.Error as error:
        raise Failure(Exit.FAILURE, f"the database cannot be read: {error}", "stepwire db check") from None


@contextmanager
def _bars(options: Options) -> Iterator[Callable[[str, int, int], None]]:
    """One bar after the other, each named for what is being done."""
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def _counts(by_name: dict[str, int], none: str) -> str:
    return ", ".join(f"{name} {count}" for name, count in by_name.items()) or none
