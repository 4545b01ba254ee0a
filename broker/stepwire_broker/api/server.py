"""The HTTP server on the broker's event loop: uvicorn without signal handlers, and with additional limits."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from . import access
from .app import Application
from .engine_port import EnginePort
from .listening import BACKLOG, address_of
from .token import Tokens

CONNECTIONS_MAX: Final = 2048
HEAD_BYTES_MAX: Final = 32 * 1024
HEAD_TIMEOUT_S: Final = 10.0
DROPPED_BYTES_MAX: Final = 64 * 1024 * 1024  # of refused bodies on one connection
TOGETHER_BYTES_MAX: Final = 64 * 1024  # a larger body is sent separately from its head, to avoid a copy
KEEP_ALIVE_S: Final = 75
STOP_TIMEOUT_S: Final = 5


class Server:
    """Answers requests from `start` to `stop`. The caller binds the socket, so that a port in use is found early."""

    def __init__(self, broker: EnginePort, tokens: Tokens, listener: socket.socket) -> None:
        self._listener = listener
        self._application = Application(broker)
        host, self.port = listener.getsockname()[:2]
        listen_host, _ = address_of(broker.settings.http.listen)
        hosts = access.names_of(listen_host, broker.settings.http.hosts)
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._uvicorn = _Uvicorn(
            _config(access.AccessControl(self._application.routes, tokens, hosts, self._application.requests))
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        context = copy_context()
        context.run(_is_ours.set, True)
        serving = self._uvicorn.serve(sockets=[self._listener])
        self._serving = asyncio.get_running_loop().create_task(serving, name="http", context=context)
        ready = asyncio.create_task(self._uvicorn.ready.wait())
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()

    def stop_waiting(self) -> None:
        """End the long polls of workers, because the broker drains."""
        self._application.polling.stop_waiting()

    async def stop(self) -> None:
        """Accept no further requests, end long polls and streams, and let open requests finish for STOP_TIMEOUT_S."""
        self._application.close()
        self._uvicorn.should_exit = True
        if self._serving is not None:
            await self._serving


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's loggers belong to the process, which may serve an application of its own
        log_level=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS_MAX,
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

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class BoundedProtocol(HttpToolsProtocol):
    """Limits the size of a request's head, and the time to receive it. The C parser has no such limits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False
        self._in_head = True
        self._is_refused = False
        self._head_bytes = 0
        self._dropped_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._is_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_head()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._is_too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            self._refuse_head()
            return
        super().on_headers_complete()
        self.cycle.transport = _HeadWithBody(self.transport, self.cycle)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        if self.cycle.response_complete:
            # A client reads the refusal only after it has sent its body, so accept the body, up to a limit.
            self._dropped_bytes += len(body)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self.transport.close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()

    def _refuse_head(self) -> None:
        self._is_refused = True
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def _is_too_slow(self) -> None:
        self._deadline = None
        if self._in_head and not self.transport.is_closing():
            self.transport.close()

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _HeadWithBody:
    """The transport of one answer. Sends the head together with the body, so that the client wakes up only once."""

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None  # not sent yet; empty after it was sent

    def write(self, data: bytes) -> None:
        if self._head is None and self._cycle.response_started:
            self._head = b""
            if self._is_followed_at_once():
                self._head = data
                return
        if self._head and len(data) <= TOGETHER_BYTES_MAX:
            data = self._head + data
            self._head = b""
        self.flush()
        self._transport.write(data)

    def _is_followed_at_once(self) -> bool:
        """True if a body follows at once. The next chunk of a stream may come much later."""
        return self._cycle.chunked_encoding is False and self._cycle.scope["method"] != "HEAD"

    def flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
