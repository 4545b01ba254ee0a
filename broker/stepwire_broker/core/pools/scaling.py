"""Scaling: how many members a pool needs for its load.

`change_of` is the whole table. `Scaler` adds what a sequence of decisions needs: cool-downs, obstacles to growth, and
the memory of a growth that brought nothing. No function here reads a clock: the caller passes the time, in `mono`
milliseconds, and the figures of the last interval.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct

UP_FROM: Final = 1.2  # of the target: a utilisation above it needs more members
DOWN_FROM: Final = 0.5  # of the target: a utilisation below it needs fewer members
GROWTH_FACTOR_MAX: Final = 2.0
GAIN_MIN: Final = 0.05  # the share by which a growth must raise the throughput, or lower the utilisation; a small
# growth, which cannot do as much, must reach half of what is possible
INTERVALS_BARRED: Final = 10  # after a growth that brought nothing; twice as many after each further one in a row
DOUBLINGS_MAX: Final = 3
DIGITS: Final = 9  # more digits of a product of shares are errors of floating point


class ScalingReason(StrEnum):
    BUSY = "busy"  # grew: the utilisation is too far above its target
    IDLE = "idle"  # shrank: the utilisation is too far below its target
    BELOW_MIN = "below_min"  # grew to its least size, whatever its load
    ABOVE_MAX = "above_max"  # shrank to its largest size, whatever its load
    UNDONE = "growth_undone"  # shrank: the last growth did not raise the throughput
    STEADY = "steady"  # the utilisation is near its target
    AT_MIN = "at_min"  # idle, and as small as allowed
    AT_MAX = "at_max"  # busy, and as large as allowed
    COOLING_DOWN = "cooling_down"  # the last change was too short a time ago
    DATABASE_SATURATED = "database_saturated"  # busy: more members would make the database slower
    BREAKER_OPEN = "breaker_open"  # busy: the component that the members call fails
    LOOP_LAGS = "loop_lags"  # busy: the process has no time for more members
    NO_GAIN = "no_gain"  # busy: a growth brought nothing lately
    NO_TAKER = "no_taker"  # busy: the load is not one that these members can take


class PoolSize(Struct, frozen=True):
    """The limits of a pool's size, and the utilisation that it aims at."""

    least: int
    most: int
    target: float = 0.75


class ScalingPolicy(Struct, frozen=True):
    """How fast a pool follows its load."""

    interval_ms: int = 30_000  # between two decisions
    cooldown_up_ms: int = 60_000  # from a change to the next growth
    cooldown_down_ms: int = 60_000  # from a change to the next reduction
    growth_factor_max: float = GROWTH_FACTOR_MAX
    growth_max: int | None = None  # members added by one decision
    reduction_max: int | None = None  # members removed by one decision
    judges_growth: bool = True  # a growth that did not raise the throughput is undone


class PoolLoad(Struct, frozen=True):
    """The last interval. `utilization`: the busy share of the members, at least 1 if work waits and no member is free.
    `throughput`: of the pool, in any unit. `obstacle`: why more members would not help."""

    utilization: float
    throughput: float = 0.0
    obstacle: ScalingReason | None = None


class Scaling(Struct, frozen=True):
    """A decision: the change of the size, and why."""

    change: int
    reason: ScalingReason


def change_of(utilization: float, members: int, size: PoolSize, factor_max: float = GROWTH_FACTOR_MAX) -> int:
    """Return how many members to add, or as a negative number, to remove."""
    if utilization > UP_FROM * size.target and members < size.most:
        factor = min(utilization / size.target, factor_max)
        return min(math.ceil(round(members * factor, DIGITS)), size.most) - members
    if utilization < DOWN_FROM * size.target and members > size.least:
        return -max((members - size.least) // 2, 1)
    return 0


def needed_for(busy: float, target: float) -> int:
    """Return how many members carry a load that keeps this number of them busy, at the target utilisation.

    This is the size that `change_of` grows to, without its limits; a pool without members has no utilisation.
    """
    return math.ceil(round(busy / target, DIGITS))


class Obstacles(Struct, frozen=True):
    """Conditions that keep the pools of one process from growing."""

    database_saturation: float
    loop_lag_p99_s: float
    breaker_is_open: bool = False


LOOP_LAG_MAX_S: Final = 0.05

OBSTACLES: Final[tuple[tuple[ScalingReason, Callable[[Obstacles, float], bool]], ...]] = (
    (ScalingReason.BREAKER_OPEN, lambda seen, usage_max: seen.breaker_is_open),
    (ScalingReason.DATABASE_SATURATED, lambda seen, usage_max: seen.database_saturation > usage_max),
    (ScalingReason.LOOP_LAGS, lambda seen, usage_max: seen.loop_lag_p99_s > LOOP_LAG_MAX_S),
)


def obstacle_in(seen: Obstacles, database_usage_max: float) -> ScalingReason | None:
    """Return why more members would make it worse: a slow database keeps every member busy, and so does a slow loop."""
    return next((reason for reason, applies in OBSTACLES if applies(seen, database_usage_max)), None)


class _Growth(Struct, frozen=True):
    added: int
    before: PoolLoad


class Scaler:
    """The decisions about one pool. The owner of the pool calls `decide` once in an interval, and does what it says."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._changed_mono: int | None = None
        self._growth: _Growth | None = None  # the last change, if its gain is not judged yet
        self._barred_until_mono: int | None = None
        self._undone_in_row = 0

    def decide(self, members: int, size: PoolSize, load: PoolLoad, mono: int) -> Scaling:
        """Decide on the change of a pool that has this number of members now."""
        scaling = self._decided(members, size, load, mono)
        if scaling.change:
            is_growth = scaling.reason is ScalingReason.BUSY and self._policy.judges_growth
            self._growth = _Growth(scaling.change, load) if is_growth else None
            self._changed_mono = mono
        return scaling

    def _decided(self, members: int, size: PoolSize, load: PoolLoad, mono: int) -> Scaling:
        if members < size.least:
            return Scaling(size.least - members, ScalingReason.BELOW_MIN)
        if members > size.most:
            return Scaling(size.most - members, ScalingReason.ABOVE_MAX)
        undone = self._undone(members, size, load, mono)
        if undone:
            return Scaling(-undone, ScalingReason.UNDONE)
        change = change_of(load.utilization, members, size, self._policy.growth_factor_max)
        if change > 0:
            return self._growing(change, load, mono)
        if change < 0:
            if self._cools_down(self._policy.cooldown_down_ms, mono):
                return Scaling(0, ScalingReason.COOLING_DOWN)
            return Scaling(-_capped(-change, self._policy.reduction_max), ScalingReason.IDLE)
        return Scaling(0, _reason_of_none(load.utilization, size))

    def _growing(self, change: int, load: PoolLoad, mono: int) -> Scaling:
        if self._cools_down(self._policy.cooldown_up_ms, mono):
            return Scaling(0, ScalingReason.COOLING_DOWN)
        if load.obstacle is not None:
            return Scaling(0, load.obstacle)
        if self._barred_until_mono is not None and mono < self._barred_until_mono:
            return Scaling(0, ScalingReason.NO_GAIN)
        return Scaling(_capped(change, self._policy.growth_max), ScalingReason.BUSY)

    def _undone(self, members: int, size: PoolSize, load: PoolLoad, mono: int) -> int:
        """Judge the last growth once, after its cool-down. Return how many members to remove again.

        A growth that lowered the utilisation stays, even if the throughput is the same: all work was done before as
        well, with less in reserve.
        """
        growth = self._growth
        if growth is None or self._cools_down(self._policy.cooldown_up_ms, mono):
            return 0
        self._growth = None
        if load.utilization <= UP_FROM * size.target or _has_gained(growth, members, load):
            self._undone_in_row = 0
            return 0
        intervals = INTERVALS_BARRED << min(self._undone_in_row, DOUBLINGS_MAX)
        self._undone_in_row += 1
        self._barred_until_mono = mono + intervals * self._policy.interval_ms
        return min(growth.added, members - size.least)

    def _cools_down(self, cooldown_ms: int, mono: int) -> bool:
        return self._changed_mono is not None and mono - self._changed_mono < cooldown_ms


def _has_gained(growth: _Growth, members: int, after: PoolLoad) -> bool:
    before, gain = growth.before, min(GAIN_MIN, growth.added / members / 2)
    if after.throughput >= (1 + gain) * before.throughput:
        return True
    return after.utilization <= (1 - gain) * before.utilization


def _capped(count: int, most: int | None) -> int:
    return count if most is None else min(count, most)


def _reason_of_none(utilization: float, size: PoolSize) -> ScalingReason:
    if utilization > UP_FROM * size.target:
        return ScalingReason.AT_MAX
    if utilization < DOWN_FROM * size.target:
        return ScalingReason.AT_MIN
    return ScalingReason.STEADY
