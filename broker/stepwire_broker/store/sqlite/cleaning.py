"""The end of a run of erasures in SQLite's SQL: the log into the file, and the file without unused parts."""

from typing import Final

from . import erasing
from .writer import SqliteWriter

MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024  # a larger database is rewritten through a temporary file


class SqliteCleaning:
    """The port `Cleaning` of store/ports.py, on the connection of the writer."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer
        self._execute = writer.execute

    def checkpoint(self) -> bool:
        busy, _, _ = self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._writer.lay_out()  # the log is empty now
        return not busy

    def compact(self) -> None:
        pages, size = (self._execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size > MEMORY_BYTES_MAX:
            self._execute("PRAGMA temp_store=FILE").fetchall()
        try:
            self._execute("VACUUM")
        finally:
            self._execute("PRAGMA temp_store=MEMORY").fetchall()

    def unverified(self) -> int:
        return erasing.unverified(self._execute)

    def are_verified(self, count: int) -> None:
        erasing.are_verified(self._execute, count)
