"""One request and its reply: the thin glue between ASGI and functions that take a Call and return a Reply."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec
import structlog
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope
from stepwire_protocol.errors import InvalidMessage

from stepwire_broker.core.model.answers import Answer, CommandRefused
from stepwire_broker.stages.requests import Make

from . import http_problems
from .engine_port import EnginePort
from .http_problems import HttpProblem
from .token import Scope

BODY_TIMEOUT_S: Final = 30.0
QUERY_MEMBERS_MAX: Final = 32

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"

encode: Final = msgspec.json.Encoder().encode
log: Final = structlog.get_logger("stepwire.api")

A = TypeVar("A", bound=Answer)


class Reply(NamedTuple):
    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(NamedTuple):
    """A reply that ends when the client goes or the broker stops."""

    chunks: AsyncIterator[bytes]
    content_type: bytes


class HttpCall:
    """A request on its way through a handler."""

    __slots__ = ("_receive", "broker", "closing", "scope")

    def __init__(self, scope: ASGIScope, receive: Receive, broker: EnginePort, closing: asyncio.Event) -> None:
        self.scope = scope
        self.broker = broker
        self.closing = closing  # set when the server is about to stop: nobody is to wait any more
        self._receive = receive

    def header(self, name: bytes) -> str | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value, "latin-1")
        return None

    def needs(self, scope: Scope) -> None:
        """Raises Problem unless the caller's token may do this."""
        grant = self.scope[GRANT]
        if not grant.allows(scope):
            raise http_problems.scope_missing(grant, scope)

    def number(self, name: str) -> int:
        """A task's or step's id from the path."""
        text = self.scope["path_params"][name]
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise HttpProblem(404, "not_found", f"{text[:64]!r} is not a {name.replace('_', ' ')}: those are numbers")
        return int(text)

    def query(self, *known: str) -> dict[str, str]:
        """The query's members, each at most once and none that is not known."""
        try:
            pairs = parse_qsl(
                str(self.scope["query_string"], "ascii"),
                keep_blank_values=True,
                strict_parsing=bool(self.scope["query_string"]),
                errors="strict",
                max_num_fields=QUERY_MEMBERS_MAX,
            )
        except ValueError as error:
            raise HttpProblem(400, "bad_query", f"the query cannot be read: {error}") from None
        members: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean `{nearest[0]}`?" if nearest else f"known here: {', '.join(known) or 'none'}"
                raise HttpProblem(400, "bad_query", f"`{name[:64]}` is not a member of this query", hint)
            if name in members:
                raise HttpProblem(400, "bad_query", f"`{name}` stands twice in the query")
            members[name] = value
        return members

    async def body(self, bytes_max: int, *types: bytes) -> bytes:
        "The whole body, or HttpProblem as soon as it is larger than it may be or of another content type."
        length, kind = self._body_headers()
        if length is not None and length > bytes_max:
            raise _too_large(bytes_max)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            body = await self._rest(body, bytes_max)
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        if body and kind not in (types or (JSON,)):
            takes = " or ".join(str(known, "ascii") for known in types or (JSON,))
            raise HttpProblem(415, "bad_content_type", f"this takes {takes}", "say so in Content-Type")
        return body

    def content_type(self) -> bytes:
        return self._body_headers()[1]

    async def ask(self, make: Make, expected: type[A]) -> A:
        """The core's answer to a command, or the Problem that its refusal is."""
        answer = await self.broker.ask(make)
        if isinstance(answer, CommandRefused):
            http_problems.raise_refused(answer)
        assert isinstance(answer, expected), answer
        return answer

    @asynccontextmanager
    async def until_gone(self) -> "AsyncIterator[LongPolls]":
        """For what may take long: raises ClientGone in `wait` when the client goes away. The body has been read."""
        waiting = LongPolls(self)
        try:
            yield waiting
        finally:
            waiting.end()

    async def gone(self) -> None:
        """Return when the client has gone away. The body has been read before."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _body_headers(self) -> tuple[int | None, bytes]:
        length, kind = None, b""
        for name, value in self.scope["headers"]:
            if name == b"content-length":
                length = int(value) if value.isdigit() else None
            elif name == b"content-type":
                kind = value.partition(b";")[0].strip().lower()
        return length, kind

    async def _rest(self, first: bytes, bytes_max: int) -> bytes:
        chunks, size = [first], len(first)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while True:
                    if size > bytes_max:
                        raise _too_large(bytes_max)
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunk = message.get("body", b"")
                    chunks.append(chunk)
                    size += len(chunk)
                    if not message.get("more_body"):
                        return b"".join(chunks)
        except TimeoutError:
            raise HttpProblem(
                408, "too_slow", f"the body did not come within {BODY_TIMEOUT_S:.0f} s", headers=_CLOSE
            ) from None


class LongPolls:
    """A client that waits: what was asked for it is forgotten when it goes, its time is over, or the server stops."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._going = asyncio.ensure_future(call.gone())
        self._closing = asyncio.ensure_future(call.closing.wait())
        self._asked: list[asyncio.Future[Any]] = []

    async def ask(self, make: Make, expected: type[A]) -> "asyncio.Future[A]":
        """When this returns the broker has heard it: what is read from now on is not older than that."""
        asking = asyncio.ensure_future(self._call.ask(make, expected))
        self._asked.append(asking)
        await self._call.broker.handled()
        return asking

    async def wait(self, asking: "asyncio.Future[Any]", timeout_s: float) -> None:
        """Until it is answered, the time is over, or the server is about to stop."""
        what = (asking, self._going, self._closing)
        await asyncio.wait(what, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._going.done():
            raise ClientGone
        if asking.done():
            asking.result()

    def end(self) -> None:
        """Nobody waits for their ends: the answer can leave meanwhile."""
        for future in (self._going, self._closing, *self._asked):
            if future.done():
                _ = future.cancelled() or future.exception()  # it is known, whoever has looked at it
            else:
                future.cancel()


class ClientGone(Exception):
    """Nobody is there to answer."""


Handler: TypeAlias = Callable[[HttpCall], Awaitable[Reply | Stream]]


GRANT: Final = "stepwire.grant"  # in the scope of a request that has passed the gate: what its token may
NO_ROUTE: Final = "none"  # a path that there is not, or a request that the gate refused
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Requests:
    """Requests by route, method and status. Both are of a known few, so that nobody can make the count grow."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, int], int] = {}

    def counting(self, scope: ASGIScope, send: Send) -> Send:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                resource = scope.get("endpoint")
                route = resource.path if isinstance(resource, Resource) else NO_ROUTE
                method = scope["method"] if scope["method"] in _METHODS else "other"
                key = (route, method, message["status"])
                self.counts[key] = self.counts.get(key, 0) + 1
            await send(message)

        return counted


class Resource:
    """One path, with a function for each method it knows. An ASGI application, so that nothing stands between."""

    def __init__(
        self,
        broker: EnginePort,
        closing: asyncio.Event,
        scope_of: Callable[[str, str], Scope | None],
        path: str,
        **methods: Handler,
    ) -> None:
        self.path = path
        self._broker = broker
        self._closing = closing
        self.methods = dict(methods)
        if "GET" in methods:
            self.methods["HEAD"] = methods["GET"]
        self._allow = ", ".join(sorted(self.methods)).encode()
        self._scopes = {method: scope_of("GET" if method == "HEAD" else method, path) for method in self.methods}

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        handler = self.methods.get(scope["method"])
        if handler is None:
            await send_problem(send, self._wrong_method(scope["method"]))
            return
        call = HttpCall(scope, receive, self._broker, self._closing)
        needed = self._scopes[scope["method"]]
        try:
            if needed is not None:
                call.needs(needed)
            reply = await handler(call)
        except HttpProblem as problem:
            await send_problem(send, problem)
        except InvalidMessage as refusal:
            await send_problem(send, http_problems.of_refusal(refusal))
        except ClientGone:
            pass
        except Exception:
            log.exception("request_failed", method=scope["method"], path=scope["path"])
            await send_problem(
                send, HttpProblem(500, "internal_error", "the broker failed to answer; its log says why")
            )
        else:
            if isinstance(reply, Stream):
                await _send_stream(call, send, reply)
            else:
                await _send(send, reply)

    def _wrong_method(self, method: str) -> HttpProblem:
        allow = str(self._allow, "ascii")
        return HttpProblem(
            405, "wrong_method", f"{method} is not for this; {allow} is", headers=((b"allow", self._allow),)
        )


async def send_problem(send: Send, problem: HttpProblem) -> None:
    await _send(send, Reply(problem.status, encode(problem.document()), PROBLEM, problem.headers))


async def not_found(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """The application for every path that there is not."""
    await send_problem(send, HttpProblem(404, "not_found", f"there is no {scope['path'][:200]!r} here"))


async def _send(send: Send, reply: Reply) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [
                (b"content-type", reply.content_type),
                (b"content-length", b"%d" % len(reply.body)),
                *_SECURITY,
                *reply.headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": reply.body})


async def _send_stream(call: HttpCall, send: Send, stream: Stream) -> None:
    headers = [(b"content-type", stream.content_type), *_SECURITY]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    sending = asyncio.ensure_future(_send_chunks(send, stream.chunks))
    going = asyncio.ensure_future(call.gone())
    try:
        await asyncio.wait((sending, going), return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and (error := sending.exception()) is not None:
            log.error("stream_failed", path=call.scope["path"], exc_info=error)
    finally:
        sending.cancel()
        going.cancel()
        await asyncio.gather(sending, going, return_exceptions=True)


async def _send_chunks(send: Send, chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _too_large(bytes_max: int) -> HttpProblem:
    return HttpProblem(413, "too_large", f"the body may have at most {bytes_max} bytes")


_CLOSE: Final = ((b"connection", b"close"),)  # the rest of the body is not worth reading
_SECURITY: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
