"""The audience of the steps socket: which peer receives which topic.

XPUB reports subscriptions and delivers only the topics that the broker grants. A worker is granted its own inbox,
`@<worker> `, exactly as subscribed. A level-0 handler subscribes all steps and is granted a `to` of its own. Every
other subscription is refused silently, and so is one that the grant of the subscriber's principal does not allow.
"""

from collections import Counter
from typing import Final

import zmq
from msgspec import Struct
from stepwire_protocol import topics

from stepwire_broker.core.brokers.listeners import ListenerKind

from .alarms import Alarms
from .bus_connection import BusConnection
from .connections import Connections
from .counters import WireCounters
from .identity import Identities, descriptor_of
from .listener import BusListener

LEVEL0_TOPICS: Final = (topics.STEPS, topics.STEPS.rstrip())

_SUBSCRIBE: Final = b"\x01"
_UNSUBSCRIBE: Final = b"\x00"


class Inbox(Struct):
    """A worker's inbox: its principal, and the connections that receive it, the oldest first. None: one of inproc."""

    principal: str
    readers: list[BusConnection | None] = []

    @property
    def pipes(self) -> int:
        return len(self.readers)


class _Level0Peer(Struct):
    """A connection that subscribed `steps`: its topics, and the `to` that it was granted instead."""

    topics: set[bytes]
    principal: str
    to: str | None = None


class Audience:
    """`take` handles every event of the XPUB socket, in order.

    libzmq pairs the events in its queue with their pipes by counting, and it counts user messages, too. After a user
    message a grant could go to a peer other than the subscriber, so nothing is granted until the queue is empty
    (`queue_emptied`). A peer that subscribes meanwhile is disconnected, so that it subscribes again at once.

    A grant goes to the pipe of the event that was read last, so nothing else may use the socket before the grant.
    """

    def __init__(
        self,
        xpub: zmq.Socket[bytes],
        connections: Connections,
        identities: Identities,
        listener: BusListener,
        counters: WireCounters,
        alarms: Alarms,
    ) -> None:
        self.inboxes: Final[dict[bytes, Inbox]] = {}  # by topic
        self.granted: Final[set[str]] = set()  # `to` of level-0 peers
        self._xpub = xpub
        self._connections = connections
        self._identities = identities
        self._listener = listener
        self._counters = counters
        self._alarms = alarms
        self._peers: dict[BusConnection, _Level0Peer] = {}  # includes peers without a grant
        self._inproc_peers: list[_Level0Peer] = []
        self._unsubscriptions_due: Counter[bytes] = Counter()  # still expected from connections that have ended
        self._subscribing: _Level0Peer | None = None  # the peer that `on_peer` is reporting
        self._is_peer_unsure = False

    def take(self, frame: zmq.Frame) -> int:
        """Handle one event. Returns its cost for the reader's budget of bytes: none."""
        event = frame.bytes
        sign, topic = event[:1], event[1:]
        if (
            self._is_peer_unsure
            and sign not in (_SUBSCRIBE, _UNSUBSCRIBE)
            and self._connections.has_ended("steps", frame)
        ):
            # The rest of a flood: the sooner the queue is empty, the sooner a worker can join.
            self._counters.refused["user_message"] += 1
            return 0
        # A descriptor may be reused: the monitor has already reported the end of the previous connection.
        self._connections.read_events()
        if descriptor_of(frame) is not None:
            self._take_from_connection(frame, sign, topic)
        elif sign == _SUBSCRIBE:
            self._on_subscription(topic, None, self._identities.of(frame))
        elif sign == _UNSUBSCRIBE:
            self.forget_parted()  # it may be the last event of such a connection
            self._on_nameless_unsubscription(topic)
        else:
            self._on_user_message()
        self.forget_parted()
        return 0

    def queue_emptied(self) -> None:
        self._is_peer_unsure = False
        self._connections.steps_emptied()

    def grant(self, to: str) -> None:
        """Let the peer that `on_peer` is reporting receive messages that begin with this `to`, and no others."""
        assert self._subscribing is not None, "no level-0 subscription is being reported"
        self._subscribing.to = to
        self.granted.add(to)
        self._xpub.setsockopt(zmq.SUBSCRIBE, topics.to_peer(to))

    def forget_parted(self) -> None:
        """Remove the inboxes and the level-0 peers whose connections have ended."""
        parted = self._connections.parted
        while parted:
            connection = parted.popleft()
            self._unsubscriptions_due.update(filter(_is_granted, connection.topics))
            for topic in connection.topics:
                self._leave_inbox(topic, connection)
            peer = self._peers.pop(connection, None)
            if peer is not None:
                self._forget(peer)

    def unmute(self, topic: bytes) -> None:
        """Handle a full pipe. A second reader of an inbox that does not read would keep all messages from the first.

        The older pipe ends: usually it belongs to a connection that the worker has replaced.
        """
        inbox = self.inboxes.get(topic)
        if inbox is not None and inbox.pipes > 1 and inbox.readers[0] is not None:
            self._connections.disconnect(inbox.readers[0], "muted_inbox")

    def clear(self) -> None:
        self.inboxes.clear()
        self.granted.clear()

    def _take_from_connection(self, frame: zmq.Frame, sign: bytes, topic: bytes) -> None:
        principal = self._identities.of(frame)
        connection = self._connections.of("steps", frame, principal)
        is_known = connection is not None and topic in connection.topics
        is_admitted = connection is not None and self._connections.admits_event(connection, sign, topic)
        if sign not in (_SUBSCRIBE, _UNSUBSCRIBE):
            self._on_user_message()
        elif connection is None:
            # The connection has ended, and libzmq will report the end of this subscription without its name.
            if sign == _SUBSCRIBE and _is_granted(topic):
                self._unsubscriptions_due[topic] += 1
        elif not is_admitted:
            return
        elif sign == _SUBSCRIBE:
            self._on_subscription(topic, connection, principal)
        elif is_known:
            self._on_unsubscription(topic, connection)

    def _on_user_message(self) -> None:
        self._counters.refused["user_message"] += 1
        if not self._is_peer_unsure:
            self._is_peer_unsure = True
            self._alarms.report("a peer sends messages to the steps socket; a peer should only subscribe there")

    def _refuse_unsure(self, connection: BusConnection | None) -> None:
        self._counters.refused["unsure_peer"] += 1
        if connection is not None:  # a peer on inproc without an answer reconnects after a while
            self._connections.disconnect(connection, "unsure_peer")

    # -- inboxes ------------------------------------------------------------------------------------------------------

    def _on_subscription(self, topic: bytes, connection: BusConnection | None, principal: str) -> None:
        if topic in LEVEL0_TOPICS:
            self._on_level0_subscription(topic, connection, principal)
        elif self._may_grant(topic, connection, principal):
            self._xpub.setsockopt(zmq.SUBSCRIBE, topic)
            worker = topics.worker_of(topic)
            if worker is not None:
                inbox = self.inboxes.get(topic)
                if inbox is None:
                    inbox = self.inboxes[topic] = Inbox(principal)
                if connection is None or connection not in inbox.readers:
                    inbox.readers.append(connection)
                self._listener.on_subscribed(
                    worker, principal, ListenerKind.INPROC if connection is None else connection.kind
                )

    def _may_grant(self, topic: bytes, connection: BusConnection | None, principal: str) -> bool:
        """Ask whether a subscription is allowed, and refuse it if not."""
        code = self._listener.refusal_of(topic, principal)
        if code is not None:
            self._counters.refused[code] += 1
            self._connections.refused(connection)
        elif self._is_peer_unsure:
            self._refuse_unsure(connection)
        return code is None and not self._is_peer_unsure

    def _on_unsubscription(self, topic: bytes, connection: BusConnection | None) -> None:
        """Handle an unsubscription. None: sent by a peer on inproc, or by libzmq for a dead pipe of such a peer."""
        if topic in LEVEL0_TOPICS:
            self._on_level0_unsubscription(topic, connection)
        elif _is_granted(topic) or topic == topics.BROKERS:
            if self._is_peer_unsure:
                self._refuse_unsure(connection)
            else:
                self._xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
            self._leave_inbox(topic, connection)

    def _on_nameless_unsubscription(self, topic: bytes) -> None:
        """Handle an unsubscription of a peer on inproc, or of a pipe whose connection the monitor has reported."""
        if self._unsubscriptions_due[topic] > 0:
            self._unsubscriptions_due[topic] -= 1
        else:
            self._on_unsubscription(topic, None)
        if not self._unsubscriptions_due[topic]:
            del self._unsubscriptions_due[topic]

    def _leave_inbox(self, topic: bytes, connection: BusConnection | None) -> None:
        """Remove one pipe. A worker that reconnects may have a new pipe before libzmq detects the death of the old
        pipe."""
        inbox = self.inboxes.get(topic)
        if inbox is None or connection not in inbox.readers:
            return
        inbox.readers.remove(connection)
        if not inbox.readers:
            del self.inboxes[topic]
            worker = topics.worker_of(topic)
            assert worker is not None, topic
            self._listener.on_vanished(worker, inbox.principal)

    # -- level-0 peers ------------------------------------------------------------------------------------------------

    def _on_level0_subscription(self, topic: bytes, connection: BusConnection | None, principal: str) -> None:
        peer = None if connection is None else self._peers.get(connection)
        if peer is not None:
            peer.topics.add(topic)  # subscribed twice, or with and without the space: still one handler
            return
        peer = _Level0Peer({topic}, principal)
        if self._may_grant(topic, connection, principal):
            self._report_peer(peer)
        if connection is None:
            self._inproc_peers.append(peer)
        else:
            self._peers[connection] = peer

    def _report_peer(self, peer: _Level0Peer) -> None:
        self._subscribing = peer
        try:
            self._listener.on_peer(peer.principal)
        finally:
            self._subscribing = None
        if peer.to is None:
            self._counters.refused["level0"] += 1

    def _on_level0_unsubscription(self, topic: bytes, connection: BusConnection | None) -> None:
        if connection is None:
            self._on_inproc_unsubscription(topic)
            return
        peer = self._peers.get(connection)
        if peer is None:
            return
        peer.topics.discard(topic)
        if not peer.topics:
            del self._peers[connection]
            if self._is_peer_unsure:
                self._refuse_unsure(connection)
            elif peer.to is not None:
                self._xpub.setsockopt(zmq.UNSUBSCRIBE, topics.to_peer(peer.to))
            self._forget(peer)

    def _on_inproc_unsubscription(self, topic: bytes) -> None:
        """For inproc only the topic is known, so one of several peers with the same topic cannot be identified."""
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


def _is_granted(topic: bytes) -> bool:
    """True for a topic that this module keeps books about."""
    return topic in LEVEL0_TOPICS or topics.worker_of(topic) is not None
