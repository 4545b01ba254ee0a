"""Seeds are divided among processes, and none is lost without a word."""

from collections.abc import Iterator, Sequence

import pytest
from conformance.jobs import outcomes


def doubled(seeds: Sequence[int]) -> Iterator[int]:
    yield from (seed * 2 for seed in seeds)


def fails_after_one(seeds: Sequence[int]) -> Iterator[int]:
    yield seeds[0]
    raise ValueError("a fault of the kit")


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_seed_has_one_outcome(jobs: int) -> None:
    assert sorted(outcomes(doubled, range(10), jobs)) == [seed * 2 for seed in range(10)]


def test_a_process_that_fails_ends_the_run_with_an_error() -> None:
    with pytest.raises(RuntimeError, match="exit code 1"):
        list(outcomes(fails_after_one, range(4), 2))
