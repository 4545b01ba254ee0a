"""The counters of the bus, as the metrics show them."""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

DROPPED = ("full", "no_receiver")
REFUSED = (
    "multipart",
    "level0",
    "subscription",
    "foreign_inbox",
    "unauthorized",
    "user_message",
    "unsure_peer",
    "rate",
    "wrong_mechanism",
    "wrong_server_key",
    "bad_handshake",
    "unfinished_handshake",
)
DISCONNECTED = (
    "connections",
    "unauthenticated",
    "subscriptions",
    "user_message",
    "unsure_peer",
    "muted_inbox",
    "refused_frames",
    "rate",
    "unread_bytes",
    "blocked",
    "revoked",
)


class WireCounters(Struct):
    """Counts of passed messages, and of refused or dropped messages by reason. Every reason exists from the start."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPPED, 0))
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSED, 0))
    connections_refused: Mapping[str, int] = {}  # by reason; the authenticator counts them
    disconnected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DISCONNECTED, 0))
    recent_disconnections: Callable[[], dict[str, dict[str, int]]] = dict  # of ten minutes, by principal and reason
    connections: dict[str, int] = field(default_factory=lambda: {"steps": 0, "results": 0})  # open now
