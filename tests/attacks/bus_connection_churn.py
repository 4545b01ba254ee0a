"""Connections to both sockets that finish their handshake and leave at once, about 100,000 in 30 s."""

import itertools
from collections import Counter
from typing import Any

from tests.bus.strangers import shake_hands

from .bus_peers import repeat
from .target import Target

LISTENER = "tcp"


def attack(target: Target, seconds: float) -> dict[str, Any]:
    kinds = itertools.cycle((("steps", "SUB"), ("results", "PUB")))

    def churn(counts: Counter[str]) -> None:
        name, kind = next(kinds)
        shake_hands(target.ready[name], kind).close()
        counts["connections"] += 1

    return repeat(target, seconds, churn, threads=4)
