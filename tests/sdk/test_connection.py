"""The client's HTTP connection: answers of servers and proxies, cut anywhere; malformed and damaged answers.

These tests are the condition of docs/decisions/0015-the-client-speaks-http-itself.md.
"""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwire.client.connection import BadAnswer, Connection

Serve = Callable[..., Connection]

WHOLE = {
    "with its length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRetry-After:  7 \r\n\r\nhello", True),
    "in chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", True),
    "in chunks, with a trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        True,
    ),
    "after an interim answer": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        True,
    ),
    "with Connection: close": (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\nhello", False),
    "of an old server": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
    "without a length, until the connection closes": (b"HTTP/1.1 200 OK\r\n\r\nhello", False),
    "with bytes after its end": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1", False),
}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A connection to a server that sends these pieces, one by one, after the first request, and closes."""
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def begin(*pieces: bytes) -> Connection:
        def answer() -> None:
            with listener.accept()[0] as peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                requests.append(peer.recv(65536))
                with suppress(ConnectionError):  # the client closes when it has read enough
                    for piece in pieces:
                        peer.sendall(piece)

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return Connection(*listener.getsockname(), timeout_s=20)

    begin.requests = requests  # type: ignore[attr-defined]
    yield begin
    for thread in threads:
        thread.join(20)
    listener.close()


@pytest.mark.parametrize("cut", ["at once", "byte by byte"])
@pytest.mark.parametrize(("answer_bytes", "is_reusable"), WHOLE.values(), ids=WHOLE)
def test_an_answer_is_read_to_its_end_and_no_further(
    serve: Serve, answer_bytes: bytes, is_reusable: bool, cut: str
) -> None:
    pieces = [answer_bytes] if cut == "at once" else [answer_bytes[i : i + 1] for i in range(len(answer_bytes))]
    with closing(serve(*pieces)) as connection:
        answer = connection.request("GET", "/x", {})
        assert (answer.status, answer.body) == (200, b"hello")
        if cut == "at once":
            assert connection.is_reusable is is_reusable


def test_an_answer_without_content_has_an_empty_body(serve: Serve) -> None:
    with closing(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as connection:
        assert connection.request("POST", "/x", {}) == (204, {}, b"")
        assert connection.is_reusable


def test_a_large_answer_is_received_whole(serve: Serve) -> None:
    body = bytes(range(256)) * 20_000
    with closing(serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)) as connection:
        assert connection.request("GET", "/x", {}).body == body


@pytest.mark.parametrize(
    "answer_bytes",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    ],
)
def test_a_malformed_answer_raises_bad_answer(serve: Serve, answer_bytes: bytes) -> None:
    with closing(serve(answer_bytes)) as connection, pytest.raises(BadAnswer):
        connection.request("GET", "/x", {})


def test_lines_of_a_stream_arrive_as_soon_as_they_are_whole_wherever_they_are_cut(serve: Serve) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with closing(serve(head, b"4\r\na\nb\n\r\n", b"2\r\nc \r\n", b"2\r\nd\n\r\n")) as connection:
        status, lines = connection.follow("GET", "/x", {})
        assert status == 200
        assert [next(lines) for _ in range(3)] == [b"a\n", b"b\n", b"c d\n"]
        with pytest.raises(BadAnswer):
            next(lines)


@pytest.mark.parametrize(
    ("target", "header"), [("/x y", "v"), ("/x\r\nHost: evil", "v"), ("/é", "v"), ("/x", "v\r\nA: b")]
)
def test_a_target_or_header_with_control_characters_is_refused_before_anything_is_sent(
    serve: Serve, target: str, header: str
) -> None:
    with closing(serve()) as connection, pytest.raises(ValueError, match="no request may have"):
        connection.request("GET", target, {"Authorization": header})


def test_a_request_names_its_host_and_the_length_of_its_body(serve: Serve) -> None:
    with closing(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as connection:
        connection.request("POST", "/x?y=1", {"Accept": "a/b"}, b"{}")
    (request,) = serve.requests  # type: ignore[attr-defined]
    first, host, *rest = request.split(b"\r\n")
    assert (first, rest) == (b"POST /x?y=1 HTTP/1.1", [b"Accept: a/b", b"Content-Length: 2", b"", b"{}"])
    assert host.startswith(b"Host: 127.0.0.1:")


class Fuzzed:
    """A server for many answers: each connection gets the next one, in its pieces."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))

    def exchange(self, pieces: list[bytes]) -> bytes | None:
        """The body of the answer; None if the connection raised BadAnswer."""
        thread = threading.Thread(target=self._serve, args=(pieces,))
        thread.start()
        try:
            with closing(Connection(*self.listener.getsockname(), timeout_s=20)) as connection:
                return connection.request("GET", "/x", {}).body
        except BadAnswer:
            return None
        finally:
            thread.join(20)

    def _serve(self, pieces: list[bytes]) -> None:
        with self.listener.accept()[0] as peer, suppress(ConnectionError):
            peer.recv(65536)
            for piece in pieces:
                peer.sendall(piece)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    server = Fuzzed()
    yield server
    server.listener.close()


CUTS = st.lists(st.integers(0, 120), max_size=6)
DAMAGES = st.lists(
    st.tuples(st.sampled_from(["delete", "repeat", "replace", "insert"]), st.integers(0, 120), st.binary(max_size=8)),
    min_size=1,
    max_size=4,
)


def _cut(answer: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    return [answer[i:j] for i, j in itertools.pairwise(places)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(WHOLE)), CUTS)
def test_an_answer_is_the_same_wherever_it_is_cut(fuzzed: Fuzzed, name: str, cuts: list[int]) -> None:
    assert fuzzed.exchange(_cut(WHOLE[name][0], cuts)) == b"hello"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(WHOLE)), DAMAGES, CUTS)
def test_a_damaged_answer_ends_as_an_answer_or_as_bad_answer(
    fuzzed: Fuzzed, name: str, damages: list[tuple[str, int, bytes]], cuts: list[int]
) -> None:
    answer = WHOLE[name][0]
    for kind, place, data in damages:
        size = len(data) if kind in ("delete", "replace") else 0
        middle = {"delete": b"", "repeat": answer[place : place + 8] * 2, "replace": data, "insert": data}[kind]
        answer = answer[:place] + middle + answer[place + size :]
    body = fuzzed.exchange(_cut(answer, cuts))
    assert body is None or len(body) <= len(answer)
