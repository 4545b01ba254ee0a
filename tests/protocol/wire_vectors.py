"""The vectors as bytes, and the way a receiver takes a message apart, from its frames to its type or its refusal."""

import base64
import json
from typing import Any

from msgspec import Struct
from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage

from .dialogue import VECTORS

BROKER = "b1"


def load(name: str) -> Any:
    vectors = json.loads((VECTORS / f"{name}.json").read_text())
    assert vectors["format"] == 1
    return vectors


def body_of(vector: dict[str, Any]) -> bytes:
    if "text" in vector:
        return str(vector["text"]).encode()
    if "base64" in vector:
        return base64.b64decode(vector["base64"])
    return b"".join(body_of(part) * part.get("times", 1) for part in vector["parts"])


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    if "frames" not in vector:
        return [vector["topic"].encode() + body_of(vector)]
    return [body_of(frame) for frame in vector["frames"] for _ in range(frame.get("times", 1))]


def read_as_broker(frames: list[bytes]) -> Struct:
    topic, body = _one(frames)
    if topic not in (topics.RESULTS, topics.WORKERS, topics.results_to(BROKER)):
        raise InvalidMessage("unknown_topic")
    if topic == topics.RESULTS and not codec.is_level1(body):
        return codec.decode_results_level0(body)
    return codec.decode_worker(body)


def read_as_worker(frames: list[bytes]) -> Struct:
    topic, body = _one(frames)
    return codec.decode_steps_level0(body) if topic == topics.STEPS else codec.decode_broker(body)


def _one(frames: list[bytes]) -> tuple[bytes, bytes]:
    if len(frames) != 1:
        raise InvalidMessage("multipart")
    return codec.split(frames[0])
