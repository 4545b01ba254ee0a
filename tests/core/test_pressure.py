"""The saturation of a broker: the fullest resource, smoothed."""

import pytest
from stepwire_broker.core.pools.pressure import Pressure, saturation_of, smoothed


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


def test_one_slow_second_moves_the_saturation_by_its_share() -> None:
    value = smoothed(None, 0.2)
    assert value == 0.2
    assert smoothed(value, 1.2) == pytest.approx(0.5)
    for _ in range(20):
        value = smoothed(value, 1.2)
    assert value == pytest.approx(1.2, abs=0.01)
