"""The coordinator over a real core: the batches that its members hold, and the health that it concludes."""

from stepwire_broker.coordinator.coordinator import HEALTH_CHECK_MS, Coordinator
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.pools.executor_types import ExecutorType, items_of
from stepwire_broker.core.pools.health import NOT_CONSUMING_MS, SILENT_MS, HealthState
from stepwire_broker.core.pools.pool import Pool
from stepwire_broker.loop_measures import nothing_yet
from stepwire_broker.store.ports import LANE

from tests.core.world import CHAIN, ONE, World

REQUESTS, DISPATCH, RESULTS = ExecutorType.REQUESTS, ExecutorType.DISPATCH, ExecutorType.RESULTS
MEMBER = f"lane-{LANE}"


class Watched:
    """A world whose groups are reported to the coordinator, as the loop reports them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen = len(world.groups)
        self.of = Coordinator(world.state, nothing_yet(), lambda: world.now)

    def group(self) -> CommitGroup:
        """Report the group that the writer has now, and return it."""
        group = self.world.writing
        assert group is not None
        self.of.group_handed(group)
        return group

    def commit(self) -> None:
        self.of.group_committed(LANE)
        self.world.commit()

    def wait(self, ms: int) -> None:
        """Let the time pass, and the loop turn once a second."""
        for _ in range(ms // 1_000):
            self.world.mono += 1_000
            self.of.turned()

    @property
    def state(self) -> str:
        return str(self.of.verdict.state)


def watched() -> Watched:
    world = World(auto=False)
    world.apply(CHAIN)
    world.settle()
    return Watched(world)


def test_each_stage_counts_its_items_of_a_group_until_it_is_committed() -> None:
    watch = watched()
    world, pools = watch.world, watch.of.pools
    world.hello()
    world.submit()
    assert items_of(watch.group()) == {REQUESTS: 1, DISPATCH: 1}
    assert [kind for kind, pool in pools.items() if pool.members[MEMBER].is_busy] == [REQUESTS, DISPATCH]
    assert watch.of.database_use().active_connections == 1
    world.mono += 200
    watch.commit()
    assert not any(pool.members[MEMBER].is_busy for pool in pools.values())
    assert pools[DISPATCH].metrics(world.now.mono) == (1, 1, 0, 200)
    world.result(world.batches()[-1])
    assert items_of(watch.group())[RESULTS] == 1


def test_a_healthy_broker_is_healthy_after_its_first_beat() -> None:
    watch = watched()
    assert watch.state == "starting"
    watch.wait(1_000)
    assert watch.state == "healthy"
    watch.wait(10 * HEALTH_CHECK_MS)
    assert watch.state == "healthy"


def test_a_member_whose_commit_hangs_is_unhealthy_until_three_good_windows_later() -> None:
    watch = watched()
    watch.wait(HEALTH_CHECK_MS)
    watch.world.submit()
    watch.group()
    watch.wait(SILENT_MS)
    assert watch.state == "healthy"
    watch.wait(2 * HEALTH_CHECK_MS)
    assert str(watch.of.pools[REQUESTS].members[MEMBER].health.state) == "unhealthy"
    assert watch.state == "degraded"
    assert "task_request_processor" in watch.of.verdict.reason
    assert watch.of.database_use().saturation > 1  # the oldest commit counts before it ends
    watch.commit()
    watch.wait(3 * HEALTH_CHECK_MS)
    assert watch.state == "healthy"


def test_a_lane_that_cannot_write_is_degraded_by_its_failed_attempts() -> None:
    watch = watched()
    watch.wait(HEALTH_CHECK_MS)
    for _ in range(5):
        watch.world.submit()
        watch.group()
        watch.of.group_stalled(LANE)
        watch.commit()
        watch.world.settle()
    watch.wait(2 * HEALTH_CHECK_MS)
    member = watch.of.pools[REQUESTS].members[MEMBER]
    assert str(member.health.state) == "degraded"
    assert "batches failed" in member.health.reason
    assert member.metrics(watch.world.now.mono).failed == 5


def test_a_broker_that_dispatches_nothing_although_workers_are_free_is_degraded() -> None:
    watch = watched()
    world = watch.world
    world.submit()
    world.settle()
    watch.wait(NOT_CONSUMING_MS + HEALTH_CHECK_MS)
    assert watch.state == "healthy"  # no worker offers the handler
    world.machine.dispatch = lambda *args, **kwargs: None  # type: ignore[method-assign]
    world.hello()
    watch.wait(NOT_CONSUMING_MS)
    assert watch.state == "healthy"
    watch.wait(2_000)
    assert watch.state == "degraded"
    assert "not consuming" in watch.of.verdict.reason


def test_members_follow_the_lanes_that_the_broker_owns() -> None:
    world = World(lanes=3)
    world.task(ONE)
    watch = Watched(world)
    pool = watch.of.pools[DISPATCH]
    assert sorted(pool.members) == ["lane-1", "lane-2", "lane-3"]
    watch.of.lane_closed(2)
    assert sorted(pool.members) == ["lane-1", "lane-3"]
    watch.wait(1_000)
    assert sorted(pool.members) == ["lane-1", "lane-2", "lane-3"]  # it owns the lane again


def test_the_utilisation_is_the_share_of_time_in_which_members_hold_a_batch() -> None:
    pool, mono = Pool(REQUESTS, 0), 0
    busy, _ = pool.add("a", mono), pool.add("b", mono)
    for second in range(60):
        busy.begin(10, mono)
        mono += 500
        assert busy.end(mono) == 10
        mono += 500
        if second == 20:
            pool.remove("b", mono)
        pool.beat(mono)
        if second == 19:
            assert pool.utilization == 0.25
    assert pool.utilization == 0.5
    assert pool.throughput == 10.0
    assert pool.metrics(mono).items == 600


def test_a_member_that_is_gone_keeps_its_counts_in_the_pool() -> None:
    pool = Pool(REQUESTS, 0)
    member = pool.add("a", 0)
    member.begin(3, 0)
    member.end(100)
    pool.remove("a", 100)
    assert pool.metrics(200) == (3, 1, 0, 100)
    assert member.health.state is HealthState.STOPPED
