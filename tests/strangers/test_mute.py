"""The proof of `python -m tests.strangers.mute`."""

from .account import Account
from .mute import run


def test_frames_of_a_revoked_key_have_no_effect_although_their_connection_is_open() -> None:
    account = run(Account())
    assert not account.faults, "\n".join([*account.lines, *account.faults])
