"""Results messages that are not acknowledged yet. They are kept and resent."""

from collections.abc import Iterator
from typing import Final

import msgspec
from stepwire_protocol import codec, limits, topics
from stepwire_protocol.messages import Results

from stepwire.actions import NEVER

from .brokers import BrokerPeer
from .deliveries import ResultsMessage
from .outgoing import Outgoing

decode_results: Final = msgspec.json.Decoder(Results).decode


class ResultsOutbox:
    """The unacknowledged results messages by `rid`."""

    def __init__(self, out: Outgoing) -> None:
        self.bytes = 0
        self.resend_at_ms = NEVER
        self._messages: dict[int, ResultsMessage] = {}
        self._out = out

    def __iter__(self) -> Iterator[ResultsMessage]:
        return iter(self._messages.values())

    def send(self, message: ResultsMessage) -> None:
        """Send the message, and keep it until it is acknowledged."""
        self._messages[message.rid] = message
        self.bytes += len(message.body)
        if message.at_ms < self.resend_at_ms:
            self.resend_at_ms = message.at_ms
        self._out.send(message.peer.topic, message.body)

    def remove(self, rid: int) -> ResultsMessage | None:
        message = self._messages.pop(rid, None)
        if message is not None:
            self.bytes -= len(message.body)
        return message

    def discard(self, peer: BrokerPeer) -> int:
        """Remove the messages for a broker whose database was replaced. Returns their number."""
        rids = [message.rid for message in self._messages.values() if message.peer is peer]
        for rid in rids:
            self.remove(rid)
        return len(rids)

    def resend(self, now_ms: float) -> None:
        """Resend the messages that are due, and schedule the next attempt of each."""
        at_ms = NEVER
        for message in self._messages.values():
            if message.at_ms <= now_ms:
                self._renew(message)
                message.tries += 1
                message.wait_ms = min(message.wait_ms * 2, limits.RESULTS_RETRANSMIT_MAX_MS)
                message.at_ms = now_ms + message.wait_ms
                self._out.send(message.peer.topic, message.body)
                if message.tries >= limits.RESULTS_BROADCAST_FROM_TRY:
                    # The owner may be gone, and the worker cannot know which broker owns its steps now.
                    self._out.send(topics.RESULTS, message.body)
            at_ms = min(at_ms, message.at_ms)
        self.resend_at_ms = at_ms

    def hasten(self, message: ResultsMessage, now_ms: float) -> None:
        """Send this message with the next actions."""
        message.at_ms = self.resend_at_ms = now_ms

    def hasten_all(self, peer: BrokerPeer, now_ms: float) -> None:
        """Send the messages for this broker with the next actions, because its session has just opened."""
        for message in self._messages.values():
            if message.peer is peer:
                self.hasten(message, now_ms)

    def _renew(self, message: ResultsMessage) -> None:
        """Put the current session into the message. `n` and `free` stay unchanged: an old `n` marks old credit."""
        session = message.peer.session
        if session is None or session == message.session:
            return
        results = msgspec.structs.replace(
            decode_results(message.body), session=session, deployment=message.peer.deployment or ""
        )
        self.bytes -= len(message.body)
        message.session = session
        message.body = codec.encode(results)
        self.bytes += len(message.body)
