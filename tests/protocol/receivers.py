"""Reads the frames of a message as a broker or a worker does: returns the message or raises InvalidMessage."""

from msgspec import Struct
from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage

BROKER = "b1"


def read_as_broker(frames: list[bytes]) -> Struct:
    topic, body = _split(frames)
    if topic not in (topics.RESULTS, topics.WORKERS, topics.results_to(BROKER)):
        raise InvalidMessage("unknown_topic")
    codec.check_size(topic, body)
    if topic == topics.RESULTS and not codec.is_level1(body):
        return codec.decode_results_level0(body)
    return codec.decode_worker(body)


def read_as_worker(frames: list[bytes]) -> Struct:
    topic, body = _split(frames)
    return codec.decode_steps_level0(body) if topic == topics.STEPS else codec.decode_broker(body)


def _split(frames: list[bytes]) -> tuple[bytes, bytes]:
    if len(frames) != 1:
        raise InvalidMessage("multipart")
    return codec.split(frames[0])
