"""The messages that the played brokers send to a worker, and the steps in them."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import zmq

from .always import Item, Watch
from .broker import PlayedBroker
from .endpoints import Transport
from .frames import Message, Seen, encoded
from .keys import Gate, ServerKeys
from .setting import NAME, Setting

FRAMES_KEPT: Final = 4_000

Filter: TypeAlias = Callable[[str, bytes], Iterable[bytes]]


class PlayedSide:
    """The played brokers of one stage, and what they have sent."""

    def __init__(self, setting: Setting, transport: Transport, brokers: int, keys: ServerKeys | None) -> None:
        self.setting = setting
        self.transport = transport
        self.keys = keys
        self.frames: list[Seen] = []
        self.note_frames = True
        self.watch = Watch()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gate = None if keys is None else Gate(self.context, NAME)
        self.outgoing_filter: Filter | None = None
        self.sessions: dict[str, str] = {}  # broker -> the session that its last welcome opened
        self.brokers: list[PlayedBroker] = []
        self._step_ids = itertools.count(8_001)
        for number in range(1, brokers + 1):
            steps, results = setting.endpoints.pair(transport)
            broker = PlayedBroker(self.context, f"b{number}", steps, results, self._note, keys)
            broker.is_level0 = setting.is_level0
            self.brokers.append(broker)

    def open_brokers(self) -> None:
        for broker in self.brokers:
            if not broker.is_open:
                broker.open()

    def close_brokers(self) -> None:
        for broker in self.brokers:
            broker.close()
        if self.gate is not None:
            self.gate.close()
        self.context.destroy(linger=0)

    @property
    def broker(self) -> PlayedBroker:
        return self.brokers[0]

    @property
    def worker(self) -> str:
        assert self.watch.worker is not None, "no hello yet"
        return self.watch.worker

    def send(self, message: dict[str, Any], *, to: str | None = None, broker: PlayedBroker | None = None) -> None:
        """Send a message to the worker."""
        self.send_body(encoded(message), to=to, broker=broker)

    def send_body(
        self, body: bytes, *, topic: bytes | None = None, to: str | None = None, broker: PlayedBroker | None = None
    ) -> None:
        """Send these bytes to the worker, on its own topic unless another one is given."""
        broker = broker or self.broker
        topic = b"@" + (to or self.worker).encode() + b" " if topic is None else topic
        bodies: Iterable[bytes] = [body]
        if self.outgoing_filter is not None:
            bodies = self.outgoing_filter(broker.id, body)
        for one in bodies:
            broker.publish(topic, one, is_noted=self.note_frames)

    def welcome(self, hello: Message, broker: PlayedBroker | None = None) -> str:
        """Open the session that this hello asks for."""
        broker = broker or self.broker
        session = f"{broker.epoch}.{hello['next'][broker.id]}"
        self.sessions[broker.id] = session
        self.send(broker.welcome(hello["n"], session), to=hello["worker"], broker=broker)
        return session

    def ack_heartbeat(self, heartbeat: Message, broker: PlayedBroker | None = None, **members: Any) -> None:
        broker = broker or self.broker
        session = self.sessions[broker.id]
        ack = broker.message("heartbeat_ack", session=session, n=heartbeat["n"]) | broker.ack_members | members
        self.send(ack, to=heartbeat["worker"], broker=broker)

    def ack(self, rids: list[int], *, broker: PlayedBroker | None = None, worker: str | None = None) -> None:
        broker = broker or self.broker
        self.send(broker.message("ack", rids=rids), to=worker, broker=broker)

    def go(self, items: list[Item], *, broker: PlayedBroker | None = None) -> None:
        self.watch.granted.update(items)
        self._send_items("go", items, broker)

    def cancel(self, items: list[Item], reason: str = "task_cancelled", *, broker: PlayedBroker | None = None) -> None:
        self._send_items("cancel", items, broker, reason=reason)

    def adopt(self, items: list[Item], *, broker: PlayedBroker | None = None) -> None:
        for item in items:
            self.watch.modes.setdefault(item, "at_least_once")
        self._send_items("adopt", items, broker)

    def _send_items(self, kind: str, items: list[Item], broker: PlayedBroker | None, **members: Any) -> None:
        broker = broker or self.broker
        session = self.sessions[broker.id]
        self.send(broker.message(kind, session=session, items=[list(i) for i in items], **members), broker=broker)

    def session(self, broker: PlayedBroker | None = None) -> str:
        return self.sessions[(broker or self.broker).id]

    def step(self, handler: str, context: Any = None, **members: Any) -> dict[str, Any]:
        """A step with a new id. `members` replace its members; those of `metadata` are merged."""
        step_id = members.pop("step_id", None) or next(self._step_ids)
        metadata = {
            "attempt": 0,
            "retry_limit": 3,
            "timeout_ms": 30_000,
            "idempotency_key": f"6b1f0f6ce1b84f9f9d2a3a9b6f0c7d11/step_{step_id}",
        } | members.pop("metadata", {})
        step = {
            "step_id": step_id,
            "task_id": 6591,
            "step_name": f"step_{step_id}",
            "handler_class": handler,
            "handler_config": {},
            "task_context": {} if context is None else context,
            "previous_results": {},
            "delivery": 1,
            "delivery_mode": "at_least_once",
            "metadata": metadata,
        }
        return step | members

    def _note(self, seen: Seen) -> None:
        if len(self.frames) < FRAMES_KEPT:
            self.frames.append(seen)
