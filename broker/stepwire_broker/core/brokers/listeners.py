"""The text of a broker's row: how workers reach the broker, and which of its workers have no session with others.

A broker may listen in several ways at once. A worker receives addresses that it can use: of the kind to which it came
itself.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct
from stepwire_protocol.messages import Endpoints


class ListenerKind(StrEnum):
    """How workers connect to a listener."""

    IPC = "ipc"
    TCP = "tcp"  # without keys
    CURVE = "curve"  # tcp with keys
    INPROC = "inproc"  # workers inside the broker's process


class Listener(Struct, frozen=True, omit_defaults=True):
    """One pair of endpoints of a broker. `is_local`: only processes of the broker's host reach it."""

    kind: ListenerKind
    steps: str
    results: str
    server_key: str | None = None  # the CURVE key that it serves, or will serve in a moment
    is_local: bool = False


class PartialWorker(Struct, frozen=True):
    """A worker that has no session with some live broker: the steps of that broker's tasks do not reach it."""

    worker: str
    handlers: tuple[str, ...]
    brokers: tuple[str, ...]  # with which it has a session


class BrokerEndpoints(Struct, frozen=True, omit_defaults=True):
    """The listeners of a broker, in the order of its configuration. `host` names its boot and namespaces, if known."""

    broker: str
    host: str = ""
    listeners: tuple[Listener, ...] = ()
    partial_workers: tuple[PartialWorker, ...] = ()
    epoch: int = -1
    http: str | None = None  # the URL of its API, if other hosts reach it


_read: Final = msgspec.json.Decoder(BrokerEndpoints).decode


def to_row(endpoints: BrokerEndpoints) -> str:
    """The text in the row of this broker."""
    return msgspec.json.encode(endpoints).decode()


def of_row(broker: str, text: str | None) -> BrokerEndpoints:
    """Read the text of a broker's row. A text that a later version has written may have no usable listener."""
    try:
        return msgspec.structs.replace(_read(text or "{}"), broker=broker)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return BrokerEndpoints(broker)


def usable_by(kind: ListenerKind, own: BrokerEndpoints, other: BrokerEndpoints) -> Endpoints | None:
    """Choose the listener of another broker for a worker that came to one of this kind. None: it can use none."""
    is_near = bool(own.host) and own.host == other.host and _is_on_host(kind, own)
    for wanted in _USABLE[kind]:
        usable = [each for each in other.listeners if each.kind is wanted and (is_near or not each.is_local)]
        if usable:
            chosen = usable[0]
            return Endpoints(other.broker, chosen.steps, chosen.results, chosen.server_key)
    return None


def _is_on_host(kind: ListenerKind, own: BrokerEndpoints) -> bool:
    """True if a worker that came to a listener of this kind runs on the broker's host."""
    return all(each.is_local for each in own.listeners if each.kind is kind)


# A worker without keys ignores a listener with keys, and logs why it does not connect to that broker. A worker with
# keys uses them for every connection, so only listeners with keys admit it. Not every library has ipc.
_USABLE: Final[dict[ListenerKind, tuple[ListenerKind, ...]]] = {
    ListenerKind.IPC: (ListenerKind.IPC, ListenerKind.TCP, ListenerKind.CURVE),
    ListenerKind.TCP: (ListenerKind.TCP, ListenerKind.CURVE),
    ListenerKind.CURVE: (ListenerKind.CURVE,),
    ListenerKind.INPROC: (),
}
