"""The memory of unread messages: how much the process has grown since the bus was last read to its end.

The messages of a connection stay in memory after its end, and nothing counts them. A peer that connects again and again
could thus fill the memory although each of its connections is small. The size of the process includes all of them.
"""

import os
import weakref
from typing import Final

from stepwire_broker.free_memory import return_free_memory

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"
_STATM_BYTES: Final = 256


class UnreadMemory:
    """The loop calls `queue_emptied`. One other thread calls everything else."""

    def __init__(self, growth_max: int) -> None:
        self._growth_max = growth_max
        self._is_empty = True  # the loop has read everything since the last measurement
        self._base: int | None = None  # resident bytes when nothing waited
        self._is_high = False
        self.resident_bytes: int | None = None  # of the last measurement
        self._resident = ResidentBytes()

    def queue_emptied(self) -> None:
        self._is_empty = True

    def is_too_large(self) -> bool:
        """Measure. True if the unread messages may occupy more than the limit. Systems without /proc have no limit."""
        self.resident_bytes = resident = self._resident.read()
        if resident is None:
            return False
        if self._is_empty or self._base is None:
            self._is_empty = False
            if self._is_high:
                return_free_memory()
                resident = self._resident.read() or resident
            self._base = resident
        self._base = min(self._base, resident)
        self._is_high = resident - self._base > self._growth_max
        return self._is_high


class ResidentBytes:
    """The memory of this process. The file stays open, because it is read 50 times a second."""

    def __init__(self) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> int | None:
        """Return the bytes, or None where the system does not tell."""
        try:
            return int(os.pread(self._descriptor, _STATM_BYTES, 0).split()[1]) * PAGE_BYTES
        except OSError:
            return None
