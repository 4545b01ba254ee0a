"""Reports that no broker answers: after three seconds, then at growing intervals."""

import threading
from typing import Final

from stepwire.actions import Link

from .events import WorkerEvents
from .reachability import diagnosis

AFTER_MS: Final = (3_000, 10_000, 30_000, 60_000)
EVERY_MS: Final = 300_000  # after those
NEVER: Final = float("inf")


class BrokerSearch:
    """Knows since when links have no session, and when to report that next. Used by the socket thread only."""

    def __init__(self, events: WorkerEvents) -> None:
        self.report_at_ms = NEVER
        self._events = events
        self._since_ms = 0.0
        self._reports = 0

    def update(self, closed: list[Link], now_ms: float) -> None:
        """Note the links without a session, after each change and at `report_at_ms`. Reports the first when due."""
        if not closed:
            self.report_at_ms = NEVER
            self._reports = 0
            return
        if self.report_at_ms == NEVER:
            self._since_ms = now_ms
            self.report_at_ms = now_ms + AFTER_MS[0]
        if now_ms < self.report_at_ms:
            return
        self._reports += 1
        waits = AFTER_MS[self._reports] if self._reports < len(AFTER_MS) else now_ms - self._since_ms + EVERY_MS
        self.report_at_ms = self._since_ms + waits
        seconds = round((now_ms - self._since_ms) / 1000)
        # In a thread, because resolving a name or connecting can take seconds, and heartbeats must continue.
        threading.Thread(target=self._report, args=(closed[0], seconds), name="stepwire-search", daemon=True).start()

    def _report(self, link: Link, seconds: int) -> None:
        endpoint, reason = diagnosis(link, self._events.public_key)
        self._events.log("warning", "no_broker", endpoint=endpoint, reason=reason, seconds=seconds)
