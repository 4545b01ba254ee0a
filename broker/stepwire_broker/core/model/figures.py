"""Counts and durations of an executor's runs, in a fixed amount of memory."""

from bisect import bisect_left
from typing import Final

from msgspec import Struct

DURATION_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 1_800.0, 7_200.0),
)


class Histogram:
    """Counts by upper bound; the last count is of values above all bounds."""

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
        """The value below which this share of all values lies, interpolated within its bucket."""
        count = sum(self.counts)
        if not count:
            return None
        wanted = share * count
        below = 0.0
        for bound, in_bucket in zip(self.bounds, self.counts, strict=False):
            if wanted <= in_bucket:
                return below + (bound - below) * wanted / in_bucket if in_bucket else bound
            wanted -= in_bucket
            below = bound
        return below


class ExecutorMetrics(Struct, frozen=True, kw_only=True):
    """Figures since the start. `total_failed` is part of `total_executed`; None where nothing has run yet."""

    active: int
    total_executed: int
    total_failed: int
    max_concurrent: int
    mean_ms: float | None = None
    p95_ms: float | None = None


class Figures:
    """Counts of one executor since the start. `failed` is part of `executed`."""

    __slots__ = ("duration_s", "executed", "failed")

    def __init__(self) -> None:
        self.executed = 0
        self.failed = 0
        self.duration_s = Histogram(DURATION_S)

    def ended(self, is_completed: bool, duration_s: float | None) -> None:
        """Count one ended run, and its duration if that is known."""
        self.executed += 1
        if not is_completed:
            self.failed += 1
        if duration_s is not None:
            self.duration_s.observe(duration_s)

    def metrics(self, active: int, max_concurrent: int) -> ExecutorMetrics:
        mean_s, p95_s = self.duration_s.mean(), self.duration_s.quantile(0.95)
        return ExecutorMetrics(
            active=active,
            total_executed=self.executed,
            total_failed=self.failed,
            max_concurrent=max_concurrent,
            mean_ms=None if mean_s is None else round(mean_s * 1000, 3),
            p95_ms=None if p95_s is None else round(p95_s * 1000, 3),
        )
