"""Topics: one frame is `topic`, one space, JSON. Every topic ends with that space and is subscribed including it.

Without the space, a subscription of `results@b1` would also receive what is meant for `results@b10`.
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

_WORKER_TOPIC: Final = re.compile(rb"@(" + WORKER_PATTERN.encode() + rb") ")


def to_worker(worker: str) -> bytes:
    """The topic that only this worker subscribes."""
    return b"@" + worker.encode() + b" "


def results_to(broker: str) -> bytes:
    """The topic that only this broker subscribes: what a worker tells the owner of its steps."""
    return b"results@" + broker.encode() + b" "


def to_peer(to: str) -> bytes:
    """The first bytes of what is for this level-0 peer. Its subscription of `steps` is narrowed to them."""
    return STEPS + b'{"to":"%s",' % to.encode()


def worker_of(topic: bytes) -> str | None:
    """The worker whose inbox this topic is, or None when it is no worker's inbox."""
    found = _WORKER_TOPIC.fullmatch(topic)
    return found[1].decode() if found else None


def session_id(epoch: int, k: int) -> str:
    return f"{epoch}.{k}"


def session_parts(session: str) -> tuple[int, int]:
    """(epoch, k). The codec has checked the form already."""
    epoch, _, k = session.partition(".")
    return int(epoch), int(k)
