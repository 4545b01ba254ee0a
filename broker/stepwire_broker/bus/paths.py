"""The paths of ipc endpoints: claimed with a lock, and bound again after another process replaced the socket."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable
from typing import Final

import zmq

from .alarms import Alarms
from .endpoints import Endpoint, EndpointRefused

LISTENERS_LOST_MAX: Final = 16


class Paths:
    """The claimed paths of one wire's sockets."""

    def __init__(self, alarms: Alarms, mode: int = 0o600) -> None:
        self._alarms = alarms
        self._mode = mode
        self._claims: dict[str, _Claimed] = {}  # by path

    def claim(self, endpoint: Endpoint, bind: Callable[[], None], unbind: Callable[[], None]) -> None:
        """Take the right to bind this endpoint, if it is a path. Raises EndpointRefused.

        `bind` binds the path again when another process has replaced it.
        """
        if endpoint.path is not None:
            self._claims[endpoint.path] = _Claimed(PathClaim(endpoint), bind, unbind)

    def bound(self, endpoint: Endpoint) -> None:
        """Note that ZeroMQ has just bound the endpoint."""
        if endpoint.path is not None:
            self._claims[endpoint.path].claim.bound(self._mode)

    def check(self) -> None:
        """Bind again each path that another process has bound or removed."""
        for claimed in self._claims.values():
            if not claimed.claim.is_ours():
                self._bind_again(claimed)

    def release(self) -> None:
        for claimed in self._claims.values():
            claimed.claim.release()
        self._claims.clear()

    def _bind_again(self, claimed: "_Claimed") -> None:
        key, path = claimed.claim.key, claimed.claim.path
        # The lost listener still has its peers, so it is kept, up to a limited number of listeners.
        claimed.listeners_lost += 1
        if claimed.listeners_lost % LISTENERS_LOST_MAX == 0:
            claimed.unbind()
        try:
            claimed.bind()
        except zmq.ZMQError as error:
            self._alarms.report(f"{key}: the socket {path} is gone and cannot be bound again: {error}")
            return
        claimed.claim.bound(self._mode)
        self._alarms.report_each(
            f"{key}: another process had bound or removed {path}; it is bound again. "
            "A handler must connect to this path, not bind it"
        )


class _Claimed:
    __slots__ = ("bind", "claim", "listeners_lost", "unbind")

    def __init__(self, claim: "PathClaim", bind: Callable[[], None], unbind: Callable[[], None]) -> None:
        self.claim = claim
        self.bind = bind
        self.unbind = unbind
        self.listeners_lost = 0  # listeners whose path was replaced: they keep their peers


class PathClaim:
    """The right to serve an ipc path: a lock file next to it, and the identity of the bound socket.

    Without the lock ZeroMQ would bind a path that another broker serves, and so take it over.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Make the directory and take the lock. Raises EndpointRefused when another broker or program owns the path."""
        assert endpoint.path is not None, endpoint
        self.path = endpoint.path
        self.key = endpoint.key
        self._ours: tuple[int, int] | None = None
        _prepare_directory(self.key, os.path.dirname(self.path) or ".")
        _refuse_other_files(self.key, self.path)
        self._lock = self._take_lock()

    def _take_lock(self) -> int:
        lock_path = self.path + ".lock"
        while True:
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise EndpointRefused(f"{self.key}: {lock_path} cannot be opened: {error.strerror}") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
                os.close(lock)
                raise EndpointRefused(
                    f"{self.key}: another broker (pid {holder or 'unknown'}) serves {self.path}; "
                    f"stop it, or give this one another path"
                ) from None
            except OSError as error:
                os.close(lock)
                raise EndpointRefused(f"{self.key}: {lock_path} cannot be locked: {error.strerror}") from None
            if _identity(lock_path) == _identity_of(os.fstat(lock)):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
                return lock
            os.close(lock)  # the file was deleted between open and lock: another broker would not see this lock

    def bound(self, mode: int) -> None:
        """Set the mode of the socket that ZeroMQ has just bound at the path, and record the socket's identity."""
        with contextlib.suppress(OSError):  # another process has replaced it already: the next check binds it again
            os.chmod(self.path, mode)
        self._ours = _identity(self.path)

    def is_ours(self) -> bool:
        """True if a connection to the path still reaches this broker. A foreign bind replaces the file silently."""
        return self._ours is not None and _identity(self.path) == self._ours

    def release(self) -> None:
        """Release the lock. The socket file stays, because its removal could remove the socket of a successor."""
        os.close(self._lock)


def check_directory(key: str, directory: str) -> None:
    """Raise EndpointRefused if a start would refuse this directory of a socket. Nothing is created."""
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise EndpointRefused(f"{key}: the directory {directory} cannot be used: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise EndpointRefused(f"{key}: {directory} is not a directory")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise EndpointRefused(
            f"{key}: every user may write to {directory} and could replace the socket in it; chmod 700 {directory}"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise EndpointRefused(
            f"{key}: this user may not write to {directory}, where the socket would be; name a directory of this user"
        )


def _prepare_directory(key: str, directory: str) -> None:
    check_directory(key, directory)
    if not os.path.exists(directory):
        _make_directory(key, directory)


def _make_directory(key: str, directory: str) -> None:
    """Make the directory inside a directory of this user. Elsewhere the installation decides owner and mode."""
    parent = os.path.dirname(os.path.abspath(directory))
    try:
        is_ours = os.stat(parent).st_uid == os.geteuid()
    except OSError:
        is_ours = False
    if not is_ours:
        raise EndpointRefused(f"{key}: the directory {directory} does not exist; make it, owned by this user, mode 700")
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise EndpointRefused(
            f"{key}: the directory {directory} cannot be made: {error.strerror}; name another"
        ) from None


def _refuse_other_files(key: str, path: str) -> None:
    """Refuse a path with a file that is not a socket, because a bind deletes the file."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise EndpointRefused(f"{key}: {path} exists and is not a socket; remove it, or give another path")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        return _identity_of(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def _identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
