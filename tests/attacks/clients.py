"""Many hostile HTTP connections of one process."""

import select
import socket
import time
from collections import Counter

from .target import Target


def head(token: str | None, first: str, *lines: str) -> bytes:
    authorization = () if token is None else (f"Authorization: Bearer {token}",)
    return "\r\n".join((f"{first} HTTP/1.1", "Host: localhost", *authorization, *lines)).encode() + b"\r\n\r\n"


def submission(token: str, length: int) -> bytes:
    return head(token, "POST /v1/tasks/batch", "Content-Type: application/json", f"Content-Length: {length}")


def connect(target: Target, data: bytes = b"", *, receives_bytes: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receives_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
    connection.settimeout(10)
    connection.connect(target.address)
    connection.sendall(data)
    connection.setblocking(False)
    return connection


def keep_open(target: Target, count: int, data: list[bytes], seconds: float, *, reads: bool = True) -> dict[str, int]:
    """Keep `count` connections open, each with one of these requests. A connection that was answered or closed is
    replaced. Returns the status codes of the answers, the number of connections, and of those closed unanswered."""
    seen: Counter[str] = Counter()
    connections: dict[int, socket.socket] = {}
    poller = select.epoll()
    ends_s = time.monotonic() + seconds
    try:
        while time.monotonic() < ends_s:
            for _ in range(min(200, count - len(connections))):
                try:
                    connection = connect(target, data[seen["connections"] % len(data)])
                except OSError:
                    seen["refused"] += 1
                    continue
                seen["connections"] += 1
                connections[connection.fileno()] = connection
                poller.register(connection, select.EPOLLIN if reads else select.EPOLLHUP | select.EPOLLERR)
            for number, _ in poller.poll(0.05):
                poller.unregister(number)
                with connections.pop(number) as connection:
                    seen[_answer(connection)] += 1
        return dict(seen)
    finally:
        poller.close()
        for connection in connections.values():
            connection.close()


def _answer(connection: socket.socket) -> str:
    try:
        received = connection.recv(4096)
    except OSError:
        return "closed"
    return received.split(b" ", 2)[1].decode() if received.startswith(b"HTTP/1.1 ") else "closed"
