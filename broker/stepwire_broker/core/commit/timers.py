"""When something is to be looked at again: a heap of times, each with what to ask then.

A timer is never taken back. Whoever handles it looks whether it still means anything, and sets it anew if need be.
Those that mean nothing any more are thrown out when they would be next, so that nobody is woken for them, and when they
could be half of all: an hour's deadline of a task that took a second must not stay for the hour.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from stepwire_broker.core.model.events import Now

SWEEP_FROM: Final = 8_192


class Timers:
    def __init__(self, is_stale: Callable[[str, Any], bool]) -> None:
        """`is_stale(kind, what)` says that a timer means nothing any more."""
        self._is_stale = is_stale
        self._heap: list[tuple[int, int, str, Any]] = []
        self._count = 0
        self._sweep_at = SWEEP_FROM

    def set(self, due_mono: int, kind: str, what: Any) -> None:
        self._count += 1
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heappush(self._heap, (due_mono, self._count, kind, what))

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not self._is_stale(entry[2], entry[3])]
        heapify(self._heap)
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._heap))

    def pop_due(self, now: Now) -> tuple[str, Any] | None:
        """None when nothing is due; then `wake_at` is that of a timer that means something still."""
        heap = self._heap
        while heap:
            due_mono, _, kind, what = heap[0]
            if due_mono <= now.mono:
                heappop(heap)
                return kind, what
            if not self._is_stale(kind, what):
                break
            heappop(heap)
        return None

    @property
    def wake_at(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)
