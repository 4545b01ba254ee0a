"""The endpoints of the bus, read and checked before ZeroMQ gets them.

ZeroMQ itself would report `No such device` for a typing error, and would serve the whole internet. Every refusal names
the configuration key and the remedy.
"""

import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from stepwire_broker.errors import BrokerError

IPC_PATH_BYTES_MAX: Final = 107  # sockaddr_un of Linux, without the final zero
INPROC_NAME_BYTES_MAX: Final = 256
PORT_MAX: Final = 65_535

_FORMS: Final = "tcp://127.0.0.1:7411, ipc:///run/stepwire/steps.sock or inproc://steps"
_ANYWHERE: Final = {"*", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound


class EndpointRefused(BrokerError):
    """An endpoint cannot be served. The message names the key, the fault and the remedy."""


class Endpoint(NamedTuple):
    """A checked endpoint. ZeroMQ binds `address`."""

    key: str  # bus.steps or bus.results
    written: str  # as configured
    transport: Literal["tcp", "ipc", "inproc"]
    address: str
    path: str | None = None  # of ipc
    is_ipv6: bool = False
    is_loopback: bool = True  # only processes of this host can connect
    has_curve: bool = False

    @property
    def is_open(self) -> bool:
        """True if a connection proves no identity."""
        return self.transport == "tcp" and not self.has_curve


class Protection(NamedTuple):
    """The settings that decide which endpoints may be served."""

    allow_insecure: bool = False
    has_curve: bool = False
    is_strict: bool = False


UNPROTECTED: Final = Protection()


def read_endpoint(key: str, written: str, protection: Protection = UNPROTECTED) -> Endpoint:
    """Check an endpoint. Raises EndpointRefused. Resolves host names, touches no file."""
    transport, separator, rest = written.strip().partition("://")
    reader = _READERS.get(transport) if separator and rest else None
    if reader is None:
        raise EndpointRefused(f"{key} is {written!r}: it needs a form like {_FORMS}")
    return reader(key, written, rest, protection)


def advertised(bound: str, host: str | None) -> str:
    """Return the endpoint for workers of other hosts. `0.0.0.0` is an address to listen on, not to connect to."""
    transport, _, rest = bound.partition("://")
    if transport != "tcp":
        return bound
    listened, _, port = rest.rpartition(":")
    if host is None and listened.strip("[]") in _ANYWHERE:
        host = socket.gethostname()
    if host is None:
        return bound
    return f"tcp://[{host.strip('[]')}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _read_inproc(key: str, written: str, name: str, protection: Protection) -> Endpoint:
    if len(name.encode()) > INPROC_NAME_BYTES_MAX:
        raise EndpointRefused(f"{key}: an inproc name has at most {INPROC_NAME_BYTES_MAX} bytes")
    return Endpoint(key, written, "inproc", f"inproc://{name}")


def _read_ipc(key: str, written: str, path: str, protection: Protection) -> Endpoint:
    if path.startswith("@"):
        raise EndpointRefused(
            f"{key} is {written!r}: an abstract socket has no permissions: every process on this host could connect; "
            "give a path in a private directory"
        )
    if path.endswith("/") or "\0" in path or path == "*":
        raise EndpointRefused(f"{key} is {written!r}: it needs the path of a socket file, like {_FORMS}")
    # The absolute path works for workers in any working directory. If it is too long, the written path may fit.
    absolute = os.path.abspath(path)
    chosen = absolute if len(os.fsencode(absolute)) <= IPC_PATH_BYTES_MAX else path
    if (size := len(os.fsencode(chosen))) > IPC_PATH_BYTES_MAX:
        raise EndpointRefused(
            f"{key}: the path {path!r} has {size} bytes; at most {IPC_PATH_BYTES_MAX} are allowed; "
            "use a shorter one, for example under /run or $XDG_RUNTIME_DIR"
        )
    return Endpoint(key, written, "ipc", f"ipc://{chosen}", chosen)


def _read_tcp(key: str, written: str, rest: str, protection: Protection) -> Endpoint:
    host, colon, port_text = rest.rpartition(":")
    if not colon or not host or (":" in host and not host.startswith("[")):
        raise EndpointRefused(f"{key} is {written!r}: it has no port; write tcp://HOST:PORT, like tcp://127.0.0.1:7411")
    port = 0 if port_text == "*" else int(port_text) if port_text.isascii() and port_text.isdigit() else -1
    if not 0 <= port <= PORT_MAX:
        raise EndpointRefused(
            f"{key} is {written!r}: {port_text!r} is no port; write a number from 1 to {PORT_MAX}, or *"
        )
    address, is_loopback, is_ipv6 = _resolve(key, written, host)
    if not protection.has_curve:
        _refuse_open(key, written, is_loopback, protection)
    bound = f"tcp://{address}:{port or '*'}"
    return Endpoint(key, written, "tcp", bound, None, is_ipv6, is_loopback, protection.has_curve)


def _refuse_open(key: str, written: str, is_loopback: bool, protection: Protection) -> None:
    """Refuse an endpoint without keys, unless the configuration accepts it."""
    if protection.is_strict:
        raise EndpointRefused(
            f"{key} is {written!r}: security.strict refuses tcp without keys; create keys with `stepwire keys init`, "
            "or listen on an ipc path"
        )
    if not is_loopback and not protection.allow_insecure:
        raise EndpointRefused(
            f"{key} is {written!r}: other hosts can reach it, and no connection would be encrypted or "
            "authenticated; create keys with `stepwire keys init`, listen on 127.0.0.1 or an ipc path, or set "
            "bus.allow_insecure: true in a private network"
        )


def _resolve(key: str, written: str, host: str) -> tuple[str, bool, bool]:
    """Return the address to bind, whether it is loopback only, and whether it needs IPv6. A name is resolved here, so
    that the checked address is the bound address."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare in _ANYWHERE:
        is_ipv6 = bare != "0.0.0.0" and _host_has_ipv6()  # noqa: S104 - compared
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
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EndpointRefused(f"{key} is {written!r}: the host {name!r} cannot be found ({error})") from None
    addresses = {str(entry[4][0]) for entry in entries}
    first = min(
        addresses, key=lambda address: (":" in address, address)
    )  # IPv4 first: clients without IPv6 can reach it
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


_READERS: Final[dict[str, Callable[[str, str, str, Protection], Endpoint]]] = {
    "inproc": _read_inproc,
    "ipc": _read_ipc,
    "tcp": _read_tcp,
}
