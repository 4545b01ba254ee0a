"""The brokers that this worker knows."""

from collections.abc import Iterator

from stepwire_protocol import limits, topics

from stepwire.actions import Lease

from .promises import Promises


class BrokerPeer:
    """The worker's knowledge of one broker: the session, the lease, and the broker's share of the load."""

    __slots__ = (
        "answered_ms",
        "bytes_max",
        "deployment",
        "drop_wait_ms",
        "epoch",
        "floor",
        "heartbeat_ms",
        "id",
        "is_held_back",
        "is_quiet",
        "lease",
        "lease_ms",
        "load",
        "n_after",
        "next",
        "opened_ms",
        "promises",
        "session",
        "steps_ms",
        "topic",
    )

    def __init__(self, id: str, now_ms: float, next: int = 1) -> None:
        self.id = id
        self.topic = topics.results_to(id)
        self.next = next  # the k of the current or next session; increases when a session is dropped
        self.epoch = -1
        self.session: str | None = None
        self.deployment: str | None = None
        self.n_after = -1  # only a welcome that echoes a later n counts
        self.lease = Lease()
        self.lease_ms = limits.LEASE_MS
        self.heartbeat_ms = limits.HEARTBEAT_MS
        self.bytes_max = limits.MESSAGE_BYTES_MAX
        self.floor = -1  # unknown batches of this session up to this number are stale
        self.load = 0  # deliveries of this broker that need a slot or have one
        self.answered_ms = now_ms  # the time of the broker's last answer to a hello or heartbeat
        self.steps_ms = float("-inf")  # the time of the broker's last steps
        self.opened_ms = now_ms  # the time at which the latest session opened
        self.drop_wait_ms = 0.0  # the pause before the hello after the next drop
        self.promises = Promises()
        self.is_held_back = False  # its latest credit is smaller than its share, because of promises to other brokers
        self.is_quiet = False  # `quiet` of the last heartbeat_ack: the broker sends no new steps


class Brokers:
    """The known brokers by id."""

    def __init__(self) -> None:
        self._peers: dict[str, BrokerPeer] = {}
        self._next_of: dict[str, int] = {}  # of forgotten brokers: no number is used twice

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[BrokerPeer]:
        return iter(self._peers.values())

    def __contains__(self, broker: str) -> bool:
        return broker in self._peers

    def get(self, broker: str) -> BrokerPeer | None:
        return self._peers.get(broker)

    def get_or_add(self, broker: str, now_ms: float) -> BrokerPeer:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = BrokerPeer(broker, now_ms, self._next_of.pop(broker, 1))
        return peer

    def forget(self, peer: BrokerPeer) -> None:
        """Forget a broker that has no session and owns nothing here."""
        del self._peers[peer.id]
        self._next_of[peer.id] = peer.next

    def next_numbers(self) -> dict[str, int]:
        """The member `next` of hello and heartbeat."""
        return {peer.id: peer.next for peer in self}

    def sessions(self) -> dict[str, str]:
        """The member `sessions` of hello and heartbeat."""
        return {peer.id: peer.session for peer in self if peer.session}
