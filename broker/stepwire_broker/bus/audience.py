"""The audience of the steps socket: which peer receives which topic.

XPUB reports subscriptions and delivers only the topics that the broker grants. A worker is granted its own inbox,
`@<worker> `, exactly as subscribed. A level-0 handler subscribes all steps and is granted a `to` of its own. Every
other subscription is refused silently.
"""

from typing import Final

import zmq
from msgspec import Struct
from stepwire_protocol import topics
from zmq.utils.monitor import recv_monitor_message

from .alarms import Alarms
from .counters import WireCounters
from .listener import BusListener

LEVEL0_TOPICS: Final = (topics.STEPS, topics.STEPS.rstrip())

_SUBSCRIBE: Final = b"\x01"
_UNSUBSCRIBE: Final = b"\x00"


class _Level0Peer(Struct):
    """A connection that subscribed `steps`: its topics, and the `to` that it was granted instead of them."""

    topics: list[bytes]
    to: str | None = None


class Audience:
    """`take` handles every event of the XPUB socket, in order.

    libzmq pairs the events in its queue with their pipes by counting, and it counts user messages, too. After a user
    message a grant could go to a peer other than the subscriber, so nothing is granted until the queue is empty
    (`queue_emptied`).
    """

    def __init__(
        self,
        xpub: zmq.Socket[bytes],
        partings: zmq.Socket[bytes],
        listener: BusListener,
        counters: WireCounters,
        alarms: Alarms,
    ) -> None:
        """`partings` reports the descriptors of connections that ended."""
        self.pipes: Final[dict[bytes, int]] = {}  # inbox topic → the number of pipes that receive it
        self.granted: Final[set[str]] = set()  # `to` of level-0 peers
        self._xpub = xpub
        self._partings = partings
        self._listener = listener
        self._counters = counters
        self._alarms = alarms
        self._peers: dict[int, _Level0Peer] = {}  # by descriptor of the connection; includes peers without a grant
        self._inproc_peers: list[_Level0Peer] = []  # the same for inproc, which has no descriptors
        self._unsubscriptions_due = 0  # expected from connections that are known to be gone
        self._subscribing: _Level0Peer | None = None  # the peer that `on_peer` is reporting
        self._is_peer_unsure = False

    def take(self, frame: zmq.Frame) -> int:
        """Handle one event. Returns its cost for the reader's budget of bytes: none."""
        # A descriptor may be reused: the monitor has already reported the end of the previous connection.
        self.read_partings()
        event = frame.bytes
        sign, topic = event[:1], event[1:]
        if topic in LEVEL0_TOPICS and sign in (_SUBSCRIBE, _UNSUBSCRIBE):
            descriptor = _descriptor(frame)
            if sign == _SUBSCRIBE:
                self._on_level0_subscription(topic, descriptor)
            else:
                self._on_level0_unsubscription(topic, descriptor)
        elif sign == _SUBSCRIBE:
            self._on_subscription(topic)
        elif sign == _UNSUBSCRIBE:
            self._on_unsubscription(topic)
        else:
            self._on_user_message()
        return 0

    def queue_emptied(self) -> None:
        self._is_peer_unsure = False

    def grant(self, to: str) -> None:
        """Let the peer that `on_peer` is reporting receive messages that begin with this `to`, and no others."""
        assert self._subscribing is not None, "no level-0 subscription is being reported"
        self._subscribing.to = to
        self.granted.add(to)
        self._xpub.setsockopt(zmq.SUBSCRIBE, topics.to_peer(to))

    def read_partings(self) -> None:
        """Remove the level-0 peers whose connections ended."""
        while True:
            try:
                event = recv_monitor_message(self._partings, zmq.NOBLOCK)
            except zmq.Again:
                return
            peer = self._peers.pop(event["value"], None)
            if peer is not None:
                self._unsubscriptions_due += len(peer.topics)
                self._forget(peer)

    def clear(self) -> None:
        self.pipes.clear()
        self.granted.clear()

    # -- inboxes ------------------------------------------------------------------------------------------------------

    def _on_subscription(self, topic: bytes) -> None:
        worker = topics.worker_of(topic)
        if worker is None and topic != topics.BROKERS:
            self._counters.refused["subscription"] += 1
        elif self._is_peer_unsure:
            self._counters.refused["unsure_peer"] += 1  # a worker without an answer reconnects after a while
        else:
            self._xpub.setsockopt(zmq.SUBSCRIBE, topic)
            if worker is not None:
                self.pipes[topic] = self.pipes.get(topic, 0) + 1
                self._listener.on_subscribed(worker)

    def _on_unsubscription(self, topic: bytes) -> None:
        """Handle an unsubscription, sent by a peer or by libzmq for a dead pipe. A dead pipe has no grant to revoke."""
        worker = topics.worker_of(topic)
        if worker is None and topic != topics.BROKERS:
            return
        if not self._is_peer_unsure:
            self._xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
        if worker is None or topic not in self.pipes:
            return
        # A worker that reconnects may have a new pipe before libzmq detects the death of the old pipe.
        self.pipes[topic] -= 1
        if not self.pipes[topic]:
            del self.pipes[topic]
            self._listener.on_vanished(worker)

    def _on_user_message(self) -> None:
        self._counters.refused["user_message"] += 1
        if not self._is_peer_unsure:
            self._is_peer_unsure = True
            self._alarms.report("a peer sends messages to the steps socket; a peer should only subscribe there")

    # -- level-0 peers ------------------------------------------------------------------------------------------------

    def _on_level0_subscription(self, topic: bytes, descriptor: int | None) -> None:
        peer = None if descriptor is None else self._peers.get(descriptor)
        if peer is not None:
            peer.topics.append(topic)  # subscribed twice, or with and without the space: still one handler
            return
        peer = _Level0Peer([topic])
        if self._is_peer_unsure:
            self._counters.refused["unsure_peer"] += 1
        else:
            self._report_peer(peer)
        if descriptor is None:
            self._inproc_peers.append(peer)
        else:
            self._peers[descriptor] = peer

    def _report_peer(self, peer: _Level0Peer) -> None:
        self._subscribing = peer
        try:
            self._listener.on_peer()
        finally:
            self._subscribing = None
        if peer.to is None:
            self._counters.refused["level0"] += 1

    def _on_level0_unsubscription(self, topic: bytes, descriptor: int | None) -> None:
        if descriptor is None:
            self._on_unsubscription_of_gone_pipe(topic)
            return
        peer = self._peers.get(descriptor)
        if peer is None:
            return
        if topic in peer.topics:
            peer.topics.remove(topic)
        if not peer.topics:
            del self._peers[descriptor]
            if peer.to is not None and not self._is_peer_unsure:
                self._xpub.setsockopt(zmq.UNSUBSCRIBE, topics.to_peer(peer.to))
            self._forget(peer)

    def _on_unsubscription_of_gone_pipe(self, topic: bytes) -> None:
        """Handle an unsubscription whose connection the monitor has already reported. For inproc only the topic is
        known, so one of several peers with the same topic cannot be identified."""
        if self._unsubscriptions_due:
            self._unsubscriptions_due -= 1
            return
        peers = [peer for peer in self._inproc_peers if topic in peer.topics]
        if len(peers) == 1:
            self._inproc_peers.remove(peers[0])
            self._forget(peers[0])
        elif self.granted:
            self._listener.on_peers_uncertain()

    def _forget(self, peer: _Level0Peer) -> None:
        if peer.to is not None and peer.to in self.granted:
            self.granted.remove(peer.to)
            self._listener.on_peer_gone(peer.to)


def _descriptor(frame: zmq.Frame) -> int | None:
    """Return the descriptor of a subscription event's connection. None: the connection is gone, or is inproc."""
    try:
        descriptor = int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
    return descriptor if descriptor >= 0 else None
