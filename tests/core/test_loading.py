"""Loading what a former owner had in memory: lanes side by side, within the limits of readers and memory."""

import pytest
from stepwire_broker.core.commit.decision import LoadPage
from stepwire_broker.core.definitions.settings import DatabaseSettings, LimitSettings, Settings
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.model import events

from .world import ONE, World


def restarted(lanes: int, tasks: int, *, readers: int = 4, active_tasks: int = 50_000) -> World:
    """A broker that has begun again: all its tasks are in the database, left behind by its former start."""
    settings = Settings(
        database=DatabaseSettings(pool_size=readers), limits=LimitSettings(max_active_tasks=active_tasks)
    )
    world = World(settings, lanes=lanes)
    world.apply(ONE)
    for _ in range(tasks):
        world.submit()
    world.answers_reads = False
    world.restart()
    world.pass_time(1)
    return world


def pages(world: World) -> list[LoadPage]:
    return [read for read in world.reads if isinstance(read, LoadPage)]


@pytest.mark.parametrize(("lanes", "readers", "at_once"), [(4, 4, 3), (2, 4, 2), (4, 2, 1), (4, 1, 1), (1, 4, 1)])
def test_pages_of_several_lanes_are_read_at_once_and_one_reader_stays_free(
    lanes: int, readers: int, at_once: int
) -> None:
    world = restarted(lanes, 3 * lanes, readers=readers)
    found = pages(world)
    assert len(found) == at_once
    assert all(len(page.lanes) == 1 for page in found)
    assert len({lane for page in found for lane in page.lanes}) == at_once  # never two pages of one lane


def test_every_task_is_loaded_whatever_the_order_of_the_pages() -> None:
    world = restarted(4, 12)
    while world.reads:
        world.reads.rotate(1)
        world.read()
    assert len(world.state.tasks) == 12
    assert world.state.unloaded == 0
    assert world.state.pages == {}


def test_pages_under_way_never_hold_more_tasks_than_memory_has_space_for() -> None:
    world = restarted(4, 12, active_tasks=5)
    assert sum(page.limit for page in pages(world)) <= 5
    while pages(world):
        world.read()
        assert len(world.state.tasks) + sum(page.limit for page in pages(world)) <= 5


def test_a_failed_page_is_read_again_after_a_pause_and_the_others_go_on() -> None:
    world = restarted(3, 9)
    assert len(pages(world)) == 3
    world.fail_read()
    while world.reads:
        world.read()
    assert len(world.state.tasks) == 6
    world.pass_time(1_000)
    while world.reads:
        world.read()
    assert len(world.state.tasks) == 9


def test_a_page_of_a_lane_that_was_lost_does_not_keep_the_lane_from_being_loaded_again() -> None:
    world = restarted(2, 6)
    (first, _) = pages(world)
    (lane,) = first.lanes
    world.lose(lane)
    world.take(lane)
    world.answers_reads = True
    world.pass_time(1)
    while world.reads:
        world.read()
    world.pass_time(1_000)
    assert len(world.state.tasks) == 6


def test_an_empty_page_of_one_lane_does_not_delay_the_other_lanes() -> None:
    world = restarted(3, 9, readers=2)
    page = world.reads.popleft()
    assert isinstance(page, LoadPage)
    (lane,) = page.lanes
    world.handle(events.LoadedTasks(Loaded([], [], (), ((lane, None),)), page.request))
    (following,) = pages(world)
    assert lane not in following.lanes
