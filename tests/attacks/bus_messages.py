"""Two peers send valid messages of their own workers as fast as they can."""

from typing import Any

from tests.bus.strangers import frame

from .bus_peers import flooding, repeat
from .target import Target

LISTENER = "tcp"
BYE = frame(b'workers {"type":"bye","v":"2.0","worker":"stranger:0123456789abcdef","n":1}') * 1_000


def attack(target: Target, seconds: float) -> dict[str, Any]:
    return repeat(target, seconds, flooding(target.ready["results"], "PUB", BYE))
