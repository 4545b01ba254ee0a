"""Counts and durations in little room: what an executor has done, and how long it took."""

from bisect import bisect_left
from typing import Final

DURATION_MS: Final = (
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0),
    *(60_000.0, 300_000.0, 1_800_000.0, 7_200_000.0),
)


class Histogram:
    """Counts by upper bound; the last count is of what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def mean(self) -> float | None:
        count = sum(self.counts)
        return self.total / count if count else None

    def quantile(self, share: float) -> float | None:
        """About the value that this share of all lies below: within one bucket, as if it were evenly filled."""
        count = sum(self.counts)
        if not count:
            return None
        wanted = share * count
        below = 0.0
        for bound, many in zip(self.bounds, self.counts, strict=False):
            if wanted <= many:
                return below + (bound - below) * wanted / many if many else bound
            wanted -= many
            below = bound
        return below


class Figures:
    """What one executor has done since the start. `failed` is part of `executed`."""

    __slots__ = ("duration_ms", "executed", "failed")

    def __init__(self) -> None:
        self.executed = 0
        self.failed = 0
        self.duration_ms = Histogram(DURATION_MS)

    def ended(self, is_completed: bool, duration_ms: float | None) -> None:
        """Once a run. Its time counts where it is known."""
        self.executed += 1
        self.failed += not is_completed
        if duration_ms is not None:
            self.duration_ms.observe(duration_ms)
