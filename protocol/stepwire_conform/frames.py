"""The frames of a case, as the kit saw them, and their form for people."""

import json
from typing import Any, Final, NamedTuple

SHOWN_CHARS_MAX: Final = 400
SHOWN_MAX: Final = 30
BACKGROUND_SHOWN: Final = 6  # of the last frames, those that are shown even if they are heartbeats


# Members that a sender may leave out when they have this value.
DEFAULTS: Final[dict[str, Any]] = {"next": {}, "sessions": {}, "free": {}, "holding": [], "labels": {}, "n": 0}


class Seen(NamedTuple):
    """One frame, or a remark about the connection."""

    at_s: float
    direction: str  # "<-" from the worker, "->" to the worker, "--" a remark
    broker: str
    text: str


class Message:
    """One message of the worker. Members are read with `[...]`, or with `get` where they have a default."""

    def __init__(self, topic: str, body: dict[str, Any], raw: bytes, broker: str, at_s: float) -> None:
        self.topic = topic
        self.body = body
        self.raw = raw
        self.broker = broker  # the played broker that received it
        self.at_s = at_s
        self.is_taken = False

    @property
    def kind(self) -> str:
        return str(self.body.get("type", self.topic.rstrip()))

    def __getitem__(self, name: str) -> Any:
        return self.body[name] if name in self.body else DEFAULTS[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.body.get(name, default)

    def __repr__(self) -> str:
        return shortened(self.raw.decode(errors="replace"))


def shortened(text: str) -> str:
    if len(text) <= SHOWN_CHARS_MAX:
        return text
    half = SHOWN_CHARS_MAX // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def shown(frames: list[Seen], started_s: float) -> list[str]:
    """The last frames as lines. Repeated heartbeats and their acks are left out."""
    few = frames[-BACKGROUND_SHOWN:]
    kept = [seen for seen in frames if not _is_background(seen) or seen in few]
    lines = []
    if len(kept) > SHOWN_MAX:
        lines.append(f"… {len(kept) - SHOWN_MAX} earlier frames")
    for seen in kept[-SHOWN_MAX:]:
        lines.append(f"{seen.at_s - started_s:7.3f} {seen.direction} {seen.broker} {seen.text}")
    return lines


def _is_background(seen: Seen) -> bool:
    return '"type":"heartbeat' in seen.text or '"type": "heartbeat' in seen.text


def encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
