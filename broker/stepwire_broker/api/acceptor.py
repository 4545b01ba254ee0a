"""Accepts connections and reads their first bytes, before a connection costs more than a socket.

A connection that opens and closes at once, or sends nothing, never reaches the HTTP server. Neither does a probe of
`/livez`: it is answered here, so that a flood of other connections does not delay it. A first request with a valid
token is passed on at once. All others are refused in any case, and only some of them per second get their full answer.

With TLS the first bytes are those of a handshake, which shows no token and costs more than an answer. So connections
that begin a handshake are limited, and one that presents a valid token afterwards does not count. Addresses that have
presented one lately have a limit of their own, which strangers from elsewhere cannot use up.
"""

import asyncio
import errno
import re
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from .connections import HttpConnections
from .token import Tokens

ACCEPT_S_MAX: Final = 0.01  # in one turn of the event loop
FIRST_BYTES_MAX: Final = 16 * 1024
STRANGERS: Final = "strangers_per_s"  # the name of the limit
FAMILIAR_MAX: Final = 4_096  # addresses
FAMILIAR_S: Final = 3_600.0  # after a valid token
PAUSE_S: Final = 0.1  # without free file descriptors
CHECK_S: Final = 1.0

_BEARER: Final = re.compile(rb"\r\nauthorization:[ \t]*bearer[ \t]+([^\s]+)[ \t]*\r\n", re.IGNORECASE)
_PROBE: Final = (b"GET /livez HTTP/1.1\r\n", b"GET /livez HTTP/1.0\r\n")
_END: Final = b"\r\n\r\n"
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Abortable(Protocol):
    """The protocol that serves a connection."""

    def abort(self) -> None: ...


class Accepted:
    """An accepted connection, from then on until it is closed.

    The object is counted in place of its later protocol, so the order in which connections were accepted decides which
    one is the oldest, and not the order in which their first bytes arrived or their protocols were made.
    """

    __slots__ = ("_acceptor", "connection", "is_aborted", "is_counted", "protocol", "since_s")

    def __init__(self, acceptor: "Acceptor", connection: socket.socket) -> None:
        self._acceptor = acceptor
        self.connection = connection
        self.since_s = time.monotonic()
        self.protocol: Abortable | None = None
        self.is_counted = False
        self.is_aborted = False

    def abort(self) -> None:
        if self.protocol is not None:
            self.protocol.abort()
        elif self._acceptor.is_silent(self):
            self._acceptor.end(self)
        else:
            self.is_aborted = True  # its protocol is being made


MakeProtocol = Callable[[bytes, "Accepted | None"], asyncio.Protocol]


class Answers:
    """The answers that the acceptor sends itself, as they travel, and functions to count them."""

    def __init__(self, alive: bytes, on_alive: Callable[[], None], refused: bytes) -> None:
        self.alive = alive
        self.on_alive = on_alive
        self.refused = refused


class Acceptor:
    """Accepts the connections of one listening socket until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: MakeProtocol,
        connections: HttpConnections,
        tokens: Tokens,
        answers: Answers | None,
    ) -> None:
        """Without `answers`, the connections are encrypted: nothing can be read or answered before the handshake."""
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self._tokens = tokens
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._silent: dict[Accepted, None] = {}  # have sent no byte; the oldest first
        self._selector = selectors.DefaultSelector()
        self._is_closed = False
        self._strangers = _NewStrangers(connections.limits.strangers_per_s)
        self._familiar = _Familiar(connections.limits.strangers_per_s)
        if answers is None:
            connections.on_known = self._on_known
        self._serving: set[asyncio.Task[None]] = set()
        self._checking: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._selector.fileno(), self._on_first_bytes)
        self._loop.add_reader(listener.fileno(), self._on_connections)

    def close(self) -> None:
        """Accept nothing further, and close the connections that have sent nothing. The caller closes the listener."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener.fileno())
        self._loop.remove_reader(self._selector.fileno())
        if self._checking is not None:
            self._checking.cancel()
        for silent in list(self._silent):
            self._unwatch(silent)
            self._close(silent)
        self._selector.close()

    def _on_connections(self) -> None:
        ends_s = time.monotonic() + ACCEPT_S_MAX
        while time.monotonic() < ends_s:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._pause()
                return
            accepted = Accepted(self, connection)
            if not self._look(accepted):
                self._wait_for(accepted)

    def _look(self, accepted: Accepted, *, gave_way: bool = False) -> bool:
        """Serve, refuse or close the connection by its first bytes. False if it has sent none so far.

        `gave_way`: it had to give way to another one, and is counted as a new one if it is served all the same.
        """
        if self._answers is None:
            return self._look_at_handshake(accepted)
        try:
            data = accepted.connection.recv(FIRST_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data.startswith(_PROBE) and data.endswith(_END):
            self._answers.on_alive()
            self._close(accepted, self._answers.alive)
        elif data and (self._is_known(data) or self._strangers.take()):
            self._begin(accepted, data, gave_way=gave_way)
        elif data:
            self._connections.refusals.count(STRANGERS)
            self._close(accepted, self._answers.refused)
        else:
            self._close(accepted)
        return True

    def _look_at_handshake(self, accepted: Accepted) -> bool:
        """The same for a connection with TLS, whose first bytes stay unread. The handshake counts it again."""
        try:
            data = accepted.connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data and self._bucket_of(_host_of(accepted.connection)).take():
            self._uncount(accepted)
            self._begin(accepted, b"", gave_way=True)
            return True
        if data:
            self._connections.refusals.count(STRANGERS)
        self._close(accepted)
        return True

    def _bucket_of(self, host: str) -> "_NewStrangers":
        return self._familiar.strangers if self._familiar.has(host) else self._strangers

    def _on_known(self, host: str | None) -> None:
        """A connection from this address has presented a valid token: it was no stranger."""
        if host is not None:
            self._bucket_of(host).give_back()
            self._familiar.add(host)

    def _is_known(self, data: bytes) -> bool:
        bearer = _BEARER.search(data)
        return bearer is not None and self._tokens.admit(bearer[1]) is not None

    def _begin(self, accepted: Accepted, data: bytes, *, gave_way: bool) -> None:
        serving = self._loop.create_task(self._serve(accepted, data))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        if not accepted.is_counted and not gave_way:
            self._count(accepted)

    async def _serve(self, accepted: Accepted, data: bytes) -> None:
        if accepted.is_aborted:
            self._close(accepted)
            return
        counted_as = accepted if accepted.is_counted else None
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_protocol(data, counted_as), accepted.connection)
        except OSError:  # the client is gone
            self._close(accepted)

    def _count(self, accepted: Accepted) -> None:
        accepted.is_counted = True
        self._connections.opened(accepted)

    def _close(self, accepted: Accepted, answer: bytes = b"") -> None:
        """Close a connection without a protocol. `answer` is sent as far as the socket accepts it at once."""
        if answer:
            _answer(accepted.connection, answer)
        accepted.connection.close()
        self._uncount(accepted)

    def _uncount(self, accepted: Accepted) -> None:
        if accepted.is_counted:
            accepted.is_counted = False
            self._connections.closed(accepted)

    # -- connections that have sent nothing ---------------------------------------------------------------------------

    def _wait_for(self, accepted: Accepted) -> None:
        self._watch(accepted)
        if self._checking is None:
            self._checking = self._loop.call_later(CHECK_S, self._close_slow)
        self._count(accepted)

    def _watch(self, accepted: Accepted) -> None:
        self._silent[accepted] = None
        self._selector.register(accepted.connection, selectors.EVENT_READ, accepted)

    def _unwatch(self, accepted: Accepted) -> None:
        del self._silent[accepted]
        self._selector.unregister(accepted.connection)

    def _on_first_bytes(self) -> None:
        ends_s = time.monotonic() + ACCEPT_S_MAX
        for key, _ in self._selector.select(0):
            silent: Accepted = key.data
            if silent in self._silent:  # no other one was closed for it meanwhile
                self._unwatch(silent)
                if not self._look(silent):
                    self._watch(silent)
            if time.monotonic() > ends_s:
                return

    def _close_slow(self) -> None:
        self._checking = None
        latest_s = time.monotonic() - self._connections.limits.head_s
        for silent in list(self._silent):
            if silent.since_s > latest_s:
                self._checking = self._loop.call_later(CHECK_S, self._close_slow)
                return
            if self.end(silent):
                self._connections.refusals.count("slow_head" if self._answers is not None else "slow_handshake")

    def is_silent(self, accepted: Accepted) -> bool:
        return accepted in self._silent

    def end(self, silent: Accepted) -> bool:
        """Close the connection. False if its first bytes have arrived in this turn: then they decide."""
        self._unwatch(silent)
        self._uncount(silent)
        if self._look(silent, gave_way=True):
            return False
        silent.connection.close()
        return True

    # -- without free file descriptors --------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener.fileno(), self._on_connections)


class _NewStrangers:
    """A number of connections per second."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._burst = 2.0 * per_s
        self._left = self._burst
        self._at_s = time.monotonic()

    def take(self) -> bool:
        now_s = time.monotonic()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left = min(self._burst, self._left + 1)


class _Familiar:
    """The addresses that have presented a valid token lately, and the limit of their new connections."""

    def __init__(self, per_s: int) -> None:
        self.strangers = _NewStrangers(per_s)
        self._since_s: OrderedDict[str, float] = OrderedDict()

    def add(self, host: str) -> None:
        self._since_s[host] = time.monotonic()
        self._since_s.move_to_end(host)
        if len(self._since_s) > FAMILIAR_MAX:
            self._since_s.popitem(last=False)

    def has(self, host: str) -> bool:
        since_s = self._since_s.get(host)
        return since_s is not None and time.monotonic() - since_s < FAMILIAR_S


def _host_of(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:  # the client is gone
        return ""


def _answer(connection: socket.socket, answer: bytes) -> None:
    try:
        connection.send(answer, socket.MSG_DONTWAIT)
    except OSError:
        pass
