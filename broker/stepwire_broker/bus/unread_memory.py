"""The memory of unread messages: how much the process has grown since the bus was last read to its end.

The messages of a connection stay in memory after its end, and nothing counts them. A peer that connects again and again
could thus fill the memory although each of its connections is small. The size of the process includes all of them.
"""

import os
from typing import Final

from stepwire_broker.free_memory import return_free_memory

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


class UnreadMemory:
    """The loop calls `queue_emptied`. One other thread calls everything else."""

    def __init__(self, growth_max: int) -> None:
        self._growth_max = growth_max
        self._is_empty = True  # the loop has read everything since the last measurement
        self._base: int | None = None  # resident bytes when nothing waited
        self._is_high = False

    def queue_emptied(self) -> None:
        self._is_empty = True

    def is_too_large(self) -> bool:
        """Measure. True if the unread messages may occupy more than the limit. Systems without /proc have no limit."""
        resident = resident_bytes()
        if resident is None:
            return False
        if self._is_empty or self._base is None:
            self._is_empty = False
            if self._is_high:
                return_free_memory()
                resident = resident_bytes() or resident
            self._base = resident
        self._base = min(self._base, resident)
        self._is_high = resident - self._base > self._growth_max
        return self._is_high


def resident_bytes() -> int | None:
    """Return the memory of this process, or None where the system does not tell."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None
