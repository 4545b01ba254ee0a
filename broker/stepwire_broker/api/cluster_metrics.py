"""The metrics of brokers that share a database, from the state of the core."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

Gauged: TypeAlias = list[tuple[tuple[str, ...], float]]


class ClusterFigures(NamedTuple):
    """The place of this broker among the brokers on its database."""

    lanes: int
    live_brokers: int
    is_dark: bool
    beat_age_ms: int | None  # None: no other broker can use the database


class Core(Protocol):
    """The figures of the core that these metrics need."""

    @property
    def is_draining(self) -> bool: ...

    @property
    def cluster(self) -> ClusterFigures: ...


class MeasuredCluster(Protocol):
    @property
    def core(self) -> Core: ...


class ClusterMetric(NamedTuple):
    name: str
    help: str
    read: Callable[[MeasuredCluster], Gauged]


CLUSTER_METRICS: Final = (
    ClusterMetric(
        "stepwire_draining",
        "1 while the broker drains and accepts no new work.",
        lambda m: [((), int(m.core.is_draining))],
    ),
    ClusterMetric(
        "stepwire_lanes", "Lanes of the database that this broker owns.", lambda m: [((), m.core.cluster.lanes)]
    ),
    ClusterMetric(
        "stepwire_brokers_live",
        "Brokers on the database that are not known to be dead, this one included.",
        lambda m: [((), m.core.cluster.live_brokers)],
    ),
    ClusterMetric(
        "stepwire_broker_dark",
        "1 while the broker sends nothing, because its lease in the database may be over.",
        lambda m: [((), int(m.core.cluster.is_dark))],
    ),
    ClusterMetric(
        "stepwire_beat_age_seconds",
        "Time since the last beat of this broker that the database confirmed. Only where several brokers can share it.",
        lambda m: [((), ms / 1000)] if (ms := m.core.cluster.beat_age_ms) is not None else [],
    ),
)
