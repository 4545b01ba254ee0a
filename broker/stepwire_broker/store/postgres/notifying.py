"""Notifications on PostgreSQL: NOTIFY on one channel, and the connection that listens to it.

The text of a notification is a JSON object with the schema, the broker that sends it, and what the others should look
at: `{"schema": "stepwire", "broker": "b1", "orders": [3]}`. NOTIFY takes one lock for all databases of the server until
its transaction ends, so it is never part of a group, and its transaction waits for no disk.
"""

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Final

import msgspec
import psycopg
from msgspec import Struct

from stepwire_broker.core.membership.notifications import Notification

from .connecting import PostgresConnection
from .failures import ConnectionLost
from .pipeline import BEGIN, COMMIT, Statement, StatementCall

CHANNEL: Final = "stepwire"

_NOTIFY: Final = Statement(
    "notify", f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', $1::text)"
)
_NOTIFY_HERE: Final = Statement("notify_here", f"SELECT pg_notify('{CHANNEL}', $1::text)")

_encode: Final = msgspec.json.Encoder().encode


class NotificationText(Struct, frozen=True):
    """The members that say who sends a notification. The others are those of a Notification."""

    schema: str = ""
    broker: str = ""


_decode_sender: Final = msgspec.json.Decoder(NotificationText).decode
_decode: Final = msgspec.json.Decoder(Notification).decode


class Notifying:
    """The statements that send notifications as this broker."""

    def __init__(self, schema: str, broker: str) -> None:
        self._sender = {"schema": schema, "broker": broker}

    def trip(self, notification: Notification) -> list[StatementCall]:
        """Return a transaction that sends a notification."""
        return [BEGIN, StatementCall(_NOTIFY, (self._text(notification),)), COMMIT]

    def in_transaction(self, notification: Notification) -> StatementCall:
        """Return a statement for the end of a rare transaction, which is to be durable."""
        return StatementCall(_NOTIFY_HERE, (self._text(notification),))

    def _text(self, notification: Notification) -> bytes:
        return _encode(self._sender | msgspec.to_builtins(notification))

    def read(self, text: str) -> Notification | None:
        """Return what another broker of this schema has sent. None for everything else."""
        try:
            sender = _decode_sender(text)
            if sender.schema != self._sender["schema"] or sender.broker == self._sender["broker"]:
                return None
            return _decode(text)
        except msgspec.DecodeError:
            return None


class PostgresListener:
    """The connection that listens. `connect` opens it and raises ConnectionLost. Used in one thread, except `close`."""

    def __init__(self, connect: Callable[[], PostgresConnection], read: Callable[[str], Notification | None]) -> None:
        self._connect = connect
        self._read = read
        self._connection: PostgresConnection | None = None
        self._is_closed = False
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def receive(self) -> Notification | None:
        """Wait for the next notification. None after `close`. The first one after a connection was opened stands for
        all that were sent without it. Raises ConnectionLost."""
        try:
            if self._connection is None and not self._is_closed:
                self._connection = self._connect()
                self._connection.execute(f"LISTEN {CHANNEL}".encode())
                return Notification(controls=True, lanes=True)
            while not self._is_closed:
                assert self._connection is not None
                if (notification := self._next(self._connection)) is not None:
                    return notification
        except psycopg.Error as error:
            self._drop()
            raise ConnectionLost(f"notifications cannot be received: {str(error).strip()}") from error
        self._drop()
        return None

    def _next(self, connection: PostgresConnection) -> Notification | None:
        """Return a notification that has arrived, or wait for the next bytes."""
        pgconn = connection.pgconn
        arrived = pgconn.notifies()
        if arrived is not None:
            return self._read(arrived.extra.decode(errors="replace"))
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll()
        if not self._is_closed:
            pgconn.consume_input()
        return None

    def close(self) -> None:
        """End `receive`. May be called in any thread."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
