"""The timers of the core: a heap of times, each with its purpose.

A timer is never cancelled. Its handler checks whether the timer still applies, and sets a new one if needed. A stale
timer is removed when it would be next, so that the broker does not wake for it. All stale timers are removed when they
could be half of the heap: the one-hour deadline of a task that took a second must not stay for the hour.
"""

from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

from stepwire_broker.core.model.events import Now

SWEEP_FROM: Final = 8_192


class Timer(Protocol):
    def is_stale(self) -> bool:
        """True if nothing needs to be done when the timer is due."""
        ...


T = TypeVar("T", bound=Timer)


class Timers(Generic[T]):
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0
        self._sweep_at = SWEEP_FROM

    def set(self, due_mono: int, timer: T) -> None:
        self._count += 1
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heappush(self._heap, (due_mono, self._count, timer))

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_stale()]
        heapify(self._heap)
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._heap))

    def pop_due(self, now: Now) -> T | None:
        """Remove and return the next due timer, stale or not. After None, `wake_at` is the time of a live timer."""
        heap = self._heap
        while heap:
            due_mono, _, timer = heap[0]
            if due_mono <= now.mono:
                heappop(heap)
                return timer
            if not timer.is_stale():
                break
            heappop(heap)
        return None

    def all(self) -> list[T]:
        """Return every timer that is set, in no order."""
        return [entry[2] for entry in self._heap]

    @property
    def wake_at(self) -> int | None:
        """When the next timer is due, in `mono` milliseconds."""
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)
