"""One connection of the HTTP server: uvicorn's protocol, and the limits that its C parser does not have."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from . import local_socket
from .acceptor import Accepted
from .client_certificates import ClientCertificate, certificate_of
from .connections import Closable, HttpConnections
from .http import CONNECTION
from .token import Grant

DROPPED_BYTES_MAX: Final = 64 * 1024 * 1024  # of refused bodies on one connection
LINGER_S: Final = 2.0  # how long a client may go on sending after its last answer
STRANGER: Final = ""  # the owner of a connection without a valid token
TOGETHER_BYTES_MAX: Final = 64 * 1024  # a larger body is sent separately from its head, to avoid a copy


class BoundedProtocol(HttpToolsProtocol):
    """Limits what a client sends, how long it takes for it, and how long it leaves answers unread.

    The deadline is that of the head, then that of the first byte of the body, then that of the whole body."""

    def __init__(self, open_connections: HttpConnections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False
        self.is_too_slow = False
        self.first_bytes = b""  # read before there was a protocol
        self.accepted: Accepted | None = None  # what the connection is counted as, if it was counted before
        self.user_grant: Grant | None = None  # on the Unix socket: of the client's user
        self.certificate: ClientCertificate | None = None
        self.answer_left = 0
        self._open = open_connections
        self._owner = STRANGER
        self._postponed: tuple[RequestResponseCycle, Any] | None = None
        self._limits = open_connections.limits
        self._running: RequestResponseCycle | None = None  # `cycle` may be of a later request
        self._in_head = True
        self._in_body = False
        self._body_began_s: float | None = None
        self._has_body = False
        self._waits_for_first_byte = False
        self._is_refused = False
        self._is_closing = False
        self._head_bytes = 0
        self._dropped_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self._limits.head_s, self._on_slow_head)
        if self.accepted is None:
            self._open.opened(self)
        else:
            self.accepted.protocol = self
            if self.accepted.is_aborted:
                transport.abort()
        self.user_grant = local_socket.grant_of(transport)
        self.certificate = certificate_of(transport)
        if self.first_bytes and not transport.is_closing():
            self.data_received(self.first_bytes)
            self.first_bytes = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._stalled is not None:
            self._stalled.cancel()
        self._open.closed(self._counted)
        if self.accepted is not None:
            self.accepted.protocol = None  # they refer to each other
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it, and with it the connection, after a reset
        self._postponed = None
        self._break_cycles()

    def _break_cycles(self) -> None:
        """End the references in circles, so that no garbage collection is needed to free the connection."""
        if self.scope is not None:
            self.scope.pop(CONNECTION, None)  # type: ignore[typeddict-item]
        for cycle in (self.cycle, self._running):
            if cycle is not None:
                cycle.transport = self.transport  # instead of the wrapper, which refers to the cycle
        if hasattr(self.transport, "_read_ready_cb"):
            self.transport._read_ready_cb = None  # a method of asyncio's transport itself

    @property
    def _counted(self) -> Closable:
        return self.accepted or self

    def present_token(self, name: str) -> None:
        """A request of this connection has a valid token with this name."""
        self._owner = name
        self._open.known(self._counted, None if self.client is None else self.client[0])

    def abort(self) -> None:
        self.transport.abort()

    # -- requests -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self._refuse_head()
            elif self._deadline is None:
                self._arm(self._limits.head_s, self._on_slow_head)
        elif self._in_body and not self._is_closing:
            self._watch_body()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        self._has_body = False
        self._body_began_s = None
        self.is_too_slow = False
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._limits.head_bytes:
            self._refuse_head()
            return
        if self._is_refused or self._is_closing:
            return
        if len(self.pipeline) >= self._limits.pipelined:
            self._open.refusals.count("pipelined")
            self._is_refused = True
            self.abort()
            return
        self._open.busy(self._counted)
        super().on_headers_complete()
        self.cycle.transport = _HeadWithBody(self.transport, self.cycle, self.close_after_answer)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        if self._is_refused:
            return
        if self._is_closing or self.cycle.response_complete:
            # A client reads the refusal only after it has sent its body, so accept the body, up to a limit.
            self._dropped_bytes += len(body)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self.transport.close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._disarm()
        if self._is_closing:
            self.transport.close()
        elif not self._is_refused:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request. One answer at a time waits for its client, so the next request starts after it."""
        if self.flow.write_paused:
            self._postponed = cycle, app
            return
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if not self._is_closing:
            super().on_response_complete()
        if self._running is not None:
            self._running.transport = self.transport  # the wrapper and the cycle refer to each other
        if self.cycle.response_complete and not self.transport.is_closing():
            self._open.idle(self._counted)

    def _refuse_head(self) -> None:
        self._is_refused = True
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    # -- slow clients -------------------------------------------------------------------------------------------------

    def _watch_body(self) -> None:
        """Give the client time for the first byte of the body, then for the rest of it."""
        now_s = self.loop.time()
        if self._body_began_s is None:
            self._body_began_s = now_s
        elif not (self._has_body and self._waits_for_first_byte):
            return
        self._waits_for_first_byte = not self._has_body
        left_s = self._limits.body_first_byte_s if self._waits_for_first_byte else self._limits.body_s
        self._disarm()
        self._arm(self._body_began_s + left_s - now_s, self._on_slow_body)

    def _on_slow_head(self) -> None:
        self._deadline = None
        if self._in_head and not self.transport.is_closing():
            self._open.refusals.count("slow_head")
            self.transport.close()

    def _on_slow_body(self) -> None:
        self._deadline = None
        self._open.refusals.count("slow_body")
        if self.cycle.response_complete:
            self.abort()
        else:
            self.is_too_slow = True
            self.cycle.message_event.set()  # the request that waits for the body looks at `is_too_slow`

    def _arm(self, after_s: float, callback: Any) -> None:
        self._deadline = self.loop.call_later(after_s, callback)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- answers ------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._open.reads(self._counted)
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self._postponed is not None and not self.transport.is_closing():
            postponed, self._postponed = self._postponed, None
            self._start_asgi_task(*postponed)

    def _left(self) -> int:
        return self.transport.get_write_buffer_size() + self.answer_left

    def _watch_answer(self) -> None:
        size = self._left()
        self._open.unread(self._counted, self._owner, size)
        self._stalled = self.loop.call_later(self._limits.unread_s, self._check_answer, size)

    def _check_answer(self, size_before: int) -> None:
        """Close the connection if the client has accepted no byte since. Nothing was added meanwhile: a stream pauses
        with the first chunk that is not accepted at once."""
        if self._left() >= size_before:
            self._open.refusals.count("stalled_answer")
            self.abort()
        else:
            self._watch_answer()

    def close_after_answer(self) -> None:
        """Close the connection after its last answer. A client that still sends its body would not receive the answer
        if the connection were closed at once, so the rest of the body is received for a moment."""
        if self._in_body and not self.is_too_slow and not self.transport.is_closing() and not self._is_closing:
            self._is_closing = True
            self._disarm()
            self.flow.resume_reading()
            self._arm(LINGER_S, self.transport.close)
        else:
            self.transport.close()


class _HeadWithBody:
    """The transport of one answer. Sends the head together with the body, so that the client wakes up only once."""

    def __init__(
        self, transport: asyncio.Transport, cycle: RequestResponseCycle, close_connection: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._close_connection = close_connection
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
        self._close_connection()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
