"""Answers as servers and proxies may send them, cut anywhere on their way; and what is no answer."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from stepwire.connection import BadAnswer, Connection

Serve = Callable[..., Connection]

WHOLE = {
    "with its length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRetry-After:  7 \r\n\r\nhello", True),
    "in pieces": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", True),
    "in pieces, and more after": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        True,
    ),
    "after another that was only on its way": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        True,
    ),
    "and a good-bye": (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\nhello", False),
    "of an old server": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
    "without a length, until it closes": (b"HTTP/1.1 200 OK\r\n\r\nhello", False),
    "with something that nobody asked for": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1", False),
}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A connection to somebody who says these pieces, one by one, to whoever asks, and hangs up."""
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def begin(*pieces: bytes) -> Connection:
        def answer() -> None:
            with listener.accept()[0] as peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                heard.append(peer.recv(65536))
                with suppress(ConnectionError):  # whoever has read enough may be gone
                    for piece in pieces:
                        peer.sendall(piece)

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return Connection(*listener.getsockname(), is_tls=False, timeout_s=20)

    begin.heard = heard  # type: ignore[attr-defined]
    yield begin
    for thread in threads:
        thread.join(20)
    listener.close()


@pytest.mark.parametrize("cut", ["at once", "byte by byte"])
@pytest.mark.parametrize(("said", "is_reusable"), WHOLE.values(), ids=WHOLE)
def test_an_answer_is_read_to_its_end_and_no_further(serve: Serve, said: bytes, is_reusable: bool, cut: str) -> None:
    pieces = [said] if cut == "at once" else [said[i : i + 1] for i in range(len(said))]
    with closing(serve(*pieces)) as connection:
        answer = connection.ask("GET", "/x", {})
        assert (answer.status, answer.body) == (200, b"hello")
        if cut == "at once":
            assert connection.is_reusable is is_reusable


def test_no_content_has_none(serve: Serve) -> None:
    with closing(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as connection:
        assert connection.ask("POST", "/x", {}) == (204, {}, b"")
        assert connection.is_reusable


def test_a_large_answer_comes_whole(serve: Serve) -> None:
    body = bytes(range(256)) * 20_000
    with closing(serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)) as connection:
        assert connection.ask("GET", "/x", {}).body == body


@pytest.mark.parametrize(
    "said",
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
def test_what_is_no_answer_is_said_to_be_none(serve: Serve, said: bytes) -> None:
    with closing(serve(said)) as connection, pytest.raises(BadAnswer):
        connection.ask("GET", "/x", {})


def test_lines_come_as_they_are_said_wherever_they_are_cut(serve: Serve) -> None:
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
def test_nothing_can_be_put_between_the_lines_of_a_request(serve: Serve, target: str, header: str) -> None:
    with closing(serve()) as connection, pytest.raises(ValueError, match="no request may have"):
        connection.ask("GET", target, {"Authorization": header})


def test_a_request_says_who_is_asked_and_how_long_it_is(serve: Serve) -> None:
    with closing(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as connection:
        connection.ask("POST", "/x?y=1", {"Accept": "a/b"}, b"{}")
    (heard,) = serve.heard  # type: ignore[attr-defined]
    first, host, *rest = heard.split(b"\r\n")
    assert (first, rest) == (b"POST /x?y=1 HTTP/1.1", [b"Accept: a/b", b"Content-Length: 2", b"", b"{}"])
    assert host.startswith(b"Host: 127.0.0.1:")
