"""The restore of a backup.

A backup lacks everything that happened after it was made. Therefore a restored database is a new deployment: workers
drop the steps and results of the old deployment. Its epochs and ids begin above all numbers that may have been used
since. Every at_most_once step that has not ended in the backup is held: it may have started since, and only an
operator can find out.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.intake.erasure import erase_restored
from stepwire_broker.core.model.events import Now
from stepwire_broker.store import stored_audit
from stepwire_broker.store.audit_chain import command_row
from stepwire_broker.store.contents import COPIED, MADE, RESTORED
from stepwire_broker.store.errors import StoreRefused, WouldReplace
from stepwire_broker.store.holding import BLOCKS_UNKNOWN, PAGE_TASKS, StoredTasks

from . import opening
from .backup import Progress, connect, copy_pages, note, open_stored, sync, verify
from .database import begin_epoch
from .migrate import migrate
from .queries import SqliteQueries
from .stored_state import SqliteState
from .writer import SqliteWriter

LEASE_MS_DEFAULT: Final = 10_000

ERASED_AGAIN: Final = "erased again by the restore of a backup"

ErasedMs: TypeAlias = Callable[[str], int | None]  # when the task with this uid was erased


class RestoredBackup(Struct, frozen=True):
    """The result of a restore."""

    made_ms: int | None  # time of the backup; None for a copy made by other means
    deployment_before: str
    deployment: str
    epoch: int
    open_tasks: int
    held_tasks: int
    held_steps: int
    replaced: list[str]  # the new paths of the replaced files
    erased_tasks: int = 0  # erased again


def restore(
    file: Path,
    path: Path,
    broker_id: str,
    *,
    may_replace: bool,
    wall_ms: int,
    entropy: int,
    progress: Progress,
    erased_ms: ErasedMs | None = None,
) -> RestoredBackup:
    """Replace the database by a backup, while no broker runs. Tasks that were erased after the backup, as `erased_ms`
    tells by their uid, are erased again. The replaced files are kept next to the database. After
    an interruption either the old database is unchanged, or no broker starts until the restore is run again."""
    path = path.absolute()
    with _locked(path), closing(open_stored(file)) as source:
        if path.exists():
            if path.samefile(file):
                raise StoreRefused(f"{file} is the database itself")
            if not may_replace:
                raise WouldReplace(f"{path} already exists: a restore would replace it and keep its files next to it")
        built = path.with_name(f"{path.name}.partial")
        _remove(built)
        try:
            os.close(os.open(built, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(connect(built)) as copy:
                copy_pages(source, copy, progress)
                verify(copy, file, progress)
            restored = _renewed(built, path, broker_id, wall_ms, entropy, progress, erased_ms)
            sync(built)
            replaced = _swap(built, path, wall_ms)
        except OSError as error:
            raise StoreRefused(f"{error.filename or path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreRefused(f"{file} cannot be restored: {error}") from error
        finally:
            _remove(built)
    return msgspec.structs.replace(restored, replaced=[str(one) for one in replaced])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = opening.lock(path)
    try:
        yield
    finally:
        lock.release()


def _renewed(
    built: Path,
    path: Path,
    broker_id: str,
    wall_ms: int,
    entropy: int,
    progress: Progress,
    erased_ms: ErasedMs | None,
) -> RestoredBackup:
    """Make the copy a new deployment: it reuses no earlier id or epoch, and holds every step that must not start
    twice."""
    connection = opening.open_writer(built)
    try:
        migrate(connection)
        (before,) = connection.execute("SELECT value FROM meta WHERE name = 'deployment'").fetchone()
        made = connection.execute(
            "SELECT json_extract(value, '$.made_ms') FROM meta WHERE name = ?", (MADE,)
        ).fetchone()
        replaced_heads = _heads_of(path)
        lease_ms = _continue_numbers(connection, path, broker_id, wall_ms)
        lane, opened = begin_epoch(connection, broker_id, lease_ms, wall_ms, entropy)
        writers = {lane.id: SqliteWriter(connection, built, lane)}
        tasks = StoredTasks(broker_id, opened, writers, SqliteState(connection), Now(0, wall_ms))
        erased_tasks = 0 if erased_ms is None else _erase_again(tasks, connection, erased_ms)
        if erased_tasks:
            connection.execute("VACUUM")  # the unused parts of the file may hold erased payloads too
        detail = {"deployment_before": before, "made_ms": None if made is None else made[0], "replaced": replaced_heads}
        detail["erased_tasks"] = erased_tasks
        tasks.state.write_audit(command_row("restore_database", f"deployment {opened.deployment}", detail, wall_ms))
        tasks.write()
        held = tasks.hold(opened.open_tasks, progress)
        restored = RestoredBackup(
            made_ms=None if made is None else made[0],
            deployment_before=before,
            deployment=opened.deployment,
            epoch=opened.epoch,
            open_tasks=sum(counts.tasks for counts in SqliteQueries(connection).open_counts().values()),
            held_tasks=held.tasks,
            held_steps=held.steps,
            replaced=[],
            erased_tasks=erased_tasks,
        )
        note(connection, RESTORED, {"restored_ms": wall_ms, **msgspec.to_builtins(restored)})
    finally:
        connection.close()
    return restored


def _continue_numbers(connection: sqlite3.Connection, path: Path, broker_id: str, wall_ms: int) -> int:
    """Continue epochs and ids above those of the backup and, if readable, of the replaced database. Returns the
    broker's lease.

    Epochs also continue above the seconds since 1970, so that two restores of one backup never use the same epoch: a
    broker starts less than once a second."""
    backup_used = _used_numbers(connection)
    replaced_used = UsedNumbers("", 0, 0)
    try:
        with closing(opening.open_reader(path)) as replaced:
            replaced_used = _used_numbers(replaced)
    except (sqlite3.Error, StoreRefused):
        pass  # the replaced database is gone or damaged
    unknown = 0 if replaced_used.deployment == backup_used.deployment else BLOCKS_UNKNOWN
    row = connection.execute("SELECT lease_ms FROM brokers WHERE id = ?", (broker_id,)).fetchone()
    lease_ms = LEASE_MS_DEFAULT if row is None else int(row[0])
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM meta WHERE name IN ('deployment', ?)", (COPIED,))
    connection.execute(
        "INSERT INTO blocks (number, lane, reserved) SELECT ?, id, 0 FROM lanes ORDER BY id DESC LIMIT 1",
        (max(backup_used.blocks + unknown, replaced_used.blocks),),
    )
    connection.execute(
        "INSERT INTO brokers (id, epoch, lease_until_ms, lease_ms) VALUES (?, ?, 0, ?) "
        "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch",
        (broker_id, max(backup_used.epoch, replaced_used.epoch, wall_ms // 1000), lease_ms),
    )
    connection.execute("COMMIT")
    return lease_ms


def _heads_of(path: Path) -> list[dict[str, object]]:
    """The ends of the replaced database's audit, so that stored heads of it can still be found in a chain."""
    try:
        with closing(opening.open_reader(path)) as replaced:
            return [chain.head._asdict() for chain in stored_audit.chains(SqliteState(replaced))]
    except (sqlite3.Error, StoreRefused):
        return []  # the replaced database is gone, damaged, or of an older schema


class UsedNumbers(NamedTuple):
    deployment: str
    epoch: int  # the last one
    blocks: int  # of ids


def _used_numbers(connection: sqlite3.Connection) -> UsedNumbers:
    return UsedNumbers(
        *connection.execute(
            """
            SELECT (SELECT value FROM meta WHERE name = 'deployment'), (SELECT coalesce(max(epoch), 0) FROM brokers),
             (SELECT coalesce(max(number) + 1, 0) FROM blocks)
            """
        ).fetchone()
    )


def _erase_again(tasks: StoredTasks, connection: sqlite3.Connection, erased_ms: ErasedMs) -> int:
    """Erase the tasks that were erased after the backup. A task that is open in the backup is cancelled first. Returns
    the number of tasks."""
    count = after = 0
    while page := connection.execute(
        "SELECT id, uid, labels FROM tasks WHERE id > ? ORDER BY id LIMIT ?", (after, PAGE_TASKS)
    ).fetchall():
        after = page[-1][0]
        chosen = [
            task_id for task_id, uid, labels in page if erasing.erased_ms(labels) is None and erased_ms(uid) is not None
        ]
        if not chosen:
            continue
        loaded = tasks.load(chosen)
        for task in loaded:
            erase_restored(tasks.state, task, ERASED_AGAIN, tasks.now)
        tasks.write()
        tasks.forget(loaded)
        count += len(chosen)
    return count


def _swap(built: Path, path: Path, wall_ms: int) -> list[Path]:
    """Rename the files. Returns the new paths of the replaced files. No broker starts between the first and the last
    rename."""
    _fold(path)
    ready = opening.restoring(path)
    os.rename(built, ready)
    opening.sync_names(path.parent)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_ms / 1000))
    replaced = []
    for suffix in ("", "-wal"):
        old_file = Path(f"{path}{suffix}")
        if old_file.exists():
            kept = Path(f"{path}.replaced-{stamp}{suffix}")
            os.rename(old_file, kept)
            replaced.append(kept)
    Path(f"{path}-shm").unlink(missing_ok=True)
    opening.sync_names(path.parent)
    os.rename(ready, path)
    opening.sync_names(path.parent)
    return replaced


def _fold(path: Path) -> None:
    """Move the log of the old database into its file, unless it is damaged."""
    if path.exists():
        try:
            opening.open_writer(path).close()
        except (sqlite3.Error, StoreRefused):
            pass


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
