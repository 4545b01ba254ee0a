"""The wire: the broker's two sockets as the core and the engine use them.

`sockets.py` opens them, `reader.py` reads them, `audience.py` decides who receives what, `paths.py` keeps their ipc
paths. The wire composes these parts, sends, and passes what happens to its listener. It knows nothing else of the
protocol.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeAlias

import zmq
from stepwire_protocol import codec, topics

from stepwire_broker.core.definitions.settings import BusSettings

from .alarms import Alarms
from .audience import Audience
from .counters import WireCounters
from .listener import UNAUTHENTICATED, BusListener
from .paths import Paths
from .reader import SocketReader
from .sockets import Sockets, read_endpoints

# Takes the topic and the body of a message.
Deliver: TypeAlias = Callable[[bytes, bytes], None]


class Wire:
    """`open`, then send; `close` at the end."""

    def __init__(
        self,
        settings: BusSettings,
        broker_id: str,
        listener: BusListener,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        """With a `context` of the caller, peers in this process can connect over inproc. `close` leaves it open."""
        self.counters = WireCounters()
        self.endpoints: dict[str, str] = {}  # "steps" and "results": where they are really bound
        self._settings = settings
        self._broker_id = broker_id
        self._listener = listener
        self._on_message = listener.on_message
        self._context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._is_context_ours = context is None
        self._alarms = Alarms(listener.on_alarm)
        self._paths = Paths(self._alarms)
        self._sent_taps: list[Deliver] = []
        self._attached: dict[bytes, Deliver] = {}  # by inbox topic: receivers without a pipe
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_inside_multipart = False
        self._is_closed = True

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self, here: bytes) -> None:
        """Bind both sockets. `here` greets every peer that connects.

        Raises EndpointRefused, with no socket left open. A tcp port that is still busy is tried again for some seconds.
        """
        endpoints = read_endpoints(self._settings)
        self._sockets = Sockets(self._context, self._settings, self._broker_id, here, endpoints)
        self._xpub = self._sockets.xpub
        self._audience = Audience(self._xpub, self._sockets.partings, self._listener, self.counters, self._alarms)
        self._steps = SocketReader(
            self._xpub,
            self._audience.take,
            after_drain=self._listener.after_drain,
            on_empty=self._audience.queue_emptied,
        )
        self._results = SocketReader(self._sockets.sub, self._take_message, after_drain=self._listener.after_drain)
        self._is_closed = False
        try:
            self.endpoints = await self._sockets.bind(self._paths)
        except BaseException:
            self.close()
            raise
        self._steps.start()
        self._results.start()
        self._check_later()

    def close(self, linger_ms: int = 0) -> None:
        """Unbind and close. Sent messages have `linger_ms` to leave. A context of the wire's own is waited for."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._steps.stop()
        self._results.stop()
        self._sockets.close(linger_ms)
        if self._is_context_ours:
            self._context.term()
        self._paths.release()
        self._audience.clear()

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """For peers that connect to `inner_endpoints`. They close their sockets before the wire is closed."""
        return self._context

    def inner_endpoints(self) -> tuple[str, str]:
        """(steps, results) for workers in this process. Bound by the first call, in addition to the configured ones."""
        return self._sockets.inner_endpoints()

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, topic: bytes, body: bytes) -> bool:
        """False: the message was dropped, because the topic has no receiver, or its receiver reads too slowly."""
        if topic not in self._audience.pipes:
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
        """`send` for topic and body kept as one, such as a retransmission."""
        return self.send(*codec.split(frame))

    def send_to_peer(self, to: str, body: bytes) -> bool:
        """`send` for a level-0 peer; `body` begins with its `to`."""
        if to not in self._audience.granted:
            self.counters.dropped["no_receiver"] += 1
            return False
        return self._send(topics.STEPS, body)

    def grant(self, to: str) -> None:
        """The peer that `on_peer` is reporting receives messages that begin with this `to`, and no others."""
        self._audience.grant(to)

    def attach(self, topic: bytes, deliver: Deliver) -> Callable[[], None]:
        """Messages to this topic go to `deliver` instead of the sockets, until the returned function is called."""
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
            return False
        finally:
            # A send can take the edge that a subscription made.
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
        """Results or worker messages have arrived that were not read yet. Their reading is scheduled then."""
        return not self._is_closed and self._results.is_behind

    def _take_message(self, frame: zmq.Frame) -> int:
        """Pass one message to the listener. Returns its bytes."""
        if frame.more or self._is_inside_multipart:
            return self._skip_part(frame)
        data = frame.bytes
        topic, body = codec.split(data)
        counters = self.counters
        counters.received += 1
        counters.received_bytes += len(data)
        # With CURVE, the principal will be the frame's User-Id, which the ZAP handler sets.
        self._on_message(topic, body, UNAUTHENTICATED)
        return len(data)

    def _skip_part(self, frame: zmq.Frame) -> int:
        """Parts are skipped one by one, on the same budget of messages: a multipart message may have millions."""
        is_first = not self._is_inside_multipart
        self._is_inside_multipart = frame.more
        if is_first:
            self.counters.refused["multipart"] += 1
            self._listener.on_refused_frame("multipart", frame.bytes)
        return 0

    # -- regular checks -----------------------------------------------------------------------------------------------

    def check_paths(self) -> None:
        """Take back each ipc path that another process has bound or removed. Runs by itself at every heartbeat."""
        self._paths.check()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._check_timer = loop.call_later(self._settings.heartbeat_ms / 1000, self._check)

    def _check(self) -> None:
        self._check_later()
        self.check_paths()
        self._audience.read_partings()
        # If an edge of a descriptor is ever lost, the loss lasts one heartbeat.
        self._steps.schedule()
        self._results.schedule()
