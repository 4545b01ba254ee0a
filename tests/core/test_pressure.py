"""Back-pressure: the two formulas, and how a member answers a factor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.pools.pressure import (
    SLEEP_MAX_MS,
    MemberPace,
    Pressure,
    PressureFormula,
    factor_of,
    paced,
    saturation_of,
    smoothed,
)

LINEAR, SEED = PressureFormula.LINEAR, PressureFormula.SEED


@pytest.mark.parametrize(
    ("pressure", "saturation"),
    [
        (Pressure(0.70, 0.0, 0.0), 0.70),  # 35 of 50 connections
        (Pressure(0.2, 0.125, 0.0), 0.5),
        (Pressure(0.2, 0.05, 0.09), 0.9),
        (Pressure(0.2, 1.0, 0.0), 4.0),
    ],
)
def test_the_fullest_resource_is_the_saturation(pressure: Pressure, saturation: float) -> None:
    assert saturation_of(pressure) == pytest.approx(saturation)


@pytest.mark.parametrize(
    ("saturation", "linear", "seed"),
    [
        (0.0, 1.0, 1.0),
        (0.5, 1.0, 0.5),
        (0.70, 1.0, 0.30),
        (0.825, 0.5, 0.175),
        (0.90, 0.2, 0.1),
        (0.95, 0.0, 0.1),
        (4.0, 0.0, 0.1),
    ],
)
def test_both_formulas_follow_their_tables(saturation: float, linear: float, seed: float) -> None:
    assert factor_of(saturation, LINEAR) == pytest.approx(linear)
    assert factor_of(saturation, SEED) == pytest.approx(seed)


@given(st.floats(0, 10), st.floats(0, 10), st.sampled_from(PressureFormula))
def test_more_saturation_never_gives_a_larger_factor(one: float, other: float, formula: PressureFormula) -> None:
    less, more = sorted((one, other))
    assert 0.0 <= factor_of(more, formula) <= factor_of(less, formula) <= 1.0


def test_one_slow_second_moves_the_saturation_by_its_share() -> None:
    value = smoothed(None, 0.2)
    assert value == 0.2
    assert smoothed(value, 1.2) == pytest.approx(0.5)
    for _ in range(20):
        value = smoothed(value, 1.2)
    assert value == pytest.approx(1.2, abs=0.01)


@pytest.mark.parametrize(
    ("factor", "pace"),
    [
        (1.0, MemberPace(50, 100)),
        (0.5, MemberPace(25, 200)),
        (0.01, MemberPace(1, SLEEP_MAX_MS)),
        (0.0, MemberPace(0, SLEEP_MAX_MS)),
    ],
)
def test_a_member_under_pressure_takes_smaller_batches_and_sleeps_longer(factor: float, pace: MemberPace) -> None:
    assert paced(MemberPace(50, 100), factor) == pace


@given(st.integers(1, 10_000), st.integers(1, 60_000), st.floats(0, 1))
def test_pressure_never_speeds_a_member_up(batch_size: int, sleep_ms: int, factor: float) -> None:
    pace = paced(MemberPace(batch_size, sleep_ms), factor)
    assert pace.batch_size <= batch_size
    assert pace.sleep_ms >= sleep_ms


@pytest.mark.parametrize("factor", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_factor_outside_its_range_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        paced(MemberPace(50, 100), factor)
