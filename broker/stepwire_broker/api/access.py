"""The gate: what every request passes before anything of it is looked at.

A page in a browser on the broker's machine can send requests to the loopback, and by DNS rebinding under a name of
its own; so the Host must be one of ours, an Origin must be the same, and a token is asked for on every route.
"""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .http import GRANT
from .http_problems import HttpProblem
from .replies import send_problem
from .request_counts import RequestCounts
from .token import Tokens

OPEN_PATHS: Final = frozenset({"/livez"})
REQUESTS_MAX: Final = 1024  # that wait for an answer at the same time

_BEARER: Final = b"bearer "


class AccessControl:
    def __init__(self, app: ASGIApp, tokens: Tokens, hosts: frozenset[bytes], requests: RequestCounts) -> None:
        self._app = app
        self._requests = requests
        self._tokens = tokens
        self._hosts = hosts
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = self._requests.counting(scope, send)
        try:
            self._check(scope)
        except HttpProblem as problem:
            await send_problem(send, problem)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1

    def _check(self, scope: Scope) -> None:
        if scope["path"] in OPEN_PATHS:  # says nothing about anybody, and a prober knows no name of ours
            return
        host = origin = authorization = None
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    raise HttpProblem(400, "host_refused", "the request says two Hosts")
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"authorization":
                authorization = value
        if host is None or _name(host) not in self._hosts:
            raise HttpProblem(
                403,
                "host_refused",
                f"this broker is not called {_shown(host)}",
                "use the address it listens on, or add the name to http.hosts",
            )
        if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
            raise HttpProblem(403, "origin_refused", f"a page of {_shown(origin)} may not send requests here")
        if authorization is None or authorization[:7].lower() != _BEARER:
            raise _unauthorized("the request carries no token")
        grant = self._tokens.admit(authorization[7:].strip())
        if grant is None:
            raise _unauthorized("the token is not one of this broker's, or its time is over")
        scope[GRANT] = grant
        if self._open >= REQUESTS_MAX:
            raise HttpProblem(503, "overloaded", f"{REQUESTS_MAX} requests are waiting already", retry_after_ms=1000)


def names_of(listen_host: str, more: tuple[str, ...]) -> frozenset[bytes]:
    """The names that a Host may say. Ports do not matter: a forwarded port is another one, a rebound name is not."""
    names = {"localhost", "127.0.0.1", "[::1]", f"[{listen_host}]" if ":" in listen_host else listen_host, *more}
    return frozenset(name.lower().encode() for name in names)


def _name(host: bytes) -> bytes:
    host = host.lower()
    return host[: host.find(b"]") + 1] if host[:1] == b"[" else host.partition(b":")[0]


def _shown(value: bytes | None) -> str:
    return repr(value[:100].decode("latin-1")) if value else "nothing"


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(
        401,
        "unauthorized",
        detail,
        "send `Authorization: Bearer <token>`; the token lies in .stepwire/token where the broker was started",
        headers=((b"www-authenticate", b'Bearer realm="stepwire"'),),
    )
