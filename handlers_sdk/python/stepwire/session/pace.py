"""The rate at which steps really end, observed with decay. Credit and run-ahead follow it."""

from math import exp
from typing import Final

from stepwire_protocol import limits

FADE_MS: Final = 100.0  # the weight of an observation falls to 1/e in this time


class Pace:
    """Counts ends of steps, and the time for which there was a step to run. Both fade, and their ratio is the rate.

    Time without a step does not count: an idle worker is not slow. While steps run and none ends, the rate falls, so a
    change from short to long steps shows before the first long step ends.
    """

    __slots__ = ("_at_ms", "_busy_ms", "_ended", "_is_busy")

    def __init__(self, expected: float) -> None:
        """`expected`: the number of steps that may wait before any has ended."""
        self._ended = expected
        self._busy_ms = float(limits.PREFETCH_MS)
        self._at_ms = 0.0
        self._is_busy = False

    def resume(self, now_ms: float) -> None:
        """There is a step to run again."""
        if not self._is_busy:
            self._is_busy = True
            self._at_ms = now_ms

    def pause(self, now_ms: float) -> None:
        """No step is left."""
        self._fade(now_ms)
        self._is_busy = False

    def count_end(self, now_ms: float) -> None:
        if now_ms > self._at_ms:
            self._fade(now_ms)
        self._ended += 1.0

    def steps_in(self, ms: float, now_ms: float) -> float:
        """The number of steps that are expected to end in this time."""
        self._fade(now_ms)
        return self._ended / self._busy_ms * ms

    def _fade(self, now_ms: float) -> None:
        passed_ms = now_ms - self._at_ms
        if not self._is_busy or passed_ms <= 0:
            return
        self._at_ms = now_ms
        kept = exp(-passed_ms / FADE_MS)
        self._ended *= kept
        self._busy_ms = self._busy_ms * kept + FADE_MS * (1 - kept)
