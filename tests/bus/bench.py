"""A wire on real sockets, a listener that records its reports, and peers that are plain ZeroMQ sockets."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import zmq
from stepwire_broker.bus.audience import LEVEL0_TOPICS
from stepwire_broker.bus.wire import Wire
from stepwire_broker.core.definitions.settings import BusSettings
from stepwire_broker.core.model.principal import Grant
from stepwire_protocol import topics

BOUND_S = 10.0  # how long a test waits for an event before it calls it missing
HERE = b'{"type":"here"}'


class Log:
    """The reports of a wire, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.refused: list[tuple[str, bytes]] = []
        self.peers: list[tuple[str, str]] = []
        self.drains: list[int] = []  # messages seen by the end of each drain
        self.alarms: list[str] = []
        self.grants: list[tuple[tuple[Grant, ...], frozenset[str]]] = []  # with the principals declared dead
        self.disconnected: list[tuple[str, int]] = []

    def after_drain(self) -> None:
        self.drains.append(len(self.messages))


class Listener:
    """Records what the wire reports. A test replaces single methods by its own."""

    def __init__(self, log: Log, on_peer: Callable[[str], None], methods: dict[str, Callable[..., Any]]) -> None:
        self.on_refused_frame = lambda code, data, principal: log.refused.append((code, data))
        self.on_disconnected = lambda reason, principal, n: log.disconnected.append((reason, n))
        self.grant_of = lambda principal: None
        self.on_message = lambda topic, body, principal: log.messages.append((topic, body))
        self.refusal_of = _refusal_of
        self.on_subscribed = lambda worker, principal, kind: log.peers.append(("subscribed", worker))
        self.on_vanished = lambda worker, principal: log.peers.append(("vanished", worker))
        self.on_peer = on_peer
        self.on_peer_gone = lambda to, principal: log.peers.append(("peer gone", to))
        self.on_peers_uncertain = lambda: log.peers.append(("uncertain", ""))
        self.after_drain = log.after_drain
        self.on_alarm = log.alarms.append
        self.on_grants_changed = lambda grants, declared_dead: log.grants.append((grants, declared_dead))
        for name, method in methods.items():
            assert hasattr(self, name), name
            setattr(self, name, method)


def _refusal_of(topic: bytes, principal: str) -> str | None:
    """As for principals with full grants."""
    known = (topics.BROKERS, *LEVEL0_TOPICS)
    return None if topic in known or topics.worker_of(topic) is not None else "subscription"


class Bench:
    """One wire, its log, its context, and peers on it."""

    def __init__(self, settings: BusSettings, context: zmq.Context[Any], **callbacks: Callable[..., Any]) -> None:
        self.log = log = Log()
        self.context = context
        self.sockets: list[zmq.Socket[bytes]] = []
        self.granted = 0
        listener = Listener(log, self._grant, callbacks)
        self.wire = Wire(settings, "b1", listener, context)

    def _grant(self, principal: str) -> None:
        """Each level-0 handler gets the next number."""
        self.granted += 1
        self.wire.grant(f"1.{self.granted}")
        self.log.peers.append(("peer", f"1.{self.granted}"))

    def subscriber(self, *subscribed: bytes, kind: int = zmq.SUB) -> zmq.Socket[bytes]:
        """A handler's SUB (or an XSUB, which shows what really arrives) on the steps endpoint."""
        socket = self._socket(kind)
        socket.rcvhwm = 0
        for topic in subscribed:
            socket.send(b"\x01" + topic) if kind == zmq.XSUB else socket.subscribe(topic)
        socket.connect(self.wire.endpoints["steps"])
        return socket

    async def publisher(self) -> zmq.Socket[bytes]:
        """A handler's PUB on the results endpoint, once its messages reach the wire."""
        socket = self._socket(zmq.PUB)
        socket.sndhwm = 0
        socket.connect(self.wire.endpoints["results"])
        probe = b"probe%d" % id(socket)

        def has_arrived() -> bool:
            socket.send(b"workers " + probe)
            return any(body == probe for _, body in self.log.messages)

        await until(has_arrived)
        # The probes are not part of any test.
        socket.send(b"workers last" + probe)
        await until(lambda: self.log.messages[-1][1] == b"last" + probe)
        self.log.messages.clear()
        self.log.drains.clear()
        return socket

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.linger = 0
        self.sockets.append(socket)
        return socket

    async def receive(self, socket: zmq.Socket[bytes]) -> bytes:
        """The next message. An XSUB always receives the greeting, which is skipped here."""
        while True:
            await until(lambda: bool(socket.poll(0)))
            message = socket.recv()
            if socket.type != zmq.XSUB or not message.startswith(topics.BROKERS):
                return message

    async def greeting(self, socket: zmq.Socket[bytes]) -> bytes:
        await until(lambda: bool(socket.poll(0)))
        return socket.recv()


async def until(is_met: Callable[[], bool]) -> None:
    """Wait for a condition, at most BOUND_S. Other work of the loop goes on."""
    async with asyncio.timeout(BOUND_S):
        while not is_met():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def serving(
    settings: BusSettings, context: zmq.Context[Any], here: bytes = HERE, **callbacks: Callable[..., Any]
) -> AsyncIterator[Bench]:
    bench = Bench(settings, context, **callbacks)
    await bench.wire.open(here)
    try:
        yield bench
    finally:
        bench.wire.close()
        for socket in bench.sockets:
            socket.close(0)


_numbers = itertools.count(1)


def new_worker() -> tuple[str, bytes]:
    """(its id, its inbox)."""
    worker = f"test:{next(_numbers):016x}"
    return worker, topics.to_worker(worker)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)
