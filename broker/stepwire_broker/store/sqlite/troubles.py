"""Classify errors of SQLite and of its driver: bad data, temporary trouble, or a broken database."""

import sqlite3
from typing import Final

from stepwire_broker.core.model.commit_group import StallCode
from stepwire_broker.errors import BrokerError
from stepwire_broker.store.errors import TaskIsGone
from stepwire_broker.store.lane import Trouble


class FileReplaced(BrokerError):
    """The database file was removed, moved or replaced: new writes end with the last process that has it open."""


BROKEN_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_FSYNC,  # earlier writes are in doubt, and a second fsync would not report it
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_CORRUPTFS,
        sqlite3.SQLITE_IOERR_DATA,
        sqlite3.SQLITE_READONLY_DBMOVED,
    }
)
PASSING: Final[dict[int, StallCode]] = {
    sqlite3.SQLITE_BUSY: "database_locked",
    sqlite3.SQLITE_LOCKED: "database_locked",
    sqlite3.SQLITE_PROTOCOL: "database_locked",
    sqlite3.SQLITE_FULL: "disk_full",
    sqlite3.SQLITE_READONLY: "database_read_only",
    sqlite3.SQLITE_CANTOPEN: "database_unavailable",
    sqlite3.SQLITE_IOERR: "database_unavailable",
    sqlite3.SQLITE_NOMEM: "database_unavailable",
    sqlite3.SQLITE_INTERRUPT: "database_unavailable",
    sqlite3.SQLITE_PERM: "database_unavailable",
}
PASSING_EXTENDED: Final[dict[int, StallCode]] = {sqlite3.SQLITE_IOERR_SHMSIZE: "disk_full"}
DATA: Final = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)


UNSTORABLE: Final = (UnicodeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError, TaskIsGone)


def trouble_of(error: Exception) -> Trouble:
    """Classify an error for the lane. An error that is not listed here is a fault of this program or of the schema.
    Such an error stops the lane, because it would recur and no data is at fault."""
    text = str(error) if isinstance(error, BrokerError) else f"{type(error).__name__}: {error}"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # The driver could not bind a value (no such number, text or type), or the row to change is gone.
        is_data = isinstance(error, UNSTORABLE)
        return Trouble("data" if is_data else "broken", None, text)
    text = f"{error} ({getattr(error, 'sqlite_errorname', code)})"
    primary = code & 0xFF
    if code in BROKEN_CODES:
        return Trouble("broken", None, text)
    if primary in DATA:
        return Trouble("data", None, text)
    passing = PASSING_EXTENDED.get(code) or PASSING.get(primary)
    return Trouble("passing", passing, text) if passing else Trouble("broken", None, text)
