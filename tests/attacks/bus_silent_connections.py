"""3,000 connections, half to each socket, that never send a byte."""

import itertools
import socket
from typing import Any

from tests.bus.strangers import connected

from .bus_peers import hold
from .listeners import TCP
from .target import Target

SETTINGS = TCP


def attack(target: Target, seconds: float) -> dict[str, Any]:
    endpoints = itertools.cycle((target.ready["steps"], target.ready["results"]))

    def connect() -> socket.socket:
        return connected(next(endpoints))

    return hold(target, seconds, 3_000, connect)
