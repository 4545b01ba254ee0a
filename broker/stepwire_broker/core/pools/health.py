"""Health of the members of a pool, of the pools, and of the whole: verdicts over windows, so that one failure or one
success changes nothing.

A window ends with each check. The caller passes the time, in `mono` milliseconds.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from stepwire_broker.core.guards.recent_counts import Recent

SILENT_MS: Final = 30_000  # a member without a heartbeat for longer is unhealthy
SAMPLES_WINDOW_MS: Final = 300_000
SAMPLES_MIN: Final = 5  # batches in the window: fewer prove nothing
ERROR_SHARE_MAX: Final = 0.10
MEAN_MS_MAX: Final = 5_000
WORSE_AFTER: Final = 2  # windows in a row
BETTER_AFTER: Final = 3
HEALTHY_SHARE_MIN: Final = 0.50  # of all members: fewer and the whole is unhealthy
HEALTHY_SHARE_GOOD: Final = 0.90  # fewer and the whole is degraded
NOT_CONSUMING_MS: Final = 30_000

_BATCHES, _FAILED, _TOOK_MS = range(3)


class HealthState(StrEnum):
    STARTING = "starting"  # no heartbeat yet
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # works, but slowly or with many failures
    UNHEALTHY = "unhealthy"  # does not answer
    STOPPING = "stopping"  # takes no new batch, and finishes the one it holds
    STOPPED = "stopped"


RANK: Final = {HealthState.HEALTHY: 0, HealthState.DEGRADED: 1, HealthState.UNHEALTHY: 2}


class HealthVerdict(Struct, frozen=True):
    """The judgement of one window, and why, if it is not healthy."""

    state: HealthState
    reason: str = ""


class Samples:
    """The batches of the last five minutes: how many, how many failed, and how long they took."""

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        self._recent = Recent(SAMPLES_WINDOW_MS, 3)

    def add(self, took_ms: int, mono: int, *, has_failed: bool = False) -> None:
        self._recent.add(_BATCHES, mono)
        self._recent.add(_TOOK_MS, mono, took_ms)
        if has_failed:
            self._recent.add(_FAILED, mono)

    def batches(self, mono: int) -> int:
        return self._recent.sum(_BATCHES, mono)

    def error_share(self, mono: int) -> float:
        batches = self.batches(mono)
        return self._recent.sum(_FAILED, mono) / batches if batches else 0.0

    def mean_ms(self, mono: int) -> float:
        batches = self.batches(mono)
        return self._recent.sum(_TOOK_MS, mono) / batches if batches else 0.0


def verdict_of(silent_ms: int, samples: Samples, mono: int) -> HealthVerdict:
    """Judge a member that was silent for this time."""
    if silent_ms > SILENT_MS:
        return HealthVerdict(HealthState.UNHEALTHY, f"no heartbeat for {silent_ms} ms")
    if samples.batches(mono) >= SAMPLES_MIN:
        share, mean_ms = samples.error_share(mono), samples.mean_ms(mono)
        if share > ERROR_SHARE_MAX:
            return HealthVerdict(HealthState.DEGRADED, f"{share:.0%} of its batches failed")
        if mean_ms > MEAN_MS_MAX:
            return HealthVerdict(HealthState.DEGRADED, f"its batches take {mean_ms:.0f} ms on average")
    return HealthVerdict(HealthState.HEALTHY)


class MemberHealth:
    """The state of one member. `check` is called at the end of each window."""

    __slots__ = ("_against", "_heard_mono", "has_started", "reason", "samples", "since_mono", "state")

    def __init__(self, mono: int) -> None:
        self.state = HealthState.STARTING
        self.since_mono = mono
        self.reason = ""
        self.samples = Samples()
        self.has_started = False
        self._heard_mono = mono
        self._against: list[HealthVerdict] = []  # the last verdicts in a row that are all worse, or all better

    def heartbeat(self, mono: int) -> None:
        """Note that the member works. The first heartbeat ends its start."""
        self._heard_mono = mono
        if not self.has_started:
            self.has_started = True
            self._become(HealthVerdict(HealthState.HEALTHY), mono)

    def silent_ms(self, mono: int) -> int:
        return mono - self._heard_mono

    def stopping(self, mono: int) -> None:
        self._become(HealthVerdict(HealthState.STOPPING), mono)

    def stopped(self, mono: int) -> None:
        self._become(HealthVerdict(HealthState.STOPPED), mono)

    def check(self, mono: int) -> bool:
        """End a window. Return whether the state changed."""
        if self.state in (HealthState.STOPPING, HealthState.STOPPED):
            return False
        verdict = verdict_of(self.silent_ms(mono), self.samples, mono)
        if self.state is HealthState.STARTING:
            if verdict.state is HealthState.UNHEALTHY:
                self._become(verdict, mono)
                return True
            return False
        rank, current = RANK[verdict.state], RANK[self.state]
        if rank == current:
            self._against.clear()
            self.reason = verdict.reason
            return False
        if self._against and (RANK[self._against[0].state] > current) != (rank > current):
            self._against.clear()
        self._against.append(verdict)
        needed = WORSE_AFTER if rank > current else BETTER_AFTER
        if len(self._against) < needed:
            return False
        by_rank = sorted(self._against, key=lambda each: RANK[each.state])
        self._become(by_rank[0] if rank > current else by_rank[-1], mono)
        return True

    def _become(self, verdict: HealthVerdict, mono: int) -> None:
        self.state, self.reason, self.since_mono = verdict.state, verdict.reason, mono
        self._against.clear()


class PoolHealth(Struct, frozen=True):
    """The members of a pool by their state. Members that start or stop are not counted."""

    healthy: int
    unhealthy: int  # and degraded

    @property
    def judged(self) -> int:
        return self.healthy + self.unhealthy


def pool_health(states: Iterable[HealthState]) -> PoolHealth:
    """Count the members of a pool by their states."""
    judged = [state for state in states if state in RANK]
    healthy = sum(state is HealthState.HEALTHY for state in judged)
    return PoolHealth(healthy, len(judged) - healthy)


def system_health(pools: Sequence[tuple[str, PoolHealth]], not_consuming_ms: int = 0) -> HealthVerdict:
    """Judge the whole. `not_consuming_ms`: for how long steps could run and were not dispatched."""
    members = sum(pool.judged for _, pool in pools)
    if members == 0:
        return HealthVerdict(HealthState.STARTING, "no member has started")
    healthy = sum(pool.healthy for _, pool in pools)
    if healthy / members < HEALTHY_SHARE_MIN:
        return HealthVerdict(HealthState.UNHEALTHY, f"{healthy} of {members} members are healthy")
    empty = [name for name, pool in pools if pool.judged and not pool.healthy]
    if empty:
        return HealthVerdict(HealthState.DEGRADED, f"no healthy member: {', '.join(empty)}")
    if healthy / members < HEALTHY_SHARE_GOOD:
        return HealthVerdict(HealthState.DEGRADED, f"{healthy} of {members} members are healthy")
    if not_consuming_ms > NOT_CONSUMING_MS:
        text = f"alive but not consuming: workers could take ready steps, and got none for {not_consuming_ms} ms"
        return HealthVerdict(HealthState.DEGRADED, text)
    return HealthVerdict(HealthState.HEALTHY)


class Consumption:
    """Notices that steps could be dispatched and are not. `look` is called from time to time."""

    __slots__ = ("_dispatched", "_since_mono")

    def __init__(self) -> None:
        self._dispatched = -1
        self._since_mono: int | None = None

    def look(self, dispatched: int, mono: int, *, could_dispatch: bool) -> int:
        """Return for how long nothing was dispatched although ready steps have free workers.

        `dispatched`: the number of dispatches since the start.
        """
        if not could_dispatch or dispatched != self._dispatched:
            self._since_mono = None
        self._dispatched = dispatched
        if not could_dispatch:
            return 0
        if self._since_mono is None:
            self._since_mono = mono
        return mono - self._since_mono
