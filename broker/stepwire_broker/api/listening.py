"""The HTTP address: checks `http.listen`, and opens the socket."""

import socket
from ipaddress import ip_address
from typing import Final

from stepwire_broker.core.definitions.settings import HttpSettings
from stepwire_broker.errors import BrokerError

BACKLOG: Final = 1024


class ListenError(BrokerError):
    """The HTTP address cannot be used. The message names the fault and the remedy."""


def listen(settings: HttpSettings) -> socket.socket:
    """A listening socket on `http.listen`. Raises ListenError."""
    host, port = check_listen(settings)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"http.listen is {settings.listen!r}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"http.listen is {settings.listen!r}: {error.strerror}; is another broker running there?"
            " Choose another address with http.listen or STEPWIRE_HTTP__LISTEN"
        ) from None
    return listener


def check_listen(settings: HttpSettings) -> tuple[str, int]:
    """Host and port of `http.listen`. Raises ListenError if the address is malformed, or tokens could be
    intercepted."""
    host, port = address_of(settings.listen)
    if not settings.allow_insecure and not _is_loopback(host):
        raise ListenError(
            f"http.listen is {settings.listen!r}, which other machines can reach, and tokens would travel unencrypted:"
            " listen on 127.0.0.1 behind a proxy that terminates TLS, or set http.allow_insecure: true"
        )
    return host, port


def address_of(listen: str) -> tuple[str, int]:
    """`127.0.0.1:7410`, `[::1]:7410` → host and port."""
    host, colon, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ListenError(f"http.listen is {listen!r}: it needs a form like 127.0.0.1:7410 or [::1]:7410")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
