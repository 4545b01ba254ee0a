"""One connection on which several statements run in one trip.

A trip is sent whole, then its answers are read. The server runs the statements of a trip in order, and none after one
that failed. The library's own pipeline holds the GIL while it waits; here the wait is a poll of the socket.
"""

import select
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import psycopg
from psycopg import pq
from psycopg.errors import Diagnostic

from .connecting import PostgresConnection
from .failures import CommitUnconfirmed, ConnectionLost, StatementFailed

ANSWER_S: Final = 30.0  # without an answer for this time the connection is given up
LOST_STANDBY: Final = "canceling wait for synchronous replication"
UNREAD_RESULTS: Final = 4  # results that can lie before the last message of a connection
_POLL_MS: Final = 1_000

Value: TypeAlias = bytes | str | int | None
Row: TypeAlias = tuple[bytes | None, ...]


class Statement(NamedTuple):
    """A statement with `$1`, `$2`, … The name must be the statement's own: the server keeps its plan under it."""

    name: str
    text: str


class StatementCall(NamedTuple):
    statement: Statement
    values: Sequence[Value] = ()


class StatementReply(NamedTuple):
    rows: list[Row]
    changed: int  # the number of changed rows


BEGIN: Final = StatementCall(Statement("begin", "BEGIN ISOLATION LEVEL READ COMMITTED"))
COMMIT: Final = StatementCall(Statement("commit", "COMMIT"))
ROLLBACK: Final = StatementCall(Statement("rollback", "ROLLBACK"))
# Without a plan that could be kept.
UNPREPARED: Final = frozenset({"begin", "commit", "rollback", "savepoint", "release", "undo"})


class Pipeline:
    """Not for several threads at a time. After ConnectionLost only `close` is of use."""

    def __init__(self, connection: PostgresConnection, *, is_prepared: bool, answer_s: float = ANSWER_S) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._is_prepared = is_prepared
        self._answer_s = answer_s
        self._prepared: set[str] = set()
        self._is_standby_lost = False
        self._failed: StatementFailed | None = None  # the first of the trip
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        connection.add_notice_handler(self._notice)
        self._pgconn.enter_pipeline_mode()

    @property
    def backend_pid(self) -> int:
        """The number under which the server, or a pooler, would cancel this connection."""
        return self._pgconn.backend_pid

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return self._pgconn.transaction_status == pq.TransactionStatus.IDLE

    def run(self, calls: Sequence[StatementCall]) -> list[StatementReply]:
        """Run the statements in one trip. Raises StatementFailed for the first that failed, ConnectionLost when the
        outcome of the trip is unknown, and CommitUnconfirmed when only a standby does not confirm it."""
        self._is_standby_lost = False
        self._failed = None
        try:
            new = self._send(calls)
            replies = self._receive(calls, new)
        except psycopg.Error as error:
            # The server's reason to end a connection is an answer too, with more detail than the end itself.
            reason = str(error).strip() if self._failed is None else str(self._failed)
            raise ConnectionLost(f"the connection to the database was lost: {reason}") from error
        if self._is_standby_lost:
            raise CommitUnconfirmed(f"the server warned: {LOST_STANDBY}")
        return replies

    def roll_back(self) -> bool:
        """End an open transaction in any state. Never raises. False: the connection is lost."""
        try:
            if not self.is_idle:
                self.run([ROLLBACK])
            return self.is_idle
        except (ConnectionLost, StatementFailed):
            return False

    def close(self) -> None:
        """Close the connection without waiting. The server rolls an open transaction back."""
        self._connection.close()

    # -- one trip -----------------------------------------------------------------------------------------------------

    def _send(self, calls: Sequence[StatementCall]) -> set[int]:
        """Send the trip. Returns the positions of the statements that are prepared in it."""
        pgconn = self._pgconn
        new: dict[str, int] = {}
        for position, ((name, text), values) in enumerate(calls):
            encoded = [_encoded(value) for value in values]
            if not self._is_prepared or name in UNPREPARED:
                pgconn.send_query_params(text.encode(), encoded)
                continue
            if name not in self._prepared and name not in new:
                new[name] = position
                pgconn.send_prepare(name.encode(), text.encode())
            pgconn.send_query_prepared(name.encode(), encoded)
        pgconn.pipeline_sync()
        deadline = time.monotonic() + self._answer_s
        while pgconn.flush():
            # The server may answer before it has read all: unread answers would stop both sides.
            if self._wait(select.POLLIN | select.POLLOUT, deadline) & select.POLLIN:
                pgconn.consume_input()
        return set(new.values())

    def _receive(self, calls: Sequence[StatementCall], new: set[int]) -> list[StatementReply]:
        replies: list[StatementReply] = []
        for position, call in enumerate(calls):
            name = call.statement.name
            if position in new and self._result(position, name) is not None:
                self._prepared.add(name)
            result = self._result(position, name)
            if result is not None:
                replies.append(_reply(result))
        end = self._next()
        if end is None or end.status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the trip has no end")
        if self._failed is not None:
            raise self._failed
        return replies

    def _result(self, position: int, name: str) -> pq.abc.PGresult | None:
        """Wait for the next result. None: this statement failed, or one before it."""
        result = self._next()
        if result is None:
            raise psycopg.OperationalError("the connection ended before the answer")
        is_good = result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
        if not is_good and self._failed is None:
            self._failed = _failure(position, name, result)
        if self._next() is not None:  # after each result there is an empty one
            raise psycopg.OperationalError("a statement has two answers")
        return result if is_good else None

    def _next(self) -> pq.abc.PGresult | None:
        deadline = time.monotonic() + self._answer_s
        while self._pgconn.is_busy():
            self._wait(select.POLLIN, deadline)
            try:
                self._pgconn.consume_input()
            except psycopg.OperationalError as error:
                raise psycopg.OperationalError(self._last_message() or str(error)) from error
        return self._pgconn.get_result()

    def _last_message(self) -> str | None:
        """Return the reason that the server, or a pooler, sent just before it ended the connection."""
        for _ in range(UNREAD_RESULTS):
            result = self._pgconn.get_result()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                return result.error_message.decode(errors="replace").strip()
        return None

    def _wait(self, events: int, deadline: float) -> int:
        self._poll.modify(self._pgconn.socket, events)
        while time.monotonic() < deadline:
            if ready := self._poll.poll(_POLL_MS):
                return ready[0][1]
        raise psycopg.OperationalError(f"no answer for {self._answer_s:g} s")

    def _notice(self, notice: Diagnostic) -> None:
        if notice.message_primary is not None and LOST_STANDBY in notice.message_primary:
            self._is_standby_lost = True


def _encoded(value: Value) -> bytes | None:
    if value is None:
        return None
    encoded = value if isinstance(value, bytes) else str(value).encode()
    if b"\0" in encoded:
        # libpq would cut the value here.
        raise UnicodeError("a text contains the character U+0000, which PostgreSQL cannot store")
    return encoded


def _reply(result: pq.abc.PGresult) -> StatementReply:
    columns = range(result.nfields)
    rows = [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]
    return StatementReply(rows, result.command_tuples or 0)


def _failure(position: int, name: str, result: pq.abc.PGresult) -> StatementFailed:
    def field(which: pq.DiagnosticField) -> str | None:
        value = result.error_field(which)
        return None if value is None else value.decode(errors="replace")

    sqlstate = field(pq.DiagnosticField.SQLSTATE)
    if sqlstate is None:
        message = result.error_message.decode(errors="replace").strip()
        raise psycopg.OperationalError(message or "the connection ended before the answer")
    message = field(pq.DiagnosticField.MESSAGE_PRIMARY) or "an error without a message"
    return StatementFailed(position, name, sqlstate, message, field(pq.DiagnosticField.CONSTRAINT_NAME))
