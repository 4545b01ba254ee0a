"""3,000 connections that finish their handshake and stay silent, at a limit of 256 open files.

They take all connections that the limit leaves to the bus, so no worker can join; HTTP must answer.
"""

import socket
from typing import Any

from tests.bus.strangers import shake_hands

from .bus_peers import hold
from .target import Target

LISTENER = "tcp"
OPEN_FILES = 256


def attack(target: Target, seconds: float) -> dict[str, Any]:
    def connect() -> socket.socket:
        return shake_hands(target.ready["results"], "PUB")

    return hold(target, seconds, 3_000, connect, joins_meanwhile=False)
