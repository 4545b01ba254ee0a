"""The addresses and keys of the bus that the broker announces to its workers."""

from collections.abc import Iterator

import msgspec

from stepwire_broker.core.brokers.listeners import Listener, ListenerKind
from stepwire_broker.core.model.events import EndpointsBound, NextEndpoints

from .endpoints import Endpoint, advertised
from .served_keys import ServedKeys
from .sockets import Bound


def endpoints_for_workers(bound: tuple[Bound, ...], keys: ServedKeys | None, host: str | None) -> EndpointsBound:
    """The endpoints that most workers can reach: with keys from other hosts, else over tcp, else over ipc."""
    pair = max(bound, key=lambda pair: (pair.has_curve, pair.steps.startswith("tcp://")))
    served = keys if pair.has_curve else None
    announced = None if served is None else served.announced
    endpoints = EndpointsBound(
        advertised(pair.steps, host),
        advertised(pair.results, host),
        None if announced is None else announced.current.public,
        replaced=None if served is None or served.replaced is None else served.replaced.public,
        listeners=tuple(_listeners(bound, None if keys is None else keys.announced.current.public, host)),
    )
    if served is None or announced is None or announced.next is None or served.next_bound is None:
        return endpoints
    steps, results = (advertised(address, host) for address in served.next_bound)
    return msgspec.structs.replace(endpoints, next=NextEndpoints(steps, results, announced.next.public))


def _listeners(bound: tuple[Bound, ...], server_key: str | None, host: str | None) -> Iterator[Listener]:
    """The listeners that other brokers name to their workers. No worker of another process connects over inproc."""
    for pair in bound:
        kind = _kind_of(pair.endpoints[0])
        if kind is not ListenerKind.INPROC:
            is_local = kind is ListenerKind.IPC or (host is None and any(each.is_loopback for each in pair.endpoints))
            steps, results = advertised(pair.steps, host), advertised(pair.results, host)
            yield Listener(kind, steps, results, server_key if kind is ListenerKind.CURVE else None, is_local)


def _kind_of(endpoint: Endpoint) -> ListenerKind:
    return ListenerKind.CURVE if endpoint.has_curve else ListenerKind(endpoint.transport)
