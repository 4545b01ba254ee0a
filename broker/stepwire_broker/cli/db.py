"""`stepwire db`: inspect, check, back up, restore and prune the database.

Every command but `restore` works while a broker runs. Commands that only read open the database themselves. Only the
running broker writes to it, so `prune` sends it a request.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stepwire_broker.core.phrases import counted

from . import confirmation, db_server, output, status_lines
from .config_commands import load
from .connection import broker_client
from .db_access import bars, database_of, now_ms, on_server, refusals, size_text, stored_state, time_text
from .failure import Exit, Failure, leave
from .options import Options, StepwireGroup

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings
    from stepwire_broker.store.retention import Pruned
    from stepwire_broker.store.sqlite.restore import ErasedMs, RestoredBackup
    from stepwire_broker.store.sqlite.status import Status

POLL_S: Final = 0.2
STUCK_S: Final = 60.0  # without progress for this time, `prune` stops waiting for the broker

FILE = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=StepwireGroup)
def db() -> None:
    """Inspect, check, back up, restore and prune the database."""


# -- status -----------------------------------------------------------------------------------------------------------


@db.command()
@click.pass_obj
def status(options: Options) -> None:
    """Print the database's size, its contents, and the process that writes to it. Works with or without a broker."""
    from stepwire_broker.store.sqlite import backup
    from stepwire_broker.store.sqlite.status import status as read

    if on_server(load(options).settings):
        db_server.print_status(options)
        return
    settings, path = database_of(options)
    with refusals(), closing(backup.open_stored(path)) as connection:
        status = read(connection, path.absolute(), settings.retention, now_ms())
    status_lines.print_status(options, status, _lines_of_file(status))


def _lines_of_file(status: "Status") -> Iterator[tuple[str, str]]:
    yield "database", status.path
    yield "size", f"{size_text(status.bytes)} ({size_text(status.free_bytes)} of it free)"
    yield "write-ahead log", size_text(status.log_bytes)
    process = status.process
    yield "written by", "no process" if process is None else f"process {process or 'unknown'}"
    upgrade = ""
    if status.schema != status.schema_known:
        upgrade = f"; this program expects {status.schema_known}: see stepwire db upgrade"
    yield "schema", f"{status.schema}{upgrade}"


# -- check ------------------------------------------------------------------------------------------------------------


@db.command()
@click.option("--sample", metavar="N", type=click.IntRange(min=1), help="Replay only N histories, chosen at random.")
@click.pass_obj
def check(options: Options, sample: int | None) -> None:
    """Check the file, the references between rows, and that each task's history replays to its rows.

    The exit code is 1 if anything is wrong.
    """
    from stepwire_broker.store.checking import check as run

    with stored_state(options) as state, bars(options) as show:
        checked = run(state, sample, lambda done, total: show("tasks replayed", done, total))
    sentences = [*checked.findings, *(["there may be more findings"] if checked.is_cut else [])]
    extent = f"{counted(checked.tasks, 'task')}, {checked.tasks_replayed} replayed from their history"
    output.one(options, checked, "\n".join(sentences) or f"{extent}: no errors")
    if sentences:
        if options.output == "text":
            todo = "Copy the files first, then restore a backup: stepwire db restore FILE"
            if on_server(load(options).settings):
                todo = "Dump the schema first, then restore it as it was: docs/operating/postgres.md"
            output.note(options, f"{extent}. {todo}")
        leave(Exit.FAILURE)


# -- backup and restore -----------------------------------------------------------------------------------------------


@db.command()
@FILE
@click.pass_obj
def backup(options: Options, file: Path) -> None:
    """Copy the database into FILE, as of one moment, while the broker runs. FILE must not exist."""
    from stepwire_broker.store.sqlite.backup import backup as make

    _, path = database_of(options, "use PostgreSQL's own tools: pg_dump, or pg_basebackup")
    with refusals():
        is_recorded = _record_backup(options, path, file)
    with refusals(), bars(options) as show:
        made = make(path, file, wall_ms=now_ms(), progress=show)
    output.one(options, made, f"{file}: {size_text(made.bytes)}, in {made.took_ms / 1000:.1f} s, complete and checked")
    if not is_recorded:
        output.note(options, "the running broker could not be reached, so the audit has no row about this backup")
    output.note(options, f"to restore it, stop the broker and run: stepwire db restore {file}")


def _record_backup(options: Options, path: Path, file: Path) -> bool:
    """Record the backup before it is made, so that it contains its own row: by the broker that has the database open,
    or by this command. Returns False if that broker cannot be reached."""
    from stepwire.client import ClientError

    from stepwire_broker.store.sqlite.backup import record_backup
    from stepwire_broker.store.sqlite.opening import holder

    from .connection import open_client

    if file.exists() or not path.exists():
        return True  # `make` refuses
    if holder(path) is None:
        record_backup(path, file, now_ms())
        return True
    try:
        with open_client(options) as client:
            client.record_backup(str(file))
    except (ClientError, Failure):
        return False
    return True


@db.command()
@FILE
@click.pass_obj
def restore(options: Options, file: Path) -> None:
    """Replace the database by the backup FILE. The broker must be stopped; the replaced files are kept.

    The restored database is a new deployment. An at_most_once step that was open in the backup may have started since
    then, so it is held until an operator resolves it.
    """
    from stepwire_broker.store.sqlite.opening import holder
    from stepwire_broker.store.sqlite.restore import restore as put_back

    settings, path = database_of(options, "stop the brokers, use pg_restore, then run: stepwire db accept-loss")
    process = holder(path)
    if process is not None:
        raise Failure(
            Exit.WRONG_STATE,
            f"{path} is in use by process {process or 'unknown'}",
            "stop the broker first: send its process TERM, and wait until it has ended",
        )
    question = f"Replace {path} by {file}? The restored database does not know what happened after the backup."
    if path.exists() and not confirmation.confirm(options, question):
        leave(Exit.FAILURE)
    with refusals(), bars(options) as show:
        restored = put_back(
            file,
            path,
            settings.broker.id,
            may_replace=True,
            wall_ms=now_ms(),
            entropy=int.from_bytes(os.urandom(16), "big"),
            progress=show,
            erased_ms=_erased_ms(settings),
        )
    output.one(options, restored, "\n".join(_restored_lines(path, file, restored)))
    for line in _next_lines(restored):
        output.note(options, line)


def _erased_ms(settings: "Settings") -> "ErasedMs | None":
    """Return the look-up in `security.erasures_file`; None if nothing was ever erased."""
    from stepwire_broker.erasures_file import ErasuresFile
    from stepwire_broker.security_key import SecurityKeyError, existing

    path = Path(settings.security.erasures_file)
    if not path.exists():
        return None
    try:
        return ErasuresFile(path, existing(settings.security)).erased_ms
    except SecurityKeyError as error:
        raise Failure(Exit.FAILURE, str(error)) from None


def _restored_lines(path: Path, file: Path, restored: "RestoredBackup") -> Iterator[str]:
    made = "" if restored.made_ms is None else f", made {time_text(restored.made_ms)}"
    yield f"restored {path} from {file}{made}: {counted(restored.open_tasks, 'open task')}"
    yield f"the deployment is now {restored.deployment}; in the backup it was {restored.deployment_before}"
    if restored.erased_tasks:
        yield f"{counted(restored.erased_tasks, 'task')} erased after the backup was made: erased again"
    if restored.held_steps:
        steps = counted(restored.held_steps, "at_most_once step")
        yield f"{steps} of {counted(restored.held_tasks, 'task')} held, reason `restored`"
    for kept in restored.replaced:
        yield f"the replaced file is kept: {kept}"


def _next_lines(restored: "RestoredBackup") -> Iterator[str]:
    yield "next: stepwire db check, then stepwire serve"
    if restored.held_steps:
        yield "then find out for each held step whether it ran: stepwire step list --state held"
        yield "  then: stepwire step resolve STEP --completed JSON | --failed TEXT | --retry, with --reason TEXT"
    if restored.erased_tasks and restored.replaced:
        yield "erased payloads may still be in the backup and in the replaced files: remove these when you can"
    yield "tasks submitted after the backup are unknown now: if they are submitted again, they run again"


# -- prune ------------------------------------------------------------------------------------------------------------


@db.command()
@click.option("--dry-run", is_flag=True, help="Only print the number of tasks to remove.")
@click.option("--compact", is_flag=True, help="Also return free space to the file system. The broker must be stopped.")
@click.pass_obj
def prune(options: Options, dry_run: bool, compact: bool) -> None:
    """Remove ended tasks older than `retention` now. A running broker does this by itself."""
    from stepwire_broker.store.contents import expired
    from stepwire_broker.store.sqlite import backup, pruning
    from stepwire_broker.store.sqlite.opening import holder
    from stepwire_broker.store.sqlite.stored_state import SqliteState

    from . import logs

    settings, path = database_of(options, "the running broker removes old tasks by itself")
    with refusals():
        with closing(backup.open_stored(path)) as connection:
            count = expired(SqliteState(connection), settings.retention, now_ms())
            if dry_run:
                output.one(options, {"tasks": count}, f"to prune: {counted(count, 'task')} past the retention time")
                return
            if holder(path) is not None:
                if compact:
                    raise Failure(
                        Exit.WRONG_STATE, f"{path} is in use and cannot be compacted", "stop the broker first"
                    )
                _prune_by_broker(options, connection)
                return
        logs.set_up("warning", options.verbosity)
        with bars(options) as show:
            pruned = pruning.prune_now(path, settings.retention, lambda run: show("tasks", run.tasks, count))
        if compact:
            pruning.compact(path)
    output.one(options, pruned, _pruned_text(pruned))


def _pruned_text(pruned: "Pruned") -> str:
    return f"removed {status_lines.removed_text(pruned.tasks, pruned.steps, pruned.parked)}"


def _prune_by_broker(options: Options, connection: sqlite3.Connection) -> None:
    """Ask the broker to prune, and show the progress until all expired tasks are removed."""
    from stepwire_broker.core.definitions.settings import RetentionSettings
    from stepwire_broker.store.contents import expired
    from stepwire_broker.store.sqlite.stored_state import SqliteState

    state = SqliteState(connection)
    with broker_client(options) as client:
        request = client.prune()
    retention = RetentionSettings(request["completed_ms"], request["failed_ms"])
    total = left = expired(state, retention, request["now_ms"])
    changed_s = time.monotonic()
    with bars(options) as show:
        while left:
            show("tasks", total - left, total)
            time.sleep(POLL_S)
            before, left = left, expired(state, retention, request["now_ms"])
            if left < before:
                changed_s = time.monotonic()
            elif time.monotonic() - changed_s > STUCK_S:
                text = f"the broker has pruned nothing for {STUCK_S:g} s; left: {counted(left, 'task')}"
                raise Failure(Exit.FAILURE, text, "see the broker's log")
    output.one(options, {"tasks": total}, f"the broker removed {counted(total, 'task')}")


# -- upgrade ----------------------------------------------------------------------------------------------------------


@db.command()
@click.option("--sql", "as_sql", is_flag=True, help="PostgreSQL: print the statements, and connect to no server.")
@click.option("--from", "before", metavar="VERSION", help="With --sql: print only what later versions add.")
@click.option("--dry-run", is_flag=True, help="PostgreSQL: change nothing.")
@click.pass_obj
def upgrade(options: Options, as_sql: bool, before: str | None, dry_run: bool) -> None:
    """Print the schema of the database; on PostgreSQL, upgrade it, or make the tables of an empty schema.

    `stepwire serve` makes the tables of an empty schema too. It upgrades a SQLite database when it starts, and never
    upgrades tables on PostgreSQL. Brokers of the version before go on meanwhile.
    """
    from stepwire_broker.store.sqlite import backup
    from stepwire_broker.store.sqlite.migrate import HEAD, revision

    settings = load(options).settings
    if on_server(settings):
        db_server.upgrade(options, settings, as_sql=as_sql, dry_run=dry_run, before=before)
        return
    if as_sql or dry_run or before is not None:
        raise Failure(Exit.USAGE, "--sql, --from and --dry-run are for PostgreSQL, and database.url leads to SQLite")
    _, path = database_of(options)
    with refusals(), closing(backup.open_stored(path)) as connection:
        at = revision(connection)
    text = f"{path} has schema {at}, the one that this program expects"
    if at != HEAD:
        text = f"{path} has schema {at}; `stepwire serve` upgrades it to {HEAD} when it starts: make a backup first"
    output.one(options, {"schema": at, "schema_known": HEAD}, text)


for command in (db_server.lanes, db_server.copy, db_server.accept_loss):
    db.add_command(command)
