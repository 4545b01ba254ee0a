"""The open connections, and which of them is closed when there are too many.

A connection is a stranger until a request on it has presented a valid token. An idle connection answers no request: it
is unused, or the head of its next request is incomplete. Of too many connections the one that has been idle longest
is closed, so requests in progress and new clients are served during a flood of idle connections.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Protocol

from .limits import HttpLimits
from .refusals import Refusals


class Closable(Hashable, Protocol):
    def abort(self) -> None:
        """Close the connection at once. The connection calls `closed` later."""


class HttpConnections:
    def __init__(self, limits: HttpLimits, refusals: Refusals) -> None:
        self.limits = limits
        self.refusals = refusals
        self.count = 0
        self.unread_bytes = 0
        # In each of these, the first one is the oldest.
        self._strangers: dict[Closable, None] = {}
        self._idle_strangers: dict[Closable, int] = {}  # the value orders both dicts of idle connections
        self._idle_known: dict[Closable, int] = {}
        self._unread: dict[str, dict[Closable, int]] = {}  # by owner: bytes of answers that clients do not accept now
        self._unread_sums: Counter[str] = Counter()
        self._owner: dict[Closable, str] = {}  # of the connections in `_unread`
        self._clock = 0
        self.on_known: Callable[[str | None], None] | None = None  # called once for each connection

    # -- strangers and idle connections -------------------------------------------------------------------------------

    def opened(self, connection: Closable) -> None:
        self.count += 1
        self._strangers[connection] = None
        self.idle(connection)
        if len(self._strangers) > self.limits.strangers:
            self._close_a_stranger("strangers")
        elif self.count > self.limits.connections:
            self._close_one("connections")

    def closed(self, connection: Closable) -> None:
        self.count -= 1
        self._strangers.pop(connection, None)
        self.busy(connection)
        self.reads(connection)

    def busy(self, connection: Closable) -> None:
        """A request has begun: its head is complete."""
        self._idle_strangers.pop(connection, None)
        self._idle_known.pop(connection, None)

    def idle(self, connection: Closable) -> None:
        """The connection was opened, or its request is answered."""
        self._clock += 1
        self.busy(connection)
        idle = self._idle_strangers if connection in self._strangers else self._idle_known
        idle[connection] = self._clock

    def known(self, connection: Closable, host: str | None = None) -> None:
        """A request with a valid token has arrived on the connection. `host`: of a client over tcp."""
        if connection in self._strangers:
            del self._strangers[connection]
            if self.on_known is not None:
                self.on_known(host)

    def _close_one(self, limit: str) -> None:
        stranger, known = _first(self._idle_strangers), _first(self._idle_known)
        if known is not None and (stranger is None or self._idle_known[known] < self._idle_strangers[stranger]):
            self._close(known, limit)
        else:
            self._close_a_stranger(limit)

    def _close_a_stranger(self, limit: str) -> None:
        connection = _first(self._idle_strangers) or _first(self._strangers)
        assert connection is not None  # a new connection is one
        self._close(connection, limit)

    def _close(self, connection: Closable, limit: str) -> None:
        # Out of the lists at once, because `closed` is called later, and the next victim must be another one.
        self._strangers.pop(connection, None)
        self.busy(connection)
        self.refusals.count(limit)
        connection.abort()

    # -- answers that clients do not accept ---------------------------------------------------------------------------

    def unread(self, connection: Closable, owner: str, size: int) -> None:
        """The client does not accept its answer as fast as it is sent: `size` bytes are left of it. If such answers
        occupy too much memory, the connections that have waited longest are closed: those of a token that exceeds its
        share, otherwise those of the token with the most bytes."""
        self.reads(connection)
        self._unread.setdefault(owner, {})[connection] = size
        self._owner[connection] = owner
        self._unread_sums[owner] += size
        self.unread_bytes += size
        while self._unread_sums[owner] > self.limits.unread_bytes_each and len(self._unread[owner]) > 1:
            self._close_unread(owner)
        while self.unread_bytes > self.limits.unread_bytes and len(self._owner) > 1:
            self._close_unread(max(self._unread, key=self._unread_sums.__getitem__))

    def reads(self, connection: Closable) -> None:
        """The client has accepted its answer."""
        owner = self._owner.pop(connection, None)
        if owner is not None:
            size = self._unread[owner].pop(connection)
            self.unread_bytes -= size
            self._unread_sums[owner] -= size
            if not self._unread[owner]:
                del self._unread[owner], self._unread_sums[owner]

    def _close_unread(self, owner: str) -> None:
        oldest = next(iter(self._unread[owner]))
        self.reads(oldest)
        self.refusals.count("unread_answers")
        oldest.abort()


def _first(connections: dict[Closable, int] | dict[Closable, None]) -> Closable | None:
    return next(iter(connections), None)
