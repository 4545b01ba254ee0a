"""The kernel's counts of one connection: the bytes that arrived, were sent, and wait to be read.

libzmq does not report how much of a message has arrived, nor which connection has finished its handshake. The kernel
knows both.
"""

import fcntl
import socket
import struct
import termios
from typing import Final, NamedTuple

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_BYTES_RECEIVED_AT: Final = 128  # the offsets in struct tcp_info of linux/tcp.h, which only grows at its end
_BYTES_SENT_AT: Final = 200
_LENGTH: Final = 208
_COUNT: Final = struct.Struct("=Q")
_WAITING: Final = struct.Struct("=i")


class KernelCounts(NamedTuple):
    received: int
    sent: int


def read_counts(descriptor: int) -> KernelCounts | None:
    """Return the counts of a TCP connection. None for ipc, for a closed descriptor and for systems other than Linux."""
    if _TCP_INFO is None:
        return None
    connection = None
    try:
        # The descriptor belongs to libzmq: it is borrowed for one call, and `detach` keeps it open.
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LENGTH)
    except OSError:
        return None
    finally:
        if connection is not None:
            connection.detach()
    if len(info) < _LENGTH:
        return None
    return KernelCounts(*_COUNT.unpack_from(info, _BYTES_RECEIVED_AT), *_COUNT.unpack_from(info, _BYTES_SENT_AT))


def bytes_waiting(descriptor: int) -> int:
    """Return the number of bytes of a connection that the kernel holds and libzmq has not read yet."""
    try:
        return int(_WAITING.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_WAITING.size)))[0])
    except OSError:
        return 0


def bytes_left_at_peer(descriptor: int) -> int:
    """Return the memory of what was sent over an ipc connection and its peer has not read yet."""
    try:
        return int(_WAITING.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_WAITING.size)))[0])
    except OSError:
        return 0
