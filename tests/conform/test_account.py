"""The kit's account of a session: it never sends more than the worker's credit."""

from typing import Any, NamedTuple, cast

from stepwire_conform.account import Account
from stepwire_conform.frames import Message
from stepwire_conform.stage import Batch


class _Sent(NamedTuple):
    id: str
    items: list[tuple[int, int]]


def _batch(name: str, count: int) -> Batch:
    return cast(Batch, _Sent(name, [(i, 1) for i in range(count)]))


def _message(kind: str, **members: Any) -> Message:
    return Message("results@b1 ", {"type": kind, **members}, b"", "b1", 0.0)


def test_steps_that_no_message_has_named_yet_use_the_credit_up() -> None:
    account = Account(60)
    account.sent(_batch("batch_a", 50))
    assert account.usable == 10
    account.sent(_batch("batch_b", 10))
    assert account.usable == 0


def test_an_accept_names_the_credit_that_is_left_after_its_batch() -> None:
    account = Account(60)
    account.sent(_batch("batch_a", 50))
    account.sent(_batch("batch_b", 10))
    account.heard(_message("accept", batch_id="batch_a", free=12))
    assert account.usable == 2
    assert account.open == 60


def test_results_end_steps_and_returned_steps_are_no_longer_open() -> None:
    account = Account(60)
    account.sent(_batch("batch_a", 50))
    ended = account.heard(_message("results", batch_id="batch_a", results=[{}] * 30, n=4, free=40))
    assert ended == 30
    account.heard(_message("refuse", batch_id="batch_a", items=[[i, 1] for i in range(20)], code="busy", free=0))
    assert account.open == 0
    assert account.usable == 0


def test_a_credit_with_an_older_number_is_ignored() -> None:
    account = Account(60)
    account.heard(_message("heartbeat", n=7, free={"b1": 5}))
    account.heard(_message("results", batch_id="batch_a", results=[{}], n=6, free=400))
    assert account.usable == 5


def test_a_heartbeat_that_does_not_name_the_broker_leaves_the_credit() -> None:
    account = Account(60)
    account.heard(_message("heartbeat", n=7, free={}))
    assert account.usable == 60
