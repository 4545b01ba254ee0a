"""Floods, and their end: peers that send faster than the loop reads.

Everything here runs in the watch's thread, apart from the loop. A connection that it ends is marked, and the loop
counts it later.
"""

import time
from collections.abc import Callable
from typing import Final

from stepwire_broker.free_memory import return_free_memory

from . import budgets
from .bus_connection import BusConnection, Role
from .crowd import Crowd
from .disconnecting import disconnect
from .kernel_counts import bytes_waiting, read_counts
from .unread_memory import UnreadMemory

MEASURE_S: Final = 0.02
MEASURE_SOON_S: Final = 0.005  # while much waits unread
GROWTH_BYTES: Final = 256 * 1024  # between two measurements: something waits unread, or is computed
GROWING_S: Final = 1.0  # after such a growth, each measurement looks at every connection
SWEEP_CALM_S: Final = 0.2  # otherwise, the time between two such looks
SWEEP_EACH_S: Final = 0.0001  # with many connections the sweeps are rarer
STEPS_WAITING_BYTES_MAX: Final = 1_024  # the part of them that the kernel holds
STEPS_UNREAD_BYTES_MAX: Final = 16 * 1024  # a peer of the steps socket sends nothing but a few subscriptions
STEPS_SOON_BYTES: Final = 2 * 1024  # as much as eight honest subscriptions


class Floods:
    """The loop sets `blamed_s` and calls `queue_emptied`."""

    def __init__(
        self, connections: Callable[[], list[BusConnection]], unread_bytes_max: int, hold_back: Callable[[float], None]
    ) -> None:
        """`connections` returns a snapshot of the open connections. `hold_back` delays new connections."""
        self._connections = connections
        self._unread_bytes_max = unread_bytes_max
        self._hold_back = hold_back
        self._memory = UnreadMemory(budgets.GROWTH_BYTES_MAX)
        self._crowd = Crowd()
        self._resident_bytes: int | None = None
        self._grew_s = self._swept_s = -GROWING_S
        self.blamed_s = -budgets.BLAMED_S  # when a connection last ended as no correct program's would

    def queue_emptied(self) -> None:
        """Note that no message of the results socket waits unread."""
        self._memory.queue_emptied()

    def end_subscriptions(self) -> None:
        """End the connections of the steps socket whose data waits in the kernel: the loop is stuck in libzmq."""
        for connection in self._of("steps"):
            if bytes_waiting(connection.descriptor) > STEPS_WAITING_BYTES_MAX:
                _end(connection, "subscriptions")

    def measure(self) -> float:
        """Limit the memory of unread messages. Return the time until it should be measured again."""
        if self._crowd.has_left(len(self._connections()), time.monotonic()):
            return_free_memory()
        is_too_large = self._memory.is_too_large()
        now_s = time.monotonic()
        is_blamed = now_s - self.blamed_s < budgets.BLAMED_S
        self._hold_back(budgets.HOLD_BACK_S if is_too_large else budgets.HOLD_BACK_BLAMED_S if is_blamed else 0.0)
        if not (is_too_large or is_blamed or self._is_sweep_due(now_s)):
            return MEASURE_S
        subscribers, publishers = self._of("steps"), self._of("results")
        unread_events = self._limit_events(subscribers)
        unread_bytes = self._limit_messages(publishers)
        is_soon = is_too_large or is_blamed or unread_events > STEPS_SOON_BYTES
        is_soon = is_soon or unread_bytes > self._unread_bytes_max / 8
        self._grew_s = now_s if is_soon else self._grew_s
        return max(MEASURE_SOON_S if is_soon else MEASURE_S, SWEEP_EACH_S * len(subscribers + publishers))

    def _is_sweep_due(self, now_s: float) -> bool:
        """Unread messages occupy memory, so a process that does not grow has few more of them than at the last sweep.
        What waits in the kernel is bounded by the kernel."""
        before, self._resident_bytes = self._resident_bytes, self._memory.resident_bytes
        if before is None or self._resident_bytes is None or self._resident_bytes - before > GROWTH_BYTES:
            self._grew_s = now_s
        if now_s - self._grew_s >= GROWING_S and now_s - self._swept_s < SWEEP_CALM_S:
            return False
        self._swept_s = now_s
        return True

    def _of(self, role: Role) -> list[BusConnection]:
        return [one for one in self._connections() if one.role == role and not one.is_ended]

    def _limit_events(self, connections: list[BusConnection]) -> int:
        """Disconnect the peers that send more than subscriptions. Return the unread bytes of the largest."""
        most = 0
        for left, connection in _unread(connections):
            most = max(most, left)
            if left > STEPS_UNREAD_BYTES_MAX:
                _end(connection, "unread_bytes")
        return most

    def _limit_messages(self, connections: list[BusConnection]) -> int:
        """Disconnect the peers whose unread messages, finished or not, take most of the memory. Return the bytes.

        libzmq limits a connection's queue by finished messages. A message in parts has no limit, and each connection
        may also have one unfinished message of the largest size.
        """
        unread = _unread(connections)
        unread_bytes = sum(left for left, _ in unread if left > 0)
        excess = unread_bytes - self._unread_bytes_max
        for left, connection in sorted(unread, key=lambda each: -each[0]) if excess > 0 else ():
            _end(connection, "unread_bytes")
            excess -= left
            if excess <= 0:
                break
        return unread_bytes


def _unread(connections: list[BusConnection]) -> list[tuple[int, BusConnection]]:
    counted = ((read_counts(one.descriptor), one) for one in connections)
    return [(counts.received - one.read_bytes, one) for counts, one in counted if counts is not None]


def _end(connection: BusConnection, reason: str) -> None:
    """End a connection. The loop counts it when it reads the connection's end."""
    connection.ended_for, connection.is_ended = reason, True
    disconnect(connection.descriptor, connection.inode)
