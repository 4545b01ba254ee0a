"""A circuit breaker: a component that keeps failing is not called for a while, then tried with a few calls, then used.

A breaker is closed until too many calls in a row fail, or too large a share of the recent calls. Then the breaker is
open: no call is allowed for a time, which doubles with each opening. Then the breaker is half-open: a few calls are
allowed, and their outcomes decide. A breaker reads no clock: every method gets the time, in `mono` milliseconds.

An outcome counts in the state that allowed its call: a call from before the opening proves nothing about the present.
"""

from enum import StrEnum
from typing import Final
from zlib import crc32

from msgspec import Struct

from stepwire_broker.errors import BrokerError

from .recent_counts import Recent

_DOUBLINGS_MAX: Final = 32
_OUTCOMES, _FAILURES = range(2)


class BreakerPhase(StrEnum):
    CLOSED = "closed"  # all calls are allowed
    OPEN = "open"  # no call is allowed
    HALF_OPEN = "half_open"  # a few calls are allowed, and their outcomes decide


class BreakerPolicy(Struct, frozen=True):
    """When a breaker opens, for how long, and what closes it."""

    failure_threshold: int = 5  # in a row
    success_threshold: int = 2  # calls at a time while half-open, and successes that close it
    open_ms: int = 30_000  # the first open time, doubled with each opening
    open_max_ms: int = 30_000
    jitter: float = 0.0  # the open time is shorter by up to this share, so that breakers do not all try at once
    window_ms: int | None = None  # failures are also judged by their share in this time
    window_outcomes: int = 20  # but only if there are this many outcomes
    window_percent: float = 50.0


class CircuitOpen(BrokerError):
    """The circuit breaker refused a call. `until_mono` is when to try again; None if an operator keeps it open."""

    def __init__(self, component: str, until_mono: int | None) -> None:
        super().__init__(f"the breaker for {component} is open")
        self.component = component
        self.until_mono = until_mono


class Breaker:
    def __init__(self, component: str, policy: BreakerPolicy) -> None:
        self.component = component
        self.policy = policy
        self.state = BreakerPhase.CLOSED
        self.is_forced = False
        self.turn = 0  # rises with each change of state; a call keeps the turn that allowed it
        self.failures_in_row = 0
        self.until_mono: int | None = None  # while open: when the next calls are allowed
        self.pause_ms = 0  # the last or current open time
        self.opened = 0
        self.cause = ""  # of its last opening
        self.under_way = 0  # calls allowed while half-open, without an outcome yet
        self._succeeded = 0
        self._in_row = 0  # openings with no long calm between
        self._closed_mono: int | None = None
        self._recent = None if policy.window_ms is None else Recent(policy.window_ms, 2)

    # -- for callers ------------------------------------------------------------------------------------------------

    def call(self, mono: int) -> int:
        """Allow a call, or raise CircuitOpen. The caller must pass the returned number to exactly one of `succeeded`,
        `failed` and `given_up`."""
        self.look(mono)
        if self.room == 0:
            raise CircuitOpen(self.component, self.until_mono)
        return self.admit()

    def look(self, mono: int) -> bool:
        """Become half-open if the open time is over. Return whether the state changed."""
        if self.state is BreakerPhase.OPEN and self.until_mono is not None and mono >= self.until_mono:
            self._turn(BreakerPhase.HALF_OPEN)
            return True
        return False

    @property
    def room(self) -> int | None:
        """The number of calls that are allowed now; None: no limit."""
        if self.state is BreakerPhase.CLOSED:
            return None
        if self.state is BreakerPhase.OPEN:
            return 0
        return max(0, self.policy.success_threshold - self.under_way)

    def admit(self) -> int:
        """Count a call that the caller makes within `room`. Return the number of the call."""
        assert self.state is not BreakerPhase.OPEN
        if self.state is BreakerPhase.HALF_OPEN:
            self.under_way += 1
        return self.turn

    def succeeded(self, call: int, mono: int) -> None:
        if call != self.turn or self.is_forced:
            return
        if self.state is BreakerPhase.CLOSED:
            self.failures_in_row = 0
            if self._recent is not None:
                self._recent.add(_OUTCOMES, mono)
        elif self.state is BreakerPhase.HALF_OPEN:
            self.under_way -= 1
            self._succeeded += 1
            if self._succeeded >= self.policy.success_threshold:
                self._close(mono)

    def failed(self, call: int, mono: int) -> None:
        if call != self.turn or self.is_forced:
            return
        if self.state is BreakerPhase.CLOSED:
            self.failures_in_row += 1
            if self._recent is not None:
                self._recent.add(_OUTCOMES, mono)
                self._recent.add(_FAILURES, mono)
            if self.failures_in_row >= self.policy.failure_threshold:
                self._open(mono, f"{self.failures_in_row} failures in a row")
            elif self._fails_too_often(mono):
                outcomes, failures = self.lately(mono)
                self._open(mono, f"{failures} failures among {outcomes} outcomes")
        elif self.state is BreakerPhase.HALF_OPEN:
            self._open(mono, "a failed trial")

    def given_up(self, call: int) -> None:
        """End a call whose outcome is not known, so that another is allowed in its place."""
        if call == self.turn and self.state is BreakerPhase.HALF_OPEN:
            self.under_way -= 1

    def close_untried(self, mono: int) -> None:
        """Close a half-open breaker that no call has tried. The next failure opens it again, for longer."""
        assert self.state is BreakerPhase.HALF_OPEN
        self._close(mono)
        self.failures_in_row = self.policy.failure_threshold - 1

    def lately(self, mono: int) -> tuple[int, int]:
        """The number of outcomes in the window, and of failures among them."""
        if self._recent is None:
            return 0, 0
        return self._recent.sum(_OUTCOMES, mono), self._recent.sum(_FAILURES, mono)

    @property
    def needed(self) -> int:
        """The number of further successes that close a half-open breaker."""
        return self.policy.success_threshold - self._succeeded

    def is_calm(self, mono: int) -> bool:
        """True if the breaker equals a new one: closed, not forced, without recent failures."""
        return (
            self.state is BreakerPhase.CLOSED
            and not self.is_forced
            and self.lately(mono)[1] == 0
            and (self._closed_mono is None or mono - self._closed_mono >= self.policy.open_max_ms)
        )

    # -- for operators ----------------------------------------------------------------------------------------------

    def force_open(self) -> None:
        """Allow no call, regardless of successes, until the breaker is forced closed or automatic."""
        self._turn(BreakerPhase.OPEN)
        self.is_forced = True
        self.until_mono = None

    def force_closed(self) -> None:
        """Allow every call, regardless of failures, until the breaker is forced open or automatic."""
        self._turn(BreakerPhase.CLOSED)
        self.is_forced = True
        self._forget()

    def automatic(self, mono: int) -> None:
        """Close, and decide by outcomes from now on."""
        self.is_forced = False
        self._forget()
        self._close(mono)

    # -- changes of state -------------------------------------------------------------------------------------------

    def _fails_too_often(self, mono: int) -> bool:
        outcomes, failures = self.lately(mono)
        policy = self.policy
        return outcomes >= max(1, policy.window_outcomes) and 100 * failures >= policy.window_percent * outcomes

    def _open(self, mono: int, cause: str) -> None:
        policy = self.policy
        self.cause = cause
        if self.state is BreakerPhase.CLOSED and self._closed_mono is not None:
            is_calm = mono - self._closed_mono >= policy.open_max_ms
            self._in_row = 0 if is_calm else self._in_row
        self.opened += 1
        pause_ms = min(policy.open_ms << min(self._in_row, _DOUBLINGS_MAX), max(policy.open_ms, policy.open_max_ms))
        self.pause_ms = max(1, int(pause_ms * (1 - policy.jitter * _unit(self.component, self.opened))))
        self._in_row += 1
        self._turn(BreakerPhase.OPEN)
        self.until_mono = mono + self.pause_ms

    def _close(self, mono: int) -> None:
        self._turn(BreakerPhase.CLOSED)
        self.failures_in_row = 0
        self._closed_mono = mono

    def _turn(self, state: BreakerPhase) -> None:
        self.state = state
        self.turn += 1
        self.until_mono = None
        self.under_way = self._succeeded = 0
        if self._recent is not None:
            self._recent.clear()

    def _forget(self) -> None:
        self.failures_in_row = 0
        self._in_row = 0


def _unit(component: str, opened: int) -> float:
    """A number in [0, 1) for this opening: spread like a random number, and equal in every replay."""
    return crc32(f"{component}/{opened}".encode()) / 2**32
