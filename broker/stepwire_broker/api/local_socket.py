"""The Unix socket of the HTTP API. The kernel tells the user of each client, so this user needs no token.

A client on a TCP port cannot tell the broker from another program that has taken the port. The directory of this socket
belongs to the broker's user, so no other user can take its place.
"""

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.answers.via import Via
from stepwire_broker.errors import BrokerError

from .token import STATE_DIR, Grant, TokenError, make_state_dir

SCHEME: Final = "unix:"  # of a URL that is a path
PROBE_S: Final = 1.0
_CREDENTIALS: Final = struct.Struct("iII")  # of a peer: pid, uid, gid


class SocketUnavailable(BrokerError):
    """The Unix socket cannot be used. The message names the fault."""


class LocalSocket:
    """A listening socket. Raises SocketUnavailable, also if another broker serves the path."""

    def __init__(self, path: Path, backlog: int) -> None:
        self.url = SCHEME + quote(str(path))
        self.absolute_url = SCHEME + quote(str(path.absolute()))
        self._path = path.absolute()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.parent == STATE_DIR:
                make_state_dir()
            _remove_unused(path)
            _bind_privately(self.listener, path)
            self._file = _identity(path)
            self.listener.listen(backlog)
            self.listener.setblocking(False)
        except (OSError, TokenError, SocketUnavailable) as error:
            self.listener.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise SocketUnavailable(f"http.socket is {str(path)!r}: {reason}") from None

    def close(self) -> None:
        """Stop listening, and remove the file unless another broker has replaced it."""
        self.listener.close()
        if _identity(self._path) == self._file:
            self._path.unlink(missing_ok=True)


def grant_of(transport: Any) -> Grant | None:
    """All permissions, if the client of this connection is a process of the broker's own user on the Unix socket."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return Grant(f"uid-{uid}", frozenset({Scope.ADMIN}), via=Via.SOCKET) if uid == os.geteuid() else None


def _remove_unused(path: Path) -> None:
    """Remove the socket of a broker that was killed. Raises SocketUnavailable if a program listens on it."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketUnavailable("the file exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise SocketUnavailable("another broker listens there")


def _bind_privately(listener: socket.socket, path: Path) -> None:
    """Only the owner may connect, from the beginning."""
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
