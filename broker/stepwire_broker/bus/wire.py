"""The wire: the broker's two sockets as the core and the engine use them.

`sockets.py` opens the sockets, `reader.py` reads them, `audience.py` decides which peer receives which topic, and
`paths.py` keeps the ipc paths. The wire composes these parts, sends messages, and passes events to its listener.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import zmq
from stepwire_protocol import codec, topics

from stepwire_broker.core.definitions.settings import BusSettings
from stepwire_broker.open_files import connections_of_bus

from . import budgets, handshakes
from .alarms import Alarms
from .audience import Audience
from .bus_connection import BusConnection
from .connections import Connections
from .counters import WireCounters
from .gate import PrincipalGate, PrincipalsChanged
from .identity import Identities
from .keys.server_key import BrokerKeys
from .listener import BusListener
from .paths import Paths
from .reader import SocketReader
from .served_keys import ServedKeys
from .sockets import Bound, Sockets, read_endpoints

DOOR_EMPTY_S: Final = 2.0
DOOR_POLL_S: Final = 0.002
DISCONNECT_AFTER_S: Final = 0.1  # a reset that was sent before has left by then

# Takes the topic and the body of a message.
Deliver: TypeAlias = Callable[[bytes, bytes], None]


class Wire:
    """Call `open` before sending, and `close` at the end."""

    def __init__(
        self,
        settings: BusSettings,
        broker_id: str,
        listener: BusListener,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        *,
        is_strict: bool = False,
    ) -> None:
        """With a `context` of the caller, peers in this process can connect over inproc. `close` does not end it."""
        self.counters = WireCounters()
        self.bound: tuple[Bound, ...] = ()
        self.keys: ServedKeys | None = None  # the brokers' CURVE keys
        self._settings = settings
        self._is_strict = is_strict
        self._broker_id = broker_id
        self._listener = listener
        self._on_message = listener.on_message
        self._context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._is_context_ours = context is None
        self._alarms = Alarms(listener.on_alarm)
        self._paths = Paths(self._alarms, int(settings.ipc_mode, 8))
        self._sent_taps: list[Deliver] = []
        self._attached: dict[bytes, Deliver] = {}  # by inbox topic: receivers without a pipe
        self.connections_max = connections_of_bus(settings.max_connections)
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_inside_multipart = False
        self._is_closed = True

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self, here: bytes) -> None:
        """Bind both sockets. `here` greets every peer that connects.

        Raises EndpointRefused, with no socket left open. The bind of a busy tcp port is retried for some seconds.
        """
        pairs = read_endpoints(self._settings, is_strict=self._is_strict)
        self._gate = PrincipalGate(self._settings.curve, tuple(each for pair in pairs for each in pair))
        keys = self._gate.keys
        server = None if keys is None else keys.current
        self.counters.connections_refused = self._gate.open(self._context)
        try:
            self._sockets = Sockets(self._context, self._settings, self._broker_id, here, pairs, server)
        except BaseException:
            self._gate.close()
            raise
        self._xpub = self._sockets.xpub
        self._senders = Identities(has_inner=any(results.transport == "inproc" for _, results in pairs))
        self._subscribers = Identities(has_inner=any(steps.transport == "inproc" for steps, _ in pairs))
        self._connections = Connections(
            self._sockets.monitors,
            self.connections_max,
            budgets.unread_bytes_max(self._settings.max_message_bytes),
            self.counters,
            self._listener.grant_of,
            self._listener.on_disconnected,
            self._gate.hold_back,
            handshakes.PLAIN if server is None else handshakes.ENCRYPTED,
        )
        self.counters.recent_disconnections = self._connections.disconnections.recent
        self._audience = Audience(
            self._xpub, self._connections, self._subscribers, self._listener, self.counters, self._alarms
        )
        self._steps = SocketReader(
            self._xpub,
            self._audience.take,
            after_drain=self._listener.after_drain,
            on_empty=self._audience.queue_emptied,
        )
        self._results = SocketReader(
            self._sockets.sub,
            self._take_message,
            after_drain=self._listener.after_drain,
            on_empty=self._connections.floods.queue_emptied,
        )
        self._is_closed = False
        self._connections.start()
        self._gate.wait_for(self._connections.newcomers.wait_until_known)
        try:
            await self._check_door()
            self._senders.principals = self._subscribers.principals = self._gate.principals
            self._listener.on_grants_changed(self._gate.grants, frozenset())
            await self._bind(keys)
        except BaseException:
            self.close()
            raise
        on_keys = None if self.keys is None else self.keys.serve
        self._gate.start(self._on_grants_changed, lambda: self._connections.proofs, on_keys)
        self._steps.start()
        self._results.start()
        self._check_later()

    async def _bind(self, keys: BrokerKeys | None) -> None:
        self.bound = await self._sockets.bind(self._paths)
        if keys is not None:
            self.keys = ServedKeys(self._sockets, keys, self._alarms)
            await self.keys.start(self.bound)

    async def _check_door(self) -> None:
        """Raise EndpointRefused if an endpoint with CURVE would admit a connection without an allowed key."""
        if self._gate.keys is None:
            return
        address = self._sockets.bind_probe()
        await self._gate.check_door(self._context, address)
        # The visitors have left. libzmq reports no end of a connection that `unbind` ends, and it would stay counted.
        until_s = time.monotonic() + DOOR_EMPTY_S
        while time.monotonic() < until_s:
            self._connections.read_events()
            if not self.counters.connections["steps"]:
                break
            await asyncio.sleep(DOOR_POLL_S)
        self._xpub.unbind(address)

    def close(self, linger_ms: int = 0) -> None:
        """Unbind and close. Queued messages are sent for at most `linger_ms`. Waits for a context of the wire's own."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._steps.stop()
        self._results.stop()
        self._connections.stop()
        self._sockets.close(linger_ms)
        self._gate.close()
        if self._is_context_ours:
            self._context.term()
        self._paths.release()
        self._audience.clear()

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """The context for peers that connect to `inner_endpoints`. Close their sockets before the wire."""
        return self._context

    def inner_endpoints(self) -> tuple[str, str]:
        """(steps, results) for workers in this process. Bound by the first call, in addition to the configured ones."""
        self._senders.has_inner = self._subscribers.has_inner = True
        return self._sockets.inner_endpoints()

    @property
    def endpoints(self) -> dict[str, str]:
        """The addresses of "steps" and "results" for workers on this host: those without keys, if there are any."""
        if not self.bound:
            return {}
        nearest = next((pair for pair in self.bound if not pair.has_curve), self.bound[0])
        return {"steps": nearest.steps, "results": nearest.results}

    async def reload_clients(self) -> tuple[str, ...]:
        """Read the client files now, besides every 2 s. Returns the sentences about invalid files."""
        await self._gate.check(self._on_grants_changed)
        return self._gate.faults

    @property
    def client_faults(self) -> tuple[str, ...]:
        """The sentences about client files that are invalid now."""
        return () if self._is_closed else self._gate.faults

    def _on_grants_changed(self, changed: PrincipalsChanged) -> None:
        """Apply new grants. The core resets the sessions of revoked principals, then their connections end."""
        self._senders.principals = self._subscribers.principals = changed.principals
        self._listener.on_grants_changed(changed.grants, changed.declared_dead)
        self.grants_changed()
        if changed.disconnected:
            asyncio.get_running_loop().call_later(DISCONNECT_AFTER_S, self._disconnect_all, changed.disconnected)

    def _disconnect_all(self, principals: frozenset[str]) -> None:
        if not self._is_closed:
            for principal in principals:
                self.disconnect(principal)

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, topic: bytes, body: bytes) -> bool:
        """Send a message. False: it was dropped, because the topic has no receiver or the receiver reads too slowly."""
        if topic not in self._audience.inboxes:
            deliver = self._attached.get(topic)
            if deliver is None:
                self.counters.dropped["no_receiver"] += 1
                return False
            if self._sent_taps:
                self._show_sent(topic, body)
            deliver(topic, body)
            return True
        return self._send(topic, body)

    def send_frame(self, frame: bytes) -> bool:
        """Send a whole frame (topic and body), for example a retransmission."""
        return self.send(*codec.split(frame))

    def send_to_peer(self, to: str, body: bytes) -> bool:
        """Send to a level-0 peer. `body` begins with the peer's `to`."""
        if to not in self._audience.granted:
            self.counters.dropped["no_receiver"] += 1
            return False
        return self._send(topics.STEPS, body)

    def grant(self, to: str) -> None:
        """Let the peer that `on_peer` is reporting receive messages that begin with this `to`, and no others."""
        self._audience.grant(to)

    def attach(self, topic: bytes, deliver: Deliver) -> Callable[[], None]:
        """Pass messages to this topic to `deliver` instead of the sockets, until the returned function is called."""
        self._attached[topic] = deliver

        def detach() -> None:
            if self._attached.get(topic) is deliver:
                del self._attached[topic]

        return detach

    def _send(self, topic: bytes, body: bytes) -> bool:
        counters = self.counters
        frame = topic + body
        try:
            self._xpub.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            counters.dropped["full"] += 1
            self._audience.unmute(topic)
            return False
        finally:
            # A send can consume the edge of a subscription.
            if not self._steps.is_scheduled and int(self._xpub.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._steps.schedule()
        counters.sent += 1
        counters.sent_bytes += len(frame)
        if self._sent_taps:
            self._show_sent(topic, body)
        return True

    def add_sent_tap(self, tap: Deliver) -> Callable[[], None]:
        """Call `tap` with every message that is sent, until the returned function is called."""
        self._sent_taps.append(tap)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._sent_taps.remove(tap)

        return remove

    def _show_sent(self, topic: bytes, body: bytes) -> None:
        for tap in tuple(self._sent_taps):
            tap(topic, body)

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True if results or worker messages have arrived that were not read yet. Schedules their reading."""
        return not self._is_closed and self._results.is_behind

    def _take_message(self, frame: zmq.Frame) -> int:
        """Pass one message to the listener. Returns its bytes."""
        principal = self._senders.of(frame)
        connection = self._connections.of("results", frame, principal)
        size = len(frame)
        is_admitted = self._connections.admits(connection, size, principal)
        if frame.more or self._is_inside_multipart:
            return self._skip_part(frame, connection, principal)
        counters = self.counters
        counters.received += 1
        counters.received_bytes += size
        if is_admitted:
            topic, body = codec.split(frame.bytes)
            if self._on_message(topic, body, principal) is not None:
                self._connections.refused(connection, size)
            return size
        return 0  # the sooner dropped messages are read, the sooner their memory is free

    def _skip_part(self, frame: zmq.Frame, connection: BusConnection | None, principal: str) -> int:
        """Skip one part of a multipart message. Each part uses the budget of messages: a message may have millions."""
        is_first = not self._is_inside_multipart
        self._is_inside_multipart = frame.more
        if is_first:
            self.counters.refused["multipart"] += 1
            self._listener.on_refused_frame("multipart", frame.bytes, principal)
            self._connections.refused(connection)
        return 0

    def disconnect(self, principal: str) -> int:
        """End every connection that has sent a frame as this principal. Returns their number."""
        return self._connections.disconnect_principal(principal, "revoked")

    def grants_changed(self) -> None:
        """Apply the rates of new grants."""
        self._connections.grants_changed()

    # -- regular checks -----------------------------------------------------------------------------------------------

    def check_paths(self) -> None:
        """Bind again each ipc path that another process has bound or removed. Runs by itself at every heartbeat."""
        self._paths.check()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._check_timer = loop.call_later(self._settings.heartbeat_ms / 1000, self._check)

    def _check(self) -> None:
        self._check_later()
        self.check_paths()
        self._gate.block(self._connections.blocked)
        self._connections.read_events()
        self._audience.forget_parted()
        # If an edge of a descriptor is ever lost, the loss lasts one heartbeat.
        self._steps.schedule()
        self._results.schedule()
