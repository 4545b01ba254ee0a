"""150 peers send their greeting and a READY of 8 MiB without its last byte."""

import contextlib
import socket
from typing import Any

from tests.bus.strangers import GREETING, connected

from .bus_peers import TCP, hold
from .target import Target

SETTINGS = TCP
RSS_MB_MAX = 300.0
LENGTH = 8 * 1024 * 1024
DATA = GREETING + b"\x06" + LENGTH.to_bytes(8, "big") + bytes(LENGTH - 1)


def attack(target: Target, seconds: float) -> dict[str, Any]:
    def connect() -> socket.socket:
        peer = connected(target.ready["results"])
        with contextlib.suppress(OSError):  # ended while it sends: it is replaced
            peer.sendall(DATA)
        return peer

    return hold(target, seconds, 150, connect)
