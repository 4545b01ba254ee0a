"""Reading beside the writer: a few threads, each with a connection that can only read."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from stepwire_protocol import patterns

from .errors import StoreRefused
from .sqlite import open_reader

T = TypeVar("T")


class Readers:
    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._at_once: sqlite3.Connection | None = None
        self._pool = ThreadPoolExecutor(count, "stepwire-read", initializer=self._open)

    def read(self, query: Callable[..., T], *args: Any) -> Future[T]:
        """Run `query(connection, *args)`: one or a few statements, a page at most."""
        return self._pool.submit(self._run, query, *args)

    def read_at_once(self, query: Callable[..., T], *args: Any) -> T | None:
        """In the caller's own thread, for a few rows that were written a moment ago: they need no disk, and to hand
        them over takes longer than to read them. None rather than wait for a lock."""
        try:
            if self._at_once is None:
                self._at_once = open_reader(self._path)
                self._all.append(self._at_once)
                self._at_once.execute("PRAGMA busy_timeout=0")
            return _finished(self._at_once, query, *args)
        except StoreRefused:
            return None  # it cannot be opened now
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return None
            raise

    def close(self) -> None:
        """What runs is let finish; what has not begun is cancelled."""
        self._pool.shutdown(cancel_futures=True)
        for connection in self._all:
            connection.close()

    def _open(self) -> None:
        connection = open_reader(self._path)
        connection.create_function("matches", 2, patterns.matches, deterministic=True)
        self._mine.connection = connection
        self._all.append(connection)

    def _run(self, query: Callable[..., T], *args: Any) -> T:
        return _finished(self._mine.connection, query, *args)


def _finished(connection: sqlite3.Connection, query: Callable[..., T], *args: Any) -> T:
    try:
        return query(connection, *args)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
