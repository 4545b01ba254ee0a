"""Replies and streams, and the functions that send them over ASGI."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
from starlette.types import Scope, Send

from .http_problems import HttpProblem

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
PIECE_BYTES: Final = 128 * 1024  # of a body: the rest is sent when the client has accepted most of this

encode: Final = msgspec.json.Encoder().encode
log: Final = structlog.get_logger("stepwire.api")


class Reply(NamedTuple):
    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    shows_task: bool = False  # the answer to a submission contains the task, as if the caller had read it


class Stream(NamedTuple):
    """A reply that ends when the client disconnects or the broker stops."""

    chunks: AsyncIterator[bytes]
    content_type: bytes


async def send_reply(send: Send, reply: Reply, client: "ReplyClient | None" = None) -> None:
    """Send a reply. `client` must be given for a body that may have more than PIECE_BYTES."""
    await send({"type": "http.response.start", "status": reply.status, "headers": _headers(reply)})
    if len(reply.body) > PIECE_BYTES:
        assert client is not None
        client.begin_large_answer()
        left = memoryview(reply.body)
        while left:
            piece, left = left[:PIECE_BYTES], left[PIECE_BYTES:]
            client.answer_left(len(left))
            await send({"type": "http.response.body", "body": piece, "more_body": bool(left)})
    else:
        await send({"type": "http.response.body", "body": reply.body})


def _headers(reply: Reply) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(reply.body)),
        *_SECURITY,
        *reply.headers,
    ]


async def send_problem(send: Send, problem: HttpProblem) -> None:
    await send_reply(send, problem_reply(problem))


def problem_reply(problem: HttpProblem) -> Reply:
    return Reply(problem.status, encode(problem.document()), PROBLEM, problem.headers)


def closing_answer(reply: Reply) -> bytes:
    """The reply as it travels, on a connection that is closed after it."""
    lines = [b"HTTP/1.1 %d %s" % (reply.status, HTTPStatus(reply.status).phrase.encode())]
    lines += [name + b": " + value for name, value in (*_headers(reply), (b"connection", b"close"))]
    return b"\r\n".join((*lines, b"", reply.body))


class ReplyClient(Protocol):
    """The client of a reply."""

    def begin_large_answer(self) -> None: ...

    def answer_left(self, size: int) -> None: ...


class StreamClient(Protocol):
    """The client of a stream."""

    @property
    def scope(self) -> Scope: ...

    @property
    def revoked(self) -> "asyncio.Future[None]": ...

    async def disconnected(self) -> None: ...

    def abort(self) -> None: ...


async def send_stream(send: Send, stream: Stream, client: StreamClient) -> None:
    """Send the stream until it ends, the client disconnects, or its token is revoked."""
    headers = [(b"content-type", stream.content_type), *_SECURITY]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    sending = asyncio.ensure_future(_send_chunks(send, stream.chunks))
    disconnecting = asyncio.ensure_future(client.disconnected())
    try:
        await asyncio.wait((sending, disconnecting, client.revoked), return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and (error := sending.exception()) is not None:
            log.error("stream_failed", path=client.scope["path"], exc_info=error)
        if client.revoked.done():
            client.abort()  # the client may not read, so the stream cannot be ended in an orderly way
    finally:
        sending.cancel()
        disconnecting.cancel()
        await asyncio.gather(sending, disconnecting, return_exceptions=True)


async def _send_chunks(send: Send, chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


_SECURITY: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
