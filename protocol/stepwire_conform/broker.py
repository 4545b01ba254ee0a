"""A played broker: both sockets of a broker, with switches for everything that it does by itself.

It hears every topic, so that a misspelt one is seen, and grants a worker exactly what a real broker grants.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import zmq
from stepwire_protocol import topics

from .frames import Seen, encoded, shortened
from .keys import ServerKeys

MONITORED: Final = (
    zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
BIND_S: Final = 5.0


class PlayedBroker:
    """One broker. `pump` reads what has arrived; the switches decide which answers it gives by itself."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        broker: str,
        steps: str,
        results: str,
        note: Callable[[Seen], None],
        keys: ServerKeys | None = None,
    ) -> None:
        self.id = broker
        self.epoch = 7
        self.deployment = "4f9d2c81a07be356"
        self.steps_endpoint = steps
        self.results_endpoint = results
        self.subscriptions: list[bytes] = []  # every subscription that a connection asked for, in order
        self.unsubscriptions: list[bytes] = []
        self.accepted = {"steps": 0, "results": 0}  # connections, also those that send nothing
        self.greeted = {"steps": 0, "results": 0}  # connections that speak ZeroMQ, and were admitted
        self.refused = 0  # handshakes
        self.is_level0 = False
        self.reads_results = True
        self._context = context
        self._keys = keys
        self._note = note
        self._granted: set[bytes] = set()
        self._batches = 0
        self._nonce = os.urandom(3).hex()
        self._inodes: dict[str, int] = {}
        self._sockets: list[zmq.Socket[bytes]] = []
        self._monitors: dict[str, zmq.Socket[bytes]] = {}
        self.reset_switches()

    def reset_switches(self) -> None:
        """Return to what a well-behaved broker does."""
        self.lease_ms = 10_000
        self.heartbeat_ms = 200
        self.max_message_bytes = 4_194_304
        self.listed: list[dict[str, Any]] = []
        self.welcomes = True
        self.acks_heartbeats = True
        self.acks_results = True
        self.grants = False
        self.ack_members: dict[str, Any] = {}
        self.welcome_members: dict[str, Any] = {}

    # -- sockets ------------------------------------------------------------------------------------------------------

    def open(self, *, hwm: int = 0, receive_buffer: int = 0, greets: bool = True) -> None:
        """Bind both sockets. `greets`: send `here` to each connection, as a broker does."""
        self.xpub = self._context.socket(zmq.XPUB)
        self.sub = self._context.socket(zmq.SUB)
        for socket in (self.xpub, self.sub):
            socket.linger = 0
            socket.sndhwm = 0
            socket.rcvhwm = hwm
            if receive_buffer:
                socket.setsockopt(zmq.RCVBUF, receive_buffer)
            if self._keys is not None:
                socket.curve_server = True
                socket.curve_secretkey = self._keys.secret
                socket.zap_domain = b"bus"
                socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self.xpub.setsockopt(zmq.XPUB_MANUAL, 1)
        if greets:
            self.xpub.setsockopt(zmq.XPUB_WELCOME_MSG, topics.BROKERS + encoded(self.here()))
        self.sub.subscribe(b"")
        self._sockets = [self.xpub, self.sub]
        for name, socket, endpoint in (
            ("steps", self.xpub, self.steps_endpoint),
            ("results", self.sub, self.results_endpoint),
        ):
            self._monitors[name] = socket.get_monitor_socket(MONITORED)
            self._bind(socket, endpoint)
            if endpoint.startswith("ipc://"):
                self._inodes[endpoint] = os.stat(endpoint[6:]).st_ino
        self._granted.clear()

    def close(self) -> None:
        """Close both sockets at once, as the death of a broker does."""
        for socket in self._sockets:
            socket.disable_monitor()
            socket.close(linger=0)
        self._sockets.clear()
        self._monitors.clear()

    def forget_connections(self) -> None:
        """The program is started again: what its earlier process did no longer counts."""
        self._granted.clear()
        self.greeted = {"steps": 0, "results": 0}
        self.subscriptions.clear()

    @property
    def is_open(self) -> bool:
        return bool(self._sockets)

    def replaced_socket(self) -> str | None:
        """The ipc endpoint at which another process has bound its own socket."""
        for endpoint, inode in self._inodes.items():
            try:
                if self.is_open and os.stat(endpoint[6:]).st_ino != inode:
                    return endpoint
            except OSError:
                return endpoint
        return None

    def poll_sockets(self) -> Iterator["zmq.Socket[bytes]"]:
        yield from self._monitors.values()
        if self.is_open:
            yield self.xpub
            if self.reads_results:
                yield self.sub

    def pump(self) -> Iterator[list[bytes]]:
        """Read everything that has arrived. Yields the messages of workers, frame by frame."""
        if not self.is_open:
            return
        for name, monitor in self._monitors.items():
            while monitor.poll(0):
                self._on_event(name, monitor.recv_multipart())
        while self.xpub.poll(0):
            self._on_subscription(self.xpub.recv_multipart()[0])
        if not self.reads_results:
            return
        for _ in range(500):
            try:
                frames = self.sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield frames

    def read_raw(self, for_s: float) -> list[bytes]:
        """Read frames as fast as they come, without a look at them, until none has come for this time."""
        frames: list[bytes] = []
        while self.sub.poll(int(for_s * 1000)):
            frames += self.sub.recv_multipart()
        return frames

    def _bind(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        """Bind, and try again for a while: the address of a closed socket is not free at once."""
        until_s = time.monotonic() + BIND_S
        while True:
            try:
                socket.bind(endpoint)
                return
            except zmq.ZMQError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)

    def _on_event(self, name: str, frames: list[bytes]) -> None:
        event = int.from_bytes(frames[0][:2], "little")
        if event == zmq.EVENT_ACCEPTED:
            self.accepted[name] += 1
            self.remark(f"a connection to the {name} endpoint")
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.greeted[name] += 1
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refused += 1
            self.remark(f"a connection to the {name} endpoint was refused: its key has no access")
        else:
            self.remark(f"a connection to the {name} endpoint has ended")

    def _on_subscription(self, frame: bytes) -> None:
        if frame[:1] not in (b"\x00", b"\x01"):
            self.remark(f"a frame on the steps endpoint that is no subscription: {frame[:80]!r}")
            return
        topic = frame[1:]
        if frame[:1] == b"\x00":
            self.unsubscriptions.append(topic)
            self.remark(f"unsubscribed {topic!r}")
            try:
                self.xpub.setsockopt(zmq.UNSUBSCRIBE, topic)
            except zmq.ZMQError:
                pass
            return
        self.subscriptions.append(topic)
        self.remark(f"subscribed {topic!r}")
        if self.is_level0:
            is_granted = topic in (b"steps", b"steps ")
            if is_granted:
                self.xpub.setsockopt(zmq.SUBSCRIBE, b"")  # this one gets frames of other topics too
        else:
            is_granted = topic == topics.BROKERS or topics.worker_of(topic) is not None
            if is_granted:
                self.xpub.setsockopt(zmq.SUBSCRIBE, topic)
        if is_granted:
            self._granted.add(topic)

    def is_subscribed(self, topic: bytes) -> bool:
        return topic in self._granted

    # -- messages -----------------------------------------------------------------------------------------------------

    def remark(self, text: str) -> None:
        self._note(Seen(time.monotonic(), "--", self.id, text))

    def publish(self, topic: bytes, body: bytes, *, is_noted: bool = True) -> None:
        """Send one frame."""
        if self.is_open:
            if is_noted:
                text = shortened((topic + body).decode(errors="backslashreplace"))
                self._note(Seen(time.monotonic(), "->", self.id, text))
            self.xpub.send(topic + body)

    def publish_frames(self, frames: list[bytes]) -> None:
        """Send a message of several frames."""
        self._note(Seen(time.monotonic(), "->", self.id, f"{len(frames)} frames: {frames!r}"[:400]))
        self.xpub.send_multipart(frames)

    def message(self, kind: str, **members: Any) -> dict[str, Any]:
        return {"type": kind, "v": "2.0", "broker": self.id, "epoch": self.epoch, **members}

    def here(self) -> dict[str, Any]:
        return self.message("here", deployment=self.deployment, versions=["2.0"])

    def welcome(self, n: int, session: str) -> dict[str, Any]:
        welcome = self.message(
            "welcome",
            session=session,
            deployment=self.deployment,
            n=n,
            lease_ms=self.lease_ms,
            heartbeat_ms=self.heartbeat_ms,
            max_message_bytes=self.max_message_bytes,
        )
        if self.listed:
            welcome["brokers"] = self.listed
        return welcome | self.welcome_members

    def next_batch(self) -> str:
        self._batches += 1
        return f"batch_{self._nonce}_{self._batches}"
