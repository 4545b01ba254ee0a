"""The disconnections by the bus: counted, logged, and kept by principal for ten minutes, for `stepwire worker list`."""

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from .counters import WireCounters

LOG_EVERY_S: Final = 10.0
KEPT_S: Final = 600.0
PART_S: Final = 10.0  # disconnections of the same time are counted together
PRINCIPALS_MAX: Final = 1_000  # of one part


class Disconnections:
    def __init__(self, counters: WireCounters, report: Callable[[str, str, int], None]) -> None:
        """`report` gets a reason, a principal (empty if unknown), and the number of disconnections since its last
        report."""
        self._counters = counters
        self._report = report
        self._reported: dict[str, tuple[float, int]] = {}  # by principal: when, and how many were not reported since
        self._parts: deque[tuple[float, Counter[tuple[str, str]]]] = deque()  # by begin; principal and reason

    def add(self, reason: str, principal: str, now_s: float) -> None:
        self._counters.disconnected[reason] += 1
        self._keep(reason, principal, now_s)
        since_s, unreported = self._reported.get(principal, (-LOG_EVERY_S, 0))
        if now_s - since_s >= LOG_EVERY_S:
            self._reported[principal] = (now_s, 0)
            self._report(reason, principal, unreported + 1)
        else:
            self._reported[principal] = (since_s, unreported + 1)

    def recent(self, now_s: float | None = None) -> dict[str, dict[str, int]]:
        """Return the disconnections of the last ten minutes by principal ("": unknown) and reason."""
        self._forget(time.monotonic() if now_s is None else now_s)
        found: dict[str, dict[str, int]] = {}
        for _, counts in self._parts:
            for (principal, reason), count in counts.items():
                by_reason = found.setdefault(principal, {})
                by_reason[reason] = by_reason.get(reason, 0) + count
        return found

    def _keep(self, reason: str, principal: str, now_s: float) -> None:
        if not self._parts or now_s - self._parts[-1][0] >= PART_S:
            self._forget(now_s)
            self._parts.append((now_s, Counter()))
        counts = self._parts[-1][1]
        if (principal, reason) in counts or len(counts) < PRINCIPALS_MAX:
            counts[principal, reason] += 1

    def _forget(self, now_s: float) -> None:
        while self._parts and now_s - self._parts[0][0] >= KEPT_S:
            self._parts.popleft()
