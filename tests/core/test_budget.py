"""The retry budget alone."""

from itertools import pairwise

import pytest
from stepwire_broker.core.guards.retry_budget import RetryBudget

START = 7_000_000


def spend(budget: RetryBudget, mono: int, most: int = 1_000_000) -> int:
    """Start retries until there is no room left. Returns their number."""
    count = 0
    while budget.room(mono) and count < most:
        budget.started(mono)
        budget.retried(mono)
        count += 1
    return count


@pytest.mark.parametrize(
    ("starts", "retries"),
    [
        (0, 10),  # the minimum
        (30, 10),
        (99, 24),  # a fifth of all starts, including those of retries
        (400, 99),  # of 499
    ],
)
def test_retries_are_a_share_of_all_starts_and_at_least_a_few(starts: int, retries: int) -> None:
    budget = RetryBudget(20.0, 10, 60_000)
    for i in range(starts):
        budget.started(START + i)
    assert spend(budget, START + starts) == retries
    assert budget.lately(START + starts) == (starts + retries, retries)


def test_the_budget_has_room_again_when_its_retries_are_a_window_old() -> None:
    budget = RetryBudget(20.0, 10, 60_000)
    assert spend(budget, START) == 10
    mono, went = START, 0
    while mono < START + 10 * 60_000:
        mono = budget.next_change(mono)
        went += spend(budget, mono)
    assert went >= 10 * 10  # the minimum in each window: no retry starves


def test_a_retry_that_succeeds_returns_its_place_and_one_more() -> None:
    budget = RetryBudget(20.0, 10, 60_000)
    rounds = []
    for i in range(6):
        rounds.append(spend(budget, START + i))
        for _ in range(rounds[-1]):
            budget.completed(START + i)
    assert rounds[0] == 10
    assert all(after >= 2 * before for before, after in pairwise(rounds))


def test_retries_that_fail_earn_nothing() -> None:
    budget = RetryBudget(0.0, 1, 10_000)
    assert [spend(budget, START + i * 10_000) for i in range(5)] == [1] * 5


def test_the_number_of_retries_stays_if_half_of_them_succeed() -> None:
    budget = RetryBudget(0.0, 8, 60_000)
    rounds = []
    for i in range(5):
        rounds.append(spend(budget, START + i))
        for _ in range(rounds[-1] // 2):
            budget.completed(START + i)
    assert rounds == [8] * 5
