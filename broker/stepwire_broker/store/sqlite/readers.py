"""Reading in parallel to the writer: a few threads, each with a read-only connection, and two more for long reads."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from stepwire_protocol import patterns

from stepwire_broker.store.errors import StoreRefused

from .opening import open_reader
from .queries import SqliteQueries

P = ParamSpec("P")
T = TypeVar("T")

SCANS: int = 2  # threads for long reads


class SqliteReaders:
    """The port `Readers` of store/ports.py."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._of_thread = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._at_once: SqliteQueries | None = None
        self._pool = ThreadPoolExecutor(count, "stepwire-read", initializer=self._open_in_thread)
        self._scan_pool = ThreadPoolExecutor(SCANS, "stepwire-scan", initializer=self._open_in_thread)

    def read(self, query: Callable[Concatenate[SqliteQueries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(lambda: _finished(self._of_thread.queries, query, *args, **kwargs))

    def scan(self, query: Callable[Concatenate[SqliteQueries, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._scan_pool.submit(lambda: _finished(self._of_thread.queries, query, *args, **kwargs))

    def read_at_once(
        self, query: Callable[Concatenate[SqliteQueries, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        try:
            if self._at_once is None:
                self._at_once = self._open()
                self._at_once.execute("PRAGMA busy_timeout=0")
            return _finished(self._at_once, query, *args, **kwargs)
        except StoreRefused:
            return None  # the database cannot be opened now
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return None
            raise

    def close(self) -> None:
        for pool in (self._pool, self._scan_pool):
            pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()

    def _open(self) -> SqliteQueries:
        connection = open_reader(self._path)
        connection.create_function("matches", 2, patterns.matches, deterministic=True)
        self._connections.append(connection)
        return SqliteQueries(connection)

    def _open_in_thread(self) -> None:
        self._of_thread.queries = self._open()


def _finished(
    queries: SqliteQueries, query: Callable[Concatenate[SqliteQueries, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a query, and leave no transaction open behind it."""
    try:
        return query(queries, *args, **kwargs)
    finally:
        if queries.connection.in_transaction:
            queries.execute("ROLLBACK")
