"""A part of the strangers' matrix; `python -m tests.strangers` runs all of it."""

import os

import pytest

from .__main__ import chosen, judge
from .rows import ACCOUNT, KEYS, OPEN, ROWS, SHARED, WAYS
from .stranger import ATTACKS

HELD = (
    (KEYS, "results"),
    (KEYS, "eavesdropping"),
    (KEYS, "revoked"),
    (ACCOUNT, "hello"),
    (ACCOUNT, "unknown-user"),
    (OPEN, "own-executors"),
    (OPEN, "level0-answers"),
)


@pytest.mark.parametrize(("way", "name"), HELD)
def test_a_stranger_learns_and_changes_nothing(way: str, name: str) -> None:
    if way == ACCOUNT and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    [(row, _)] = chosen([way], [name])
    verdict = judge(row, way)
    assert not verdict.achieved, verdict


@pytest.mark.parametrize("name", ["results", "refuse"])
def test_the_matrix_notices_a_stranger_that_succeeds(name: str) -> None:
    """Over tcp without keys, worker and stranger are the same principal."""
    [(row, _)] = chosen([SHARED], [name])
    assert any("a step of shop" in text for text in judge(row, SHARED).achieved)


def test_every_row_has_an_attack_and_every_attack_a_row() -> None:
    assert {row.attack or row.name for row in ROWS} == ATTACKS.keys()
    assert len({row.name for row in ROWS}) == len(ROWS) >= 26
    assert all(row.ways and set(row.ways) <= set(WAYS) for row in ROWS)
