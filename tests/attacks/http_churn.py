"""Without a token: connections that are opened and closed, at most 2,000 at a time."""

import socket
import time

from .clients import connect, head
from .target import Target

OPEN_MAX = 2_000
RSS_MB_MAX = 60.0


def attack(target: Target, seconds: float) -> dict[str, int]:
    request = head(None, "GET /readyz")
    ends_s = time.monotonic() + seconds
    opened = 0
    open_now: list[socket.socket] = []
    while time.monotonic() < ends_s:
        for _ in range(min(200, OPEN_MAX - len(open_now))):
            open_now.append(connect(target, request if opened % 2 else b""))
            opened += 1
        if len(open_now) >= OPEN_MAX:
            for connection in open_now[:200]:
                connection.close()
            del open_now[:200]
    for connection in open_now:
        connection.close()
    return {"connections": opened}
