"""Station four, results: bytes of the bus become messages, or refusals that their sender hears of."""

from typing import NamedTuple

from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import ResultsLevel0, WorkerMessage


class Rejection(NamedTuple):
    """A message that was not taken, and what could be read of who sent it."""

    code: str
    message: str
    worker: str | None
    kind: str | None
    rid: int | None


class Unheard(NamedTuple):
    """A message that is ignored on purpose: of a type we do not know."""

    code: str


def read(topic: bytes, body: bytes, message_bytes_max: int) -> WorkerMessage | ResultsLevel0 | Rejection | Unheard:
    """One frame of the bus, decoded. Never raises."""
    try:
        if topic == topics.RESULTS and body and not codec.is_level1(body):
            return codec.decode_results_level0(body, message_bytes_max)
        return codec.decode_worker(body, message_bytes_max)
    except InvalidMessage as refusal:
        if refusal.code == "unknown_type":
            return Unheard(refusal.code)
        sender = codec.sender_of(body)
        return Rejection(refusal.code, refusal.message, sender.worker, sender.type, sender.rid)
