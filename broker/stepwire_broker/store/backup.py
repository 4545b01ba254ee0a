"""A copy of the database, made while the broker goes on, and the way back from one.

A backup knows nothing of what happened after it. So a restored database is another deployment (workers drop what they
hold of the old one), its epochs and numbers begin above all that may have been given out, and every at_most_once step
that is not over in it is held: it may have been started since, and only an operator can find out.
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

from stepwire_broker.core.definitions.document_problems import InvalidWorkflow
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.definitions.workflow import stored_workflow
from stepwire_broker.core.loading import residency
from stepwire_broker.core.model.apply import unlink
from stepwire_broker.core.model.commit_group import Committed
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Task
from stepwire_broker.core.model.states import TaskState
from stepwire_broker.core.progress.step_outcomes import hold_restored
from stepwire_broker.core.state import BrokerState, Identity

from . import queries, sqlite
from .errors import StoreRefused
from .lane import Writing
from .migrate import migrate, revision
from .sqlite_writes import SqliteWriter
from .store import LANE, Opened, begin_epoch

PAGES_A_STEP: Final = 1_024  # copied between two calls of `progress`
PAGE_TASKS: Final = 500
LEASE_MS_DEFAULT: Final = 10_000
IDS_UNKNOWN: Final = 1_000_000_000  # numbers that may have been given out since, when nobody can say how many were

MADE: Final = "backup"  # in `meta` of a backup, and of what was restored from it: when it was made
RESTORED: Final = "restored"  # in `meta`: when, and from what

Progress: TypeAlias = Callable[[str, int, int], object]  # what is being done, how much is done, of how much


class Made(Struct, frozen=True):
    """A backup."""

    file: str
    bytes: int
    made_ms: int
    took_ms: int


class RestoredBackup(Struct, frozen=True):
    """What a restore did."""

    made_ms: int | None  # the backup; None when it was copied by other means
    deployment_before: str
    deployment: str
    epoch: int
    open_tasks: int
    held_tasks: int
    held_steps: int
    replaced: list[str]  # where the files that were there lie now


class WouldReplace(StoreRefused):
    """There is a file of this name already."""


class NotThere(StoreRefused):
    """There is no such database."""


# -- there ------------------------------------------------------------------------------------------------------------


def backup(path: Path, file: Path, *, wall_ms: int, progress: Progress) -> Made:
    """The database as it is at one instant, into a file that must not be there. It has that name only once it is
    whole, checked and synced. The broker goes on; its log grows meanwhile by what it writes."""
    began = time.monotonic()
    if file.exists():
        raise WouldReplace(f"{file} is there already; a backup never replaces a file")
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with closing(open_stored(path)) as source:
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(_connect(partial)) as copy:
                _copy(source, copy, progress)
                _note(copy, MADE, {"made_ms": wall_ms})
                # One file, which says all of it: no log belongs to it.
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
                _verify(copy, file, progress)
            _sync(partial)
            _name(partial, file)
        except OSError as error:
            raise StoreRefused(f"{file} cannot be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreRefused(f"the backup into {file} failed: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
    return Made(str(file), file.stat().st_size, wall_ms, round((time.monotonic() - began) * 1000))


def open_stored(path: Path) -> sqlite3.Connection:
    """A database of Stepwire's, for reading only, whoever else has it open."""
    if not path.exists():
        raise NotThere(f"there is no database {path}")
    connection = sqlite.open_reader(path)
    try:
        if revision(connection) is None:
            raise StoreRefused(f"{path} is not a database of Stepwire's, or it is empty")
    except sqlite3.Error as error:
        connection.close()
        raise sqlite.refused(path, error) from error
    except StoreRefused:
        connection.close()
        raise
    return connection


def _copy(source: sqlite3.Connection, copy: sqlite3.Connection, progress: Progress) -> None:
    # Held open, this transaction keeps what is copied one state; without it every commit of the broker would make the
    # copy begin again.
    source.execute("BEGIN")
    source.execute("SELECT 1 FROM sqlite_master").fetchone()
    try:
        source.backup(copy, pages=PAGES_A_STEP, progress=lambda _, left, total: progress("copied", total - left, total))
    finally:
        source.execute("ROLLBACK")


def _verify(copy: sqlite3.Connection, file: Path, progress: Progress) -> None:
    progress("checked", 0, 1)
    found = [row[0] for row in copy.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise StoreRefused(f"{file} would be corrupt: {'; '.join(found)}. See `stepwire db check`")
    progress("checked", 1, 1)


def _name(partial: Path, file: Path) -> None:
    """Give it its name, unless somebody else has taken that meanwhile."""
    try:
        os.link(partial, file)
    except FileExistsError:
        raise WouldReplace(f"{file} is there already; a backup never replaces a file") from None
    except OSError:  # a file system without links
        os.rename(partial, file)
    sqlite.sync_names(file.absolute().parent)


# -- and back ---------------------------------------------------------------------------------------------------------


def restore(
    file: Path, path: Path, broker_id: str, *, may_replace: bool, wall_ms: int, entropy: int, progress: Progress
) -> RestoredBackup:
    """Put a backup in the database's place. No broker may run. What was there is kept beside. Interrupted at any point,
    either the old database is there as it was, or no broker starts until the restore was run again."""
    path = path.absolute()
    with _locked(path), closing(open_stored(file)) as source:
        if path.exists():
            if path.samefile(file):
                raise StoreRefused(f"{file} is the database itself")
            if not may_replace:
                raise WouldReplace(f"{path} is there already: it would be replaced, and kept beside")
        built = path.with_name(f"{path.name}.partial")
        _remove(built)
        try:
            os.close(os.open(built, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(_connect(built)) as copy:
                _copy(source, copy, progress)
                _verify(copy, file, progress)
            restored = _renewed(built, path, broker_id, wall_ms, entropy, progress)
            _sync(built)
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
    lock = sqlite.lock(path)
    try:
        yield
    finally:
        lock.release()


def _renewed(built: Path, path: Path, broker_id: str, wall_ms: int, entropy: int, progress: Progress) -> RestoredBackup:
    """Make the copy a database of its own: nothing it will give out was given out before, and nothing in it that must
    not start twice starts by itself."""
    connection = sqlite.open_writer(built)
    try:
        migrate(connection)
        (before,) = connection.execute("SELECT value FROM meta WHERE name = 'deployment'").fetchone()
        made = connection.execute(
            "SELECT json_extract(value, '$.made_ms') FROM meta WHERE name = ?", (MADE,)
        ).fetchone()
        lease_ms = _above_what_was(connection, path, broker_id, wall_ms)
        lane_id, opened = begin_epoch(connection, broker_id, lease_ms, wall_ms, entropy)
        held_tasks, held_steps = _hold(
            SqliteWriter(connection, built, lane_id, opened.epoch), connection, broker_id, opened, wall_ms, progress
        )
        restored = RestoredBackup(
            made_ms=None if made is None else made[0],
            deployment_before=before,
            deployment=opened.deployment,
            epoch=opened.epoch,
            open_tasks=opened.open_tasks,
            held_tasks=held_tasks,
            held_steps=held_steps,
            replaced=[],
        )
        _note(connection, RESTORED, {"restored_ms": wall_ms, **msgspec.to_builtins(restored)})
    finally:
        connection.close()
    return restored


def _above_what_was(connection: sqlite3.Connection, path: Path, broker_id: str, wall_ms: int) -> int:
    """Epochs and numbers go on above the backup's, above those of the database that is replaced if that can be read,
    and, since an epoch is given at a start and nobody starts every second, above the seconds since 1970: so that no two
    restores of one backup give the same ones either. Returns the broker's lease."""
    was = _given_out(connection)
    there = GivenOut("", 0, 0)
    try:
        with closing(sqlite.open_reader(path)) as replaced:
            there = _given_out(replaced)
    except (sqlite3.Error, StoreRefused):
        pass  # it is gone or damaged, which is why it is replaced
    unknown = 0 if there.deployment == was.deployment else IDS_UNKNOWN
    row = connection.execute("SELECT lease_ms FROM brokers WHERE id = ?", (broker_id,)).fetchone()
    lease_ms = LEASE_MS_DEFAULT if row is None else int(row[0])
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM meta WHERE name = 'deployment'")
    connection.execute("UPDATE sequences SET next = ? WHERE name = 'ids'", (max(was.next_id + unknown, there.next_id),))
    connection.execute(
        "INSERT INTO brokers (id, epoch, lease_until_ms, lease_ms) VALUES (?, ?, 0, ?) "
        "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch",
        (broker_id, max(was.epoch, there.epoch, wall_ms // 1000), lease_ms),
    )
    connection.execute("COMMIT")
    return lease_ms


class GivenOut(NamedTuple):
    deployment: str
    epoch: int  # the last one
    next_id: int


def _given_out(connection: sqlite3.Connection) -> GivenOut:
    return GivenOut(
        *connection.execute(
            """
            SELECT (SELECT value FROM meta WHERE name = 'deployment'), (SELECT coalesce(max(epoch), 0) FROM brokers),
             (SELECT coalesce(max(next), 1) FROM sequences WHERE name = 'ids')
            """
        ).fetchone()
    )


def _hold(
    writer: SqliteWriter,
    connection: sqlite3.Connection,
    broker_id: str,
    opened: Opened,
    wall_ms: int,
    progress: Progress,
) -> tuple[int, int]:
    """Hold what must not start twice, through the core and the lane like everything that happens to a task, so that it
    is in the history too. How many tasks and steps."""
    now = Now(0, wall_ms)
    identity = Identity(broker_id, opened.epoch, opened.deployment, nonce="")
    state = BrokerState(Settings(), identity, dict(opened.lanes), opened.ids, 0, now)
    for row in opened.workflows:
        try:
            state.workflows[row.id] = stored_workflow(row)
        except InvalidWorkflow as error:
            raise StoreRefused(f"workflow {row.namespace}::{row.name} {row.version} cannot be read: {error}") from error
    held_tasks = held_steps = looked_at = after = 0
    while task_ids := queries.open_task_ids(connection, after, PAGE_TASKS):
        after = task_ids[-1]
        tasks = _restored(state, connection, task_ids)
        for task in tasks:
            held = hold_restored(state, task, now)
            held_steps += held
            held_tasks += held > 0
            # What was never loaded is in nobody's memory; the rest lies as a broker that died left it.
            task.evicting = task.state is TaskState.PENDING
        _write(state, writer, now)
        for task in tasks:
            unlink(task)
        looked_at += len(task_ids)
        progress("tasks looked at", looked_at, opened.open_tasks)
    return held_tasks, held_steps


def _restored(state: BrokerState, connection: sqlite3.Connection, task_ids: list[int]) -> list[Task]:
    loaded = queries.load_tasks(connection, task_ids, 0)
    rows = iter(loaded.steps)
    return [
        residency.restored(state, row, [next(rows) for _ in state.workflows[row.workflow_id].steps])
        for row in loaded.tasks
    ]


def _write(state: BrokerState, writer: SqliteWriter, now: Now) -> None:
    group = state.outbox.close(LANE, now)
    if group is None:
        return
    outcome = Writing(LANE, writer, group).attempt()
    if not isinstance(outcome, Committed) or outcome.rejected:
        raise StoreRefused(f"a step could not be held: {outcome}")
    state.outbox.committed(LANE, group.seq)


def _swap(built: Path, path: Path, wall_ms: int) -> list[Path]:
    """Where the files that were there lie now. From the first name on until the last, no broker starts."""
    _fold(path)
    ready = sqlite.restoring(path)
    os.rename(built, ready)
    sqlite.sync_names(path.parent)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_ms / 1000))
    replaced = []
    for suffix in ("", "-wal"):
        there = Path(f"{path}{suffix}")
        if there.exists():
            kept = Path(f"{path}.replaced-{stamp}{suffix}")
            os.rename(there, kept)
            replaced.append(kept)
    Path(f"{path}-shm").unlink(missing_ok=True)
    sqlite.sync_names(path.parent)
    os.rename(ready, path)
    sqlite.sync_names(path.parent)
    return replaced


def _fold(path: Path) -> None:
    """Move the log of the old database into it, so that it is one file; unless it is damaged."""
    if path.exists():
        try:
            sqlite.open_writer(path).close()
        except (sqlite3.Error, StoreRefused):
            pass


# -- files ------------------------------------------------------------------------------------------------------------


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def _note(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, msgspec.json.encode(value).decode()),
    )


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
