"""The choice of the handler for a step, and the split of credit over brokers."""

import pytest
from stepwire.session import Offer, credit, find_offer


def test_the_exact_name_wins_then_the_first_pattern():
    offers = (Offer("a::*"), Offer("**"), Offer("a::b"))
    assert [find_offer(offers, name) for name in ("a::b", "a::c", "z")] == [2, 0, 1]
    assert find_offer((Offer("a"),), "b") is None


@pytest.mark.parametrize(
    ("capacity", "loads", "idle", "free"),
    [
        (10, [3], [False], [7]),
        (10, [0, 0], [True, True], [5, 5]),
        (10, [2, 0], [False, True], [7, 1]),
        (10, [2, 7], [False, False], [3, -2]),
        (9, [0, 0, 4], [True, True, False], [1, 1, 3]),
        (1, [0, 1], [True, False], [1, -1]),
        (1, [0, 0], [True, True], [1, 0]),
    ],
)
def test_credit_is_split_in_shares_and_an_idle_broker_lends_all_but_one_place(capacity, loads, idle, free):
    claims = [credit.Claim(*pair) for pair in zip(loads, idle, strict=True)]
    assert [credit.split(capacity, claims, i, rotation=0) for i in range(len(claims))] == free


def test_with_less_capacity_than_brokers_credit_rotates():
    claims = [credit.Claim(0, True)] * 3
    turns = [[credit.split(2, claims, i, rotation) for i in range(3)] for rotation in range(3)]
    assert turns == [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
