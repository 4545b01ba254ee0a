"""Every limit of the HTTP side, with its default."""

import resource
from typing import Final, NamedTuple

from stepwire_broker.core.definitions.settings import HttpSettings

MIB: Final = 1024 * 1024


_SHARED: Final = ("requests", "requests_for_operators", "requests_for_workers", "requests_each", "waits", "waits_each")


class HttpLimits(NamedTuple):
    """`…_each`: of one token. A limit in seconds ends what takes longer."""

    # requests that the broker works on
    requests: int = 1_024
    requests_for_operators: int = 64  # of `requests`: only for tokens with the scope `operate` or `admin`
    requests_for_workers: int = 192  # of `requests`: only for the calls of workers
    requests_each: int = 256

    # requests that only wait: `wait_ms`, leases, streams
    waits: int = 4_096
    waits_each: int = 512
    streams_each: int = 8

    # bodies, from the moment at which their length is known until the request is answered or waits
    bodies_bytes: int = 128 * MIB
    small_body_bytes: int = 16 * 1024  # a body of this size is accounted for by its request
    body_first_byte_s: float = 10.0
    body_s: float = 30.0

    # answers that clients have not accepted yet
    unread_bytes: int = 64 * MIB
    unread_bytes_each: int = 32 * MIB
    unread_s: float = 30.0  # without one accepted byte

    # connections: more than `requests` + `waits`, so that one of them is always idle
    connections: int = 6_144
    strangers: int = 2_048  # of `connections`: without a valid token so far
    strangers_per_s: int = 250  # new ones that get a full answer; a burst may have twice as many
    head_s: float = 10.0
    head_bytes: int = 32 * 1024
    pipelined: int = 16  # requests that one connection has sent and that are not answered

    def for_connections(self, connections: int) -> "HttpLimits":
        factor = min(1.0, connections / self.connections)
        shared = {name: max(4, int(getattr(self, name) * factor)) for name in _SHARED}
        return self._replace(connections=connections, strangers=connections // 3, **shared)

    @property
    def large_bodies_bytes(self) -> int:
        """The memory for bodies that are not small."""
        return max(0, self.bodies_bytes - self.requests * self.small_body_bytes)


DEFAULT: Final = HttpLimits()
OTHER_FILES: Final = 512  # of the database, of programs, and for what else the process opens


def limits_of(settings: HttpSettings) -> HttpLimits:
    """The limits for `http.max_connections`, of which there are fewer if this process may open only a few files. With
    fewer connections than by default, one token gets fewer requests and waits in proportion."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = settings.max_connections
    if files != resource.RLIM_INFINITY:
        connections = min(connections, max((files - OTHER_FILES) // 2, files // 4))  # the bus may use as many
    return DEFAULT.for_connections(connections)
