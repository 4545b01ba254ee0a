"""One HTTP/1.1 connection to the broker, kept alive: a request in one send, its answer read by its length.

The standard library's takes a quarter of a millisecond more for each answer, and half of a command's start to import.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

HEAD_BYTES_MAX: Final = 64 * 1024
RECEIVED_BYTES: Final = 64 * 1024

_IN_TARGET: Final = re.compile(r"[^\x21-\x7e]")
_IN_HEADER: Final = re.compile(r"[^\t\x20-\x7e]")


class BadAnswer(OSError):
    """What came is no HTTP, or not all of it came."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]  # by name in small letters
    body: bytes


class Connection:
    """One request at a time. After anything was raised it is of no use any more: close it."""

    def __init__(self, host: str, port: int | None, *, is_tls: bool, timeout_s: float) -> None:
        port = port or (443 if is_tls else 80)
        self._host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._received = b""
        self.is_reusable = True
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_tls:
                import ssl  # slow to import, and seldom needed

                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """The whole answer. Raises OSError."""
        status, told = self._begin(method, target, headers, body)
        return Answer(status, told, b"".join(self._body(status, told)))

    def follow(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[int, Iterator[bytes]]:
        """The status, and the body line by line as it comes. The last line may lack its end."""
        status, told = self._begin(method, target, headers, None)
        return status, _lines(self._body(status, told))

    # -- asking -------------------------------------------------------------------------------------------------------

    def _begin(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, str]]:
        if _IN_TARGET.search(target) or any(_IN_HEADER.search(value) for value in headers.values()):
            raise ValueError(f"{target!r} or one of its headers has a character that no request may have")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        self._socket.sendall("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + (body or b""))
        status = 100
        while 100 <= status < 200:
            status, told = _read_head(self._until(b"\r\n\r\n"))
        return status, told

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _body(self, status: int, told: Mapping[str, str]) -> Iterator[bytes]:
        length = told.get("content-length")
        self.is_reusable = "close" not in told.get("connection", "").lower()
        if status in (204, 304):
            return
        if told.get("transfer-encoding", "").lower() == "chunked":
            while size := _number(self._until(b"\r\n").partition(b";")[0].strip(), 16):
                yield from self._exactly(size)
                if self._until(b"\r\n"):
                    raise BadAnswer("a piece of the answer is longer than it said")
            while self._until(b"\r\n"):
                pass  # what may follow the last piece tells nothing
        elif length is not None:
            yield from self._exactly(_number(length.encode(), 10))
        else:
            self.is_reusable = False
            yield self._received
            while more := self._socket.recv(RECEIVED_BYTES):
                yield more
            self._received = b""
        if self._received:
            self.is_reusable = False  # nobody asked for more

    def _until(self, end: bytes) -> bytes:
        """What comes before that."""
        while (at := self._received.find(end)) < 0:
            if len(self._received) > HEAD_BYTES_MAX:
                raise BadAnswer("the head of the answer does not end")
            self._receive()
        found, self._received = self._received[:at], self._received[at + len(end) :]
        return found

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size > len(self._received):
            size -= len(self._received)
            yield self._received
            self._received = b""
            self._receive()
        yield self._received[:size]
        self._received = self._received[size:]

    def _receive(self) -> None:
        more = self._socket.recv(RECEIVED_BYTES)
        if not more:
            raise BadAnswer("the connection was closed before the whole answer had come")
        self._received += more


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not (rest[:3].isascii() and rest[:3].isdigit() and len(rest[:3]) == 3):
        raise BadAnswer(f"this is no answer of HTTP/1.1: {first[:100]!r}")
    told = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"this is no header: {line[:100]!r}")
        told[name.lower()] = value.strip()
    if version == "HTTP/1.0":
        told.setdefault("connection", "close")
    return int(rest[:3]), told


def _number(text: bytes, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise BadAnswer(f"{text[:20]!r} is no length")
    return number


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    begun = b""
    for piece in pieces:
        *whole, begun = (begun + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if begun:
        yield begun
