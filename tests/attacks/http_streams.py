"""A token with the scope `read` opens 200 event streams from the first event on, and reads none."""

import time

from stepwire_broker.core.answers.scopes import Scope

from .clients import connect, head
from .target import Target


def attack(target: Target, seconds: float) -> dict[str, int]:
    request = head(target.token("follower", Scope.READ), "GET /v1/events?after=0")
    ends_s = time.monotonic() + seconds
    opened, open_now = 0, []
    try:
        while time.monotonic() < ends_s:
            if len(open_now) >= 200:
                open_now.pop(0).close()
            open_now.append(connect(target, request, receives_bytes=4_096))
            opened += 1
            time.sleep(0.02)
    finally:
        for connection in open_now:
            connection.close()
    return {"connections": opened}
