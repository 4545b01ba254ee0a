"""3,000 connections, half to each socket, that never send a byte."""

import itertools
import socket
from typing import Any

from tests.bus.strangers import connected

from .bus_peers import hold
from .target import Target

LISTENER = "tcp"


def attack(target: Target, seconds: float) -> dict[str, Any]:
    endpoints = itertools.cycle((target.ready["steps"], target.ready["results"]))

    def connect() -> socket.socket:
        return connected(next(endpoints))

    return hold(target, seconds, 3_000, connect)
