"""Four peers send results of 4 MB that no broker can read."""

from typing import Any

from tests.bus.strangers import frame

from .bus_peers import flooding, repeat
from .target import Target

LISTENER = "tcp"
RSS_MB_MAX = 300.0
SHARE_MIN = 0.5
FRAME = frame(b'results@b1 {"type":"results","v":"2.0","worker":"w:0123456789abcdef",' + b"x" * 4_000_000)


def attack(target: Target, seconds: float) -> dict[str, Any]:
    return repeat(target, seconds, flooding(target.ready["results"], "PUB", FRAME), threads=4)
