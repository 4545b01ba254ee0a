"""The metrics of the stages: per member, per pool and for the whole, from the coordinator."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

from stepwire_broker.coordinator.coordinator import Coordinator
from stepwire_broker.core.pools.health import HealthState
from stepwire_broker.core.pools.pool import Pool, PoolMember

PoolGauged: TypeAlias = list[tuple[tuple[str, ...], float]]
ReadPools: TypeAlias = Callable[[Coordinator, int], PoolGauged]

OF_POOL: Final = ("executor_type",)
OF_MEMBER: Final = ("executor_type", "member")


class PoolMetric(NamedTuple):
    """`read` gets the coordinator and the time, in `mono` milliseconds."""

    name: str
    labels: tuple[str, ...]
    help: str
    read: ReadPools
    kind: Literal["gauge", "counter"] = "gauge"


def _by_pool(value: Callable[[Pool, int], float]) -> ReadPools:
    return lambda coordinator, mono: [((str(kind),), value(pool, mono)) for kind, pool in coordinator.pools.items()]


def _by_member(value: Callable[[PoolMember, int], float]) -> ReadPools:
    return lambda coordinator, mono: [
        ((str(kind), id), value(member, mono))
        for kind, pool in coordinator.pools.items()
        for id, member in pool.members.items()
    ]


def _states(coordinator: Coordinator, mono: int) -> PoolGauged:
    return [
        ((str(kind), str(state)), count)
        for kind, pool in coordinator.pools.items()
        for state, count in pool.states.items()
    ]


POOL_METRICS: Final = (
    PoolMetric(
        "stepwire_orchestration_status",
        ("status",),
        "1 for the present status of the stages: starting, healthy, degraded or unhealthy.",
        lambda c, mono: [
            ((str(state),), int(c.verdict.state is state))
            for state in (HealthState.STARTING, HealthState.HEALTHY, HealthState.DEGRADED, HealthState.UNHEALTHY)
        ],
    ),
    PoolMetric("stepwire_pool_members", ("executor_type", "state"), "Members of a pool, by their state.", _states),
    PoolMetric(
        "stepwire_pool_utilization",
        OF_POOL,
        "Share of the last 30 seconds in which a pool's members held a batch.",
        _by_pool(lambda pool, mono: pool.utilization),
    ),
    PoolMetric(
        "stepwire_pool_queue_depth",
        OF_POOL,
        "Items that wait for a batch of the pool.",
        lambda c, mono: [((str(kind),), c.queue_depth(kind)) for kind in c.pools],
    ),
    PoolMetric(
        "stepwire_pool_items_total",
        OF_POOL,
        "Items of ended batches of a pool: tasks or steps.",
        _by_pool(lambda pool, mono: pool.metrics(mono).items),
        "counter",
    ),
    PoolMetric(
        "stepwire_pool_batches_total",
        OF_POOL,
        "Ended batches of a pool.",
        _by_pool(lambda pool, mono: pool.metrics(mono).batches),
        "counter",
    ),
    PoolMetric(
        "stepwire_pool_failed_batches_total",
        OF_POOL,
        "Failed attempts at a batch of a pool. A batch may fail several times before it succeeds.",
        _by_pool(lambda pool, mono: pool.metrics(mono).failed),
        "counter",
    ),
    PoolMetric(
        "stepwire_member_items_total",
        OF_MEMBER,
        "Items of ended batches of a member.",
        _by_member(lambda member, mono: member.metrics(mono).items),
        "counter",
    ),
    PoolMetric(
        "stepwire_member_failed_batches_total",
        OF_MEMBER,
        "Failed attempts at a batch of a member.",
        _by_member(lambda member, mono: member.metrics(mono).failed),
        "counter",
    ),
    PoolMetric(
        "stepwire_member_busy_seconds_total",
        OF_MEMBER,
        "Time for which a member held a batch.",
        _by_member(lambda member, mono: member.metrics(mono).busy_ms / 1000),
        "counter",
    ),
    PoolMetric(
        "stepwire_member_state_seconds",
        OF_MEMBER,
        "Time since the state of a member changed.",
        _by_member(lambda member, mono: (mono - member.health.since_mono) / 1000),
    ),
    PoolMetric(
        "stepwire_database_connections",
        ("what",),
        "Connections of this broker: configured, and active, which write or read at this moment.",
        lambda c, mono: [
            (("configured",), c.database_use().pool_size),
            (("active",), c.database_use().active_connections),
        ],
    ),
    PoolMetric(
        "stepwire_database_saturation",
        (),
        "How full the fullest of connections, commits and event loop is: 1 is full.",
        lambda c, mono: [((), c.database_use().saturation)],
    ),
)
