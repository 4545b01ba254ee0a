"""A guard for each handler_class that fails: its breaker, its retry budget, and its last failure.

`allowance.py` uses them. A handler that does not fail has no guard, and costs nothing.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from stepwire_broker.core.commit.operator_controls import ForcedBreaker, stored
from stepwire_broker.core.definitions.settings import DispatchSettings
from stepwire_broker.core.definitions.stored_rows import StoredControl

from .breaker import Breaker, BreakerPolicy
from .retry_budget import RetryBudget

GUARDS_MAX: Final = 4_096  # handlers that fail at a time; further ones have no guard
JITTER: Final = 0.2


class Guard(Struct, eq=False):
    handler_class: str
    breaker: Breaker
    budget: RetryBudget | None
    since_wall: int  # of the breaker's state
    until_wall: int | None = None  # while the breaker is open: when it is tried again
    reason: str = ""  # of the last failure, or the operator's reason
    lost_mono: int | None = None  # when a session was last counted as lost
    wakes: bool = False  # a timer is set for the budget


class Probe(NamedTuple):
    """A step that was dispatched while the breaker was half-open. Its outcome decides."""

    guard: Guard
    delivery: int
    call: int


class Guards:
    """All guards of this broker."""

    def __init__(
        self, broker: str, settings: DispatchSettings, controls: Iterable[StoredControl] = (), mono: int = 0
    ) -> None:
        """Breakers are closed at a start, except those that an operator forced."""
        self.settings = settings
        self.bounds_retries = settings.retry_budget.percent < 100
        self.by_handler: dict[str, Guard] = {}
        self.barred: dict[str, Guard] = {}  # guards whose breaker is not closed
        self.probes: dict[int, Probe] = {}  # by step id
        self._broker = broker
        of = settings.breaker
        self._policy = BreakerPolicy(
            failure_threshold=of.failure_threshold,
            success_threshold=of.success_threshold,
            open_ms=of.open_ms,
            open_max_ms=of.open_max_ms,
            jitter=JITTER,
            window_ms=of.window_ms,
            window_outcomes=of.window_outcomes,
            window_percent=of.window_percent,
        )

        for handler_class, forced in stored(controls, ForcedBreaker):
            guard = self.add(handler_class, mono, forced.since_ms)
            if guard is not None:
                self._force(guard, forced)

    def _force(self, guard: Guard, forced: ForcedBreaker) -> None:
        guard.reason = forced.reason
        if forced.state == "open":
            guard.breaker.force_open()
            self.barred[guard.handler_class] = guard
        else:
            guard.breaker.force_closed()

    def add(self, handler_class: str, mono: int, wall: int) -> Guard | None:
        """Create a guard. None when too many guards still hold recent failures or settings."""
        if len(self.by_handler) >= GUARDS_MAX:
            self.sweep(mono)
            if len(self.by_handler) >= GUARDS_MAX:
                return None
        of = self.settings.retry_budget
        budget = RetryBudget(of.percent, of.at_least, of.window_ms) if self.bounds_retries else None
        guard = Guard(handler_class, Breaker(f"{self._broker}/{handler_class}", self._policy), budget, wall)
        self.by_handler[handler_class] = guard
        return guard

    def sweep(self, mono: int) -> None:
        """Remove the guards without recent failures or settings."""
        for guard in list(self.by_handler.values()):
            is_spent = guard.budget is not None and guard.budget.lately(mono)[1] > 0
            if guard.breaker.is_calm(mono) and not is_spent:
                del self.by_handler[guard.handler_class]
