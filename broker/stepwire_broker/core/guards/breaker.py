"""A circuit breaker: what keeps failing is left alone for a while, then tried with a little, then used again.

Closed, until too much failed: so many in a row, or such a share of what came back lately. Then open: nothing is let
through for a time, which doubles with each opening. Then half-open: a few calls are let through, and what becomes of
them decides. It knows neither a clock nor what it protects; each call says the time, in `mono` milliseconds.

An outcome counts in the state that let its call through: what was begun before it opened says nothing about now.
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
    CLOSED = "closed"  # everything is let through
    OPEN = "open"  # nothing is
    HALF_OPEN = "half_open"  # a few are, and decide


class BreakerPolicy(Struct, frozen=True):
    """When it opens, for how long, and what closes it."""

    failure_threshold: int = 5  # in a row
    success_threshold: int = 2  # so many at a time while half-open, and so many that succeed to close it
    open_ms: int = 30_000  # the first time; doubled each time, up to
    open_max_ms: int = 30_000
    jitter: float = 0.0  # up to this share less, so that not all that depends on one thing tries it at once
    window_ms: int | None = None  # failures are also judged by their share in this time
    window_outcomes: int = 20  # but only of so many outcomes
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
        self.turn = 0  # rises with each change of state: whose outcome it is
        self.failures_in_row = 0
        self.until_mono: int | None = None  # while it is open: when it is tried again
        self.pause_ms = 0  # how long it was, or is, open
        self.opened = 0
        self.cause = ""  # of its last opening
        self.under_way = 0  # calls let through while half-open
        self._succeeded = 0
        self._in_row = 0  # openings with no long calm between
        self._closed_mono: int | None = None
        self._recent = None if policy.window_ms is None else Recent(policy.window_ms, 2)

    # -- for whoever calls ------------------------------------------------------------------------------------------

    def call(self, mono: int) -> int:
        """Let a call through, or raise CircuitOpen. Its number goes with its outcome: `succeeded`, `failed` or
        `given_up`, one of which must follow."""
        self.look(mono)
        if self.room == 0:
            raise CircuitOpen(self.component, self.until_mono)
        return self.admit()

    def look(self, mono: int) -> bool:
        """Is its open time over? Then it is half-open from now on."""
        if self.state is BreakerPhase.OPEN and self.until_mono is not None and mono >= self.until_mono:
            self._turn(BreakerPhase.HALF_OPEN)
            return True
        return False

    @property
    def room(self) -> int | None:
        """How many calls may go now; None: as many as there are."""
        if self.state is BreakerPhase.CLOSED:
            return None
        if self.state is BreakerPhase.OPEN:
            return 0
        return max(0, self.policy.success_threshold - self.under_way)

    def admit(self) -> int:
        """For whoever has looked at `room`."""
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
            self._open(mono, "a failure when it was tried again")

    def given_up(self, call: int) -> None:
        """It came to nothing that says anything: another may go in its place."""
        if call == self.turn and self.state is BreakerPhase.HALF_OPEN:
            self.under_way -= 1

    def close_untried(self, mono: int) -> None:
        """Half-open, and there was nothing to try it with. The next failure opens it again, for longer."""
        assert self.state is BreakerPhase.HALF_OPEN
        self._close(mono)
        self.failures_in_row = self.policy.failure_threshold - 1

    def lately(self, mono: int) -> tuple[int, int]:
        """Outcomes in the window, and how many of them were failures."""
        if self._recent is None:
            return 0, 0
        return self._recent.sum(_OUTCOMES, mono), self._recent.sum(_FAILURES, mono)

    @property
    def needed(self) -> int:
        """While it is half-open: so many more successes close it."""
        return self.policy.success_threshold - self._succeeded

    def is_calm(self, mono: int) -> bool:
        """It remembers nothing that matters: it could as well be a new one."""
        return (
            self.state is BreakerPhase.CLOSED
            and not self.is_forced
            and self.lately(mono)[1] == 0
            and (self._closed_mono is None or mono - self._closed_mono >= self.policy.open_max_ms)
        )

    # -- for people -------------------------------------------------------------------------------------------------

    def force_open(self) -> None:
        """Let nothing through, whatever succeeds, until it is told otherwise."""
        self._turn(BreakerPhase.OPEN)
        self.is_forced = True
        self.until_mono = None

    def force_closed(self) -> None:
        """Let everything through, whatever fails, until it is told otherwise."""
        self._turn(BreakerPhase.CLOSED)
        self.is_forced = True
        self._forget()

    def automatic(self, mono: int) -> None:
        """Closed, and by its own judgement from now on."""
        self.is_forced = False
        self._forget()
        self._close(mono)

    # -- how it changes ---------------------------------------------------------------------------------------------

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
    """A number in [0, 1) for this opening: spread like chance, the same at every replay."""
    return crc32(f"{component}/{opened}".encode()) / 2**32
