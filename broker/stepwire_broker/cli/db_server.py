"""`stepwire db` on PostgreSQL."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stepwire_broker.core.phrases import counted

from . import confirmation, output, status_lines
from .config_commands import load
from .db_access import bars, now_ms, on_server, refusals, size_text
from .failure import Exit, Failure, leave
from .options import Options, StepwireCommand

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings
    from stepwire_broker.store.postgres.status import LaneStatus, OldestSnapshot, ServerStatus

SHOWN_AFTER_MS: Final = 5 * 60_000  # a snapshot that holds back vacuum for this time is named
WARNED_AFTER_MS: Final = 30 * 60_000
TABLES_SHOWN: Final = 3


# -- status -----------------------------------------------------------------------------------------------------------


def print_status(options: Options) -> None:
    from stepwire_broker.store.postgres.status import status as read

    settings = load(options).settings
    with refusals():
        status = read(settings.database, settings.retention, now_ms())
    status_lines.print_status(options, status, _lines(status))
    oldest = status.oldest_snapshot
    if oldest is not None and (oldest.held_ms is None or oldest.held_ms >= WARNED_AFTER_MS):
        output.note(options, f"warning: vacuum removes no dead row while {oldest.holder} exists: end it, or drop it")


def _lines(status: "ServerStatus") -> Iterator[tuple[str, str]]:
    yield "database", f"{status.address}, schema {status.schema_name}"
    yield "server", status.server
    largest = [f"{name} {size_text(table.bytes)}" for name, table in list(status.tables.items())[:TABLES_SHOWN]]
    yield "size", f"{size_text(status.bytes)} ({', '.join(largest)})"
    dead = sorted(status.tables.items(), key=lambda item: -item[1].dead_rows)[:TABLES_SHOWN]
    most = [f"{name} {table.dead_rows:,}" for name, table in dead if table.dead_rows]
    yield "dead rows", f"{status.dead_rows:,}" + (f" ({', '.join(most)})" if most else "")
    yield "oldest snapshot", _snapshot(status.oldest_snapshot, is_partial=status.is_partial)
    connections = status.connections
    yield "connections", f"{connections.stepwire} of Stepwire, {connections.others} others, limit {connections.limit}"
    upgrade = ""
    if status.schema != status.schema_known:
        upgrade = f"; this program expects {status.schema_known}: see stepwire db upgrade"
    yield "schema", f"{status.schema}{upgrade}"
    for lane in status.lanes:
        yield f"lane {lane.id}", _lane(lane)


def _snapshot(oldest: "OldestSnapshot | None", *, is_partial: bool) -> str:
    text = "none that is older than 5 minutes"
    if oldest is not None and (oldest.held_ms is None or oldest.held_ms >= SHOWN_AFTER_MS):
        age = "" if oldest.held_ms is None else f" for {oldest.held_ms // 60_000} min"
        text = f"held{age} by {oldest.holder}; {counted(oldest.transactions, 'transaction')} since"
    return text + ("; of other users unknown: GRANT pg_read_all_stats" if is_partial else "")


def _lane(lane: "LaneStatus") -> str:
    owner = "no owner" if lane.owner is None else f"owner {lane.owner}"
    late = ""
    if lane.expired_tasks:
        late = f", {counted(lane.expired_tasks, 'task')} to prune, {lane.prune_lag_ms // 1000} s late"
    return f"{owner}, epoch {lane.epoch}, {counted(lane.end, 'commit')}{late}"


# -- copy -------------------------------------------------------------------------------------------------------------


@click.command(cls=StepwireCommand)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--sample", metavar="N", type=click.IntRange(min=1), help="Replay only N histories, chosen at random.")
@click.pass_obj
def copy(options: Options, file: Path, sample: int | None) -> None:
    """Copy the SQLite database FILE into the empty PostgreSQL schema of database.url, and check the copy.

    The copy is the same deployment, with the same ids, keys, history and audit. No broker may have FILE open, and no
    broker starts on FILE afterwards.
    """
    settings = load(options).settings
    if not on_server(settings):
        raise Failure(Exit.USAGE, "a database is copied to PostgreSQL, and database.url leads to SQLite")
    from stepwire_broker.store.postgres.copying import copy_database

    with refusals(), bars(options) as show:
        copied = copy_database(file, settings.database, sample=sample, wall_ms=now_ms(), progress=show)
    rows = ", ".join(f"{count:,} {name}" for name, count in copied.rows.items() if count)
    text = (
        f"copied {file} to {copied.address}, schema {copied.schema}, in {copied.took_ms / 1000:.1f} s: {rows}\n"
        f"{counted(copied.checked.tasks_replayed, 'task')} replayed from their history: no errors"
    )
    output.one(options, copied, text)
    output.note(options, "next: stepwire serve. No broker starts on the file again; keep it as an old copy")


# -- lost commits -----------------------------------------------------------------------------------------------------


@click.command("accept-loss", cls=StepwireCommand)
@click.option("--nothing-lost", is_flag=True, help="The failover lost no commit: only let brokers go on.")
@click.pass_obj
def accept_loss(options: Options, nothing_lost: bool) -> None:
    """Go on with a PostgreSQL server that lacks its latest commits, after a failover or a restore.

    The database becomes a new deployment, as after a restore: an at_most_once step that had not ended may have run, so
    it is held until an operator resolves it. Every broker must be stopped.
    """
    settings = load(options).settings
    if not on_server(settings):
        raise Failure(Exit.USAGE, "database.url leads to SQLite", "to go back to a backup: stepwire db restore FILE")
    from stepwire_broker.store.postgres import accepting

    if nothing_lost:
        with refusals():
            doubted = accepting.trust_failover(settings.database)
        text = f"{counted(len(doubted), 'lane')} may be owned again; nothing else was changed"
        output.one(options, {"lanes": doubted}, text)
        return
    question = f"Make the schema {settings.database.schema} a new deployment, which accepts no result of the old one?"
    if not confirmation.confirm(options, question):
        leave(Exit.FAILURE)
    with refusals(), bars(options) as show:
        loss = accepting.accept_loss(
            settings.database,
            settings.broker.id,
            wall_ms=now_ms(),
            entropy=int.from_bytes(os.urandom(16), "big"),
            progress=show,
        )
    text = f"the deployment is now {loss.deployment}; before it was {loss.deployment_before}"
    if loss.held_steps:
        steps = counted(loss.held_steps, "at_most_once step")
        text += f"\n{steps} of {counted(loss.held_tasks, 'task')} held, reason `restored`"
    output.one(options, loss, text)
    output.note(options, "next: stepwire db check, then stepwire serve")
    if loss.held_steps:
        output.note(options, "then find out for each held step whether it ran: stepwire step list --state held")
    output.note(options, "tasks of lost commits are unknown now: if they are submitted again, they run again")


# -- tables -----------------------------------------------------------------------------------------------------------


def upgrade(options: Options, settings: "Settings", *, as_sql: bool, dry_run: bool, before: str | None) -> None:
    from stepwire_broker.store.postgres import administration
    from stepwire_broker.store.postgres.migrating import script_after
    from stepwire_broker.store.postgres.schema import creation, read_schema_name

    with refusals():
        if as_sql:
            schema = read_schema_name(settings.database.schema)
            if before is None:
                click.echo(f"BEGIN;\n{creation(schema, settings.database.lanes)}COMMIT;")
            else:
                click.echo(script_after(before, schema), nl=False)
            return
        done = administration.upgrade(settings.database, changes=not dry_run)
    if done.made:
        text = f"the tables were made in the schema {done.schema}, version {done.version}"
    elif done.is_needed and done.before is None:
        text = f"the schema {done.schema} has no tables: `stepwire db upgrade` makes version {done.version}"
    elif done.is_needed and dry_run:
        text = f"the schema {done.schema} has version {done.before}: `stepwire db upgrade` makes version {done.version}"
    elif done.is_needed:
        text = f"the schema {done.schema} was upgraded from version {done.before} to {done.version}"
    elif done.before is not None and done.before > done.version:
        text = f"the schema {done.schema} has version {done.before}, and this program, {done.version}, runs on it"
    else:
        text = f"the schema {done.schema} has version {done.version}, the one that this program expects"
    output.one(options, done, text)


@click.command(cls=StepwireCommand)
@click.argument("count", metavar="N", type=click.IntRange(min=1))
@click.pass_obj
def lanes(options: Options, count: int) -> None:
    """Let a PostgreSQL database have N lanes, which write in parallel. Lanes are added, and never removed.

    Running brokers take the new lanes at their next beat. Set `database.lanes` to N before the next start of each.
    """
    settings = load(options).settings
    if not on_server(settings):
        raise Failure(Exit.USAGE, "a SQLite database has one lane")
    from stepwire_broker.store.postgres import administration

    with refusals():
        before = administration.make_lanes(settings.database, count)
    text = f"{counted(count, 'lane')}, {count - before} of them new; set database.lanes: {count}"
    output.one(options, {"lanes": count, "before": before}, text)
