"""A part of `python -m tests.strangers.disconnections`, which ends thousands of connections."""

from .account import Account
from .disconnections import run

COUNT = 100
COUNT_WITH_KEYS = 30
PATIENCE = 8.0  # the machine of a test may be busy


def test_an_honest_worker_with_a_key_works_on_while_the_broker_ends_connections_of_other_keys() -> None:
    account = run(COUNT_WITH_KEYS, Account(PATIENCE), has_keys=True)
    assert not account.faults, "\n".join([*account.lines, *account.faults])


def test_an_honest_worker_works_on_while_the_broker_ends_many_connections() -> None:
    account = run(COUNT, Account(PATIENCE))
    assert not account.faults, "\n".join([*account.lines, *account.faults])
