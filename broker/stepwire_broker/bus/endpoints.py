"""Where the bus listens: read and check an endpoint before ZeroMQ sees it, and take its ipc path for ourselves.

ZeroMQ is too polite here: it binds an ipc path that another broker serves (and steals it), says `No such device` for
a typing error, and would gladly serve the whole internet. Every refusal names the configuration key and what to do.
"""

import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from stepwire_broker.errors import BrokerError

IPC_PATH_BYTES_MAX: Final = 107  # sockaddr_un of Linux, without its final zero
INPROC_NAME_BYTES_MAX: Final = 256
PORT_MAX: Final = 65_535

_FORMS: Final = "tcp://127.0.0.1:7411, ipc:///run/stepwire/steps.sock or inproc://steps"
_ANYWHERE: Final = {"*", "0.0.0.0", "::"}  # every interface of this host


class EndpointRefused(BrokerError):
    """An endpoint cannot be served. The message names the key, the fault and what to do."""


class Endpoint(NamedTuple):
    """A checked endpoint. `address` is what ZeroMQ binds."""

    key: str  # bus.steps or bus.results
    written: str  # as configured
    transport: Literal["tcp", "ipc", "inproc"]
    address: str
    path: str | None = None  # of ipc
    is_ipv6: bool = False


def read_endpoint(key: str, written: str, *, allow_insecure: bool = False) -> Endpoint:
    """Raises EndpointRefused. Looks up names, touches no file."""
    transport, found, rest = written.strip().partition("://")
    reader = _READERS.get(transport) if found and rest else None
    if reader is None:
        raise EndpointRefused(f"{key} is {written!r}: it needs a form like {_FORMS}")
    return reader(key, written, rest, allow_insecure)


def advertised(bound: str, host: str | None) -> str:
    """Where workers of other hosts find what is bound here. `0.0.0.0` is where one listens, and no place to go to."""
    transport, _, rest = bound.partition("://")
    if transport != "tcp":
        return bound
    listened, _, port = rest.rpartition(":")
    if host is None and listened.strip("[]") in _ANYWHERE:
        host = socket.gethostname()
    if host is None:
        return bound
    return f"tcp://[{host.strip('[]')}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _read_inproc(key: str, written: str, name: str, allow_insecure: bool) -> Endpoint:
    if len(name.encode()) > INPROC_NAME_BYTES_MAX:
        raise EndpointRefused(f"{key}: an inproc name has at most {INPROC_NAME_BYTES_MAX} bytes")
    return Endpoint(key, written, "inproc", f"inproc://{name}")


def _read_ipc(key: str, written: str, path: str, allow_insecure: bool) -> Endpoint:
    if path.startswith("@"):
        raise EndpointRefused(
            f"{key} is {written!r}: an abstract socket has no permissions, anybody on this host could connect; "
            "give a path in a private directory"
        )
    if path.endswith("/") or "\0" in path or path == "*":
        raise EndpointRefused(f"{key} is {written!r}: it needs the path of a socket file, like {_FORMS}")
    # Absolute, so that it can be told to workers that run elsewhere; as written if only that fits.
    absolute = os.path.abspath(path)
    chosen = absolute if len(os.fsencode(absolute)) <= IPC_PATH_BYTES_MAX else path
    if (size := len(os.fsencode(chosen))) > IPC_PATH_BYTES_MAX:
        raise EndpointRefused(
            f"{key}: the path {path!r} has {size} bytes, a socket's path at most {IPC_PATH_BYTES_MAX}; "
            "use a shorter one, for example under /run or $XDG_RUNTIME_DIR"
        )
    return Endpoint(key, written, "ipc", f"ipc://{chosen}", chosen)


def _read_tcp(key: str, written: str, rest: str, allow_insecure: bool) -> Endpoint:
    host, found, port_text = rest.rpartition(":")
    if not found or not host or (":" in host and not host.startswith("[")):
        raise EndpointRefused(f"{key} is {written!r}: it has no port; write tcp://HOST:PORT, like tcp://127.0.0.1:7411")
    port = 0 if port_text == "*" else int(port_text) if port_text.isascii() and port_text.isdigit() else -1
    if not 0 <= port <= PORT_MAX:
        raise EndpointRefused(
            f"{key} is {written!r}: {port_text!r} is no port; write a number from 1 to {PORT_MAX}, or *"
        )
    address, is_loopback, is_ipv6 = _resolve(key, written, host)
    if not is_loopback and not allow_insecure:
        raise EndpointRefused(
            f"{key} is {written!r}: it can be reached from other hosts, and nothing there would be encrypted or "
            "checked; listen on 127.0.0.1 or an ipc path, or set bus.allow_insecure: true if this network is yours"
        )
    return Endpoint(key, written, "tcp", f"tcp://{address}:{port or '*'}", None, is_ipv6)


def _resolve(key: str, written: str, host: str) -> tuple[str, bool, bool]:
    """(what to bind, loopback only?, IPv6 socket?). Names are looked up here: what was checked is what is bound."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare in _ANYWHERE:
        is_ipv6 = bare != "0.0.0.0" and _host_has_ipv6()
        return ("*" if bare == "*" else "[::]" if bare == "::" else bare), False, is_ipv6
    if bare in (name for _, name in socket.if_nameindex()):
        return bare, _is_loopback_interface(bare), False
    try:
        literal = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return _look_up(key, written, bare)
    loopback = literal.is_loopback or bool(getattr(literal, "ipv4_mapped", None) and literal.ipv4_mapped.is_loopback)  # type: ignore[union-attr]
    return (f"[{bare}]" if literal.version == 6 else bare), loopback, literal.version == 6


def _look_up(key: str, written: str, name: str) -> tuple[str, bool, bool]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EndpointRefused(f"{key} is {written!r}: the host {name!r} cannot be found ({error})") from None
    addresses = {str(entry[4][0]) for entry in found}
    first = min(addresses, key=lambda address: (":" in address, address))  # clients without IPv6 reach IPv4 only
    return (f"[{first}]" if ":" in first else first), ipaddress.ip_address(first).is_loopback, ":" in first


def _is_loopback_interface(name: str) -> bool:
    try:
        with open(f"/sys/class/net/{name}/flags") as file:
            return bool(int(file.read(), 16) & 0x8)  # IFF_LOOPBACK
    except (OSError, ValueError):
        return name == "lo"


def _host_has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


_READERS: Final[dict[str, Callable[[str, str, str, bool], Endpoint]]] = {
    "inproc": _read_inproc,
    "ipc": _read_ipc,
    "tcp": _read_tcp,
}


class PathClaim:
    """The right to serve an ipc path: a lock beside it, kept while we serve, and an eye on whose socket lies there."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Makes the directory, takes the lock. Raises EndpointRefused when it is not ours to take."""
        assert endpoint.path is not None, endpoint
        self.path = endpoint.path
        self._key = endpoint.key
        self._ours: tuple[int, int] | None = None
        _prepare_directory(self._key, os.path.dirname(self.path) or ".")
        _refuse_other_files(self._key, self.path)
        self._lock = self._take_lock()

    def _take_lock(self) -> int:
        lock_path = self.path + ".lock"
        while True:
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise EndpointRefused(f"{self._key}: {lock_path} cannot be opened: {error.strerror}") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
                os.close(lock)
                raise EndpointRefused(
                    f"{self._key}: another broker (pid {holder or 'unknown'}) serves {self.path}; "
                    f"stop it, or give this one another path"
                ) from None
            except OSError as error:
                os.close(lock)
                raise EndpointRefused(f"{self._key}: {lock_path} cannot be locked: {error.strerror}") from None
            if _identity(lock_path) == _identity_of(os.fstat(lock)):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
                return lock
            os.close(lock)  # somebody deleted the file between open and lock: what we locked nobody else would see

    def bound(self) -> None:
        """ZeroMQ has just bound the path: the socket that lies there is ours."""
        self._ours = _identity(self.path)

    def is_ours(self) -> bool:
        """Does a connect to the path still reach us? A foreign bind replaces the file, and no error tells anybody."""
        return self._ours is not None and _identity(self.path) == self._ours

    def release(self) -> None:
        """The socket file stays, as ZeroMQ leaves it: unlinking could hit a successor's."""
        os.close(self._lock)


def _prepare_directory(key: str, directory: str) -> None:
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        return _make_directory(key, directory)
    except OSError as error:
        raise EndpointRefused(f"{key}: the directory {directory} cannot be used: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise EndpointRefused(f"{key}: {directory} is not a directory")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise EndpointRefused(
            f"{key}: everybody may write to {directory}, and could put a socket of their own there; chmod 700 it"
        )


def _make_directory(key: str, directory: str) -> None:
    """Only inside a directory of our own: elsewhere (/run, /var) whoever installs decides owner and mode."""
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
        raise EndpointRefused(f"{key}: the directory {directory} cannot be made: {error.strerror}") from None


def _refuse_other_files(key: str, path: str) -> None:
    """Binding deletes what lies at the path: a socket is a stopped broker's, anything else is somebody's file."""
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


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
