"""Four XSUB sockets send user messages into the steps socket, where a peer should only subscribe."""

import time
from collections import Counter
from typing import Any

import zmq

from .bus_peers import repeat
from .target import Target

LISTENER = "tcp"


def attack(target: Target, seconds: float) -> dict[str, Any]:
    def flood(counts: Counter[str]) -> None:
        with zmq.Context() as context, context.socket(zmq.XSUB) as peer:
            peer.linger = 0
            peer.connect(target.ready["steps"])
            ends_s = time.monotonic() + min(5.0, seconds)
            while time.monotonic() < ends_s:
                try:
                    peer.send(b"hello", zmq.NOBLOCK)
                    counts["messages"] += 1
                except zmq.Again:
                    time.sleep(0.001)

    return repeat(target, seconds, flood, threads=4)
