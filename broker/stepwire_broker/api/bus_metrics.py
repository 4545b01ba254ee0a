"""The metrics of the bus, from its counters."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from stepwire_broker.bus.counters import WireCounters

Counted: TypeAlias = list[tuple[tuple[str, ...], int]]
ReadCounters: TypeAlias = Callable[[WireCounters], Counted]


class BusMetric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge"]
    label: str
    help: str
    read: ReadCounters


def _each(counts: Mapping[str, int]) -> Counted:
    return [((name,), n) for name, n in counts.items()]


BUS_METRICS: Final = (
    BusMetric(
        "stepwire_bus_messages_total",
        "counter",
        "direction",
        "Messages of the bus.",
        lambda wire: [(("in",), wire.received), (("out",), wire.sent)],
    ),
    BusMetric(
        "stepwire_bus_bytes_total",
        "counter",
        "direction",
        "Bytes of the messages of the bus.",
        lambda wire: [(("in",), wire.received_bytes), (("out",), wire.sent_bytes)],
    ),
    BusMetric(
        "stepwire_bus_dropped_sends_total",
        "counter",
        "reason",
        "Messages dropped because no receiver was connected (no_receiver), or because its queue was full (full).",
        lambda wire: _each(wire.dropped),
    ),
    BusMetric(
        "stepwire_bus_connections",
        "gauge",
        "socket",
        "Open connections of the bus.",
        lambda wire: _each(wire.connections),
    ),
    BusMetric(
        "stepwire_bus_disconnections_total",
        "counter",
        "reason",
        "Connections that the bus has ended because of a budget.",
        lambda wire: _each(wire.disconnected),
    ),
)
