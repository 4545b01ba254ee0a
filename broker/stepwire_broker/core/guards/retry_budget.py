"""The retry budget: retries are limited to a share of a handler's starts, so that they cannot be most of its load.

When a component is down, every step that needs it is retried, and the retries alone can keep it down. Therefore retries
may be `percent` of all starts within the window, and at least a few. A successful retry allows two more retries: while
retries succeed, their number doubles from round to round, so a backlog that failed once is soon done. Only retries
wait, never a step's first attempt.
"""

from .recent_counts import Recent

_STARTS, _RETRIES, _EARNED = range(3)


class RetryBudget:
    def __init__(self, percent: float, at_least: int, window_ms: int) -> None:
        self._percent = percent
        self._at_least = at_least
        self._recent = Recent(window_ms, 3)

    def room(self, mono: int) -> int:
        """The number of retries that may start now."""
        recent = self._recent
        starts = recent.sum(_STARTS, mono)
        allowed = max(self._at_least, int(starts * self._percent / 100)) + recent.sum(_EARNED, mono)
        return max(0, allowed - recent.sum(_RETRIES, mono))

    def started(self, mono: int) -> None:
        """Count a dispatch of a step of the handler, first attempt or retry."""
        self._recent.add(_STARTS, mono)

    def retried(self, mono: int) -> None:
        """Count that this dispatch was a retry."""
        self._recent.add(_RETRIES, mono)

    def taken_back(self, mono: int, *, is_retry: bool) -> None:
        """Undo the count of a dispatch, because the handler was not reached."""
        self._recent.take_back(_STARTS, mono)
        if is_retry:
            self._recent.take_back(_RETRIES, mono)

    def completed(self, mono: int) -> None:
        """Count a retry that succeeded."""
        self._recent.add(_EARNED, mono, 2)

    def renew(self) -> None:
        """Forget all counts."""
        self._recent.clear()

    def lately(self, mono: int) -> tuple[int, int]:
        """Return the number of starts in the window, and the number of retries among them."""
        return self._recent.sum(_STARTS, mono), self._recent.sum(_RETRIES, mono)

    def next_change(self, mono: int) -> int:
        """Return when `room` may grow without another event."""
        return self._recent.next_roll(mono)
