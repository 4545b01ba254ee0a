"""The audience of the steps socket: which peer receives which topic.

XPUB reports subscriptions and delivers only the topics that the broker grants. A worker is granted its own inbox,
`@<worker> `, exactly as subscribed. A level-0 handler subscribes all steps and is granted a `to` of its own. Every
other subscription is refused silently, and so is one that the grant of the subscriber's principal does not allow.
"""

from typing import Final

import zmq
from msgspec import Struct
from stepwire_protocol import topics
from zmq.utils.monitor import recv_monitor_message

from .alarms import Alarms
from .counters import WireCounters
from .identity import Identities, descriptor_of
from .listener import BusListener

LEVEL0_TOPICS: Final = (topics.STEPS, topics.STEPS.rstrip())

_SUBSCRIBE: Final = b"\x01"
_UNSUBSCRIBE: Final = b"\x00"


class Inbox(Struct):
    """A worker's inbox: its principal, and the number of pipes that receive it."""

    principal: str
    pipes: int = 0


class _Subscriber(Struct):
    """A connection that subscribed inboxes: which it receives, and which were refused to it."""

    receives: set[bytes] = set()
    refused: set[bytes] = set()


class _Level0Peer(Struct):
    """A connection that subscribed `steps`: its topics, and the `to` that it was granted instead."""

    topics: list[bytes]
    principal: str
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
        identities: Identities,
        listener: BusListener,
        counters: WireCounters,
        alarms: Alarms,
    ) -> None:
        """`partings` reports the descriptors of connections that ended."""
        self.inboxes: Final[dict[bytes, Inbox]] = {}  # by topic
        self.granted: Final[set[str]] = set()  # `to` of level-0 peers
        self._xpub = xpub
        self._partings = partings
        self._identities = identities
        self._listener = listener
        self._counters = counters
        self._alarms = alarms
        self._subscribers: dict[int, _Subscriber] = {}  # by descriptor of the connection
        self._inner = _Subscriber()  # all of inproc, which has no descriptors
        self._ended: dict[bytes, int] = {}  # by inbox topic: unsubscriptions due from connections that have ended
        self._peers: dict[int, _Level0Peer] = {}  # by descriptor of the connection; includes peers without a grant
        self._inproc_peers: list[_Level0Peer] = []  # the same for inproc, which has no descriptors
        self._unsubscriptions_due = 0  # still expected from connections that have ended
        self._subscribing: _Level0Peer | None = None  # the peer that `on_peer` is reporting
        self._is_peer_unsure = False

    def take(self, frame: zmq.Frame) -> int:
        """Handle one event. Returns its cost for the reader's budget of bytes: none."""
        # A descriptor may be reused: the monitor has already reported the end of the previous connection.
        self.read_partings()
        event = frame.bytes
        sign, topic = event[:1], event[1:]
        if topic in LEVEL0_TOPICS and sign in (_SUBSCRIBE, _UNSUBSCRIBE):
            descriptor = descriptor_of(frame)
            if sign == _SUBSCRIBE:
                self._on_level0_subscription(topic, descriptor, self._identities.of(frame))
            else:
                self._on_level0_unsubscription(topic, descriptor)
        elif sign == _SUBSCRIBE:
            self._on_subscription(topic, descriptor_of(frame), self._identities.of(frame))
        elif sign == _UNSUBSCRIBE:
            self._on_unsubscription(topic, descriptor_of(frame))
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
        """Remove the subscriptions of connections that ended."""
        while True:
            try:
                event = recv_monitor_message(self._partings, zmq.NOBLOCK)
            except zmq.Again:
                return
            subscriber = self._subscribers.pop(event["value"], None)
            if subscriber is not None:
                self._end(subscriber)
            peer = self._peers.pop(event["value"], None)
            if peer is not None:
                self._unsubscriptions_due += len(peer.topics)
                self._forget(peer)

    def clear(self) -> None:
        self.inboxes.clear()
        self.granted.clear()

    # -- inboxes ------------------------------------------------------------------------------------------------------

    def _on_subscription(self, topic: bytes, descriptor: int | None, principal: str) -> None:
        worker = topics.worker_of(topic)
        code = self._listener.refusal_of(topic, principal)
        if code is None and self._is_peer_unsure:
            code = "unsure_peer"  # a worker without an answer reconnects after a while
        if code is not None:
            self._counters.refused[code] += 1
            if worker is not None:
                self._subscriber(descriptor).refused.add(topic)
            return
        self._xpub.setsockopt(zmq.SUBSCRIBE, topic)
        if worker is None:
            return
        subscriber = self._subscriber(descriptor)
        if descriptor is None or topic not in subscriber.receives:
            inbox = self.inboxes.get(topic)
            if inbox is None:
                inbox = self.inboxes[topic] = Inbox(principal)
            inbox.pipes += 1
        subscriber.receives.add(topic)
        subscriber.refused.discard(topic)
        self._listener.on_subscribed(worker, principal)

    def _subscriber(self, descriptor: int | None) -> _Subscriber:
        if descriptor is None:
            return self._inner
        return self._subscribers.setdefault(descriptor, _Subscriber())

    def _on_unsubscription(self, topic: bytes, descriptor: int | None) -> None:
        """Handle an unsubscription, sent by a peer or by libzmq for a dead pipe. A dead pipe has no grant to revoke."""
        if topic == topics.BROKERS and not self._is_peer_unsure:
            self._xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
        if topics.worker_of(topic) is None:
            return
        if descriptor is None:
            self._on_end_of_pipe(topic)
            return
        subscriber = self._subscribers.get(descriptor)
        if subscriber is None:
            return
        subscriber.refused.discard(topic)
        if topic in subscriber.receives:
            subscriber.receives.remove(topic)
            if not self._is_peer_unsure:
                self._xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
            self._lose_pipe(topic)

    def _on_end_of_pipe(self, topic: bytes) -> None:
        """Handle the end of a pipe whose connection is unknown: one that the monitor has reported, or one of inproc.

        A subscription may be read after the end of its connection was reported. If one of several connections with
        this topic ended, it is taken for one without the inbox: the end of a stranger must not close a worker's inbox.
        """
        due = self._ended.get(topic, 0)
        if due:
            if due == 1:
                del self._ended[topic]
            else:
                self._ended[topic] = due - 1
            return
        if topic in self._inner.receives:
            if not self._is_peer_unsure:
                self._xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
            if self.inboxes[topic].pipes == 1:
                self._inner.receives.remove(topic)
            self._lose_pipe(topic)
            return
        for subscriber in (self._inner, *self._subscribers.values()):
            if topic in subscriber.refused:
                subscriber.refused.remove(topic)
                return
        for subscriber in self._subscribers.values():
            if topic in subscriber.receives:
                subscriber.receives.remove(topic)
                self._lose_pipe(topic)
                return

    def _end(self, subscriber: _Subscriber) -> None:
        for topic in subscriber.receives | subscriber.refused:
            self._ended[topic] = self._ended.get(topic, 0) + 1
        for topic in subscriber.receives:
            self._lose_pipe(topic)

    def _lose_pipe(self, topic: bytes) -> None:
        """A worker that reconnects may have a new pipe before libzmq detects the death of the old pipe."""
        inbox = self.inboxes[topic]
        inbox.pipes -= 1
        if not inbox.pipes:
            del self.inboxes[topic]
            worker = topics.worker_of(topic)
            assert worker is not None
            self._listener.on_vanished(worker, inbox.principal)

    def _on_user_message(self) -> None:
        self._counters.refused["user_message"] += 1
        if not self._is_peer_unsure:
            self._is_peer_unsure = True
            self._alarms.report("a peer sends messages to the steps socket; a peer should only subscribe there")

    # -- level-0 peers ------------------------------------------------------------------------------------------------

    def _on_level0_subscription(self, topic: bytes, descriptor: int | None, principal: str) -> None:
        peer = None if descriptor is None else self._peers.get(descriptor)
        if peer is not None:
            peer.topics.append(topic)  # subscribed twice, or with and without the space: still one handler
            return
        peer = _Level0Peer([topic], principal)
        code = self._listener.refusal_of(topic, principal)
        if code is None and self._is_peer_unsure:
            code = "unsure_peer"
        if code is not None:
            self._counters.refused[code] += 1
        else:
            self._report_peer(peer)
        if descriptor is None:
            self._inproc_peers.append(peer)
        else:
            self._peers[descriptor] = peer

    def _report_peer(self, peer: _Level0Peer) -> None:
        self._subscribing = peer
        try:
            self._listener.on_peer(peer.principal)
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
            self._listener.on_peer_gone(peer.to, peer.principal)
