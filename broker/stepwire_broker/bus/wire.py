"""The broker's two sockets: who may hear what, what came in, what goes out. Nothing else of the protocol.

XPUB speaks: with XPUB_MANUAL it is we who decide what a connected peer really receives. A worker gets its own inbox,
`@<worker> `, exactly as it asked; a level-0 handler asks for all steps and gets its own; everything else is refused
without a word. SUB listens: results and worker messages.

Raw sockets on the loop's file descriptor. The descriptor is edge-triggered, and almost every call on the socket may
consume the edge; so a socket is always read until it is empty, or puts itself on the loop again: after a used-up
budget, after every turn that sent something, and after an exception of a callback.
"""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import zmq
from msgspec import Struct
from stepwire_protocol import codec, limits, topics
from zmq.utils.monitor import recv_monitor_message

from stepwire_broker.core.definitions.settings import BusSettings

from .endpoints import Endpoint, EndpointRefused, PathClaim, read_endpoint

MESSAGES_PER_TURN: Final = 200  # then the loop's other work has its turn
BYTES_PER_TURN: Final = 64 * 1024  # some hundred results: the database gets to work on them while the next are read
SUBSCRIPTIONS_QUEUED: Final = 10_000
BIND_RETRY_MS: Final = 100
BIND_RETRY_MAX_MS: Final = 5_000  # the predecessor's port is free again by then
LISTENERS_LOST_MAX: Final = 16
MAX_MESSAGE_FACTOR: Final = limits.FRAME_BYTES_MAX // limits.MESSAGE_BYTES_MAX

LEVEL0_TOPICS: Final = (topics.STEPS, topics.STEPS.rstrip())

Direction: TypeAlias = Literal["in", "out"]
Options: TypeAlias = dict[int, int | bytes]
Tap: TypeAlias = Callable[[Direction, bytes, bytes], None]

_TCP_KEEPALIVE: Final[Options] = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 15,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
_BOTH: Final[Options] = _TCP_KEEPALIVE | {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 0,
    zmq.HEARTBEAT_IVL: 0,  # a bound socket's would kill healthy peers that are slow to read
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.BACKLOG: 1_024,
}


class WireCounters(Struct):
    """What passed, and what did not, by reason. `dropped` and `refused` have every reason from the start."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    dropped: dict[str, int] = {}
    refused: dict[str, int] = {}


class _Asker(Struct):
    """Who subscribed `steps`: its topics, and what it was granted instead of them."""

    topics: list[bytes]
    to: str | None = None


class Wire:
    """Callbacks run on the loop, in the order things happened, and may send.

    on_message     one frame of a topic we listen to: (topic with its space, the bytes after it), unchecked
    on_refused     a frame that is no message at all: (code of errors.REFUSALS, its first bytes)
    on_subscribed  a peer now receives this worker's inbox: the very next send reaches it
    on_vanished    the last pipe that received this worker's inbox is gone
    on_peer        a level-0 handler subscribed `steps`: it receives what is granted to it in this very call
    on_peer_gone   that handler, by its `to`, unsubscribed or lost its connection
    on_peers_uncertain  one of several such handlers is gone, and nobody can say which
    after_drain    a drain ended, or used up its budget: decide and flush once for all of it
    on_alarm       something an operator must know, one sentence
    """

    def __init__(
        self,
        settings: BusSettings,
        broker_id: str,
        *,
        on_message: Callable[[bytes, bytes], None],
        on_refused: Callable[[str, bytes], None],
        on_subscribed: Callable[[str], None],
        on_vanished: Callable[[str], None],
        on_peer: Callable[[], None],
        on_peer_gone: Callable[[str], None],
        on_peers_uncertain: Callable[[], None],
        after_drain: Callable[[], None],
        on_alarm: Callable[[str], None],
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.counters = WireCounters(
            dropped=dict.fromkeys(("full", "nobody"), 0),
            refused=dict.fromkeys(("multipart", "level0", "subscription", "user_message", "unsure_peer"), 0),
        )
        self.endpoints: dict[str, str] = {}  # "steps" and "results": where they are really bound
        self._settings = settings
        self._broker_id = broker_id
        self._on_message = on_message
        self._on_refused = on_refused
        self._on_subscribed = on_subscribed
        self._on_vanished = on_vanished
        self._on_peer = on_peer
        self._on_peer_gone = on_peer_gone
        self._on_peers_uncertain = on_peers_uncertain
        self._after_drain = after_drain
        self._on_alarm = on_alarm
        self._context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._is_context_ours = context is None
        self._inner: tuple[str, str] | None = None  # the endpoints for who lives in this process
        self._taps: list[Tap] = []
        self._pipes: dict[bytes, int] = {}  # inbox topic → pipes that receive it
        self._attached: dict[bytes, Callable[[bytes, bytes], None]] = {}  # by inbox topic: who has no pipe
        self._peers: dict[str, bytes] = {}  # level-0 peers: `to` → what their pipe receives
        self._askers: dict[int, _Asker] = {}  # the same, and those without a grant, by their connection's descriptor
        self._unseen: list[_Asker] = []  # the same, of inproc, which has no descriptors
        self._parting = 0  # words of good-bye still to come from connections that are known to be gone
        self._asking: _Asker | None = None
        self._claims: dict[str, PathClaim] = {}
        self._lost: dict[str, int] = {}  # listeners whose path was stolen: they keep their peers
        self._last_alarm = ""
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_reading_due = False  # the same for both sockets: on the loop's list already
        self._is_peers_due = False
        self._is_inside_multipart = False
        self._is_peer_unsure = False
        self._is_closed = True

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self, here: bytes) -> None:
        """Bind both sockets. `here` greets everyone who connects. Raises EndpointRefused, with nothing left open.

        A tcp port that is still busy is tried again for some seconds.
        """
        bus = self._settings
        steps = read_endpoint("bus.steps", bus.steps, allow_insecure=bus.allow_insecure)
        results = read_endpoint("bus.results", bus.results, allow_insecure=bus.allow_insecure)
        if steps.address == results.address and not steps.address.endswith(":*"):
            raise EndpointRefused(f"bus.steps and bus.results are both {bus.steps!r}: they need an endpoint each")

        self._loop = asyncio.get_running_loop()
        self._xpub = self._context.socket(zmq.XPUB)
        self._sub = self._context.socket(zmq.SUB)
        self._partings = self._context.socket(zmq.PAIR)
        self._is_closed = False
        try:
            self._watch_partings()
            _configure(self._xpub, _BOTH | self._xpub_options(here), steps)
            _configure(self._sub, _BOTH | self._sub_options(), results)
            for topic in (topics.RESULTS, topics.results_to(self._broker_id), topics.WORKERS):
                self._sub.subscribe(topic)
            self.endpoints["results"] = await self._bind(self._sub, results)
            self.endpoints["steps"] = await self._bind(self._xpub, steps)  # last: who hears us can reach us
        except BaseException:
            self.close()
            raise
        self._loop.add_reader(self._xpub.FD, self._on_peers_edge)
        self._loop.add_reader(self._sub.FD, self._on_edge)
        self._ask_for_peers()
        self._ask_to_read()
        self._check_later()

    def close(self, linger_ms: int = 0) -> None:
        """Unbind and close. What was sent has `linger_ms` to leave; a context of our own is waited for."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        for socket in (self._xpub, self._sub):
            self._loop.remove_reader(socket.FD)
        self._xpub.disable_monitor()
        for socket in (self._partings, self._xpub, self._sub):
            socket.close(linger_ms)
        if self._is_context_ours:
            self._context.term()
        for claim in self._claims.values():
            claim.release()
        self._claims.clear()
        self._pipes.clear()
        self._peers.clear()

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Whoever connects to `inner_endpoints` needs it, and closes his sockets before we close."""
        return self._context

    def inner_endpoints(self) -> tuple[str, str]:
        """(steps, results) for workers in this process: bound when first asked for, wherever else we listen."""
        if self._inner is None:
            self._inner = (f"inproc://steps-{id(self)}", f"inproc://results-{id(self)}")
            self._sub.bind(self._inner[1])
            self._xpub.bind(self._inner[0])
        return self._inner

    def _watch_partings(self) -> None:
        """A pipe that dies takes its subscriptions back without saying whose they were; the monitor says which
        connection it was. Without a limit: who does not read his monitor stops the socket's thread."""
        address = f"inproc://steps-partings-{id(self)}"
        self._xpub.monitor(address, zmq.EVENT_DISCONNECTED)
        self._partings.setsockopt(zmq.RCVHWM, 0)
        self._partings.connect(address)

    def _xpub_options(self, here: bytes) -> Options:
        return {
            zmq.XPUB_MANUAL: 1,
            # A full pipe says so, and only to who sends to that worker: every topic has one receiver.
            zmq.XPUB_NODROP: 1,
            zmq.XPUB_WELCOME_MSG: topics.BROKERS + here,
            zmq.SNDHWM: self._settings.steps_hwm,
            zmq.RCVHWM: SUBSCRIPTIONS_QUEUED,
            zmq.MAXMSGSIZE: limits.SUBSCRIPTION_BYTES_MAX,
        }

    def _sub_options(self) -> Options:
        return {
            zmq.RCVHWM: self._settings.results_hwm,
            zmq.MAXMSGSIZE: self._settings.max_message_bytes * MAX_MESSAGE_FACTOR,
        }

    async def _bind(self, socket: zmq.Socket[bytes], endpoint: Endpoint) -> str:
        if endpoint.path is not None:
            self._claims[endpoint.key] = PathClaim(endpoint)
        waited_ms = 0
        while True:
            try:
                socket.bind(endpoint.address)
                break
            except zmq.ZMQError as error:
                is_busy = error.errno == errno.EADDRINUSE
                if not is_busy or endpoint.transport != "tcp" or waited_ms >= BIND_RETRY_MAX_MS:
                    raise EndpointRefused(_why_not_bound(endpoint, error, waited_ms)) from None
            await asyncio.sleep(BIND_RETRY_MS / 1000)
            waited_ms += BIND_RETRY_MS
        if endpoint.path is not None:
            self._claims[endpoint.key].bound()
        return socket.get_string(zmq.LAST_ENDPOINT)

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, topic: bytes, body: bytes) -> bool:
        """False: it was dropped, because nobody receives the topic, or its receiver reads too slowly."""
        if topic not in self._pipes:
            deliver = self._attached.get(topic)
            if deliver is None:
                self.counters.dropped["nobody"] += 1
                return False
            if self._taps:
                self._show("out", topic, body)
            deliver(topic, body)
            return True
        return self._send(topic, body)

    def attach(self, topic: bytes, deliver: Callable[[bytes, bytes], None]) -> Callable[[], None]:
        """What is sent to this topic goes to `deliver`, and not over the sockets, until the result is called."""
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
            # Sending can take the edge that somebody's subscription made.
            if not self._is_peers_due and int(self._xpub.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._ask_for_peers()
        counters.sent += 1
        counters.sent_bytes += len(frame)
        if self._taps:
            self._show("out", topic, body)
        return True

    def send_frame(self, frame: bytes) -> bool:
        """The same for bytes kept whole, such as a retransmission."""
        return self.send(*codec.split(frame))

    def grant(self, to: str) -> None:
        """The peer that `on_peer` reports receives what begins with this `to`, and nothing else."""
        assert self._asking is not None, "there is nobody to grant this to"
        self._asking.to = to
        self._peers[to] = prefix = topics.to_peer(to)
        self._xpub.setsockopt(zmq.SUBSCRIBE, prefix)

    def send_to_peer(self, to: str, body: bytes) -> bool:
        """The same for a level-0 peer; `body` begins with its `to`."""
        if to not in self._peers:
            self.counters.dropped["nobody"] += 1
            return False
        return self._send(topics.STEPS, body)

    # -- in: results and worker messages ------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Back-pressure: leave messages where they are. Subscriptions are served all the same."""
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._ask_to_read()

    @property
    def is_behind(self) -> bool:
        """Something has arrived that was not read yet. It is on the loop's list then."""
        if self._is_closed or self._is_paused:
            return False
        if not self._is_reading_due and int(self._sub.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._ask_to_read()
        return self._is_reading_due

    def _on_edge(self) -> None:
        if not self._is_reading_due:  # one budget a turn
            self._read()

    def _ask_to_read(self) -> None:
        if not self._is_reading_due:
            self._is_reading_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_reading_due = False
        if self._is_closed:
            return
        if self._is_paused:
            # A bound SUB tells newcomers what it subscribes only when it is entered.
            self._sub.getsockopt(zmq.EVENTS)
            return
        left = MESSAGES_PER_TURN
        enough = self.counters.received_bytes + BYTES_PER_TURN
        try:
            while left and not self._is_paused and self._read_one():
                left -= 1
                if self.counters.received_bytes >= enough:
                    self._ask_to_read()
                    break
        except BaseException:
            self._ask_to_read()
            raise
        if not left and not self._is_reading_due:
            self._ask_to_read()
        if left < MESSAGES_PER_TURN:
            self._after_drain()

    def _read_one(self) -> bool:
        try:
            frame = self._sub.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        if frame.more or self._is_inside_multipart:
            self._skip_part(frame)
            return True
        data = frame.bytes
        topic, body = codec.split(data)
        counters = self.counters
        counters.received += 1
        counters.received_bytes += len(data)
        if self._taps:
            self._show("in", topic, body)
        self._on_message(topic, body)
        return True

    def _skip_part(self, frame: zmq.Frame) -> None:
        """Part by part, on the same budget: a message may have millions."""
        is_first = not self._is_inside_multipart
        self._is_inside_multipart = frame.more
        if is_first:
            self.counters.refused["multipart"] += 1
            self._on_refused("multipart", frame.bytes)

    # -- in: who subscribes what --------------------------------------------------------------------------------------

    def _on_peers_edge(self) -> None:
        if not self._is_peers_due:
            self._read_peers()

    def _ask_for_peers(self) -> None:
        if not self._is_peers_due:
            self._is_peers_due = True
            self._loop.call_soon(self._read_peers)

    def _read_peers(self) -> None:
        self._is_peers_due = False
        if self._is_closed:
            return
        left = MESSAGES_PER_TURN
        try:
            while left:
                try:
                    event = self._xpub.recv(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    self._is_peer_unsure = False
                    break
                left -= 1
                # A descriptor is used again: who had it before is gone for good by now, and the monitor has said so.
                self._hear_partings()
                self._take_peer_event(event.bytes, event)
        except BaseException:
            self._ask_for_peers()
            raise
        if not left:
            self._ask_for_peers()
        if left < MESSAGES_PER_TURN:
            self._after_drain()

    def _take_peer_event(self, event: bytes, frame: zmq.Frame) -> None:
        sign, topic = event[:1], event[1:]
        if topic in LEVEL0_TOPICS and sign in (b"\x00", b"\x01"):
            self._take_level0(sign == b"\x01", topic, _descriptor(frame))
        elif sign == b"\x01":
            self._take_subscription(topic)
        elif sign == b"\x00":
            self._take_unsubscription(topic)
        else:
            # libzmq pairs the events in its queue with their pipes by counting, and counts these, too: until the
            # queue is empty, a grant could go to another peer than the one whose subscription was read.
            self.counters.refused["user_message"] += 1
            if not self._is_peer_unsure:
                self._is_peer_unsure = True
                self._alarm("a peer sends messages into the steps socket; it should only subscribe there")

    def _take_subscription(self, topic: bytes) -> None:
        worker = topics.worker_of(topic)
        if worker is None and topic != topics.BROKERS:
            self.counters.refused["subscription"] += 1
        elif self._is_peer_unsure:
            self.counters.refused["unsure_peer"] += 1  # a worker that is not heard connects again after a while
        else:
            self._xpub.setsockopt(zmq.SUBSCRIBE, topic)
            if worker is not None:
                self._pipes[topic] = self._pipes.get(topic, 0) + 1
                self._on_subscribed(worker)

    def _take_unsubscription(self, topic: bytes) -> None:
        """Asked for, or the last word of a pipe that is gone; then there is nothing left to take back."""
        worker = topics.worker_of(topic)
        if worker is None and topic != topics.BROKERS:
            return
        if not self._is_peer_unsure:
            self._xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
        if worker is None or topic not in self._pipes:
            return
        # A worker that reconnects may have its new pipe before the old one is found dead.
        self._pipes[topic] -= 1
        if not self._pipes[topic]:
            del self._pipes[topic]
            self._on_vanished(worker)

    # -- in: level-0 handlers -----------------------------------------------------------------------------------------

    def _take_level0(self, comes: bool, topic: bytes, descriptor: int | None) -> None:
        asker = None if descriptor is None else self._askers.get(descriptor)
        if comes:
            if asker is not None:
                asker.topics.append(topic)  # twice, or with and without the space: one handler all the same
            else:
                self._take_newcomer(_Asker([topic]), descriptor)
        elif asker is not None:
            if topic in asker.topics:
                asker.topics.remove(topic)
            if not asker.topics:
                del self._askers[descriptor or 0]
                if asker.to is not None and not self._is_peer_unsure:
                    self._xpub.setsockopt(zmq.UNSUBSCRIBE, topics.to_peer(asker.to))
                self._forget_asker(asker)
        elif descriptor is None:
            self._take_last_word(topic)

    def _take_newcomer(self, asker: _Asker, descriptor: int | None) -> None:
        if self._is_peer_unsure:
            self.counters.refused["unsure_peer"] += 1
        else:
            self._asking = asker
            try:
                self._on_peer()
            finally:
                self._asking = None
            if asker.to is None:
                self.counters.refused["level0"] += 1
        if descriptor is None:
            self._unseen.append(asker)
        else:
            self._askers[descriptor] = asker

    def _take_last_word(self, topic: bytes) -> None:
        """Of a pipe that is gone. The monitor has said whose it was, but for inproc, where one of several goes unknown
        and only its name stays."""
        if self._parting:
            self._parting -= 1
            return
        asked = [asker for asker in self._unseen if topic in asker.topics]
        if len(asked) == 1:
            self._unseen.remove(asked[0])
            self._forget_asker(asked[0])
        elif self._peers:
            self._on_peers_uncertain()

    def _hear_partings(self) -> None:
        while True:
            try:
                event = recv_monitor_message(self._partings, zmq.NOBLOCK)
            except zmq.Again:
                return
            asker = self._askers.pop(event["value"], None)
            if asker is not None:
                self._parting += len(asker.topics)
                self._forget_asker(asker)

    def _forget_asker(self, asker: _Asker) -> None:
        if asker.to is not None and self._peers.pop(asker.to, None) is not None:
            self._on_peer_gone(asker.to)

    # -- taps ---------------------------------------------------------------------------------------------------------

    def add_tap(self, tap: Tap) -> Callable[[], None]:
        """Show every message that passes, until the returned function is called."""
        self._taps.append(tap)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._taps.remove(tap)

        return remove

    def _show(self, direction: Direction, topic: bytes, body: bytes) -> None:
        for tap in tuple(self._taps):
            tap(direction, topic, body)

    # -- ipc paths ----------------------------------------------------------------------------------------------------

    def check_paths(self) -> None:
        """Take back an ipc path that somebody else has bound or removed. Runs by itself at every heartbeat."""
        for key, claim in self._claims.items():
            if not claim.is_ours():
                self._take_back(key, claim)

    def _take_back(self, key: str, claim: PathClaim) -> None:
        socket = self._xpub if key == "bus.steps" else self._sub
        address = f"ipc://{claim.path}"
        # The lost listener still has its peers, so it is kept; but not without end.
        self._lost[key] = self._lost.get(key, 0) + 1
        if self._lost[key] % LISTENERS_LOST_MAX == 0:
            socket.unbind(address)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            self._alarm(f"{key}: the socket {claim.path} is gone and cannot be bound again: {error}")
            return
        claim.bound()
        self._last_alarm = ""
        self._alarm(
            f"{key}: another process had bound or removed {claim.path}; it is bound again. "
            "A handler must connect to this path, not bind it"
        )

    def _check_later(self) -> None:
        self._check_timer = self._loop.call_later(self._settings.heartbeat_ms / 1000, self._check)

    def _check(self) -> None:
        self._check_later()
        self.check_paths()
        self._hear_partings()
        # Should an edge of a descriptor ever get lost, it costs one heartbeat and not the bus.
        self._ask_for_peers()
        self._ask_to_read()

    def _alarm(self, text: str) -> None:
        """The same alarm in a row is one alarm."""
        if text != self._last_alarm:
            self._last_alarm = text
            self._on_alarm(text)


def _descriptor(frame: zmq.Frame) -> int | None:
    """Which connection a subscription event is of. None: the connection is gone, or there never was one (inproc)."""
    try:
        descriptor = int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
    return descriptor if descriptor >= 0 else None


def _configure(socket: zmq.Socket[bytes], options: Options, endpoint: Endpoint) -> None:
    for option, value in options.items():
        socket.setsockopt(option, value)
    if endpoint.is_ipv6:
        socket.setsockopt(zmq.IPV6, 1)


def _why_not_bound(endpoint: Endpoint, error: zmq.ZMQError, waited_ms: int) -> str:
    reason = {
        errno.EADDRINUSE: f"it is in use by another process (tried for {waited_ms} ms)",
        errno.EACCES: "this user may not; ports below 1024 and foreign directories need rights",
        errno.ENODEV: "this host has no such address",
        errno.EADDRNOTAVAIL: "this host has no such address",
    }.get(error.errno or 0, str(error.strerror))
    return f"{endpoint.key}: {endpoint.written} cannot be bound: {reason}"
