"""The layer between ASGI and the handlers, which are functions from an `HttpCall` to a reply."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import structlog
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope
from stepwire_protocol.errors import InvalidMessage

from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.intake.unknown_workflow import unknown_workflow
from stepwire_broker.core.model import principal
from stepwire_broker.core.model.events import LearnCatalogue
from stepwire_broker.core.reading.nearest import did_you_mean
from stepwire_broker.errors import BrokerError
from stepwire_broker.stages.requests import Make
from stepwire_broker.store.errors import DatabaseAway

from . import core_views, hidden_ids, http_problems, namespace_rules
from .engine_port import EnginePort
from .http_problems import HttpProblem
from .namespace_rules import NamespaceRule
from .replies import JSON, Reply, Stream, send_problem, send_reply, send_stream
from .shares import OpenRequest, Purpose, Shares
from .token import Grant

QUERY_MEMBERS_MAX: Final = 32
# Members of the scope of a request:
GRANT: Final = "stepwire.grant"  # the permissions of its token; absent if the request needs no token
CONNECTION: Final = "stepwire.connection"  # its connection
AUDITED_SCOPES: Final = frozenset({Scope.OPERATE, Scope.ADMIN})  # refused attempts of these leave a row
PAYLOAD_OPERATIONS: Final = frozenset({"getTask", "getTaskStep", "getStep"})  # answers with contexts or outputs

log: Final = structlog.get_logger("stepwire.api")

A = TypeVar("A", bound=Answer)


class ClientGone(BrokerError):
    """The client has disconnected, so nothing can be answered."""


class AuditedOperation(Protocol):
    """The row of a method and path in operations.py."""

    @property
    def id(self) -> str: ...
    @property
    def scope(self) -> Scope | None: ...
    @property
    def scopes(self) -> tuple[Scope, ...]: ...


class RequestNotes(Protocol):
    """The rows of the audit that requests leave."""

    def refused(self, grant: Grant, operation: str, problem: HttpProblem) -> None: ...
    async def read_payload(self, grant: Grant, body: bytes) -> None: ...


class RequestConnection(Protocol):
    """The connection of a request, as its handler uses it."""

    is_too_slow: bool  # the client took too long to send the body
    answer_left: int  # bytes of the answer that wait until the client has accepted earlier ones

    def abort(self) -> None: ...


class HttpCall:
    """One request, as its handler uses it."""

    __slots__ = ("_open", "_receive", "broker", "closing", "scope")

    def __init__(
        self,
        scope: ASGIScope,
        receive: Receive,
        broker: EnginePort,
        closing: asyncio.Event,
        open_request: OpenRequest | None,
    ) -> None:
        self._open = open_request  # None: the request is exempt from all limits
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
    def namespaces(self) -> tuple[str, ...] | None:
        """The namespaces of stored workflows that the caller's token may see; None if it may see all."""
        grant: Grant = self.scope[GRANT]
        if grant.is_for_all_namespaces:
            return None
        return tuple(
            {each.namespace for each in self.broker.workflows.values() if grant.allows_namespace(each.namespace)}
        )

    async def enter_workflow(self, namespace: str, name: str, version: str | None, otherwise: HintCode) -> None:
        """Raise HttpProblem, as for a workflow that does not exist, if the token's namespaces exclude this one. The
        hints name no workflow of another namespace either, so such a token gets its answer here."""
        if self.namespaces is None:
            return
        if not self._knows(namespace, name, version) and core_views.is_shared(self.broker):
            await self.broker.ask(LearnCatalogue)  # another broker may have applied it a moment ago
        if not self._knows(namespace, name, version):
            known = self._known_workflows()
            raise http_problems.of_refused(unknown_workflow(namespace, name, version, known, otherwise))

    def _known_workflows(self) -> list[tuple[str, str, str]]:
        seen = self.namespaces
        return [each for each in core_views.known_workflows(self.broker) if seen is None or each[0] in seen]

    def _knows(self, namespace: str, name: str, version: str | None) -> bool:
        known = self._known_workflows()
        return any(each[:2] == (namespace, name) and version in (None, each[2]) for each in known)

    def sees(self, namespace: str) -> bool:
        grant: Grant = self.scope[GRANT]
        return grant.allows_namespace(namespace)

    @property
    def inspects(self) -> bool:
        """True if the answer may contain payloads: contexts, outputs, handler configuration, backtraces."""
        grant: Grant = self.scope[GRANT]
        return grant.allows(Scope.INSPECT)

    @property
    def operator(self) -> str:
        """The caller, as the history names the author of a command."""
        return self.grant.author

    @property
    def via(self) -> str:
        """How the caller was identified."""
        return self.grant.via_text

    @property
    def grant(self) -> Grant:
        """The permissions of the caller."""
        grant: Grant = self.scope[GRANT]
        return grant

    @property
    def worker_grant(self) -> principal.Grant:
        """The grant of the workers that the caller's token opens."""
        return self.grant.of_workers

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

    @property
    def open_request(self) -> OpenRequest:
        """The share that this request occupies. The request must have a token."""
        assert self._open is not None
        return self._open

    async def body(self, bytes_max: int, *types: bytes) -> bytes:
        """The whole body. Raises HttpProblem as soon as it is too large, too slow or over the limit of all bodies, and
        for another content type."""
        length, kind = self._body_headers()
        if length is not None:
            if length > bytes_max:
                raise _too_large(bytes_max)
            self.open_request.reserve_body(length)
        body, is_more = await self._part()
        if is_more:
            body = await self._rest(body, bytes_max)
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        self.open_request.pay("bytes", len(body))
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

    @property
    def revoked(self) -> "asyncio.Future[None]":
        """Done when the token of the request is not valid any longer."""
        return self.open_request.revoked

    def abort(self) -> None:
        """Close the connection at once."""
        connection: RequestConnection | None = self.scope.get(CONNECTION)
        if connection is not None:
            connection.abort()

    def pay_answer(self, size: int) -> None:
        if self._open is not None:
            self._open.pay("bytes", size)

    def begin_large_answer(self) -> None:
        """From now on the request depends on its client only, so it leaves its slot."""
        if self._open is not None:
            self._open.answer()

    def answer_left(self, size: int) -> None:
        connection: RequestConnection | None = self.scope.get(CONNECTION)
        if connection is not None:
            connection.answer_left = size

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
        chunks, size, is_more = [first], len(first), True
        while is_more:
            if size > bytes_max:
                raise _too_large(bytes_max)
            self.open_request.reserve_body(size)
            chunk, is_more = await self._part()
            chunks.append(chunk)
            size += len(chunk)
        if self.open_request.is_revoked:
            raise http_problems.revoked(self.open_request.grant)
        return b"".join(chunks)

    async def _part(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether more of it follows."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        is_more: bool = message.get("more_body", False)
        connection: RequestConnection | None = self.scope.get(CONNECTION)
        if is_more and connection is not None and connection.is_too_slow:
            raise HttpProblem(
                408, "too_slow", "the body did not arrive in time", "send the whole body at once", headers=_CLOSE
            )
        return message.get("body", b""), is_more


Handler: TypeAlias = Callable[[HttpCall], Awaitable[Reply | Stream]]


class Resource:
    """One path, with a function for each of its methods. A Resource is an ASGI application."""

    def __init__(
        self,
        broker: EnginePort,
        closing: asyncio.Event,
        operations: Mapping[tuple[str, str], AuditedOperation],
        shares: Shares,
        notes: RequestNotes,
        path: str,
        **methods: Handler,
    ) -> None:
        self.path = path
        self._shares = shares
        self._broker = broker
        self._closing = closing
        self.methods = dict(methods)
        if "GET" in methods:
            self.methods["HEAD"] = methods["GET"]
        self._notes = notes
        self._rules = {
            method: namespace_rules.rule_of("GET" if method == "HEAD" else method, path) for method in self.methods
        }
        self._operations = {m: operations["GET" if m == "HEAD" else m, path] for m in self.methods}
        self._scopes = {method: operation.scopes for method, operation in self._operations.items()}

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        handler = self.methods.get(scope["method"])
        if handler is None:
            await send_problem(send, self._wrong_method(scope["method"]))
            return
        open_request: OpenRequest | None = None
        try:
            if GRANT in scope:
                open_request = self._admitted(scope[GRANT], self._scopes[scope["method"]])
            await self._answer(handler, HttpCall(scope, receive, self._broker, self._closing, open_request), send)
        except HttpProblem as problem:
            self._note_refused(scope, problem)
            await send_problem(send, problem)
        finally:
            if open_request is not None:
                open_request.leave()

    def _admitted(self, grant: Grant, needed: tuple[Scope, ...]) -> OpenRequest:
        for scope in needed:
            if not grant.allows(scope):
                raise http_problems.scope_missing(grant, scope)
        is_operator = grant.allows(Scope.OPERATE)
        purpose = Purpose.WORK if Scope.WORK in needed else Purpose.OPERATE if is_operator else Purpose.OTHER
        return self._shares.enter(grant, purpose)

    async def _check_namespace(self, call: HttpCall) -> None:
        """Raise HttpProblem if the token's namespaces exclude the task or step in the path, or the whole operation.

        Tasks and steps are numbered in one sequence, and the answer for a task's number may describe the step that has
        it. Such an answer is also only for tokens that see the namespace."""
        rule = self._rules[call.scope["method"]]
        if rule is NamespaceRule.WHOLE:
            raise namespace_rules.whole_only(self.path)
        if rule in (NamespaceRule.OF_TASK, NamespaceRule.OF_STEP):
            is_task = rule is NamespaceRule.OF_TASK
            number = call.number("task_id" if is_task else "step_id")
            namespace = await self._broker.read(lambda queries: queries.namespace_of(number))
            if namespace is not None and not call.sees(namespace):
                if is_task:
                    raise namespace_rules.no_such_task(number)
                raise namespace_rules.no_such_step(number, is_command=call.scope["method"] == "POST")

    async def _answer(self, handler: Handler, call: HttpCall, send: Send) -> None:
        try:
            if GRANT in call.scope and not call.scope[GRANT].is_for_all_namespaces:
                await self._check_namespace(call)
            reply = await handler(call)
        except HttpProblem as problem:
            self._note_refused(call.scope, problem)
            await send_problem(send, problem)
        except InvalidMessage as error:
            invalid = http_problems.of_invalid(error)
            self._note_refused(call.scope, invalid)
            await send_problem(send, invalid)
        except ClientGone:
            pass
        except DatabaseAway as error:
            text = f"the database could not be read: {error}"
            hint = Hint(HintCode.WAIT_FOR_DATABASE)
            await send_problem(send, http_problems.of_refused(CommandRefused("database_unavailable", text, hint)))
        except Exception:
            log.exception("request_failed", method=call.scope["method"], path=call.scope["path"])
            await send_problem(send, HttpProblem(500, "internal_error", "the broker failed; see its log for the cause"))
        else:
            hides_ids = self._hides_ids(call)
            if isinstance(reply, Stream):
                if hides_ids:
                    reply = reply._replace(chunks=hidden_ids.stream_without_ids(reply.chunks))
                await send_stream(send, reply, call)
            else:
                shows_payload = reply.shows_task or self._operations[call.scope["method"]].id in PAYLOAD_OPERATIONS
                if shows_payload and call.inspects:
                    await self._notes.read_payload(call.grant, reply.body)
                if hides_ids or (reply.shows_task and not call.grant.allows(Scope.OPERATE)):
                    reply = reply._replace(body=hidden_ids.without_ids(reply.body))
                call.pay_answer(len(reply.body))
                await send_reply(send, reply, call)

    def _note_refused(self, scope: ASGIScope, problem: HttpProblem) -> None:
        """Have the audit name an operator's refused attempt."""
        operation = self._operations[scope["method"]]
        if GRANT in scope and operation.scope in AUDITED_SCOPES:
            self._notes.refused(scope[GRANT], operation.id, problem)

    def _hides_ids(self, call: HttpCall) -> bool:
        """True if the caller may only read. Workers need the ids, and operators name workers by them."""
        if Scope.READ not in self._scopes.get(call.scope["method"], ()):
            return False
        grant: Grant = call.scope[GRANT]
        return not grant.allows(Scope.OPERATE)

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
