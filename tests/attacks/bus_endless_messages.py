"""Four peers send one message of many parts that never ends."""

from typing import Any

from tests.bus.strangers import frame

from .bus_peers import flooding, repeat
from .target import Target

LISTENER = "tcp"
RSS_MB_MAX = 300.0
SHARE_MIN = 0.5
PART = frame(b"workers " + bytes(100_000), more=True)


def attack(target: Target, seconds: float) -> dict[str, Any]:
    return repeat(target, seconds, flooding(target.ready["results"], "PUB", PART), threads=4)
