"""The broker's sockets: created with the protocol's options, bound, and closed.

XPUB sends. With XPUB_MANUAL the broker decides which topics a connected peer receives. SUB receives results and worker
messages. Two further sockets report the begin and the end of their connections.
"""

import asyncio
import errno
from typing import Final, TypeAlias

import zmq
from stepwire_protocol import limits, topics

from stepwire_broker.core.definitions.settings import BusSettings

from . import budgets
from .connections import MONITORED, Role
from .endpoints import Endpoint, EndpointRefused, read_endpoint
from .paths import Paths

BIND_RETRY_MS: Final = 100
BIND_RETRY_MAX_MS: Final = 5_000  # the predecessor's port is free again by then

Options: TypeAlias = dict[int, int | bytes]

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


def read_endpoints(bus: BusSettings) -> tuple[Endpoint, Endpoint]:
    """Return the checked endpoints (steps, results). Raises EndpointRefused."""
    steps = read_endpoint("bus.steps", bus.steps, allow_insecure=bus.allow_insecure)
    results = read_endpoint("bus.results", bus.results, allow_insecure=bus.allow_insecure)
    if steps.address == results.address and not steps.address.endswith(":*"):
        raise EndpointRefused(f"bus.steps and bus.results are both {bus.steps!r}: each needs its own endpoint")
    return steps, results


class Sockets:
    """The sockets of one wire. They are configured by the constructor; `bind` makes them reachable."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        settings: BusSettings,
        broker_id: str,
        here: bytes,
        endpoints: tuple[Endpoint, Endpoint],
    ) -> None:
        """`here` greets every peer that connects."""
        self._endpoints = endpoints
        self._inner: tuple[str, str] | None = None  # the endpoints for workers in this process
        self.xpub = context.socket(zmq.XPUB)
        self.sub = context.socket(zmq.SUB)
        self.monitors: dict[Role, zmq.Socket[bytes]] = {}
        try:
            self._monitor(context, "steps", self.xpub)
            self._monitor(context, "results", self.sub)
            steps, results = endpoints
            _configure(self.xpub, _BOTH | _xpub_options(settings, here), steps)
            _configure(self.sub, _BOTH | _sub_options(settings), results)
            for topic in (topics.RESULTS, topics.results_to(broker_id), topics.WORKERS):
                self.sub.subscribe(topic)
        except BaseException:
            self.close()
            raise

    async def bind(self, paths: Paths) -> dict[str, str]:
        """Bind both sockets. Returns the actual addresses of `steps` and `results`. Raises EndpointRefused.

        The bind of a busy tcp port is retried for some seconds.
        """
        steps, results = self._endpoints
        bound_results = await _bind(self.sub, results, paths)
        # The steps endpoint is bound last, so that a worker that receives the greeting can reach the broker.
        bound_steps = await _bind(self.xpub, steps, paths)
        return {"results": bound_results, "steps": bound_steps}

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


def _xpub_options(settings: BusSettings, here: bytes) -> Options:
    return {
        zmq.XPUB_MANUAL: 1,
        # A send to a full pipe fails. It affects only one receiver, because every topic has only one.
        zmq.XPUB_NODROP: 1,
        zmq.XPUB_WELCOME_MSG: topics.BROKERS + here,
        zmq.SNDHWM: settings.steps_hwm,
        zmq.RCVHWM: budgets.SUBSCRIPTIONS_QUEUED,
        zmq.MAXMSGSIZE: limits.SUBSCRIPTION_BYTES_MAX,
    }


def _sub_options(settings: BusSettings) -> Options:
    return {
        zmq.RCVHWM: budgets.results_queued(settings.results_hwm, settings.max_message_bytes),
        zmq.MAXMSGSIZE: settings.max_message_bytes * budgets.MAX_MESSAGE_FACTOR,
    }


def _configure(socket: zmq.Socket[bytes], options: Options, endpoint: Endpoint) -> None:
    for option, value in options.items():
        socket.setsockopt(option, value)
    if endpoint.is_ipv6:
        socket.setsockopt(zmq.IPV6, 1)


async def _bind(socket: zmq.Socket[bytes], endpoint: Endpoint, paths: Paths) -> str:
    paths.claim(socket, endpoint)
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
    paths.bound(endpoint)
    return socket.get_string(zmq.LAST_ENDPOINT)


def _why_not_bound(endpoint: Endpoint, error: zmq.ZMQError, waited_ms: int) -> str:
    reason = {
        errno.EADDRINUSE: f"the address is in use by another process (tried for {waited_ms} ms)",
        errno.EACCES: "this user may not bind it; ports below 1024 and directories of other users need privileges",
        errno.ENODEV: "this host has no such address",
        errno.EADDRNOTAVAIL: "this host has no such address",
    }.get(error.errno or 0, str(error.strerror))
    return f"{endpoint.key}: {endpoint.written} cannot be bound: {reason}"
