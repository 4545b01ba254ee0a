"""The credit that a broker may still use: what the worker has named to it, and has not taken back with certainty.

A worker takes credit back by naming less. The broker may send by the earlier number until it has read the later one,
and only its ack of that heartbeat proves that. Until then, no other broker is offered the same places.
"""

from typing import Final

ENTRIES_MAX: Final = 128  # unacknowledged hellos and heartbeats with an entry of their own


class Promises:
    """The credit named to one broker: an entry [n, free] for each hello or heartbeat that the broker may not have read.

    Messages without an n of a hello or heartbeat count for the latest entry.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[list[int]] = []

    @property
    def promised(self) -> int:
        """The number of steps that the broker may still send."""
        return max((free for _, free in self._entries), default=0)

    def announce(self, n: int, free: int) -> None:
        """A hello or heartbeat with this number names this credit."""
        entries = self._entries
        entries.append([n, free])
        if len(entries) > ENTRIES_MAX:
            _, oldest_free = entries.pop(0)
            entries[0][1] = max(entries[0][1], oldest_free)

    def name(self, free: int) -> None:
        """Another message names this credit."""
        if not self._entries:
            self._entries.append([0, free])
        elif free > self._entries[-1][1]:
            self._entries[-1][1] = free

    def use(self, steps: int) -> None:
        """The broker has sent this number of steps."""
        for entry in self._entries:
            entry[1] = max(0, entry[1] - steps)

    def acknowledge(self, n: int) -> bool:
        """The broker has read the hello or heartbeat n, and with it everything before. True if fewer are promised."""
        before = self.promised
        self._entries = [entry for entry in self._entries if entry[0] >= n]
        return self.promised < before
