"""The actions decided so far, and the counter `n` of the messages sent."""

from collections.abc import Iterable
from typing import Final, TypeVar

from stepwire_protocol import codec, limits, topics
from stepwire_protocol.messages import FromWorker

from stepwire.actions import Action, Log, LogLevel, Send

from .brokers import BrokerPeer

T = TypeVar("T")

V: Final = limits.PROTOCOL_LEVEL_1

SENT_MAX: Final = 128  # hellos and heartbeats whose send time is remembered: for minutes, while a lease lasts seconds


class Outgoing:
    """Collects the actions of all parts, in the order in which they were decided."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.n = 0  # the last number used
        self._sent_ms: dict[int, float] = {}  # by n
        self.actions: list[Action] = []
        self.add = self.actions.append

    def log(self, level: LogLevel, event: str, **facts: object) -> None:
        self.actions.append(Log(level, event, facts))

    def send(self, topic: bytes, body: bytes) -> None:
        self.actions.append(Send(topic, body))

    def send_to(self, peer: BrokerPeer, message: FromWorker) -> None:
        self.actions.append(Send(peer.topic, codec.encode(message)))

    def send_to_all(self, message: FromWorker) -> None:
        self.actions.append(Send(topics.WORKERS, codec.encode(message)))

    def take(self) -> list[Action]:
        """The actions decided since the last call."""
        actions = self.actions.copy()
        self.actions.clear()
        return actions

    def next_n(self) -> int:
        self.n += 1
        return self.n

    def next_timed_n(self, now_ms: float) -> int:
        """The next number, for a message that brokers echo. The lease starts at the send time of this message."""
        n = self.next_n()
        self._sent_ms[n] = now_ms
        if len(self._sent_ms) > SENT_MAX:
            del self._sent_ms[next(iter(self._sent_ms))]
        return n

    def sent_ms(self, n: int) -> float | None:
        """The send time of the hello or heartbeat with this number; None if unknown or too old."""
        return self._sent_ms.get(n)


def parts(items: list[T]) -> Iterable[list[T]]:
    """Split the items into lists that fit into one message."""
    if len(items) <= limits.BATCH_ITEMS_MAX:
        return (items,)
    return (items[i : i + limits.BATCH_ITEMS_MAX] for i in range(0, len(items), limits.BATCH_ITEMS_MAX))
