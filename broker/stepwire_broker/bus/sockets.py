"""The broker's sockets: created with the protocol's options, bound, and closed.

XPUB sends. With XPUB_MANUAL the broker decides which topics a connected peer receives. SUB receives results and worker
messages. Two further sockets report the begin and the end of their connections. Each endpoint has its own mechanism:
ipc without keys, tcp with CURVE if the broker has a key pair.
"""

import asyncio
import errno
from typing import Final, NamedTuple, TypeAlias

import zmq
from stepwire_protocol import limits, topics

from stepwire_broker.core.definitions.settings import BusSettings, listed

from . import budgets
from .authenticator import CURVE_DOMAIN, IPC_DOMAIN, OPEN_DOMAIN
from .bus_connection import Role
from .connections import MONITORED
from .endpoints import Endpoint, EndpointRefused, Protection, read_endpoint
from .keys.key_text import KeyPair
from .paths import Paths

BIND_RETRY_MS: Final = 100
BIND_RETRY_MAX_MS: Final = 5_000  # the predecessor's port is free again by then
ENDPOINTS_MAX: Final = 8  # of one socket

Options: TypeAlias = dict[int, int | bytes]
EndpointPair: TypeAlias = tuple[Endpoint, Endpoint]  # steps and results

_TCP_KEEPALIVE: Final[Options] = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 15,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
_BOTH: Final[Options] = _TCP_KEEPALIVE | {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 0,
    zmq.HEARTBEAT_IVL: 0,  # heartbeats of a bound socket would kill healthy peers that are slow to read
    zmq.HANDSHAKE_IVL: budgets.HANDSHAKE_MS,
    zmq.BACKLOG: 1_024,
}


def protection_of(bus: BusSettings, *, is_strict: bool = False) -> Protection:
    return Protection(bus.allow_insecure, bus.curve.secret_file is not None, is_strict)


def read_endpoints(bus: BusSettings, *, is_strict: bool = False) -> tuple[EndpointPair, ...]:
    """Return the checked pairs of endpoints (steps, results). Raises EndpointRefused."""
    protection = protection_of(bus, is_strict=is_strict)
    steps, results = listed(bus.steps), listed(bus.results)
    if len(steps) != len(results):
        raise EndpointRefused(
            f"bus.steps has {len(steps)} endpoints and bus.results {len(results)}: a worker connects to one of each, "
            "so both lists need the same length"
        )
    for key, written in (("bus.steps", steps), ("bus.results", results)):
        if not 1 <= len(written) <= ENDPOINTS_MAX:
            raise EndpointRefused(f"{key} has {len(written)} endpoints: from 1 to {ENDPOINTS_MAX} are allowed")
    pairs = tuple(
        (read_endpoint("bus.steps", first, protection), read_endpoint("bus.results", second, protection))
        for first, second in zip(steps, results, strict=True)
    )
    seen: dict[str, Endpoint] = {}
    for endpoint in (each for pair in pairs for each in pair):
        twin = seen.setdefault(endpoint.address, endpoint)
        if twin is endpoint or endpoint.address.endswith(":*"):
            continue
        if twin.key == endpoint.key:
            raise EndpointRefused(f"{endpoint.key} has {endpoint.written!r} twice: name each endpoint once")
        raise EndpointRefused(f"bus.steps and bus.results are both {endpoint.written!r}: each needs its own endpoint")
    return pairs


class Bound(NamedTuple):
    """A pair of endpoints that the broker listens on: their configuration, and their actual addresses."""

    endpoints: EndpointPair
    steps: str
    results: str

    @property
    def has_curve(self) -> bool:
        return any(endpoint.has_curve for endpoint in self.endpoints)


class Sockets:
    """The sockets of one wire. They are configured by the constructor; `bind` makes them reachable."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        settings: BusSettings,
        broker_id: str,
        here: bytes,
        pairs: tuple[EndpointPair, ...],
        server: KeyPair | None,
    ) -> None:
        """`here` greets every peer that connects. Endpoints with CURVE use the key pair `server`."""
        self._pairs = pairs
        self._server = server
        self._inner: tuple[str, str] | None = None  # the endpoints for workers in this process
        self.xpub = context.socket(zmq.XPUB)
        self.sub = context.socket(zmq.SUB)
        self.monitors: dict[Role, zmq.Socket[bytes]] = {}
        try:
            self._monitor(context, "steps", self.xpub)
            self._monitor(context, "results", self.sub)
            _configure(self.xpub, _BOTH | _xpub_options(settings, here))
            _configure(self.sub, _BOTH | _sub_options(settings))
            for topic in (topics.RESULTS, topics.results_to(broker_id), topics.WORKERS):
                self.sub.subscribe(topic)
        except BaseException:
            self.close()
            raise

    async def bind(self, paths: Paths) -> tuple[Bound, ...]:
        """Bind both sockets to all their endpoints. Returns the actual addresses. Raises EndpointRefused.

        The bind of a busy tcp port is retried for some seconds.
        """
        results = [await self._bind(self.sub, pair[1], paths) for pair in self._pairs]
        # The steps endpoints are bound last, so that a worker that receives the greeting can reach the broker.
        steps = [await self._bind(self.xpub, pair[0], paths) for pair in self._pairs]
        return tuple(map(Bound, self._pairs, steps, results))

    def bind_probe(self) -> str:
        """Bind the steps socket, with CURVE, to a loopback port for the broker's own check. Returns its address."""
        probe = Endpoint("bus.steps", "tcp://127.0.0.1:*", "tcp", "tcp://127.0.0.1:*", has_curve=True)
        protect(self.xpub, probe, self._server)
        self.xpub.bind(probe.address)
        return self.xpub.get_string(zmq.LAST_ENDPOINT)

    def inner_endpoints(self) -> tuple[str, str]:
        """(steps, results) for workers in this process. Bound by the first call, in addition to the configured ones."""
        if self._inner is None:
            self._inner = (f"inproc://steps-{id(self)}", f"inproc://results-{id(self)}")
            self.sub.bind(self._inner[1])
            self.xpub.bind(self._inner[0])
        return self._inner

    def close(self, linger_ms: int = 0) -> None:
        for monitored in (self.xpub, self.sub):
            monitored.disable_monitor()
        for socket in (*self.monitors.values(), self.xpub, self.sub):
            socket.close(linger_ms)

    async def _bind(self, socket: zmq.Socket[bytes], endpoint: Endpoint, paths: Paths) -> str:
        def bind() -> None:
            protect(socket, endpoint, self._server)
            socket.bind(endpoint.address)

        paths.claim(endpoint, bind, lambda: socket.unbind(endpoint.address))
        waited_ms = 0
        while True:
            try:
                bind()
                break
            except zmq.ZMQError as error:
                is_busy = error.errno == errno.EADDRINUSE
                if not is_busy or endpoint.transport != "tcp" or waited_ms >= BIND_RETRY_MAX_MS:
                    raise EndpointRefused(_why_not_bound(endpoint, error, waited_ms)) from None
            await asyncio.sleep(BIND_RETRY_MS / 1000)
            waited_ms += BIND_RETRY_MS
        paths.bound(endpoint)
        return socket.get_string(zmq.LAST_ENDPOINT)

    def _monitor(self, context: zmq.Context[zmq.Socket[bytes]], role: Role, socket: zmq.Socket[bytes]) -> None:
        """Report every connection that begins or ends.

        The unsubscriptions of a dead pipe do not name its connection, but the monitor does. The queue has no limit,
        because a full queue would stop the socket's thread.
        """
        address = f"inproc://{role}-connections-{id(self)}"
        socket.monitor(address, MONITORED)
        self.monitors[role] = monitor = context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.RCVHWM, 0)
        monitor.connect(address)


def protect(socket: zmq.Socket[bytes], endpoint: Endpoint, server: KeyPair | None) -> None:
    """Set the mechanism of the next bind. libzmq copies these options to each listener when it is bound.

    Without a domain, libzmq would admit every connection without asking the authenticator.
    """
    domain = IPC_DOMAIN if endpoint.transport == "ipc" else CURVE_DOMAIN if endpoint.has_curve else OPEN_DOMAIN
    socket.setsockopt(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))
    if endpoint.has_curve:
        assert server is not None, endpoint
        socket.setsockopt(zmq.CURVE_SECRETKEY, server.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVER, 1)
    else:
        socket.setsockopt(zmq.CURVE_SERVER, 0)


def _xpub_options(settings: BusSettings, here: bytes) -> Options:
    return {
        zmq.XPUB_MANUAL: 1,
        # A send to a full pipe fails. It affects only one receiver, because every topic has only one.
        zmq.XPUB_NODROP: 1,
        zmq.XPUB_WELCOME_MSG: topics.BROKERS + here,
        zmq.SNDHWM: settings.steps_hwm,
        zmq.RCVHWM: budgets.SUBSCRIPTIONS_QUEUED,
        zmq.RCVBUF: budgets.STEPS_RECEIVE_BUFFER,
        zmq.MAXMSGSIZE: limits.SUBSCRIPTION_BYTES_MAX,
    }


def _sub_options(settings: BusSettings) -> Options:
    return {
        zmq.RCVHWM: budgets.results_queued(settings.results_hwm, settings.max_message_bytes),
        zmq.MAXMSGSIZE: settings.max_message_bytes * budgets.MAX_MESSAGE_FACTOR,
    }


def _configure(socket: zmq.Socket[bytes], options: Options) -> None:
    for option, value in options.items():
        socket.setsockopt(option, value)


def _why_not_bound(endpoint: Endpoint, error: zmq.ZMQError, waited_ms: int) -> str:
    reason = {
        errno.EADDRINUSE: f"the address is in use by another process (tried for {waited_ms} ms)",
        errno.EACCES: "this user may not bind it; ports below 1024 and directories of other users need privileges",
        errno.ENODEV: "this host has no such address",
        errno.EADDRNOTAVAIL: "this host has no such address",
    }.get(error.errno or 0, str(error.strerror))
    return f"{endpoint.key}: {endpoint.written} cannot be bound: {reason}"
