"""Two peers subscribe 60,000 topics of 450 bytes, none of which is granted, and connect again when they are ended."""

from typing import Any

from tests.bus.strangers import frame

from .bus_peers import flooding, repeat
from .target import Target

LISTENER = "tcp"
TOPICS = b"".join(frame(b"\x01%08d" % n + b"x" * 450) for n in range(60_000))


def attack(target: Target, seconds: float) -> dict[str, Any]:
    return repeat(target, seconds, flooding(target.ready["steps"], "SUB", TOPICS))
