"""The HTTP addresses: checks `http.listen`, and opens this address and the Unix socket `http.socket`."""

import ipaddress
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from stepwire_broker import posture
from stepwire_broker.core.definitions.settings import HttpSettings
from stepwire_broker.errors import BrokerError

from . import jwt_keys
from .jwt_keys import JwtError, JwtKeys
from .jwt_tokens import JwtTokens
from .local_socket import LocalSocket, SocketUnavailable
from .tls_files import Certificates, TlsError, open_certificates

BACKLOG: Final = 4096  # the kernel reduces it to net.core.somaxconn


class ListenError(BrokerError):
    """The HTTP address cannot be used. The message names the fault and the remedy."""


class Listeners(NamedTuple):
    """The sockets on which the API is served: at least one. `trouble`: why there is no Unix socket."""

    tcp: socket.socket | None
    local: LocalSocket | None = None
    trouble: str | None = None
    certificates: Certificates | None = None  # with them, `tcp` speaks https only
    jwt: JwtTokens | None = None  # verifies the signed tokens of `http.jwt`

    @property
    def sockets(self) -> list[socket.socket]:
        local = None if self.local is None else self.local.listener
        return [each for each in (self.tcp, local) if each is not None]

    @property
    def url(self) -> str:
        """The address for every program of this machine that has a token."""
        if self.tcp is None:
            assert self.local is not None
            return self.local.absolute_url
        host, port = self.tcp.getsockname()[:2]
        scheme = "https" if self.certificates is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def url_for_others(self) -> str | None:
        """The address for programs that found another broker. None: only processes of this host's user reach it."""
        if self.tcp is None:
            return None
        host, port = self.tcp.getsockname()[:2]
        if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
            host = socket.gethostname()
        scheme = "https" if self.certificates is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def url_of_user(self) -> str:
        """The address for programs of the broker's user. A certificate seldom names the loopback address."""
        if self.certificates is None or self.local is None:
            return self.url
        return self.local.absolute_url

    @property
    def url_of_directory(self) -> str:
        """The address for programs of the broker's user in the broker's directory."""
        return self.url if self.local is None else self.local.url

    def close(self) -> None:
        if self.tcp is not None:
            self.tcp.close()
        if self.local is not None:
            self.local.close()


def listen_everywhere(settings: HttpSettings, *, is_strict: bool = False) -> Listeners:
    """Listen on `http.listen` and on `http.socket`. Raises ListenError. `is_strict`: refuse tcp without TLS.

    A broker whose Unix socket cannot be used, for example because another broker of the same directory has it, is
    served on `http.listen` only."""
    certificates, jwt = certificates_of(settings), open_jwt(settings)
    tcp = None if settings.listen is None else listen(settings, is_strict=is_strict)
    try:
        return Listeners(tcp, LocalSocket(Path(settings.socket), BACKLOG), certificates=certificates, jwt=jwt)
    except SocketUnavailable as error:
        if tcp is None:
            raise ListenError(str(error)) from None
        return Listeners(tcp, trouble=str(error), certificates=certificates, jwt=jwt)


def certificates_of(settings: HttpSettings) -> Certificates | None:
    """The certificates of `http.tls`, None without this setting. Raises ListenError."""
    try:
        return open_certificates(settings.tls)
    except TlsError as error:
        raise ListenError(str(error)) from None


def open_jwt(settings: HttpSettings) -> JwtTokens | None:
    """The verifier of `http.jwt` with the issuer's keys, None without this setting. Raises ListenError."""
    if not settings.jwt.is_on:
        return None
    try:
        jwt_keys.check(settings.jwt)
        keys = JwtKeys(settings.jwt)
        keys.load()
    except JwtError as error:
        raise ListenError(str(error)) from None
    return JwtTokens(settings.jwt, keys)


def listen(settings: HttpSettings, *, is_strict: bool = False) -> socket.socket:
    """A listening socket on `http.listen`, which is not null. Raises ListenError."""
    checked = check_listen(settings, is_strict=is_strict)
    assert checked is not None
    host, port = checked
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


def check_listen(settings: HttpSettings, *, is_strict: bool = False) -> tuple[str, int] | None:
    """Host and port of `http.listen`, None for null. Raises ListenError if the address is malformed, or tokens could be
    intercepted."""
    if settings.listen is None:
        return None
    host, port = address_of(settings.listen)
    if is_strict and (refusal := posture.open_http(settings)) is not None:
        raise ListenError(refusal)
    if not (settings.tls.is_on or settings.allow_insecure or is_loopback(host)):
        raise ListenError(
            f"http.listen is {settings.listen!r}, which other machines can reach, and tokens would travel unencrypted:"
            " set http.tls.cert_file and http.tls.key_file, listen on 127.0.0.1 behind a proxy that terminates TLS, or"
            " set http.allow_insecure: true"
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


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
