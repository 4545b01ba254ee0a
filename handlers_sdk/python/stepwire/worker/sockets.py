"""The worker's two sockets: SUB receives from brokers, PUB sends to brokers. The worker connects, brokers bind.

`protocol/SDK_GUIDE.md` §13 explains each option.
"""

from typing import Any, Final

import zmq
from stepwire_protocol import limits, topics

from stepwire.actions import Link
from stepwire.curve import CurveKeys

from .events import WorkerEvents

LINGER_MS: Final = 2_000


class WorkerSockets:
    """Both sockets. One thread must create, use and close them."""

    def __init__(
        self,
        context: "zmq.Context[Any]",
        worker_id: str,
        links: tuple[Link, ...],
        events: WorkerEvents,
        curve_keys: CurveKeys | None = None,
    ) -> None:
        self._events = events
        self._curve_keys = curve_keys
        self._server_keys: dict[Link, str] = {}  # of brokers whose key is not the configured one
        self.sub: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self.pub: zmq.Socket[bytes] = context.socket(zmq.PUB)
        for sock in (self.sub, self.pub):
            sock.linger = 0
            sock.immediate = 0
            sock.tcp_keepalive = 1
            sock.tcp_keepalive_idle = 15
            sock.tcp_keepalive_intvl = 5
            sock.tcp_keepalive_cnt = 3
            sock.reconnect_ivl = 100
            sock.reconnect_ivl_max = 1000
            sock.handshake_ivl = 5000
            sock.ipv6 = True
            if curve_keys is not None:
                sock.curve_publickey = curve_keys.public.encode()
                sock.curve_secretkey = curve_keys.secret.encode()
        self.sub.rcvhwm = 0  # credit limits the number of messages, and a finite mark can abort the process
        self.sub.maxmsgsize = limits.FRAME_BYTES_MAX
        self.pub.sndhwm = 10_000
        self.pub.maxmsgsize = 64 * 1024
        self.pub.tcp_maxrt = 20_000
        self.sub.subscribe(topics.to_worker(worker_id))
        self.sub.subscribe(topics.BROKERS)
        for link in links:
            self.connect(link)

    def connect(self, link: Link, server_key: str | None = None) -> None:
        """Connect to a broker. `server_key`: its CURVE key; None: the configured one."""
        if server_key is not None:
            self._server_keys[link] = server_key
        for sock, endpoint in ((self.sub, link.steps), (self.pub, link.results)):
            if self._curve_keys is not None:  # a connection takes the key that its socket has at this moment
                sock.curve_serverkey = self._server_keys.get(link, self._curve_keys.server).encode()
            try:
                sock.connect(endpoint)
            except zmq.ZMQError as error:
                self._events.log("error", "connect_failed", endpoint=endpoint, error=str(error))

    def rebuild(self, link: Link) -> None:
        server_key = self._server_keys.get(link)
        self.disconnect(link)
        self.connect(link, server_key)

    def disconnect(self, link: Link) -> None:
        self._server_keys.pop(link, None)
        for sock, endpoint in ((self.sub, link.steps), (self.pub, link.results)):
            try:
                sock.disconnect(endpoint)
            except zmq.ZMQError:
                pass  # libzmq has dropped the connection already

    def close(self) -> None:
        self.sub.close()
        self.pub.linger = LINGER_MS
        self.pub.close()
