"""Disconnect one peer of a ZeroMQ socket, which ZeroMQ itself cannot do.

libzmq owns the descriptor of a connection. A duplicate of the descriptor refers to the same connection, so ending that
ends the connection, and libzmq then closes its own descriptor as after any other loss. Other peers are unaffected. The
original descriptor is never closed here: libzmq would later close a descriptor that belongs to something else.
"""

import contextlib
import ctypes
import os
import socket
from typing import Final

_libc: Final = ctypes.CDLL(None)
_NO_ADDRESS: Final = bytes(16)  # a struct sockaddr of the family AF_UNSPEC, which is 0


def inode_of(descriptor: int) -> int | None:
    """Return the number that identifies the connection of this descriptor. None: the descriptor is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def disconnect(descriptor: int, inode: int | None) -> bool:
    """End the connection with this descriptor and inode. Return False if it has already ended.

    A closed descriptor is normal: the peer may have left. A reused descriptor has another inode and stays untouched.
    """
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return False
    if inode is None or inode_of(duplicate) != inode:
        os.close(duplicate)
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=duplicate) as connection:
        # After a shutdown libzmq would still read what the kernel holds: up to 32 MiB of a TCP connection. A connection
        # to no address ends with a reset, and the kernel discards these bytes. Unix sockets refuse it.
        if _libc.connect(duplicate, _NO_ADDRESS, len(_NO_ADDRESS)) != 0:
            with contextlib.suppress(OSError):  # the peer was faster
                connection.shutdown(socket.SHUT_RDWR)
    return True
