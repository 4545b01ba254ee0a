"""150 peers finish their handshake and send a frame of 8 MiB without its last byte."""

import contextlib
import socket
from typing import Any

from tests.bus.strangers import begun, shake_hands

from .bus_peers import hold
from .target import Target

LISTENER = "tcp"
RSS_MB_MAX = 300.0
SHARE_MIN = 0.5
LENGTH = 8 * 1024 * 1024
DATA = begun(LENGTH) + bytes(LENGTH - 1)


def attack(target: Target, seconds: float) -> dict[str, Any]:
    def connect() -> socket.socket:
        peer = shake_hands(target.ready["results"], "PUB")
        with contextlib.suppress(OSError):  # ended while it sends: it is replaced
            peer.sendall(DATA)
        return peer

    return hold(target, seconds, 150, connect)
