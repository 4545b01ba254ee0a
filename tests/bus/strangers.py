"""Hostile peers of the bus on plain sockets: they speak only as much ZMTP as an attack needs."""

import socket
import struct
from typing import Final

READ_S: Final = 5.0


def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\x00") + bytes(32)


GREETING: Final = greeting(b"NULL")


def connected(endpoint: str) -> socket.socket:
    """A connection that has sent nothing."""
    if endpoint.startswith("ipc://"):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(endpoint.removeprefix("ipc://"))
    else:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(READ_S)
    return peer


def ready(kind: str) -> bytes:
    """The READY command of a socket of this type."""
    body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode()
    return struct.pack("BB", 4, len(body)) + body


def shake_hands(endpoint: str, kind: str) -> socket.socket:
    """A connection of a peer socket of this type, for example PUB, with its handshake finished."""
    peer = connected(endpoint)
    peer.sendall(GREETING + ready(kind))
    receive(peer, len(GREETING))
    _, length = receive(peer, 2)
    receive(peer, length)
    return peer


def receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = peer.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the broker has closed the connection")
        data += part
    return data


def frame(data: bytes, *, more: bool = False) -> bytes:
    if len(data) < 256:
        return struct.pack("BB", int(more), len(data)) + data
    return struct.pack(">BQ", 2 + int(more), len(data)) + data


def begun(length: int, *, more: bool = False) -> bytes:
    """The head of a frame of `length` bytes, which the peer need not send."""
    return struct.pack(">BQ", 2 + int(more), length)


def is_closed(peer: socket.socket) -> bool:
    """True if the broker has ended the connection. Discards what the broker has sent."""
    peer.setblocking(False)
    try:
        while True:
            if not peer.recv(65_536):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        peer.settimeout(READ_S)
