"""The unfinished handshakes of ipc, whose bytes the kernel does not count.

libzmq reports that a handshake has succeeded, but not on which connection. It reports a failure right before the end of
the connection, and ends each handshake that lasts longer than HANDSHAKE_MS. So the number of unfinished handshakes is
that of the young connections without a frame, less the successes among them. Where a report is missing, as for a peer
that does not speak ZMTP, the number is too high and never too low.
"""

from typing import Final

from . import budgets
from .bus_connection import BusConnection, Role
from .kernel_counts import bytes_left_at_peer

LONGEST_S: Final = budgets.HANDSHAKE_MS / 1000 + 0.5


class LocalHandshakes:
    def __init__(self) -> None:
        self._young: dict[tuple[Role, int], tuple[float, BusConnection]] = {}  # in the order of their begin
        self._disconnected: set[tuple[Role, int]] = set()  # by the bus, and libzmq has not reported their ends
        self._succeeded = 0  # of the young and the disconnected ones

    def begun(self, connection: BusConnection, now_s: float) -> None:
        """Note an accepted connection."""
        self._young[connection.key] = (now_s, connection)

    def excess(self, now_s: float) -> list[BusConnection]:
        """Return the connections to end, because too many handshakes are unfinished."""
        while self._young and now_s - next(iter(self._young.values()))[0] > LONGEST_S:
            self._leave(next(iter(self._young)))  # its handshake has succeeded, or libzmq would have ended it
        count = len(self._young) - self._succeeded - budgets.UNAUTHENTICATED_MAX
        return self._most_suspect(count) if count > 0 else []

    def succeeded(self) -> None:
        self._succeeded += 1

    def spoke(self, connection: BusConnection) -> None:
        """Note the first frame of a connection, after the report of its success."""
        self._leave(connection.key)

    def disconnected(self, connection: BusConnection) -> None:
        """Note that the bus ends a connection."""
        if self._young.pop(connection.key, None) is not None:
            self._disconnected.add(connection.key)

    def ended(self, connection: BusConnection, *, has_failed: bool) -> None:
        """Note the end of a connection, and whether a failed handshake was reported right before."""
        if has_failed:
            self._young.pop(connection.key, None)
        elif connection.key in self._disconnected:
            self._succeeded = max(0, self._succeeded - 1)
        else:
            self._leave(connection.key)
        self._disconnected.discard(connection.key)

    def _leave(self, key: tuple[Role, int]) -> None:
        if self._young.pop(key, None) is not None:
            self._succeeded = max(0, self._succeeded - 1)

    def _most_suspect(self, count: int) -> list[BusConnection]:
        """The oldest that have not read the broker's part of the handshake, and after them the oldest of the others."""
        connections = [connection for _, connection in self._young.values()]
        connections.sort(key=lambda each: not bytes_left_at_peer(each.descriptor))  # keeps their order
        return connections[:count]
