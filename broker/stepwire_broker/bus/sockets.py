"""The broker's sockets: created with the protocol's options, bound, and closed.

XPUB sends. With XPUB_MANUAL the broker decides which topics a connected peer receives. SUB receives results and worker
messages. Two further sockets report the begin and the end of their connections. Each endpoint has its own mechanism:
ipc without keys, tcp with CURVE if the broker has a key pair.
"""

import asyncio
import contextlib
import errno
from collections.abc import Callable
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
    upcoming = read_next(bus)
    seen: dict[str, Endpoint] = {}
    for endpoint in (each for pair in (*pairs, *([upcoming] if upcoming is not None else [])) for each in pair):
        twin = seen.setdefault(endpoint.address, endpoint)
        if twin is endpoint or endpoint.address.endswith(":*"):
            continue
        if twin.key == endpoint.key:
            raise EndpointRefused(f"{endpoint.key} has {endpoint.written!r} twice: name each endpoint once")
        first, second = sorted((twin.key, endpoint.key), reverse=True)
        raise EndpointRefused(f"{first} and {second} are both {endpoint.written!r}: each needs its own endpoint")
    return pairs


def read_next(bus: BusSettings) -> EndpointPair | None:
    """Return the checked endpoints of `bus.next`; None if it is not set. Raises EndpointRefused."""
    steps, results = bus.next.steps, bus.next.results
    if steps is None and results is None:
        return None
    if steps is None or results is None:
        missing = "bus.next.steps" if steps is None else "bus.next.results"
        raise EndpointRefused(f"{missing} is not set: a worker connects to one endpoint of each")
    if bus.curve.secret_file is None:
        raise EndpointRefused(
            "bus.next is set without bus.curve.secret_file: it serves the key that replaces the brokers' key; create "
            "keys with `stepwire keys init`, or remove bus.next"
        )
    protection = protection_of(bus)
    pair = (
        read_endpoint("bus.next.steps", steps, protection),
        read_endpoint("bus.next.results", results, protection),
    )
    for endpoint in pair:
        if endpoint.transport != "tcp":
            raise EndpointRefused(f"{endpoint.key} is {endpoint.written!r}: only tcp endpoints have keys")
    return pair


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
        self._next = read_next(settings)
        self._next_bound: tuple[str, str] | None = None
        self._next_pair: KeyPair | None = None
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

    async def replace_key(self, server: KeyPair, bound: tuple[Bound, ...]) -> None:
        """Serve this key on all endpoints with CURVE but those of `bus.next`. Their open connections end.

        Raises EndpointRefused if another process takes an address meanwhile; a further call tries it again.
        """
        self._server = server
        for pair in bound:
            for socket, endpoint, address in (
                (self.sub, pair.endpoints[1], pair.results),
                (self.xpub, pair.endpoints[0], pair.steps),
            ):
                if endpoint.has_curve:
                    await self._bind_again(socket, endpoint, address, server)

    async def serve_next(self, server: KeyPair) -> tuple[str, str] | None:
        """Serve this key at `bus.next`. Returns the addresses; None if it is not set. Raises EndpointRefused."""
        if self._next is None:
            return None
        if self._next_pair != server:
            steps, results = self._next_bound or (None, None)
            bound_results = await self._bind_again(self.sub, self._next[1], results, server)
            self._next_bound = await self._bind_again(self.xpub, self._next[0], steps, server), bound_results
            self._next_pair = server
        return self._next_bound

    async def _bind_again(
        self, socket: zmq.Socket[bytes], endpoint: Endpoint, address: str | None, server: KeyPair
    ) -> str:
        """Bind an endpoint, at the address that it had before, with this key."""
        if address is not None:
            with contextlib.suppress(zmq.ZMQError):  # unbound by an earlier call that failed
                socket.unbind(address)

        def bind() -> None:
            protect(socket, endpoint, server)
            socket.bind(address or endpoint.address)

        await _bind_patiently(bind, endpoint)
        return socket.get_string(zmq.LAST_ENDPOINT)

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
        await _bind_patiently(bind, endpoint)
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


async def _bind_patiently(bind: Callable[[], None], endpoint: Endpoint) -> None:
    """Bind. A busy tcp port is tried for some seconds. Raises EndpointRefused."""
    waited_ms = 0
    while True:
        try:
            bind()
            return
        except zmq.ZMQError as error:
            is_busy = error.errno == errno.EADDRINUSE
            if not is_busy or endpoint.transport != "tcp" or waited_ms >= BIND_RETRY_MAX_MS:
                raise EndpointRefused(_why_not_bound(endpoint, error, waited_ms)) from None
        await asyncio.sleep(BIND_RETRY_MS / 1000)
        waited_ms += BIND_RETRY_MS


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
