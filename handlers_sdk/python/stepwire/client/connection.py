"""One kept-alive HTTP/1.1 connection to the broker. A request is one send; the answer is read by its length.

docs/decisions/0015-the-client-speaks-http-itself.md explains why `http.client` is not used, and
tests/sdk/test_connection.py tests this module.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from stepwire.errors import StepwireError

if TYPE_CHECKING:
    import ssl  # slow to import, and seldom needed

HEAD_BYTES_MAX: Final = 64 * 1024
CONNECT_TIMEOUT_S: Final = 10.0
RECEIVED_BYTES: Final = 64 * 1024

_NOT_IN_TARGET: Final = re.compile(r"[^\x21-\x7e]")
_NOT_IN_HEADER: Final = re.compile(r"[^\t\x20-\x7e]")


class BadAnswer(StepwireError, OSError):
    """The answer is not HTTP. The client raises Unreachable for it."""


class Incomplete(BadAnswer):
    """The connection was closed before the whole answer was received, as by a broker that ends."""


class HttpAnswer(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class Connection:
    """One connection, with one request at a time. After any exception, close the connection."""

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        tls: "ssl.SSLContext | None" = None,
        timeout_s: float,
        socket_path: str | None = None,
        prefix: str = "",
    ) -> None:
        self.prefix = prefix  # of the broker's paths, for the caller
        port = port or (80 if tls is None else 443)
        self._host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._received = b""
        self.is_reusable = True
        connect_s = min(timeout_s, CONNECT_TIMEOUT_S)
        if socket_path is None:
            self._socket = socket.create_connection((host, port), connect_s)
        else:
            self._socket = _connect_locally(socket_path, connect_s)
        try:
            self._socket.settimeout(timeout_s)
            if socket_path is None:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None) -> HttpAnswer:
        """Send a request and return the whole answer. Raises OSError."""
        status, answer_headers = self._begin(method, target, headers, body)
        return HttpAnswer(status, answer_headers, b"".join(self._body(status, answer_headers)))

    def follow(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[int, Iterator[bytes]]:
        """Send a request. Returns the status, and the body line by line as it arrives. The last line may be
        incomplete."""
        status, answer_headers = self._begin(method, target, headers, None)
        return status, _lines(self._body(status, answer_headers))

    # -- the request --------------------------------------------------------------------------------------------------

    def _begin(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, str]]:
        if _NOT_IN_TARGET.search(target) or any(_NOT_IN_HEADER.search(value) for value in headers.values()):
            raise ValueError(f"{target!r} or one of its headers has a character that no request may have")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        self._socket.sendall("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + (body or b""))
        status = 100
        while 100 <= status < 200:
            status, answer_headers = _read_head(self._read_until(b"\r\n\r\n"))
        return status, answer_headers

    # -- the answer ---------------------------------------------------------------------------------------------------

    def _body(self, status: int, headers: Mapping[str, str]) -> Iterator[bytes]:
        length = headers.get("content-length")
        self.is_reusable = "close" not in headers.get("connection", "").lower()
        if status in (204, 304):
            return
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := _number(self._read_until(b"\r\n").partition(b";")[0].strip(), 16):
                yield from self._read(size)
                if self._read_until(b"\r\n"):
                    raise BadAnswer("a chunk of the answer is longer than its size")
            while self._read_until(b"\r\n"):
                pass  # trailers: the broker sends none that matter
        elif length is not None:
            yield from self._read(_number(length.encode(), 10))
        else:
            self.is_reusable = False
            yield self._received
            while received := self._socket.recv(RECEIVED_BYTES):
                yield received
            self._received = b""
        if self._received:
            self.is_reusable = False  # more than one answer came for one request

    def _read_until(self, end: bytes) -> bytes:
        """Read until `end`. Returns the bytes before it, and consumes `end`."""
        while (at := self._received.find(end)) < 0:
            if len(self._received) > HEAD_BYTES_MAX:
                raise BadAnswer(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes")
            self._receive()
        before, self._received = self._received[:at], self._received[at + len(end) :]
        return before

    def _read(self, size: int) -> Iterator[bytes]:
        while size > len(self._received):
            size -= len(self._received)
            yield self._received
            self._received = b""
            self._receive()
        yield self._received[:size]
        self._received = self._received[size:]

    def _receive(self) -> None:
        received = self._socket.recv(RECEIVED_BYTES)
        if not received:
            raise Incomplete("the connection was closed before the whole answer was received")
        self._received += received


def _connect_locally(path: str, timeout_s: float) -> socket.socket:
    """Connect to a Unix socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not (rest[:3].isascii() and rest[:3].isdigit() and len(rest[:3]) == 3):
        raise BadAnswer(f"the answer is not HTTP/1.1: {first[:100]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"the answer has a malformed header: {line[:100]!r}")
        headers[name.lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(rest[:3]), headers


def _number(text: bytes, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise BadAnswer(f"the answer has a malformed length: {text[:20]!r}")
    return number


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest
