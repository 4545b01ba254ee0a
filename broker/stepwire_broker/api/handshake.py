"""The TLS handshake of a connection, under the limits of the connections.

A connection counts from its acceptance on, as the idle connection of a stranger. After the handshake, the protocol of
HTTP takes its place.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .connections import HttpConnections
from .refusal_log import RefusalLog
from .tls_files import Certificates

CLOSE_S: Final = 2.0  # how long a closed connection waits for the client's end of TLS
UNSENT_BYTES_MAX: Final = 64 * 1024  # of an answer, before its writer has to wait: as without TLS

MakeProtocol: TypeAlias = Callable[..., asyncio.Protocol]


class Handshakes:
    """Makes the protocol of each new connection. Unix sockets stay without TLS."""

    def __init__(self, certificates: Certificates, connections: HttpConnections, make: MakeProtocol) -> None:
        self.certificates = certificates
        self.connections = connections
        self.refusals = RefusalLog()
        self.running: set[Handshake] = set()
        self._make = make

    def __call__(self, **arguments: Any) -> asyncio.Protocol:
        return Handshake(self, lambda: self._make(**arguments))

    def close(self) -> None:
        """End the handshakes that are not complete."""
        for handshake in tuple(self.running):
            handshake.abort()


class Handshake(asyncio.Protocol):
    def __init__(self, handshakes: Handshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._all = handshakes
        self._make = make
        self._early = b""  # data that arrived together with the end of the handshake
        self._is_lost = False
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None  # a reference keeps it alive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            protocol = self._make()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return
        self._transport = transport
        transport.pause_reading()
        self._all.running.add(self)
        self._all.connections.opened(self)
        if not transport.is_closing():
            self._task = asyncio.get_running_loop().create_task(self._run(transport), name="tls handshake")
        else:
            self._end()

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _run(self, transport: asyncio.Transport) -> None:
        tls: asyncio.Transport | None = None
        try:
            tls = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._all.certificates.context,
                server_side=True,
                ssl_handshake_timeout=self._all.connections.limits.head_s,
                ssl_shutdown_timeout=CLOSE_S,
            )
        except (OSError, ValueError) as error:  # a refused certificate is a ValueError too
            self._note(transport, error)
        finally:
            self._end()
        if tls is not None and not self._is_lost:  # None: the connection was aborted meanwhile
            self._hand_over(tls)

    def _hand_over(self, tls: asyncio.Transport) -> None:
        tls.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        protocol = self._make()
        tls.set_protocol(protocol)
        protocol.connection_made(tls)
        if self._early and not tls.is_closing():
            protocol.data_received(self._early)
        self._early = b""

    def _end(self) -> None:
        """Leave the connections: HTTP's protocol joins them again."""
        self._all.running.discard(self)
        self._all.connections.closed(self)

    def _note(self, transport: asyncio.Transport, error: Exception) -> None:
        is_slow = isinstance(error, ConnectionAbortedError)  # what asyncio raises at the end of the time
        self._all.connections.refusals.count("slow_handshake" if is_slow else "bad_handshake")
        if isinstance(error, ssl.SSLError):
            reason = getattr(error, "verify_message", None) or error.reason or "no reason"
            peer = transport.get_extra_info("peername")
            self._all.refusals.note(str(peer[0]) if peer else "unknown", f"tls {reason.lower().replace('_', ' ')}")
