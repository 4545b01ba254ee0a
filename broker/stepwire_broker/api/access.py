"""Access control: the checks of every request before its handler is called.

A web page in a browser on the broker's machine can send requests to the loopback address; with DNS rebinding, even
under the page's own host name. Therefore Host must be a name of this broker, Origin must equal Host, and every route
except /livez needs a proof of identity: a token, the broker's own user on the Unix socket, or a client certificate. A
token in the request goes first: then the socket and the certificate count for nothing.
"""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from stepwire_broker.core.answers.scopes import Scope

from . import client_certificates, jwt_tokens
from .http import CONNECTION, GRANT
from .http_problems import HttpProblem, admin_elsewhere, unauthorized
from .jwt_tokens import JwtTokens
from .refusal_log import RefusalLog
from .replies import send_problem
from .request_counts import RequestCounts
from .token import Grant, Tokens

OPEN_PATHS: Final = frozenset({"/livez"})

_BEARER: Final = b"bearer "


class AccessControl:
    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        hosts: frozenset[bytes],
        requests: RequestCounts,
        *,
        is_strict: bool = False,
        jwt: JwtTokens | None = None,
    ) -> None:
        """`is_strict`: the scope admin counts only on the Unix socket."""
        self._app = app
        self._is_strict = is_strict
        self._jwt = jwt
        self._requests = requests
        self._tokens = tokens
        self._hosts = hosts
        self._refusals = RefusalLog()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if CONNECTION not in scope:
            return  # the client has disconnected meanwhile
        send = self._refusals.noting(scope, self._requests.counting(scope, send))
        try:
            await self._check(scope)
        except HttpProblem as problem:
            await send_problem(_closing(send), problem)
            return
        if CONNECTION not in scope:
            return  # the client has disconnected while the keys of its token were read
        if GRANT in scope:
            scope[CONNECTION].present_token(scope[GRANT].name)
        else:
            send = _closing(send)
        await self._app(scope, receive, send)

    async def _check(self, scope: AsgiScope) -> None:
        if scope["path"] in OPEN_PATHS:  # the answer holds no data, and probers do not send a configured Host
            return
        host = origin = authorization = None
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    raise HttpProblem(400, "host_refused", "the request has two Host headers", "send one")
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"authorization":
                if authorization is not None:
                    raise HttpProblem(400, "bad_authorization", "the request has two Authorization headers", "send one")
                authorization = value
        if host is None or _name(host) not in self._hosts:
            raise HttpProblem(
                403,
                "host_refused",
                f"{_shown(host)} is not a name of this broker",
                "use the address of http.listen, or add the name to http.hosts",
            )
        if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
            raise HttpProblem(
                403, "origin_refused", f"pages from {_shown(origin)} may not send requests to this broker"
            )
        user_grant: Grant | None = scope[CONNECTION].user_grant
        if authorization is None and user_grant is not None:
            scope[GRANT] = user_grant
            return
        certificate = scope[CONNECTION].certificate
        if authorization is None and certificate is not None:
            grant = client_certificates.grant_of(self._tokens, certificate)
        else:
            grant = await self._of_token(authorization)
        if self._is_strict and Scope.ADMIN in grant.scopes:
            raise admin_elsewhere(grant)
        scope[GRANT] = grant

    async def _of_token(self, authorization: bytes | None) -> Grant:
        if authorization is None or authorization[:7].lower() != _BEARER:
            lacks = (
                "no token" if authorization is None else "an Authorization header that does not begin with `Bearer `"
            )
            raise unauthorized(f"the request carries {lacks}")
        token = authorization[7:].strip()
        if self._jwt is not None and jwt_tokens.has_form(token):
            return await self._jwt.admit(token)
        grant = self._tokens.admit(token)
        if grant is None:
            raise unauthorized("the token is unknown to this broker, or has expired")
        return grant


def _closing(send: Send) -> Send:
    """Close the connection after the answer, because its client has presented no valid token."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return closing


def names_of(listen_host: str | None, more: tuple[str, ...]) -> frozenset[bytes]:
    """The accepted names in a Host header. Ports are ignored, because port forwarding changes them."""
    names = {"localhost", "127.0.0.1", "[::1]", *more}
    if listen_host is not None:
        names.add(f"[{listen_host}]" if ":" in listen_host else listen_host)
    return frozenset(name.lower().encode() for name in names)


def _name(host: bytes) -> bytes:
    host = host.lower()
    return host[: host.find(b"]") + 1] if host[:1] == b"[" else host.partition(b":")[0]


def _shown(value: bytes | None) -> str:
    return repr(value[:100].decode("latin-1")) if value else "nothing"
