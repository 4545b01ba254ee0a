"""The HTTP server on the broker's event loop: uvicorn without signal handlers, and with additional limits."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final

import structlog
import uvicorn

from . import access, health, tls_watch, token_watch
from .acceptor import STRANGERS, Accepted, Acceptor, Answers, MakeProtocol
from .app import Application
from .engine_port import EnginePort
from .handshake import Handshakes
from .limits import HttpLimits, limits_of
from .listening import Listeners, address_of
from .protocol import BoundedProtocol
from .replies import closing_answer, problem_reply
from .shares import OF_BROKER
from .token import Tokens

KEEP_ALIVE_S: Final = 75
UVICORN_BACKLOG: Final = 1024  # of sockets that uvicorn accepts from, as many in one turn of the loop
STOP_TIMEOUT_S: Final = 5

log: Final = structlog.get_logger("stepwire.api")


class Server:
    """Answers requests from `start` to `stop`. The caller binds the sockets, so that a port in use is found early."""

    def __init__(
        self, broker: EnginePort, tokens: Tokens, listeners: Listeners, limits: HttpLimits | None = None
    ) -> None:
        self._broker = broker
        self._listeners = listeners
        self._application = Application(broker, limits or limits_of(broker.settings.http))
        listen = broker.settings.http.listen
        listen_host = None if listen is None else address_of(listen)[0]
        certificates = listeners.certificates
        names = () if certificates is None else certificates.current.names
        hosts = access.names_of(listen_host, (*broker.settings.http.hosts, *names))
        self.url = listeners.url
        application = access.AccessControl(
            self._application.routes,
            tokens,
            hosts,
            self._application.requests,
            is_strict=broker.settings.security.strict,
            jwt=listeners.jwt,
        )
        self._tokens = tokens
        self._watching: list[asyncio.Task[None]] = []
        make: Any = partial(BoundedProtocol, self._application.connections)
        self._handshakes = None
        if certificates is not None:
            self._handshakes = make = Handshakes(certificates, self._application.connections, make)
        self._uvicorn = _Uvicorn(_config(application, make), self._accept)
        self._serving: asyncio.Task[None] | None = None

    def _accept(self, listener: socket.socket, make_protocol: MakeProtocol) -> Acceptor:
        connections = self._application.connections
        if self._handshakes is not None:
            return Acceptor(listener, make_protocol, connections, self._tokens, None)
        requests, shares = self._application.requests, self._application.shares
        surplus = shares.problem(
            STRANGERS, OF_BROKER, f"{shares.limits.strangers_per_s} new connections per second without a token"
        )
        answers = Answers(
            alive=closing_answer(health.ALIVE),
            on_alive=partial(requests.count, health.LIVEZ, "GET", 200),
            refused=closing_answer(problem_reply(surplus)),
        )
        return Acceptor(listener, make_protocol, connections, self._tokens, answers)

    async def start(self) -> None:
        context = copy_context()
        context.run(_is_ours.set, True)
        serving = self._uvicorn.serve(sockets=self._listeners.sockets)
        self._serving = asyncio.get_running_loop().create_task(serving, name="http", context=context)
        ready = asyncio.create_task(self._uvicorn.ready.wait())
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()
        url = self._listeners.url_for_others
        if url is not None:
            self._broker.announce_http(url)
        if self._listeners.trouble is not None:
            log.warning("http_socket_unavailable", error=self._listeners.trouble)
        create_task = asyncio.get_running_loop().create_task
        watching = token_watch.watch(
            self._tokens, self._application.shares, self._application.notes, self._listeners.jwt
        )
        self._watching.append(create_task(watching, name="tokens"))
        if self._listeners.jwt is not None:
            self._watching.append(create_task(self._listeners.jwt.keys.watch(), name="jwks"))
        if self._handshakes is not None:
            self._watching.append(create_task(tls_watch.watch(self._handshakes.certificates), name="certificates"))

    def stop_waiting(self) -> None:
        """End the long polls of workers, because the broker drains."""
        self._application.polling.stop_waiting()

    async def stop(self) -> None:
        """Accept no further requests, end long polls and streams, and let open requests finish for STOP_TIMEOUT_S."""
        self._application.close()
        for watching in self._watching:
            watching.cancel()
        if self._handshakes is not None:
            self._handshakes.close()
        self._uvicorn.should_exit = True
        if self._serving is not None:
            await self._serving


def _config(app: access.AccessControl, make_protocol: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=make_protocol,  # uvicorn only calls it
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's loggers belong to the process, which may serve an application of its own
        log_level=None,
        server_header=False,
        proxy_headers=False,
        backlog=UVICORN_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )


_is_ours: ContextVar[bool] = ContextVar("is_ours", default=False)  # true in everything that a Server here runs


def _is_wanted(record: logging.LogRecord) -> bool:
    """Drop what uvicorn logs for a Server here, except errors: clients could fill the log with malformed lines."""
    return record.levelno >= logging.ERROR or not _is_ours.get()


logging.getLogger("uvicorn.error").addFilter(_is_wanted)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the broker, and sets `ready` when it serves."""

    def __init__(self, config: uvicorn.Config, accept: Callable[[socket.socket, MakeProtocol], Acceptor]) -> None:
        """`accept` makes the acceptor of a TCP listener."""
        super().__init__(config)
        self.ready = asyncio.Event()
        self._accept = accept
        self._acceptors: list[Acceptor] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
        assert sockets is not None
        local = [each for each in sockets if each.family == socket.AF_UNIX]  # only the broker's user can connect
        await super().startup(local)
        self._acceptors = [self._accept(each, self._make_protocol) for each in sockets if each not in local]
        self.ready.set()

    async def shutdown(self, sockets: "list[socket.socket] | None" = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def _make_protocol(self, first_bytes: bytes, accepted: Accepted | None) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        protocol: BoundedProtocol = make(config=self.config, **state, _loop=asyncio.get_running_loop())
        protocol.first_bytes, protocol.accepted = first_bytes, accepted
        return protocol
