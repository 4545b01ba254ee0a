"""The effects of a beat on the core of a broker: lanes lost, taken and released, and the limits of the deployment."""

from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.lanes import beats
from stepwire_broker.core.membership.cluster_rows import ALL, Beaten, BrokerRow, LaneOwner
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.model import events

from .world import BROKER, ONE, W, World

LEASE_MS = 10_000


class Shared(World):
    """A broker with lanes 1 and 2 of a database that b2 uses too."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings, lanes=2)
        self.state.members = Members(BROKER, 7, "1", LEASE_MS, self.mono)
        self.beats = 0

    def beaten(self, *others: BrokerRow, owners: tuple[str | None, ...] = (BROKER, BROKER), bump: int = 0) -> None:
        """A beat succeeds. `bump`: of the epoch of lanes that have another owner."""
        self.beats += 1
        own = BrokerRow(id=BROKER, epoch=7, beat=self.beats, lease_ms=LEASE_MS)
        lanes = []
        for n, owner in enumerate(owners, 1):
            epoch = self.rows.tables.lanes[n].epoch + (0 if owner == BROKER else bump)
            lanes.append(LaneOwner(n, owner, 7 if owner == BROKER else 8, epoch))
        mono = self.mono
        self.handle(
            Beaten(
                sent_mono=mono,
                received_mono=mono,
                brokers=(own, *(_at_beat(row, self.beats) for row in others)),
                lanes=tuple(lanes),
                blocks=((500, 2),),
            )
        )
        self.pass_time(LEASE_MS // 5)


def _at_beat(row: BrokerRow, beat: int) -> BrokerRow:
    return BrokerRow(**{name: getattr(row, name) for name in row.__struct_fields__} | {"beat": beat})


def other(**members: object) -> BrokerRow:
    return BrokerRow(id="b2", epoch=8, beat=0, lease_ms=LEASE_MS, version="1", **members)  # type: ignore[arg-type]


def test_a_beat_that_shows_another_owner_of_a_lane_ends_its_use() -> None:
    world = Shared()
    world.beaten(other(), owners=(BROKER, "b2"), bump=1)
    assert set(world.state.lanes) == {1}


def test_a_beat_makes_known_to_which_lane_new_blocks_of_ids_belong() -> None:
    world = Shared()
    world.beaten()
    assert world.state.blocks[500] == 2


def test_a_lane_is_released_for_a_broker_that_has_none_once_nothing_of_it_is_in_flight() -> None:
    world = Shared()
    world.hello()
    task_id = world.task(ONE)
    lane = world.state.lane_of(task_id)
    assert lane is not None
    for _ in range(4):
        world.beaten(other(workers=1))
    assert [n for n, each in world.state.lanes.items() if each.release is not None] == world.released
    (released,) = world.released
    assert released != lane  # the idle one goes first
    world.handle(events.LaneReleased(released))
    assert set(world.state.lanes) == {lane}


def test_a_draining_broker_releases_all_its_lanes_to_others_and_none_without_another_one() -> None:
    world = Shared()
    world.handle(events.Drain())
    world.beaten()
    assert world.released == []
    for _ in range(2):
        world.beaten(other(), owners=(BROKER, BROKER))
    assert sorted(world.released) == [1, 2]


def test_a_broker_describes_itself_by_its_own_lanes_and_workers() -> None:
    world = Shared()
    world.hello(W)
    world.task(ONE)
    told = beats.presence(world.state, "127.0.0.1:1", "digest")
    assert (told.workers, told.open_steps, told.is_draining) == (1, {ALL: 1}, False)
    world.handle(events.Drain())
    assert beats.presence(world.state, None, "digest").is_draining
