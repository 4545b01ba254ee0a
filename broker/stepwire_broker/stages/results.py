"""Station four, results: turn bytes of the bus into events, even if the bytes cannot be decoded."""

from typing import Final

from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import ResultsLevel0, WorkerMessage

from stepwire_broker.core.model.events import MessageIgnored, MessageRefused

PEEKED_BYTES: Final = 4_096  # of a message that is too large to parse


def read(
    topic: bytes, body: bytes, message_bytes_max: int
) -> WorkerMessage | ResultsLevel0 | MessageRefused | MessageIgnored:
    """Decode one frame of the bus. Never raises."""
    try:
        codec.check_size(topic, body, message_bytes_max)
        if topic == topics.RESULTS and body and not codec.is_level1(body):
            return codec.decode_results_level0(body, message_bytes_max)
        return codec.decode_worker(body, message_bytes_max)
    except InvalidMessage as refusal:
        if refusal.code == "unknown_type":
            return MessageIgnored(refusal.code)
        sender = codec.sender_of(body[:PEEKED_BYTES] if refusal.code == "too_large" else body)
        return MessageRefused(topic, refusal.code, refusal.message, sender.worker, sender.type, sender.rid)
