"""Two peers send hellos of new workers without end, every tenth with 3.5 MB of labels."""

import contextlib
import json
import os
from collections import Counter
from typing import Any

from tests.bus.strangers import frame, shake_hands

from .bus_peers import repeat
from .target import Target

LISTENER = "tcp"
LARGE = {f"label{n}": "x" * 250 for n in range(13_000)}


def attack(target: Target, seconds: float) -> dict[str, Any]:
    def flood(counts: Counter[str]) -> None:
        with shake_hands(target.ready["results"], "PUB") as peer:
            counts["connections"] += 1
            with contextlib.suppress(OSError):
                for n in range(100_000):
                    peer.sendall(frame(b"workers " + _hello(LARGE if n % 10 == 0 else {})))
                    counts["hellos"] += 1

    return repeat(target, seconds, flood)


def _hello(labels: dict[str, str]) -> bytes:
    worker = f"stranger:{os.urandom(8).hex()}"
    members = {"type": "hello", "v": "2.0", "worker": worker, "n": 1, "versions": ["2.0"], "next": {"b1": 1}}
    return json.dumps(members | {"handlers": ["h"], "slots": 1, "labels": labels}).encode()
