"""Detects an async handler that blocks the event loop, on which all other async handlers wait.

The socket thread checks while the worker holds steps. A check costs one callback of the loop, and no work for a step.
"""

from collections.abc import Callable
from typing import Final

CHECK_MS: Final = 1_000
MISSED_MAX: Final = 2  # checks in a row; a count, because after a sleep of the computer the clock proves nothing
BLOCKED_S: Final = MISSED_MAX * CHECK_MS / 1000


class LoopWatch:
    """`call_soon` schedules a callback on the loop. It may be called by any thread."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.check_at_ms = 0.0
        self._call_soon = call_soon
        self._has_answered = True
        self._missed = 0

    def is_blocked(self, now_ms: float) -> bool:
        """Check. True once for each time that the loop is blocked."""
        self.check_at_ms = now_ms + CHECK_MS
        if self._has_answered:
            self._has_answered = False
            self._missed = 0
            self._call_soon(self._answer)
            return False
        self._missed += 1
        return self._missed == MISSED_MAX

    def _answer(self) -> None:
        self._has_answered = True
