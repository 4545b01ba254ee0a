"""Pressure: how full the database and the loop of a broker are.

The caller measures once a second.
"""

from typing import Final

from msgspec import Struct

COMMIT_FULL_S: Final = 0.25  # a p95 of commits at which the database counts as full
LOOP_FULL_S: Final = 0.1  # a p99 of the loop's lag at which the loop counts as full
NEWEST_SHARE: Final = 0.3  # of the newest measurement in the smoothed value


class Pressure(Struct, frozen=True):
    """One measurement. `connections`: in use, as a share of those configured."""

    connections: float
    commit_p95_s: float
    loop_lag_p99_s: float


def saturation_of(pressure: Pressure) -> float:
    """Return how full the fullest resource is. A saturation above 1 is possible."""
    return max(
        pressure.connections,
        pressure.commit_p95_s / COMMIT_FULL_S,
        pressure.loop_lag_p99_s / LOOP_FULL_S,
    )


def smoothed(before: float | None, newest: float) -> float:
    """Return the saturation with the newest measurement, so that one slow commit changes little."""
    return newest if before is None else before + NEWEST_SHARE * (newest - before)
