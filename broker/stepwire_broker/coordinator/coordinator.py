"""The coordinator on the loop: it notes every batch of a stage, and describes the pools and their health.

The figures cost a few additions for each transaction, and nothing for a step. Each owned lane has one member of each
stage, because a lane writes one group at a time, and takes whatever waits for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog

from stepwire_broker.core import takers
from stepwire_broker.core.commit.decision import LoadPage, Read
from stepwire_broker.core.commit.ports import ReadClocks
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.pools.executor_types import ExecutorType, items_of
from stepwire_broker.core.pools.health import Consumption, HealthState, HealthVerdict, system_health
from stepwire_broker.core.pools.pool import Pool, PoolMember
from stepwire_broker.core.pools.pressure import Pressure, saturation_of, smoothed
from stepwire_broker.core.state import BrokerState
from stepwire_broker.loop_measures import Measures

from .recent import RecentQuantile

log = structlog.get_logger("stepwire.broker")

BEAT_MS: Final = 1_000
HEALTH_CHECK_MS: Final = 10_000
COMMIT_SHARE: Final = 0.95
LAG_SHARE: Final = 0.99


class DatabaseUse(NamedTuple):
    """The connections of this broker that do work: lanes that write, and readers."""

    pool_size: int
    active_connections: int
    saturation: float  # of the fullest resource, smoothed


class Coordinator:
    """Used on the loop."""

    def __init__(self, state: BrokerState, measures: Measures, clock: ReadClocks) -> None:
        self._state = state
        self._clock = clock
        mono = clock().mono
        self.begun_mono = mono
        self.pools = {kind: Pool(kind, mono) for kind in ExecutorType}
        self.readers_busy = 0
        self.verdict = HealthVerdict(HealthState.STARTING, "no member has started")
        self._pages: dict[int, tuple[str, ...]] = {}  # by request: the members that hold the page
        self._consumption = Consumption()
        self._commits = RecentQuantile(measures.commit_s, COMMIT_SHARE)
        self._lags = RecentQuantile(measures.loop_lag_s, LAG_SHARE)
        self._saturation: float | None = None
        self._beat_mono = self._checked_mono = mono
        self._follow_lanes(mono)

    # -- batches ------------------------------------------------------------------------------------------------------

    def group_handed(self, group: CommitGroup) -> None:
        """The lane's writer has got a group: a member of each stage that has items in it holds a batch."""
        mono = self._clock().mono
        for kind, items in items_of(group).items():
            self._member(kind, group.lane, mono).begin(items, mono)

    def group_stalled(self, lane: int) -> None:
        """An attempt to write the lane's group has failed. The lane tries again."""
        for member in self._busy(lane):
            member.attempt_failed(self._clock().mono)

    def group_committed(self, lane: int) -> None:
        for member in self._busy(lane):
            member.end(self._clock().mono)

    def lane_closed(self, lane: int) -> None:
        """The broker no longer owns the lane. What its members held is another broker's now."""
        mono = self._clock().mono
        for pool in self.pools.values():
            if member_id(lane) in pool.members:
                pool.remove(member_id(lane), mono)

    def read_asked(self, read: Read) -> None:
        self.readers_busy += 1
        if isinstance(read, LoadPage):
            mono = self._clock().mono
            members = [self._member(ExecutorType.CLAIMS, lane, mono) for lane in sorted(read.lanes)]
            self._pages[read.request] = tuple(member.id for member in members)
            for member in members:
                member.begin(0, mono)

    def read_ended(self, read: Read, loaded: Loaded | None) -> None:
        """A read of the core has ended. `loaded`: the tasks of a page; None if the read failed, or was no page."""
        self.readers_busy -= 1
        mono, members = self._clock().mono, self.pools[ExecutorType.CLAIMS].members
        for id in self._pages.pop(read.request, ()):
            member = members.get(id)
            if member is None or not member.is_busy:
                continue  # the lane was lost meanwhile
            if loaded is None:
                member.give_back(mono)
            else:
                member.end(mono, items=sum(member_id(task.lane) == id for task in loaded.tasks))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a reader as busy."""
        self.readers_busy += 1
        try:
            yield
        finally:
            self.readers_busy -= 1

    # -- time ---------------------------------------------------------------------------------------------------------

    def turned(self) -> None:
        """The loop turns. Measure once a second, and judge the health every ten."""
        now = self._clock()
        mono = now.mono
        if mono - self._beat_mono < BEAT_MS:
            return
        self._beat_mono = mono
        self._follow_lanes(mono)
        self._saturation = smoothed(self._saturation, saturation_of(self._pressure(mono)))
        for pool in self.pools.values():
            pool.beat(mono)
        if mono - self._checked_mono >= HEALTH_CHECK_MS:
            self._checked_mono = mono
            for pool in self.pools.values():
                for member in pool.check(mono):
                    _log_member(member)
        self._judge(now)

    def _judge(self, now: Now) -> None:
        state = self._state
        not_consuming_ms = self._consumption.look(
            state.counters.dispatched, now.mono, could_dispatch=not state.draining and takers.could_dispatch(state, now)
        )
        pools = [(str(kind), pool.health) for kind, pool in self.pools.items()]
        before, self.verdict = self.verdict, system_health(pools, not_consuming_ms)
        if before.state is not self.verdict.state and before.state is not HealthState.STARTING:
            change = {"before": before.state, "after": self.verdict.state, "reason": self.verdict.reason}
            if self.verdict.state is HealthState.HEALTHY:
                log.info("orchestration_health", **change)
            else:
                log.warning("orchestration_health", **change)

    # -- figures ------------------------------------------------------------------------------------------------------

    def database_use(self) -> DatabaseUse:
        writing = sum(not lane.is_idle for lane in self._state.outbox.lanes.values())
        size = len(self._state.outbox.lanes) + self._state.settings.database.pool_size
        return DatabaseUse(size, min(size, writing + self.readers_busy), self._saturation or 0.0)

    def queue_depth(self, kind: ExecutorType) -> int:
        """Return the number of items that wait for a batch of this stage."""
        state = self._state
        match kind:
            case ExecutorType.REQUESTS:
                return len(state.submissions_waiting)
            case ExecutorType.CLAIMS:
                return max(0, state.unloaded)
            case ExecutorType.DISPATCH:
                return state.ready.count
            case ExecutorType.RESULTS:
                return 0  # results are applied as they are read
            case ExecutorType.FINISH:
                return len(state.waiters)

    @property
    def uptime_s(self) -> int:
        return (self._clock().mono - self.begun_mono) // 1000

    def _pressure(self, mono: int) -> Pressure:
        self._commits.beat()
        self._lags.beat()
        lanes = self._state.outbox.lanes.values()
        oldest_ms = max((mono - lane.handed_mono for lane in lanes if not lane.is_idle), default=0)
        use = self.database_use()
        return Pressure(
            use.active_connections / use.pool_size,
            max(self._commits.value, oldest_ms / 1000),
            self._lags.value,
        )

    # -- members ------------------------------------------------------------------------------------------------------

    def _member(self, kind: ExecutorType, lane: int, mono: int) -> PoolMember:
        pool, id = self.pools[kind], member_id(lane)
        return pool.members.get(id) or pool.add(id, mono)

    def _busy(self, lane: int) -> list[PoolMember]:
        """Return the members that hold a batch of the lane's group."""
        id = member_id(lane)
        found = [pool.members.get(id) for kind, pool in self.pools.items() if kind is not ExecutorType.CLAIMS]
        return [member for member in found if member is not None and member.is_busy]

    def _follow_lanes(self, mono: int) -> None:
        """Add members for lanes that this broker owns now, and remove those of lanes that it has lost."""
        owned = {member_id(lane) for lane in self._state.outbox.lanes}
        for pool in self.pools.values():
            for id in sorted(owned - pool.members.keys()):
                pool.add(id, mono)
            for id in pool.members.keys() - owned:
                pool.remove(id, mono)


def member_id(lane: int) -> str:
    return f"lane-{lane}"


def _log_member(member: PoolMember) -> None:
    health = member.health
    described = {
        "executor_type": member.executor_type,
        "member": member.id,
        "state": health.state,
        "reason": health.reason,
    }
    if health.state is HealthState.HEALTHY:
        log.info("member_health", **described)
    else:
        log.warning("member_health", **described)
