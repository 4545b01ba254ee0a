"""Scaling: the table of sizes, and what a sequence of decisions keeps to."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.pools.scaling import (
    INTERVALS_BARRED,
    Obstacles,
    PoolLoad,
    PoolSize,
    Scaler,
    Scaling,
    ScalingPolicy,
    ScalingReason,
    change_of,
    needed_for,
    obstacle_in,
)

START = 3_000_000
POLICY = ScalingPolicy(interval_ms=30_000, cooldown_up_ms=60_000, cooldown_down_ms=60_000)
QUIET = Obstacles(database_saturation=0.0, loop_lag_p99_s=0.0)


@pytest.mark.parametrize(
    ("utilization", "target", "members", "least", "most", "change"),
    [
        (0.95, 0.75, 3, 1, 10, 1),
        (0.90, 0.75, 3, 1, 10, 1),  # 1.2 of this target is 0.8999… in floating point
        (1.0, 0.3, 4, 1, 20, 4),  # at most twice as many
        (1.0, 0.3, 4, 1, 6, 2),  # at most the largest size
        (0.20, 0.75, 10, 2, 10, -4),
        (0.375, 0.75, 5, 1, 10, 0),
        (0.374, 0.75, 2, 1, 10, -1),
        (0.0, 0.75, 2, 2, 10, 0),
        (0.95, 0.75, 10, 1, 10, 0),
        (0.6, 0.5, 5, 1, 10, 0),
        (1.0, 0.75, 6, 1, 20, 2),
    ],
)
def test_the_size_follows_the_utilisation_as_the_table_says(
    utilization: float, target: float, members: int, least: int, most: int, change: int
) -> None:
    assert change_of(utilization, members, PoolSize(least, most, target)) == change


@pytest.mark.parametrize(
    ("busy", "target", "members"), [(0.0, 0.75, 0), (0.5, 0.75, 1), (3.0, 0.75, 4), (3.1, 0.75, 5), (8.4, 0.7, 12)]
)
def test_a_load_needs_the_members_that_carry_it_at_the_target(busy: float, target: float, members: int) -> None:
    assert needed_for(busy, target) == members


@pytest.mark.parametrize(
    ("seen", "obstacle"),
    [
        (QUIET, None),
        (Obstacles(0.85, 0.05), None),
        (Obstacles(0.86, 0.0), ScalingReason.DATABASE_SATURATED),
        (Obstacles(0.0, 0.051), ScalingReason.LOOP_LAGS),
        (Obstacles(0.86, 0.051, breaker_is_open=True), ScalingReason.BREAKER_OPEN),
    ],
)
def test_a_saturated_database_an_open_breaker_and_a_slow_loop_are_obstacles(
    seen: Obstacles, obstacle: ScalingReason | None
) -> None:
    assert obstacle_in(seen, 0.85) is obstacle


class Pool:
    """A pool and its scaler. Each `turn` is one decision at a second of the story."""

    def __init__(self, members: int, size: PoolSize, policy: ScalingPolicy = POLICY) -> None:
        self.members = members
        self.size = size
        self.scaler = Scaler(policy)

    def turn(
        self, at_s: int, utilization: float, throughput: float = 0.0, obstacle: ScalingReason | None = None
    ) -> tuple[int, str]:
        load = PoolLoad(utilization, throughput, obstacle)
        scaling = self.scaler.decide(self.members, self.size, load, START + 1_000 * at_s)
        self.members += scaling.change
        return scaling.change, str(scaling.reason)


def test_a_pool_grows_and_shrinks_once_in_a_cooldown() -> None:
    pool = Pool(2, PoolSize(1, 10))
    assert pool.turn(0, 1.0, 100) == (1, "busy")
    assert pool.turn(30, 1.0, 150) == (0, "cooling_down")
    assert pool.turn(60, 1.0, 150) == (1, "busy")
    assert pool.turn(119, 0.1, 10) == (0, "cooling_down")
    assert pool.turn(120, 0.1, 10) == (-1, "idle")
    assert pool.turn(150, 0.1, 10) == (0, "cooling_down")
    assert pool.turn(180, 0.1, 10) == (-1, "idle")
    assert pool.turn(240, 0.1, 10) == (-1, "idle")
    assert pool.turn(300, 0.1, 10) == (0, "at_min")


@pytest.mark.parametrize(
    "obstacle", [ScalingReason.DATABASE_SATURATED, ScalingReason.BREAKER_OPEN, ScalingReason.LOOP_LAGS]
)
def test_an_obstacle_stops_growth_and_no_reduction(obstacle: ScalingReason) -> None:
    pool = Pool(4, PoolSize(1, 10))
    assert pool.turn(0, 1.0, 100, obstacle) == (0, str(obstacle))
    assert pool.turn(30, 0.1, 10, obstacle) == (-1, "idle")


def test_a_growth_that_brought_no_throughput_is_undone_and_not_tried_for_ten_intervals() -> None:
    pool = Pool(4, PoolSize(1, 10))
    assert pool.turn(0, 1.0, 100) == (2, "busy")
    assert pool.turn(30, 1.0, 104) == (0, "cooling_down")
    assert pool.turn(60, 1.0, 104) == (-2, "growth_undone")
    assert pool.turn(90, 1.0, 104) == (0, "cooling_down")
    for interval in range(2, INTERVALS_BARRED):
        assert pool.turn(60 + 30 * interval, 1.0, 104) == (0, "no_gain")
    assert pool.turn(60 + 30 * INTERVALS_BARRED, 1.0, 104) == (2, "busy")


def test_each_further_growth_without_a_gain_is_tried_later() -> None:
    pool = Pool(4, PoolSize(1, 10))
    grown_s = [at_s for at_s in range(0, 7_200, 30) if pool.turn(at_s, 1.0, 100)[1] == "busy"]
    pauses = [after - before for before, after in pairwise(grown_s)]
    assert pauses[:4] == [60 + 300, 60 + 600, 60 + 1_200, 60 + 2_400]


@pytest.mark.parametrize(("utilization", "throughput"), [(1.0, 105), (0.72, 100), (0.94, 100)])
def test_a_growth_that_brought_throughput_or_reserve_stays(utilization: float, throughput: float) -> None:
    pool = Pool(4, PoolSize(1, 6))
    assert pool.turn(0, 1.0, 100) == (2, "busy")
    change, _ = pool.turn(60, utilization, throughput)
    assert change == 0
    assert pool.turn(90, utilization, 90)[0] == 0  # judged once, right after its cool-down


def test_a_pool_outside_its_limits_is_corrected_at_once() -> None:
    pool = Pool(3, PoolSize(1, 10))
    assert pool.turn(0, 1.0, 100) == (1, "busy")
    pool.size = PoolSize(6, 10)
    assert pool.turn(1, 0.5) == (2, "below_min")
    pool.size = PoolSize(1, 2)
    assert pool.turn(2, 1.0) == (-4, "above_max")
    assert pool.turn(90, 1.0) == (0, "at_max")


def test_workers_grow_at_once_by_a_step_and_end_one_by_one() -> None:
    policy = ScalingPolicy(
        cooldown_up_ms=0,
        cooldown_down_ms=60_000,
        growth_factor_max=float("inf"),
        growth_max=5,
        reduction_max=1,
        judges_growth=False,
    )
    pool = Pool(1, PoolSize(0, 20), policy)
    assert pool.turn(0, 40.0) == (5, "busy")
    assert pool.turn(1, 8.0) == (5, "busy")
    assert pool.turn(2, 5.0, obstacle=ScalingReason.NO_TAKER) == (0, "no_taker")
    assert pool.turn(61, 0.0) == (-1, "idle")
    assert pool.turn(62, 0.0) == (0, "cooling_down")


@given(
    offered=st.floats(0.05, 30.0),
    members=st.integers(1, 40),
    least=st.integers(1, 5),
    more=st.integers(0, 35),
    target=st.floats(0.2, 0.8),
)
def test_a_constant_load_is_met_without_turning_back(
    offered: float, members: int, least: int, more: int, target: float
) -> None:
    """A load that keeps a number of members busy: the size reaches a place where it stays, and turns at most twice."""
    size = PoolSize(least, least + more, target)
    pool = Pool(members, size)
    changes = []
    for turn in range(40):
        busy = min(offered, pool.members)
        change, _ = pool.turn(60 * turn, busy / pool.members, busy)
        changes.append(change)
        assert size.least <= pool.members <= size.most
    signs = [change > 0 for change in changes if change]
    assert sum(a != b for a, b in pairwise(signs)) <= 2
    assert changes[-5:] == [0] * 5
    is_met = min(offered, pool.members) / pool.members <= 1.2 * target
    assert is_met or pool.members == size.most


@given(st.lists(st.tuples(st.integers(0, 90), st.floats(0, 3), st.floats(0, 1_000)), max_size=40))
def test_no_change_comes_inside_a_cooldown(turns: list[tuple[int, float, float]]) -> None:
    pool, at_s, changed_s = Pool(3, PoolSize(1, 12)), 0, -1_000
    for after_s, utilization, throughput in turns:
        at_s += after_s
        change, _ = pool.turn(at_s, utilization, throughput)
        if change:
            assert at_s - changed_s >= 60
            changed_s = at_s


def test_a_decision_is_equal_for_equal_figures() -> None:
    scaler = Scaler(POLICY)
    assert scaler.decide(3, PoolSize(1, 10), PoolLoad(0.95, 10), START) == Scaling(1, ScalingReason.BUSY)
