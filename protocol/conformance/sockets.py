"""The played side of a dialogue over real ZeroMQ sockets: a broker for a real worker, or handlers for a real broker.

Each class is a `Stage` without `act` and `see`, which only the owner of the real side can implement, in a subclass. In
real time, only the order of the lines counts, and times within a line.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zmq
from stepwire_protocol import codec, topics

from .dialogue import WITHIN_MS, WORKER, Frame
from .driver_process import Failed
from .values import members

RETRY_S: Final = 0.01
HELLO_RESEND_MS: Final = 1_000
BROKER_TOPICS: Final = {topics.RESULTS, topics.WORKERS, topics.results_to("b1")}


def retry(problem: Callable[[], str | None]) -> str | None:
    """Call `problem` until it returns None, for at most `WITHIN_MS`. Returns the last answer."""
    end = time.monotonic() + WITHIN_MS / 1000
    while (why := problem()) is not None and time.monotonic() <= end:
        time.sleep(RETRY_S)
    return why


class _RealTime:
    def __init__(self) -> None:
        self._context = zmq.Context()
        self._context.linger = 0
        self._started = time.monotonic()

    def now_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1000)

    def wait_until(self, at_ms: int) -> None:
        """Returns at once: in real time only the order of the lines counts."""

    def close(self) -> None:
        """Close every socket, after the real side has ended."""
        self._context.destroy()


class PlayedBroker(_RealTime):
    """Binds both sockets of a broker, and acknowledges heartbeats automatically."""

    def __init__(self, steps_endpoint: str, results_endpoint: str) -> None:
        super().__init__()
        self.welcome: dict[str, Any] = {}  # the last welcome that was sent
        self._subscribed: set[bytes] = set()
        self._acks_heartbeats = True
        self._steps = self._context.socket(zmq.XPUB)
        self._steps.bind(steps_endpoint)
        self._results = self._context.socket(zmq.SUB)
        self._results.subscribe(b"")
        self._results.bind(results_endpoint)

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        """Send a message, after the worker has subscribed to its topic."""
        until_ms = self.now_ms() + WITHIN_MS
        while topic.encode() not in self._subscribed:  # a message sent earlier would be dropped
            if not self._steps.poll(max(0, until_ms - self.now_ms())):
                raise Failed(f"the worker has not subscribed {topic!r}")
            self._subscribed.add(self._steps.recv()[1:])
        if body.startswith(b'{"type":"welcome"'):
            self.welcome = json.loads(body)
        self._steps.send(topic.encode() + body)

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        raise NotImplementedError("only level-0 handlers subscribe in a dialogue, and the broker is real there")

    def receive(self, until_ms: int) -> Frame | None:
        if not self._results.poll(max(0, until_ms - self.now_ms())):
            return None
        topic, body = codec.split(self._results.recv())
        frame = Frame(topic.decode(), members(codec.decode_worker(body)))
        if frame.message["type"] == "heartbeat" and self._acks_heartbeats and self.welcome:
            ack = {name: self.welcome[name] for name in ("v", "broker", "epoch", "session")}
            ack |= {"type": "heartbeat_ack", "n": frame.message["n"]}
            self.send(f"@{frame.message['worker']} ", msgspec.json.encode(ack))
        return frame

    def be_silent(self, for_ms: int, broker: str | None = None) -> None:
        self._acks_heartbeats = False
        time.sleep(for_ms / 1000)
        while self._results.poll(0):
            self._results.recv()  # a silent broker reads nothing
        self._acks_heartbeats = True


class _Handler:
    """The two sockets of one worker or level-0 handler."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", steps_endpoint: str, results_endpoint: str) -> None:
        self.steps = context.socket(zmq.SUB)
        self.results = context.socket(zmq.XPUB)  # a PUB that receives the broker's subscriptions
        for socket, endpoint in ((self.steps, steps_endpoint), (self.results, results_endpoint)):
            socket.reconnect_ivl = 20
            socket.connect(endpoint)

    def await_broker(self) -> None:
        subscribed: set[bytes] = set()
        while subscribed != BROKER_TOPICS:
            if not self.results.poll(WITHIN_MS):
                raise Failed("the broker has not subscribed its topics")
            subscribed.add(self.results.recv()[1:])


class PlayedHandlers(_RealTime):
    """One level-1 worker, or the level-0 handlers with these names.

    The worker sends no heartbeats, because each dialogue ends, or is silent, before a lease is over.
    """

    def __init__(self, steps_endpoint: str, results_endpoint: str, peers: Sequence[str]) -> None:
        super().__init__()
        self._endpoints = steps_endpoint, results_endpoint
        self._peers = peers
        self._unanswered_hello: bytes | None = None
        self._handlers: dict[str | None, _Handler] = {}  # the worker is None, a level-0 handler is its name

    def connect(self) -> None:
        """Connect the worker or all handlers. The broker must be running."""
        peers: Sequence[str | None] = self._peers or [None]
        for peer in peers:
            self._handlers[peer] = handler = _Handler(self._context, *self._endpoints)
            if peer is None:
                handler.steps.subscribe(topics.to_worker(WORKER))
                handler.steps.subscribe(topics.BROKERS)
            handler.await_broker()

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        frame = topic.encode() + body
        self._handlers[peer].results.send(frame)
        self._unanswered_hello = frame if body.startswith(b'{"type":"hello"') else None

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        steps = self._handlers[peer].steps
        if on:
            steps.subscribe(topic)
        else:
            steps.unsubscribe(topic)

    def receive(self, until_ms: int) -> Frame | None:
        poller = zmq.Poller()
        for handler in self._handlers.values():
            poller.register(handler.steps, zmq.POLLIN)
        while not (ready := dict(poller.poll(max(0, min(HELLO_RESEND_MS, until_ms - self.now_ms()))))):
            if self.now_ms() >= until_ms:
                return None
            if self._unanswered_hello is not None:
                # A new connection may have lost the hello, which a worker resends.
                self._handlers[None].results.send(self._unanswered_hello)
        peer = next(name for name, handler in self._handlers.items() if handler.steps in ready)
        topic, body = codec.split(self._handlers[peer].steps.recv())
        if not body.startswith(b'{"type":"here"'):
            self._unanswered_hello = None
        message = codec.decode_broker(body) if peer is None else codec.decode_steps_level0(body)
        return Frame(topic.decode(), members(message), peer)

    def be_silent(self, for_ms: int, broker: str | None = None) -> None:
        time.sleep(for_ms / 1000)

    def discard_received(self) -> None:
        """Drop the messages that the broker sent while it stopped, because a killed broker sends none."""
        for handler in self._handlers.values():
            while handler.steps.poll(100):
                handler.steps.recv()
