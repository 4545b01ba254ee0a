"""The control client: submits, reads and operates tasks over the broker's HTTP API.

    client       `Client`: address, token, and all groups of calls
    tasks, steps, workflows, executors, routing, broker, streams    one group of calls each
    transport    one call: the request, its repetitions, its exception
    payloads     answers without payloads, for a token that lacks the scope `inspect`
    outages      how long a call waits for a broker that does not answer
    connection   one HTTP/1.1 connection

A worker uses none of this, and the client uses no ZeroMQ.
"""

from stepwire.errors import (
    ClientError,
    Denied,
    MissingPayload,
    NotFound,
    Overloaded,
    Unreachable,
    WaitTimeout,
    WrongState,
)

from .client import Client
from .tasks import Submitted, generated_key

__all__ = [
    "Client",
    "ClientError",
    "Denied",
    "MissingPayload",
    "NotFound",
    "Overloaded",
    "Submitted",
    "Unreachable",
    "WaitTimeout",
    "WrongState",
    "generated_key",
]
