"""The retry budget: retries may be a share of what a handler is given, so that they cannot be most of its load.

When something is down, every step of it is tried again, and the retries alone keep it down. So they may be `percent` of
all starts of the last while, and some few at least. What is tried again and succeeds gives back its own place and one
more: as long as retries succeed their number doubles from round to round, and a backlog that failed once is done soon.
Only retries are held up, never a step's first attempt.
"""

from .recent_counts import Recent

_STARTS, _RETRIES, _EARNED = range(3)


class RetryBudget:
    def __init__(self, percent: float, at_least: int, window_ms: int) -> None:
        self._percent = percent
        self._at_least = at_least
        self._recent = Recent(window_ms, 3)

    def room(self, mono: int) -> int:
        """How many retries may start now."""
        recent = self._recent
        starts = recent.sum(_STARTS, mono)
        allowed = max(self._at_least, int(starts * self._percent / 100)) + recent.sum(_EARNED, mono)
        return max(0, allowed - recent.sum(_RETRIES, mono))

    def started(self, mono: int) -> None:
        """A step of the handler was handed out, for the first time or again."""
        self._recent.add(_STARTS, mono)

    def retried(self, mono: int) -> None:
        """And it was a retry."""
        self._recent.add(_RETRIES, mono)

    def completed(self, mono: int) -> None:
        """A retry succeeded."""
        self._recent.add(_EARNED, mono, 2)

    def renew(self) -> None:
        """What was is over."""
        self._recent.clear()

    def lately(self, mono: int) -> tuple[int, int]:
        """Starts in the window, and how many of them were retries."""
        return self._recent.sum(_STARTS, mono), self._recent.sum(_RETRIES, mono)

    def next_change(self, mono: int) -> int:
        """When there may be more room without anything happening."""
        return self._recent.next_roll(mono)
