"""Quantiles of the last seconds, from a histogram that counts since the start."""

from collections import deque
from typing import Final

from stepwire_broker.core.model.figures import Histogram

BEATS: Final = 10


class RecentQuantile:
    """The value below which a share of the last ten beats' values lies. 0 without a value."""

    def __init__(self, histogram: Histogram, share: float) -> None:
        self._histogram = histogram
        self._share = share
        self._counts: deque[list[int]] = deque([list(histogram.counts)], maxlen=BEATS + 1)
        self.value = 0.0

    def beat(self) -> None:
        """Forget the oldest beat, and compute the value of the others."""
        self._counts.append(list(self._histogram.counts))
        recent = Histogram(self._histogram.bounds)
        recent.counts = [last - first for first, last in zip(self._counts[0], self._counts[-1], strict=True)]
        self.value = recent.quantile(self._share) or 0.0
