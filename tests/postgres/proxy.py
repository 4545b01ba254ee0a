"""A proxy between a client and a server of PostgreSQL, which can cut a connection exactly at a COMMIT, or be silent.

The proxy reads messages, not bytes: a COMMIT is recognised as a simple query, as a statement of its own and as the
execution of a prepared statement.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Literal, TypeAlias

from .server import PATIENCE_S

NEGOTIATIONS: Final = (80877103, 80877104)  # requests for TLS and for GSSAPI: the start-up message follows
COMMIT: Final = b"COMMIT"

# What happens to the next COMMIT. `lose_answer`: the server commits, the client does not learn it. `lose_commit`: it
# does not reach the server. `hold`: the client's connection ends, and the COMMIT reaches the server later. `mute`: the
# server commits, and the connection remains open without an answer.
Plan: TypeAlias = Literal["lose_answer", "lose_commit", "hold", "mute"]

# The direction in which nothing passes. Both ends believe that they are connected: so is a network that drops packets.
Direction: TypeAlias = Literal["to_server", "to_client"]


class Proxy:
    """Listens on loopback, until `close`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._plan: Plan | None = None
        self._pairs: list[_Pair] = []
        self.commits_held: list[_Pair] = []
        self.commits_cut = 0
        self._lock = threading.Lock()
        self._passes: dict[Direction, threading.Event] = {
            "to_server": threading.Event(),
            "to_client": threading.Event(),
        }
        self.heal()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def plan(self, plan: Plan) -> None:
        """Decide what happens to the next COMMIT. Later ones pass."""
        with self._lock:
            self._plan = plan

    def take_plan(self) -> Plan | None:
        with self._lock:
            plan, self._plan = self._plan, None
            self.commits_cut += plan is not None
            return plan

    def release(self) -> None:
        """Pass the held COMMITs to the server, and wait until it has answered."""
        for pair in self.commits_held:
            pair.release()
        self.commits_held.clear()

    def silence(self, *directions: Direction) -> None:
        """Pass nothing on in these directions until `heal`. New connections are accepted, and are as silent."""
        for direction in directions:
            self._passes[direction].clear()

    def heal(self) -> None:
        """Pass on what has waited, also of connections whose client has given up, and everything later."""
        for passes in self._passes.values():
            passes.set()

    def await_passage(self, direction: Direction) -> None:
        self._passes[direction].wait()

    def cut(self) -> None:
        """End every connection now. New connections are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.end()

    def close(self) -> None:
        _end(self._listener)
        self.cut()
        self.heal()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), PATIENCE_S)
            except OSError:
                _end(client)
                continue
            server.settimeout(None)
            pair = _Pair(self, client, server)
            with self._lock:
                self._pairs.append(pair)
            for run in (pair.to_server, pair.to_client):
                threading.Thread(target=run, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pair:
    """A client's connection and its connection to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._commits: set[bytes] = set()  # names of prepared statements
        self._held = b""
        self._plan: Plan | None = None
        self._answered = threading.Event()
        self._statements = 0  # passed to the server
        self._finished = 0  # answered by the server
        self._progress = threading.Condition()
        self._is_over = False

    def to_server(self) -> None:
        with contextlib.suppress(OSError):
            for message in _of_client(self._client):
                if self._is_commit(message) and (plan := self._proxy.take_plan()) is not None:
                    self._plan = plan
                    if plan == "lose_commit":
                        self.end()
                        return
                    if plan == "hold":
                        self._held = message
                        self._hold()
                        return
                self._statements += message[:1] in (b"E", b"Q")
                self._proxy.await_passage("to_server")
                self._server.sendall(message)
        if self._plan != "mute":
            self.end()

    def _hold(self) -> None:
        # The statements before the COMMIT have run, and hold their locks, when the client learns that it is alone.
        self._server.sendall(b"H" + struct.pack("!i", 4))
        with self._progress:
            done = self._progress.wait_for(lambda: self._is_over or self._finished >= self._statements, PATIENCE_S)
            assert done, "the server did not answer the statements before the held COMMIT"
        # The client's later messages of the same trip, at least the end of the pipeline, follow the COMMIT.
        execute = b"B" + struct.pack("!i", 12) + b"\0\0\0\0\0\0\0\0" + b"E" + struct.pack("!i", 9) + b"\0\0\0\0\0"
        if self._held[:1] == b"P":
            self._held += execute
        elif self._held[:1] == b"B":
            self._held += execute[13:]
        self._held += b"" if self._held[:1] == b"Q" else b"S" + struct.pack("!i", 4)
        self._proxy.commits_held.append(self)
        _end(self._client)

    def release(self) -> None:
        self._server.sendall(self._held)
        with self._progress:
            self._progress.wait_for(lambda: self._is_over or self._answered.is_set(), PATIENCE_S)
        assert self._answered.is_set(), "the server did not answer the held COMMIT"
        _end(self._server)

    def to_client(self) -> None:
        with contextlib.suppress(OSError):
            for message in _of_server(self._server):
                if self._plan is not None and message[:1] == b"C" and message[5:-1] == COMMIT:
                    self._answered.set()
                if message[:1] in (b"C", b"E", b"I"):
                    with self._progress:
                        self._finished += 1
                        self._progress.notify()
                    if self._plan == "lose_answer":
                        break
                if self._plan == "mute" and self._answered.is_set():
                    continue
                if self._plan != "hold":
                    self._proxy.await_passage("to_client")
                    self._client.sendall(message)
        if self._plan != "mute":
            self.end()

    def end(self) -> None:
        _end(self._client)
        _end(self._server)
        with self._progress:
            self._is_over = True
            self._progress.notify()

    def _is_commit(self, message: bytes) -> bool:
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body.rstrip(b"\0; ").upper() == COMMIT
        if kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            is_commit = query.upper() == COMMIT
            if name and is_commit:
                self._commits.add(name)
            return is_commit and not name
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return name in self._commits
        return False


def _of_client(sock: socket.socket) -> Iterator[bytes]:
    """The start-up messages, which have no type, and then the others."""
    while True:
        head = _exactly(sock, 8)
        length, code = struct.unpack("!ii", head)
        yield head + _exactly(sock, length - 8)
        if code not in NEGOTIATIONS:
            break
    yield from _typed(sock)


def _of_server(sock: socket.socket) -> Iterator[bytes]:
    """The answers to negotiations are single bytes: no server of the tests speaks TLS."""
    first = _exactly(sock, 1)
    while first == b"N":
        yield first
        first = _exactly(sock, 1)
    head = _exactly(sock, 4)
    yield first + head + _exactly(sock, struct.unpack("!i", head)[0] - 4)
    yield from _typed(sock)


def _typed(sock: socket.socket) -> Iterator[bytes]:
    while True:
        head = _exactly(sock, 5)
        yield head + _exactly(sock, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(count - len(parts))
        if not part:
            raise ConnectionResetError
        parts += part
    return bytes(parts)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
