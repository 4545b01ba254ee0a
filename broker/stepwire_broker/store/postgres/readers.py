"""Reading in parallel to the lanes: a few threads, each with its own connection, and two more for long reads.

A reader has one connection for life and opens it again after a loss. Every query is one read-only transaction, which
sees one state. It works through a pooler and leaves nothing open.

The server ends a query that takes too long. If its answer is lost with the connection still open, the next query that
is asked ends the connection.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, Final, Generic, ParamSpec, TypeVar

import psycopg
from psycopg import pq

from stepwire_broker.errors import BrokerError
from stepwire_broker.store.errors import DatabaseAway

from .address import PostgresAddress
from .connecting import PostgresConnection, connect
from .failures import ConnectionLost, StatementFailed

Q = TypeVar("Q")
P = ParamSpec("P")
T = TypeVar("T")

LONG_READS: Final = 2  # threads for long reads
WAIT_S: Final = 1.0  # for a free reader
READ_MS: Final = 5_000
LONG_READ_MS: Final = 60_000
ANSWER_S: Final = 5.0  # for an answer, after the server has ended the query
PREPARED_AFTER: Final = 5  # executions of a statement on one connection


class ReadersBusy(DatabaseAway):
    """No reader became free in time, so the query did not run: the caller can repeat it."""


class PostgresReaders(Generic[Q]):
    """The port `Readers` of store/ports.py. `queries` makes the object that a query is called with."""

    def __init__(
        self,
        address: PostgresAddress,
        count: int,
        queries: Callable[[PostgresConnection], Q],
        *,
        schema: str,
        is_prepared: bool,
        wait_s: float = WAIT_S,
        read_ms: int = READ_MS,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._address = address
        self._queries = queries
        self._schema = schema  # a checked name
        self._is_prepared = is_prepared
        self._wait_s = wait_s
        self._read_ms = read_ms
        self._answer_s = answer_s
        self._until: dict[PostgresConnection, float] = {}  # when each running query is overdue
        self._of_thread = threading.local()
        self._opened: set[PostgresConnection] = set()
        self._pool = ThreadPoolExecutor(count, "stepwire-read")
        self._long_pool = ThreadPoolExecutor(LONG_READS, "stepwire-scan")

    def read(self, query: Callable[Concatenate[Q, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `query(queries, …)` in a reader's thread. The future raises ReadersBusy, ConnectionLost or
        StatementFailed."""
        asked = time.monotonic()
        self._end_overdue(asked)

        def run() -> T:
            if time.monotonic() - asked > self._wait_s:
                raise ReadersBusy(f"no connection for reading became free within {self._wait_s:g} s")
            return self._run(self._read_ms, lambda queries: query(queries, *args, **kwargs))

        return self._pool.submit(run)

    def scan(self, query: Callable[Concatenate[Q, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a query that may read many rows, in a thread that no other read waits for."""
        return self._long_pool.submit(self._run, LONG_READ_MS, lambda queries: query(queries, *args, **kwargs))

    def read_at_once(self, query: Callable[Concatenate[Q, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return None: the answer of a server always takes a wait."""
        return None

    def close(self) -> None:
        """Let running queries finish, and cancel queries that have not begun."""
        self._end_overdue(time.monotonic())
        for pool in (self._pool, self._long_pool):
            pool.shutdown(cancel_futures=True)
        for connection in self._opened:
            connection.close()

    def _run(self, limit_ms: int, query: Callable[[Q], T]) -> T:
        connection = self._connection()
        self._until[connection] = time.monotonic() + limit_ms / 1000 + self._answer_s
        try:
            connection.execute(_BEGIN.format(limit_ms=limit_ms, schema=self._schema).encode())
            result = query(self._queries(connection))
            connection.execute("COMMIT")
            return result
        except psycopg.Error as error:
            raise _failure(connection, error) from error
        finally:
            _end(connection)
            del self._until[connection]

    def _end_overdue(self, now: float) -> None:
        """End the connections of overdue queries: their readers would wait for ever."""
        for connection, until in list(self._until.items()):
            if now > until:
                with (
                    contextlib.suppress(OSError, psycopg.Error),
                    socket.socket(fileno=os.dup(connection.fileno())) as wire,
                ):
                    wire.shutdown(socket.SHUT_RDWR)

    def _connection(self) -> PostgresConnection:
        connection: PostgresConnection | None = getattr(self._of_thread, "connection", None)
        if connection is None or connection.closed:
            if connection is not None:
                self._opened.discard(connection)
            self._of_thread.connection = connection = connect(self._address, "stepwire-reader")
            connection.prepare_threshold = PREPARED_AFTER if self._is_prepared else None
            self._opened.add(connection)
        return connection


# Settings are the transaction's own: a pooler gives the next transaction another connection.
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT set_config('statement_timeout', '{limit_ms}', true), "
    "set_config('search_path', '{schema}', true), set_config('enable_seqscan', 'off', true)"
)


def _end(connection: PostgresConnection) -> None:
    """Leave no transaction open after a query that failed."""
    try:
        if not connection.closed and connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


_AWAY: Final = ("08", "53", "57P")  # a lost connection, no resources, a server that starts or stops


def _failure(connection: PostgresConnection, error: psycopg.Error) -> BrokerError:
    if connection.closed or error.sqlstate is None or error.sqlstate.startswith(_AWAY):
        connection.close()
        return ConnectionLost(f"the connection to the database was lost: {str(error).strip()}")
    message = error.diag.message_primary or str(error).strip()
    return StatementFailed(0, "query", error.sqlstate, message, error.diag.constraint_name)
