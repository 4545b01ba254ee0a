"""The rows of the matrix: each attack, the ways in on which it applies, and the name under which it is refused."""

from typing import Final, NamedTuple

KEYS: Final = "keys"  # tcp with CURVE; the stranger has a key and a grant of its own
ACCOUNT: Final = "account"  # ipc; the stranger is another user of the host, with a client file of its own
OPEN: Final = "open"  # tcp without keys; the stranger is `anonymous`, the victim is on ipc
SHARED: Final = "shared"  # tcp without keys; stranger and victim are both `anonymous`: what the matrix must detect
WAYS: Final = (KEYS, ACCOUNT, OPEN)


class Row(NamedTuple):
    """One attack. `refused_as` are codes of stepwire_bus_refusals_total, or reasons of
    stepwire_bus_disconnections_total: one of them must count."""

    name: str
    refused_as: tuple[str, ...]
    ways: tuple[str, ...] = WAYS
    attack: str = ""  # of stranger.py; the name of the row, if empty
    access: str = "own"  # which key or client file the stranger has


def _joins(name: str, *refused_as: str, ways: tuple[str, ...], access: str) -> Row:
    return Row(name, refused_as, ways, "joins", access)


FORGED: Final = ("unauthorized",)
NAMED: Final = (KEYS, ACCOUNT)  # a grant with names, handlers, labels and namespaces

ROWS: Final = (
    # who may connect
    _joins("no-key", "wrong_mechanism", "unfinished_handshake", ways=(KEYS,), access="none"),
    _joins("unknown-key", "unknown_key", ways=(KEYS,), access="unknown"),
    _joins("wrong-server-key", "wrong_server_key", ways=(KEYS,), access="wrong_server"),
    _joins("unknown-user", "unknown_user", ways=(ACCOUNT,), access="none"),
    _joins("expired", "expired_key", ways=NAMED, access="expired"),
    _joins("revoked", "revoked_key", ways=NAMED, access="revoked"),
    # what a principal may say of itself
    Row("another-name", ("foreign_inbox", "unauthorized"), NAMED),
    Row("foreign-handlers", FORGED, NAMED),
    Row("foreign-labels", FORGED, NAMED),
    Row("foreign-namespaces", (), NAMED),  # the worker joins, and `why` of the step says outside_grant
    # messages of others
    Row("eavesdropping", ("foreign_inbox", "subscription")),
    Row("muting-an-inbox", ("foreign_inbox",)),
    Row("results", FORGED),
    Row("hello", FORGED),
    Row("heartbeat", FORGED),
    Row("gone", FORGED),
    Row("bye", FORGED),
    Row("refuse", FORGED),
    Row("adopted", FORGED),
    Row("level0-answers", ("wrong_sender", "level0")),
    Row("own-executors", FORGED),
    Row("tiny-messages", ("bad_field",)),
    # floods
    Row("flood-of-hellos", ("unauthorized", "rate", "refused_frames", "unread_bytes")),
    Row("flood-of-subscriptions", ("subscriptions",)),
    Row("flood-of-refused-topics", ("subscription", "refused_frames", "subscriptions", "unread_bytes")),
    Row("flood-of-user-messages", ("user_message",)),
    Row("flood-of-large-frames", ("not_json", "rate", "unread_bytes", "refused_frames", "unauthorized")),
    Row("unfinished-handshakes", ("unauthenticated", "unfinished_handshake", "bad_handshake", "wrong_mechanism")),
    Row("silent-connections", ("unauthenticated",)),
)
