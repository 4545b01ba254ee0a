"""`/health/orchestration`: the health of the five stages, of their members, and of the database under them.

Everything is read from memory: the route also answers while the database does not.
"""

from typing import Final

from msgspec import Struct

from stepwire_broker.core.pools.health import HealthState
from stepwire_broker.core.pools.pool import Pool, PoolMember

from . import core_views
from .http import HttpCall
from .metrics import VERSION
from .replies import Reply, encode

NOT_RUNNING: Final = "not running"


class CoordinatorDocument(Struct, frozen=True):
    """`running`: the loop of the broker turns, and judges the health of its members."""

    running: bool
    uptime_seconds: int


class MemberDocument(Struct, frozen=True, kw_only=True):
    """A member of a pool. `state_seconds`: for how long it has been in this state. `items`, `batches`, `failed_batches`
    and `busy_seconds` count since it began; a batch that was tried several times may have failed several times."""

    id: str
    state: HealthState
    reason: str | None
    state_seconds: float
    busy: bool
    items: int
    batches: int
    failed_batches: int
    busy_seconds: float
    mean_ms: float


class PoolDocument(Struct, frozen=True, kw_only=True):
    """A pool: one stage of the broker. `unhealthy` counts degraded members as well; members that start or stop count as
    neither. `throughput`: items a second, and `utilization`: the busy share of its members, both over the last 30
    seconds. `queue_depth`: items that wait for a batch."""

    healthy: int
    unhealthy: int
    throughput: float
    utilization: float
    queue_depth: int
    size: int
    members: list[MemberDocument]


class DatabaseDocument(Struct, frozen=True):
    """`pool_size`: connections of this broker that write (one for each owned lane) or read. `active_connections`: those
    that do so at this moment. `saturation`: how full the fullest of connections, commits and event loop is; 1 is full.
    """

    pool_size: int
    active_connections: int
    saturation: float


class LanesDocument(Struct, frozen=True):
    owned: int
    total: int


class BrokerHealth(Struct, frozen=True):
    """A broker of the deployment, as of its last beat."""

    broker: str
    is_alive: bool
    draining: bool
    lanes: int
    open_steps: int


class OrchestrationHealth(Struct, frozen=True):
    """`status`: starting, healthy, degraded or unhealthy. `reason`: why it is not healthy."""

    broker: str
    status: HealthState
    reason: str | None
    coordinator: CoordinatorDocument
    executor_pools: dict[str, PoolDocument]
    database: DatabaseDocument
    lanes: LanesDocument
    brokers: list[BrokerHealth]


async def show(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    coordinator, mono = broker.coordinator, broker.now().mono
    use, lanes = coordinator.database_use(), core_views.lanes_by_owner(broker)
    document = OrchestrationHealth(
        broker.broker_id,
        coordinator.verdict.state,
        coordinator.verdict.reason or None,
        CoordinatorDocument(NOT_RUNNING not in broker.readiness(), coordinator.uptime_s),
        {str(kind): _pool(pool, coordinator.queue_depth(kind), mono) for kind, pool in coordinator.pools.items()},
        DatabaseDocument(use.pool_size, use.active_connections, round(use.saturation, 3)),
        LanesDocument(lanes.get(broker.broker_id, 0), sum(lanes.values())),
        [
            BrokerHealth(each.id, each.is_alive, each.is_draining, lanes.get(each.id, 0), each.open_steps)
            for each in core_views.brokers(broker, VERSION)
        ],
    )
    return Reply(200, encode(document))


def _pool(pool: Pool, queue_depth: int, mono: int) -> PoolDocument:
    health = pool.health
    return PoolDocument(
        healthy=health.healthy,
        unhealthy=health.unhealthy,
        throughput=round(pool.throughput, 1),
        utilization=round(pool.utilization, 3),
        queue_depth=queue_depth,
        size=len(pool.members),
        members=[_member(member, mono) for _, member in sorted(pool.members.items())],
    )


def _member(member: PoolMember, mono: int) -> MemberDocument:
    health, metrics = member.health, member.metrics(mono)
    return MemberDocument(
        id=member.id,
        state=health.state,
        reason=health.reason or None,
        state_seconds=(mono - health.since_mono) / 1000,
        busy=member.is_busy,
        items=metrics.items,
        batches=metrics.batches,
        failed_batches=metrics.failed,
        busy_seconds=metrics.busy_ms / 1000,
        mean_ms=round(health.samples.mean_ms(mono), 1),
    )
