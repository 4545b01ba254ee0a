"""The layer between ASGI and the handlers, which are functions from an `HttpCall` to a reply."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import structlog
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope
from stepwire_protocol.errors import InvalidMessage

from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.reading.nearest import did_you_mean
from stepwire_broker.errors import BrokerError
from stepwire_broker.stages.requests import Make

from . import http_problems
from .engine_port import EnginePort
from .http_problems import HttpProblem
from .replies import JSON, Reply, Stream, send_problem, send_reply, send_stream

BODY_TIMEOUT_S: Final = 30.0
QUERY_MEMBERS_MAX: Final = 32
GRANT: Final = "stepwire.grant"  # in the scope of a request that passed access control: the permissions of its token

log: Final = structlog.get_logger("stepwire.api")

A = TypeVar("A", bound=Answer)


class ClientGone(BrokerError):
    """The client has disconnected, so nothing can be answered."""


class HttpCall:
    """One request, as its handler uses it."""

    __slots__ = ("_receive", "broker", "closing", "scope")

    def __init__(self, scope: ASGIScope, receive: Receive, broker: EnginePort, closing: asyncio.Event) -> None:
        self.scope = scope
        self.broker = broker
        self.closing = closing  # set when the server is about to stop: long polls end
        self._receive = receive

    def header(self, name: bytes) -> str | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value, "latin-1")
        return None

    def needs(self, scope: Scope) -> None:
        """Raise HttpProblem unless the caller's token has this scope."""
        grant = self.scope[GRANT]
        if not grant.allows(scope):
            raise http_problems.scope_missing(grant, scope)

    @property
    def operator(self) -> str | None:
        """The name of the caller's token; None if the token has no name."""
        grant = self.scope[GRANT]
        return grant.name if grant.is_named else None

    def number(self, name: str) -> int:
        """The id of a task or a step in the path."""
        text = self.scope["path_params"][name]
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise HttpProblem(404, "not_found", f"{text[:64]!r} is not a {name.replace('_', ' ')}: ids are numbers")
        return int(text)

    def query(self, *known: str) -> dict[str, str]:
        """The members of the query. Raises HttpProblem for an unknown member, or one that occurs twice."""
        try:
            pairs = parse_qsl(
                str(self.scope["query_string"], "ascii"),
                keep_blank_values=True,
                strict_parsing=bool(self.scope["query_string"]),
                errors="strict",
                max_num_fields=QUERY_MEMBERS_MAX,
            )
        except ValueError as error:
            raise HttpProblem(400, "bad_query", f"the query cannot be parsed: {error}") from None
        members: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                hint = did_you_mean(name, known) or f"known members: {', '.join(known) or 'none'}"
                raise HttpProblem(400, "bad_query", f"`{name[:64]}` is not a member of this query", hint)
            if name in members:
                raise HttpProblem(400, "bad_query", f"`{name}` occurs twice in the query", "send it once")
            members[name] = value
        return members

    async def body(self, bytes_max: int, *types: bytes) -> bytes:
        """The whole body. Raises HttpProblem as soon as it is too large, or for another content type."""
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
        accepted = types or (JSON,)
        if body and kind not in accepted:
            names = [str(known, "ascii") for known in accepted]
            unsupported = "the request has no content type" if not kind else f"unsupported content type {_shown(kind)}"
            raise HttpProblem(415, "bad_content_type", unsupported, f"send `Content-Type: {' or '.join(names)}`")
        return body

    def content_type(self) -> bytes:
        return self._body_headers()[1]

    async def ask(self, make: Make, expected: type[A]) -> A:
        """The core's answer to a command. Raises HttpProblem for a refusal."""
        answer = await self.broker.ask(make)
        if isinstance(answer, CommandRefused):
            http_problems.raise_refused(answer)
        assert isinstance(answer, expected), answer
        return answer

    async def disconnected(self) -> None:
        """Wait until the client disconnects. The body must have been read before."""
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
            detail = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"
            raise HttpProblem(408, "too_slow", detail, headers=_CLOSE) from None


Handler: TypeAlias = Callable[[HttpCall], Awaitable[Reply | Stream]]


class Resource:
    """One path, with a function for each of its methods. A Resource is an ASGI application."""

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
        except InvalidMessage as error:
            await send_problem(send, http_problems.of_invalid(error))
        except ClientGone:
            pass
        except Exception:
            log.exception("request_failed", method=scope["method"], path=scope["path"])
            await send_problem(send, HttpProblem(500, "internal_error", "the broker failed; see its log for the cause"))
        else:
            if isinstance(reply, Stream):
                await send_stream(send, reply, scope["path"], call.disconnected)
            else:
                await send_reply(send, reply)

    def _wrong_method(self, method: str) -> HttpProblem:
        allowed = sorted(self.methods)
        return HttpProblem(
            405,
            "wrong_method",
            f"method {method} is not allowed here",
            f"use {' or '.join(allowed)}",
            headers=((b"allow", ", ".join(allowed).encode()),),
        )


async def not_found(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """The application for every unknown path."""
    await send_problem(send, HttpProblem(404, "not_found", f"there is no path {scope['path'][:200]!r}"))


def _too_large(bytes_max: int) -> HttpProblem:
    return HttpProblem(413, "too_large", f"the body is larger than the limit of {bytes_max} bytes")


def _shown(kind: bytes) -> str:
    return str(kind[:100], "latin-1")


_CLOSE: Final = ((b"connection", b"close"),)  # so that the rest of the body need not be read
