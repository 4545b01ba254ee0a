"""Topics. A frame is a topic, one space, JSON. The constants and subscriptions of topics include that space.

Without the space, a subscription of `results@b1` would also receive the messages to `results@b10`.
"""

import re
from typing import Final

STEPS: Final = b"steps "
BROKERS: Final = b"brokers "
RESULTS: Final = b"results "
WORKERS: Final = b"workers "

WORKER_PATTERN: Final = r"[A-Za-z0-9._-]{1,48}:[0-9a-f]{16}"
BROKER_PATTERN: Final = r"[a-z0-9-]{1,32}"
SESSION_PATTERN: Final = r"[0-9]{1,16}\.[0-9]{1,16}"
HANDLER_CLASS_PATTERN: Final = r"[A-Za-z0-9_.:-]{1,128}"
CURVE_KEY_PATTERN: Final = r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}"  # Z85

_WORKER_TOPIC: Final = re.compile(rb"@(" + WORKER_PATTERN.encode() + rb") ")


def to_worker(worker: str) -> bytes:
    """The topic of this worker. No other worker subscribes to it."""
    return b"@" + worker.encode() + b" "


def results_to(broker: str) -> bytes:
    """The topic of this broker. No other broker subscribes to it. Workers send results for its steps on this topic."""
    return b"results@" + broker.encode() + b" "


def to_peer(to: str) -> bytes:
    """The first bytes of every batch to this level-0 peer. The broker narrows the peer's subscription of `steps` to
    them."""
    return STEPS + b'{"to":"%s",' % to.encode()


def worker_of(topic: bytes) -> str | None:
    """The worker that subscribes to this topic, or None if it is not the topic of a worker."""
    parts = _WORKER_TOPIC.fullmatch(topic)
    return parts[1].decode() if parts else None


def session_id(epoch: int, k: int) -> str:
    return f"{epoch}.{k}"


def session_parts(session: str) -> tuple[int, int]:
    """(epoch, k) of a session id. The codec has checked its form."""
    epoch, _, k = session.partition(".")
    return int(epoch), int(k)
