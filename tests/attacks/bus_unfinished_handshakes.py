"""150 peers send their greeting and a first command of 8 MiB without its last byte."""

import contextlib
import socket
from typing import Any

from tests.bus.strangers import connected, greeting

from .bus_peers import hold
from .listeners import has_keys
from .target import Target

LISTENER = "tcp"
RSS_MB_MAX = 300.0
SHARE_MIN = 0.5
LENGTH = 8 * 1024 * 1024
DATA = b"\x06" + LENGTH.to_bytes(8, "big") + bytes(LENGTH - 1)


def attack(target: Target, seconds: float) -> dict[str, Any]:
    mechanism = b"CURVE" if has_keys(target) else b"NULL"

    def connect() -> socket.socket:
        peer = connected(target.ready["results"])
        with contextlib.suppress(OSError):  # ended while it sends: it is replaced
            peer.sendall(greeting(mechanism) + DATA)
        return peer

    return hold(target, seconds, 150, connect)
