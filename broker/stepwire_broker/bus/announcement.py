"""The addresses and keys of the bus that the broker announces to its workers."""

import msgspec

from stepwire_broker.core.model.events import EndpointsBound, NextEndpoints

from .endpoints import advertised
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
    )
    if served is None or announced is None or announced.next is None or served.next_bound is None:
        return endpoints
    steps, results = (advertised(address, host) for address in served.next_bound)
    return msgspec.structs.replace(endpoints, next=NextEndpoints(steps, results, announced.next.public))
