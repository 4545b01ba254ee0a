"""Back-pressure: how full the database and the loop are, and how far the members of a pool slow down for it.

The caller measures once a second. A factor of 1 is full speed, and 0 takes no new batch. Results, acks and heartbeats
are never slowed: they free what the other stages wait for.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct

COMMIT_FULL_S: Final = 0.25  # a p95 of commits at which the database counts as full
LOOP_FULL_S: Final = 0.1  # a p99 of the loop's lag at which the loop counts as full
NEWEST_SHARE: Final = 0.3  # of the newest measurement in the smoothed value
FREE_UP_TO: Final = 0.70
STOPS_AT: Final = 0.95
SEED_FACTOR_MIN: Final = 0.1
SLEEP_MAX_MS: Final = 2_000


class PressureFormula(StrEnum):
    LINEAR = "linear"  # full speed up to a saturation of 0.70, then less and less, to nothing at 0.95
    SEED = "seed"  # slower from the first connection in use, and at least a tenth of the speed


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
    """Return the saturation with the newest measurement, so that one slow commit does not slow a pool."""
    return newest if before is None else before + NEWEST_SHARE * (newest - before)


def _linear(saturation: float) -> float:
    if saturation <= FREE_UP_TO:
        return 1.0
    return max(0.0, (STOPS_AT - saturation) / (STOPS_AT - FREE_UP_TO))


def _seed(saturation: float) -> float:
    return max(1.0 - saturation, SEED_FACTOR_MIN)


FORMULAS: Final[dict[PressureFormula, Callable[[float], float]]] = {
    PressureFormula.LINEAR: _linear,
    PressureFormula.SEED: _seed,
}


def factor_of(saturation: float, formula: PressureFormula) -> float:
    """Return the factor for this saturation, from 0 to 1."""
    return min(1.0, FORMULAS[formula](saturation))


class MemberPace(Struct, frozen=True):
    """How a member works: at most `batch_size` items in a batch, and at most `sleep_ms` between two looks for work."""

    batch_size: int
    sleep_ms: int


def paced(pace: MemberPace, factor: float) -> MemberPace:
    """Return the pace under this factor: smaller batches and longer sleeps. A factor of 0 allows no batch.

    Raises ValueError for a factor outside [0, 1].
    """
    if not 0.0 <= factor <= 1.0:
        raise ValueError(f"a back-pressure factor is from 0 to 1, not {factor}")
    if factor == 0.0:
        return MemberPace(0, max(pace.sleep_ms, SLEEP_MAX_MS))
    longer_ms = int(min(pace.sleep_ms / factor, SLEEP_MAX_MS))
    return MemberPace(max(1, int(pace.batch_size * factor)), max(pace.sleep_ms, longer_ms))
