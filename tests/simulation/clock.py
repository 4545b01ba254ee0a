"""Time: one heap of scheduled events, and the clocks of the nodes, which are never quite right."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

WALL_START_MS: Final = 1_800_000_000_000


class Endless(Exception):
    """More events than any correct run has."""


class Schedule:
    """The events to come, in order of time, then of scheduling. Times are true milliseconds since the start."""

    def __init__(self, events_max: int = 1 << 60) -> None:
        self.now = 0.0
        self.events = 0
        self.events_max = events_max
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_ms: float, what: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (time_ms if time_ms > self.now else self.now, self._count, what, args))

    def after(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay_ms, self._count, what, args))

    def run(self, until_ms: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Run until that time, or until `is_over`. Return whether it is over."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now, _, what, args = heappop(heap)
            self.events += 1
            what(*args)
            if is_over is not None and is_over():
                return True
            if self.events > self.events_max:
                raise Endless(f"{self.events} events by {self.now:.0f} ms")
        self.now = max(self.now, until_ms)
        return is_over is not None and is_over()


class Clock:
    """A host's two clocks: `mono` runs a little fast or slow and never jumps; the wall clock does both."""

    def __init__(self, rate: float, offset_ms: float) -> None:
        self.rate = rate
        self.offset_ms = offset_ms
        self.jumped_ms = 0
        self.corrected_ms = 0  # what a program adds to the wall clock, because it knows a better one
        self._jumps: list[tuple[float, int]] = [(0.0, 0)]  # when it was set, and its error from then on

    def mono(self, true_ms: float) -> float:
        return self.offset_ms + true_ms * self.rate

    def wall(self, true_ms: float) -> int:
        return WALL_START_MS + self.jumped_ms + int(true_ms * self.rate)

    def jump(self, by_ms: int, now_ms: float) -> None:
        self.jumped_ms += by_ms
        self._jumps.append((now_ms, self.jumped_ms + self.corrected_ms))

    def correct(self, by_ms: int, now_ms: float) -> None:
        if by_ms != self.corrected_ms:
            self.corrected_ms = by_ms
            self._jumps.append((now_ms, self.jumped_ms + by_ms))

    @property
    def set_back_ms(self) -> int:
        """How far the wall clock is behind its largest error so far."""
        return max(jumped_ms for _, jumped_ms in self._jumps) - self.jumped_ms - self.corrected_ms

    def true_of_wall(self, wall_ms: int, now_ms: float) -> float:
        """Return the last true time at which the wall clock showed this."""
        until_ms = now_ms
        for since_ms, jumped_ms in reversed(self._jumps):
            true_ms = (wall_ms - jumped_ms - WALL_START_MS) / self.rate
            if since_ms - 2.0 <= true_ms <= until_ms + 2.0:
                return true_ms
            until_ms = since_ms
        return -1e12
