"""`python -m tests.attacks.many_connections --count 100000`: opens and closes connections, at most 2,000 at a time.

They send nothing, a part of a head, a probe, a request without a token or one with a token. With `--bus` they connect
to both sockets of the bus, and send nothing, a greeting, a handshake, or a handshake and a message. Exit code 1: the
broker's memory or descriptors did not return to the start.
"""

import argparse
import contextlib
import itertools
import json
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.bus import strangers

from .clients import connect, head
from .listeners import TCP
from .target import Target, running_target

OPEN_MAX = 2_000
Connect = Callable[[], socket.socket]
RSS_MB_MAX = 20.0
FILES_MAX = 8  # of connections to the database that are opened when they are needed
SETTLE_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.many_connections", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--bus", action="store_true", help="connections of the bus instead of HTTP")
    options = parser.parse_args()
    settings = TCP if options.bus else {}
    with tempfile.TemporaryDirectory(prefix="attack") as directory, running_target(Path(directory), settings) as target:
        report = run(target, options.count, of_bus(target) if options.bus else of_http(target))
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def run(target: Target, count: int, connections: Iterator[Connect]) -> dict[str, Any]:
    assert target.call("GET", "/v1/tasks", target.admin)[0] == 200
    files, rss_mb = target.files(), target.rss_mb()
    most_files, most_mb = files, rss_mb
    began_s = time.monotonic()
    open_now: deque[socket.socket] = deque()
    for number, open_one in zip(range(count), connections, strict=False):
        if len(open_now) >= OPEN_MAX:
            _close(open_now.popleft())
        with contextlib.suppress(OSError):  # the broker may end a connection at once
            open_now.append(open_one())
        if number % 1_000 == 0:
            most_files, most_mb = max(most_files, target.files()), max(most_mb, target.rss_mb())
    for connection in open_now:
        _close(connection)
    took_s = time.monotonic() - began_s
    ends_s = time.monotonic() + SETTLE_S
    after_files, after_mb = target.files(), target.rss_mb()
    while (after_files > files + FILES_MAX or after_mb > rss_mb + RSS_MB_MAX) and time.monotonic() < ends_s:
        time.sleep(0.1)
        after_files, after_mb = target.files(), target.rss_mb()
    return {
        "connections": count,
        "seconds": round(took_s, 1),
        "files": {"before": files, "most": most_files, "after": after_files},
        "rss_mb": {"before": round(rss_mb, 1), "most": round(most_mb, 1), "after": round(after_mb, 1)},
        "disconnections": target.disconnections(),
        "refusals": {limit: n for limit, n in target.refusals().items() if n},
        "ok": after_files <= files + FILES_MAX and after_mb <= rss_mb + RSS_MB_MAX,
    }


def of_http(target: Target) -> Iterator[Connect]:
    kinds = (
        b"",
        b"GET /readyz HTTP/1.1\r\nHost: local",
        head(None, "GET /livez"),
        head(None, "GET /readyz"),
        head(target.admin, "GET /v1/tasks"),
    )
    return itertools.cycle([partial(connect, target, data) for data in kinds])


def of_bus(target: Target) -> Iterator[Connect]:
    def connect_to_bus(name: str, data: bytes) -> socket.socket:
        connection = strangers.connected(target.ready[name])
        connection.sendall(data)
        connection.setblocking(False)
        return connection

    steps, results = (strangers.GREETING + strangers.ready(kind) for kind in ("SUB", "PUB"))
    kinds = (
        ("steps", b""),
        ("results", strangers.GREETING),
        ("steps", steps),
        ("results", results),
        ("steps", steps + strangers.frame(b"\x01@honest:0123456789abcdef ")),
        ("results", results + strangers.frame(b"workers {}")),
    )
    return itertools.cycle([partial(connect_to_bus, name, data) for name, data in kinds])


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.recv(4096)
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
