"""Health: verdicts of windows, states of members, and the rules for the whole."""

import pytest
from stepwire_broker.core.pools.health import (
    SAMPLES_MIN,
    SAMPLES_WINDOW_MS,
    SILENT_MS,
    Consumption,
    HealthState,
    MemberHealth,
    PoolHealth,
    Samples,
    pool_health,
    system_health,
    verdict_of,
)

START = 9_000_000


@pytest.mark.parametrize(
    ("silent_ms", "batches", "failed", "took_ms", "state"),
    [
        (0, 0, 0, 0, "healthy"),
        (30_000, 100, 0, 10, "healthy"),
        (30_001, 100, 0, 10, "unhealthy"),
        (0, 4, 4, 60_000, "healthy"),  # too few to tell
        (0, 10, 1, 10, "healthy"),
        (0, 9, 1, 10, "degraded"),
        (0, 5, 0, 5_000, "healthy"),
        (0, 5, 0, 5_001, "degraded"),
    ],
)
def test_a_window_is_judged_by_silence_then_failures_then_slowness(
    silent_ms: int, batches: int, failed: int, took_ms: int, state: str
) -> None:
    samples = Samples()
    for number in range(batches):
        samples.add(took_ms, START, has_failed=number < failed)
    assert verdict_of(silent_ms, samples, START).state == state


class Member:
    """A member. `+`: a good window, `s`: one with slow batches, `-`: a silent one."""

    def __init__(self) -> None:
        self.mono = START
        self.health = MemberHealth(START)

    def run(self, windows: str) -> str:
        for window in windows:
            self.mono += SILENT_MS + 1 if window == "-" else SAMPLES_WINDOW_MS + 1
            if window != "-":
                self.health.heartbeat(self.mono)
                for _ in range(SAMPLES_MIN):
                    self.health.samples.add(6_000 if window == "s" else 1, self.mono)
            self.health.check(self.mono)
        return str(self.health.state)


@pytest.mark.parametrize(
    ("windows", "state"),
    [
        ("", "starting"),
        ("+", "healthy"),
        ("+s", "healthy"),
        ("+ss", "degraded"),
        ("+s+s+s", "healthy"),
        ("+--", "unhealthy"),
        ("+-s", "degraded"),  # the better of two bad windows
        ("+ss+", "degraded"),
        ("+ss++", "degraded"),
        ("+ss+++", "healthy"),
        ("+ss++s++", "degraded"),
        ("+--ss+", "degraded"),  # three better windows, the worst of them slow
        ("+--+++", "healthy"),
        ("+ss-+-+-+", "degraded"),
    ],
)
def test_a_member_gets_worse_after_two_windows_and_better_after_three(windows: str, state: str) -> None:
    assert Member().run(windows) == state


def test_a_member_that_never_starts_is_unhealthy() -> None:
    health = MemberHealth(START)
    assert not health.check(START + 30_000)
    assert str(health.state) == "starting"
    assert health.check(START + 30_001)
    assert str(health.state) == "unhealthy"


def test_a_member_that_stops_is_judged_no_longer() -> None:
    member = Member()
    member.run("+")
    member.health.stopping(member.mono)
    assert member.run("----") == "stopping"
    member.health.stopped(member.mono)
    assert member.run("++++") == "stopped"


def test_samples_are_forgotten_after_five_minutes() -> None:
    samples = Samples()
    for _ in range(10):
        samples.add(9_000, START, has_failed=True)
    assert samples.error_share(START + 200_000) == 1.0
    assert samples.batches(START + 300_001) == 0
    assert samples.mean_ms(START + 300_001) == 0.0


@pytest.mark.parametrize(
    ("pools", "not_consuming_ms", "state"),
    [
        ([], 0, "starting"),
        ([PoolHealth(0, 0), PoolHealth(0, 0)], 0, "starting"),
        ([PoolHealth(3, 0), PoolHealth(5, 0)], 0, "healthy"),
        ([PoolHealth(3, 0), PoolHealth(5, 1)], 0, "degraded"),  # 8 of 9
        ([PoolHealth(9, 1), PoolHealth(9, 0)], 0, "healthy"),
        ([PoolHealth(19, 0), PoolHealth(0, 1)], 0, "degraded"),  # a pool without a healthy member
        ([PoolHealth(1, 1), PoolHealth(1, 1)], 0, "degraded"),  # half
        ([PoolHealth(1, 2), PoolHealth(1, 1)], 0, "unhealthy"),
        ([PoolHealth(3, 0), PoolHealth(0, 0)], 0, "healthy"),
        ([PoolHealth(3, 0)], 30_000, "healthy"),
        ([PoolHealth(3, 0)], 30_001, "degraded"),
    ],
)
def test_the_whole_is_judged_by_the_share_of_healthy_members(
    pools: list[PoolHealth], not_consuming_ms: int, state: str
) -> None:
    named = [(f"pool{number}", pool) for number, pool in enumerate(pools)]
    assert system_health(named, not_consuming_ms).state == state


def test_a_degraded_whole_names_its_reason() -> None:
    assert "claims" in system_health([("results", PoolHealth(19, 0)), ("claims", PoolHealth(0, 1))]).reason
    assert "not consuming" in system_health([("results", PoolHealth(1, 0))], 45_000).reason


def test_members_that_start_or_stop_are_not_counted() -> None:
    states = [HealthState(word) for word in ("starting", "healthy", "degraded", "unhealthy", "stopping", "stopped")]
    assert pool_health(states) == PoolHealth(healthy=1, unhealthy=2)


def test_steps_that_workers_could_take_are_noticed_if_none_is_dispatched() -> None:
    seen = Consumption()
    assert seen.look(10, START, could_dispatch=True) == 0
    assert seen.look(10, START + 31_000, could_dispatch=True) == 31_000
    assert seen.look(11, START + 32_000, could_dispatch=True) == 0
    assert seen.look(11, START + 60_000, could_dispatch=True) == 28_000
    assert seen.look(11, START + 61_000, could_dispatch=False) == 0
    assert seen.look(11, START + 62_000, could_dispatch=True) == 0
