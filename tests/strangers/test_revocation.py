"""The proof of `python -m tests.strangers.revocation`, with longer limits."""

from .account import Account
from .revocation import run

PATIENCE = 8.0  # the machine of a test may be busy


def test_revoked_workers_and_tokens_lose_their_access_and_get_it_back() -> None:
    account = run(Account(PATIENCE))
    assert not account.faults, "\n".join([*account.lines, *account.faults])
