"""The session and lease that a worker must have with its broker, computed from the frames alone.

A driver does not report its lease, and the checks must not depend on what the session under test believes. So this
module follows the rules of SPEC.md, sections 7 and 8, from outside, for a world with one broker.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from stepwire.actions import Lease
from stepwire_protocol import limits, topics
from stepwire_protocol.messages import BrokerMessage, HeartbeatAck, Here, Reset, Welcome

TIMED: Final = frozenset({"hello", "heartbeat", "bye"})  # brokers echo the number of a hello or heartbeat


class Numbered(msgspec.Struct):
    """The members of a worker's message that say when its lease begins, if a broker echoes them."""

    type: str
    n: int = 0


_numbered: Final = msgspec.json.Decoder(Numbered).decode


class ObservedPeer:
    """The broker, as its worker must see it. `on_drop` is called when the session ends."""

    def __init__(self, on_drop: Callable[[], None]) -> None:
        self.session: str | None = None
        self.lease = Lease()
        self._on_drop = on_drop
        self._epoch = -1
        self._deployment: str | None = None
        self._next = 1  # the k of the current or next session
        self._n = 0  # the number of the last message sent
        self._n_after = -1  # only a welcome that echoes a later number counts
        self._lease_ms = limits.LEASE_MS
        self._sent_ms: dict[int, float] = {}

    def sent(self, body: bytes, now_ms: float) -> None:
        """The worker sends this message now."""
        message = _numbered(body)
        self._n = max(self._n, message.n)
        if message.type in TIMED:
            self._sent_ms[message.n] = now_ms

    def check(self, now_ms: float) -> None:
        """Time passes: the session ends with its lease."""
        if self.lease.until_ms and now_ms >= self.lease.until_ms:
            self._drop()

    def received(self, topic: bytes, message: BrokerMessage, now_ms: float) -> None:
        """The worker receives this message now."""
        if topic == topics.BROKERS and not isinstance(message, Here):
            return
        match message:
            case Here():
                self._on_here(message)
            case Welcome():
                self._on_welcome(message, now_ms)
            case Reset():
                if message.next == self._next and message.epoch >= self._epoch:
                    self._drop()
            case HeartbeatAck():
                if (message.session, message.epoch) == (self.session, self._epoch):
                    self._extend(message.n)
            case _:
                pass

    def _on_here(self, message: Here) -> None:
        if self._deployment not in (None, message.deployment):
            self._replace(message.deployment, message.epoch)
        elif message.epoch >= self._epoch:
            if message.epoch > self._epoch:
                self._epoch = message.epoch
                self.session = None  # the deliveries continue with the current lease
            self._deployment = message.deployment
            self._n_after = self._n

    def _on_welcome(self, message: Welcome, now_ms: float) -> None:
        epoch, k = topics.session_parts(message.session)
        sent_ms = self._sent_ms.get(message.n)
        if epoch != message.epoch or k != self._next or message.n <= self._n_after or sent_ms is None:
            return
        if self._deployment not in (None, message.deployment):
            self._replace(message.deployment, message.epoch)
            return
        if epoch < self._epoch or sent_ms + message.lease_ms * limits.LEASE_WORKER_FACTOR <= now_ms:
            return
        self._epoch, self._deployment, self._lease_ms = epoch, message.deployment, message.lease_ms
        if message.session != self.session:
            self.lease.until_ms = 0.0  # a restarted broker may have a shorter lease, which then applies
            self.session = message.session
        self._extend(message.n)

    def _extend(self, n: int) -> None:
        """A lease begins when the echoed message was sent."""
        sent_ms = self._sent_ms.get(n)
        if sent_ms is not None:
            until_ms = sent_ms + self._lease_ms * limits.LEASE_WORKER_FACTOR
            self.lease.until_ms = max(self.lease.until_ms, until_ms)

    def _replace(self, deployment: str, epoch: int) -> None:
        self._drop()
        self._deployment, self._epoch = deployment, epoch

    def _drop(self) -> None:
        self.session = None
        self.lease.until_ms = 0.0
        self._next += 1
        self._n_after = self._n
        self._on_drop()
