"""A backup: a copy of the database as of one moment, made while the broker runs."""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from stepwire_broker.core.model.commit_group import CommitGroup, Committed
from stepwire_broker.store.audit_chain import command_row
from stepwire_broker.store.contents import MADE
from stepwire_broker.store.errors import NotThere, StoreRefused, WouldReplace
from stepwire_broker.store.lane import Writing

from . import opening
from .database import lane_of
from .migrate import HEAD, revision
from .writer import SqliteWriter

PAGES_A_STEP: Final = 1_024  # pages copied between two calls of `progress`

Progress: TypeAlias = Callable[[str, int, int], object]  # the name of the work, the amount done, the whole amount


class Made(Struct, frozen=True):
    """A backup."""

    file: str
    bytes: int
    made_ms: int
    took_ms: int


def backup(path: Path, file: Path, *, wall_ms: int, progress: Progress) -> Made:
    """Copy the database as of one moment into a new file. The file gets its name once it is complete, checked and
    synced. The broker continues, and its log grows by its writes meanwhile."""
    began = time.monotonic()
    if file.exists():
        raise WouldReplace(f"{file} already exists; a backup never replaces a file")
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with closing(open_stored(path)) as source:
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(connect(partial)) as copy:
                copy_pages(source, copy, progress)
                note(copy, MADE, {"made_ms": wall_ms})
                # A backup is one file: in WAL mode it would also have a log.
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
                verify(copy, file, progress)
            sync(partial)
            _name(partial, file)
        except OSError as error:
            raise StoreRefused(f"{file} cannot be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreRefused(f"the backup into {file} failed: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
    return Made(str(file), file.stat().st_size, wall_ms, round((time.monotonic() - began) * 1000))


def record_backup(path: Path, file: Path, wall_ms: int) -> None:
    """Record a backup in the audit, while no broker has the database open. A database of an older schema has none."""
    lock = opening.lock(path)
    try:
        with closing(opening.open_writer(path)) as connection:
            if revision(connection) != HEAD:
                return
            lane = lane_of(connection)
            row = command_row("backup_database", f"file {file.name}", {}, wall_ms)
            group = CommitGroup(lane=lane.id, seq=lane.seq + 1, audit=[row])
            outcome = Writing(lane.id, SqliteWriter(connection, path, lane), group).attempt()
            if not isinstance(outcome, Committed):
                raise StoreRefused(f"the backup could not be recorded in the audit: {outcome}")
    finally:
        lock.release()


def open_stored(path: Path) -> sqlite3.Connection:
    """Open a Stepwire database for reading only. A broker may have it open."""
    if not path.exists():
        raise NotThere(f"there is no database {path}")
    connection = opening.open_reader(path)
    try:
        if revision(connection) is None:
            raise StoreRefused(f"{path} is not a Stepwire database, or it is empty")
    except sqlite3.Error as error:
        connection.close()
        raise opening.refused(path, error) from error
    except StoreRefused:
        connection.close()
        raise
    return connection


def copy_pages(source: sqlite3.Connection, copy: sqlite3.Connection, progress: Progress) -> None:
    # This open transaction keeps the copy at one state. Without it, every commit of the broker restarts the copy.
    source.execute("BEGIN")
    source.execute("SELECT 1 FROM sqlite_master").fetchone()
    try:
        source.backup(copy, pages=PAGES_A_STEP, progress=lambda _, left, total: progress("copied", total - left, total))
    finally:
        source.execute("ROLLBACK")


def verify(copy: sqlite3.Connection, file: Path, progress: Progress) -> None:
    progress("checked", 0, 1)
    findings = [row[0] for row in copy.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        raise StoreRefused(f"{file} would be corrupt: {'; '.join(findings)}. See `stepwire db check`")
    progress("checked", 1, 1)


def _name(partial: Path, file: Path) -> None:
    """Give the backup its name, unless another file got that name meanwhile."""
    try:
        os.link(partial, file)
    except FileExistsError:
        raise WouldReplace(f"{file} already exists; a backup never replaces a file") from None
    except OSError:  # a file system without links
        os.rename(partial, file)
    opening.sync_names(file.absolute().parent)


# -- files ------------------------------------------------------------------------------------------------------------


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def note(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, msgspec.json.encode(value).decode()),
    )


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
