"""A worker's session that records the messages it receives and sends: a ledger of the wire.

The session is the shipped one; only its input and output are recorded. Each message is one line, without a sync: the
page cache keeps what a killed process has written.
"""

import os
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Raw
from stepwire.actions import Action, Send
from stepwire.session import Session
from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import (
    Ack,
    Cancel,
    Go,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Refuse,
    Results,
    Start,
    StepRequest,
    Steps,
    Welcome,
)

from .ledger import Ledger

_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


class RecordedSession(Session):
    """Set `ledger` before a worker starts."""

    ledger: Ledger

    def __init__(self, config: Any, random: Any) -> None:
        super().__init__(config, random)
        self._who = {"pid": os.getpid(), "worker": config.worker}
        self._inbox_topic = topics.to_worker(config.worker)

    def receive(self, topic: bytes, body: bytes, now_ms: float) -> None:
        if topic == self._inbox_topic:
            self._received(body)
        super().receive(topic, body, now_ms)

    def actions(self, now_ms: float) -> list[Action]:
        actions = super().actions(now_ms)
        for action in actions:
            if isinstance(action, Send):
                self._sent(action.body)
        return actions

    def _received(self, body: bytes) -> None:
        try:
            message = codec.decode_broker(body)
        except InvalidMessage:
            return
        if (broker := getattr(message, "broker", None)) is not None:
            self._write("heard", broker=broker, type=type(message).__name__)
        match message:
            case Steps():
                self._write("received", batch_id=message.batch_id, items=[_given(step) for step in message.steps])
            case Go():
                self._write("go", items=message.items)
            case Cancel():
                self._write("told_to_stop", items=message.items, reason=message.reason)
            case Ack():
                self._write("results_acked", rids=message.rids)
            case Welcome() | HeartbeatAck():
                self._write("beat_heard", n=message.n)

    def _sent(self, body: bytes) -> None:
        message = codec.decode_worker(body)
        match message:
            case Hello() | Heartbeat():
                self._write("beat", n=message.n)
            case Start():
                self._write("asked_to_start", items=message.items)
            case Refuse():
                self._write("given_back", items=message.items, code=message.code)
            case Results():
                self._write("results_sent", rid=message.rid, results=[_result(each) for each in message.results])

    def _write(self, event: str, **facts: Any) -> None:
        self.ledger.write(event, **self._who, **facts)


def _given(step: StepRequest) -> tuple[int, int, int, dict[str, int]]:
    inputs = {name: crc32(_compact(output)) for name, output in _members(step.previous_results).items()}
    return step.step_id, step.delivery, step.metadata.attempt, inputs


def _result(result: Any) -> tuple[int, int, str, str | None, int, int]:
    output = _compact(result.output) if result.status == "completed" else b""
    code = None if result.error is None else result.error.code
    return result.step_id, result.delivery, result.status, code, len(output), crc32(output)


def _compact(value: Raw) -> bytes:
    """Return the value as it is stored: without white space between tokens."""
    return msgspec.json.format(bytes(value), indent=-1)
