"""The takers of a route's steps, and the obstacle of each session that cannot take one."""

from typing import Any

import pytest
from stepwire_broker.core import takers
from stepwire_broker.core.definitions.settings import BusSettings, Level0Settings, Settings
from stepwire_broker.core.model import events
from stepwire_broker.core.model.targets import BUS, Route, Target
from stepwire_broker.core.takers import Obstacle
from stepwire_broker.core.workers.executor_control import PauseExecutor

from .world import CHAIN, ONE, W2, W, World

H = Route(Target(BUS), "h")
GPU = (("gpu", "true"),)


def obstacle(world: World, route: Route) -> Obstacle | None:
    session = world.state.sessions[W]
    return takers.lasting_obstacle(session, route) or takers.passing_obstacle(session, route)


@pytest.mark.parametrize(
    ("route", "hello", "expected"),
    [
        (H, {}, None),
        (Route(Target("exec"), "h"), {}, Obstacle.OTHER_EXECUTOR),
        (H, {"executor": "exec"}, Obstacle.OTHER_EXECUTOR),
        (Route(Target("exec"), "h"), {"executor": "exec"}, None),
        (H, {"handlers": ["other", "h.*"]}, Obstacle.NOT_OFFERED),
        (Route(Target(BUS, GPU), "h"), {}, Obstacle.LABELS),
        (Route(Target(BUS, GPU), "h"), {"labels": {"gpu": "true"}}, None),
        (Route(Target(BUS, without=GPU), "h"), {"labels": {"gpu": "true"}}, Obstacle.LABELS),
        (Route(Target(BUS, GPU), "h"), {"handlers": ["other"]}, Obstacle.NOT_OFFERED),
        (H, {"free": {"b1": 0}}, Obstacle.NO_CREDIT),
    ],
)
def test_a_session_has_the_first_obstacle_that_applies(
    route: Route, hello: dict[str, Any], expected: Obstacle | None
) -> None:
    world = World(executors=["exec"])
    world.hello(**hello)
    assert obstacle(world, route) is expected
    assert takers.takers(world.state, route) == ([] if expected else [world.state.sessions[W]])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"unknown": {"h"}}, Obstacle.UNKNOWN_HANDLER),
        ({"draining": True, "stuck": True}, Obstacle.DRAINING),
        ({"stuck": True, "muted": True}, Obstacle.STUCK),
        ({"muted": True}, Obstacle.MUTED),
        ({"free": 3, "unanswered": 3}, Obstacle.NO_CREDIT),
    ],
)
def test_a_session_that_cannot_take_a_step_names_its_state(change: dict[str, Any], expected: Obstacle) -> None:
    world = World()
    world.hello()
    for name, value in change.items():
        setattr(world.state.sessions[W], name, value)
    assert obstacle(world, H) is expected
    assert takers.takers(world.state, H) == []


def test_a_paused_executor_is_the_obstacle_of_its_sessions() -> None:
    world = World()
    world.hello()
    world.ask(PauseExecutor, executor=BUS)
    assert obstacle(world, H) is Obstacle.PAUSED


def test_a_worker_holds_at_most_one_step_that_goes_alone() -> None:
    world = World()
    world.hello()
    world.state.sessions[W].suspects = 1
    assert obstacle(world, H._replace(goes_alone=True)) is Obstacle.HAS_SUSPECT
    assert obstacle(world, H) is None


def test_a_handler_that_every_worker_refused_as_unknown_is_offered_by_none() -> None:
    world = World()
    world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    handler_class = batch.steps[0].handler_class
    assert takers.is_offered(world.state, handler_class)
    world.refuse(batch, "unknown_handler")
    assert not takers.is_offered(world.state, handler_class)
    assert takers.is_offered(world.state, "another")
    world.hello(W2)
    assert takers.is_offered(world.state, handler_class)


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (H, None),
        (Route(Target("exec"), "h"), Obstacle.OTHER_EXECUTOR),
        (Route(Target(BUS), "other"), Obstacle.NOT_OFFERED),
        (Route(Target(BUS, GPU), "h"), Obstacle.LABELS),
        (H._replace(is_at_most_once=True), Obstacle.NOT_ALLOWED),
    ],
)
def test_level_0_takes_steps_without_labels_of_the_handlers_that_the_settings_name(
    route: Route, expected: Obstacle | None
) -> None:
    world = World(Settings(bus=BusSettings(level0=Level0Settings(handlers=("h",)))))
    world.peer()
    assert takers.level0_obstacle(world.state, route) is expected
    assert takers.can_be_taken(world.state, route) is (expected is None)


def test_level_0_takes_nothing_that_a_worker_with_a_session_can_take() -> None:
    world = World()
    world.peer()
    world.hello()
    assert takers.level0_obstacle(world.state, H) is Obstacle.SESSIONS_FIRST
    world.state.sessions[W].draining = True
    assert takers.level0_obstacle(world.state, H) is None


def test_a_peer_is_an_obstacle_to_itself_until_it_has_settled_and_while_it_holds_a_batch() -> None:
    world = World()
    world.task(CHAIN)
    world.handle(events.PeerSubscribed())
    (peer,) = world.state.level0.peers.values()
    assert takers.peer_obstacle(peer, H, world.now) is Obstacle.SETTLING
    world.pass_time(500)
    assert takers.peer_obstacle(peer, H, world.now) is Obstacle.NO_CREDIT
    world.answer(world.handed[0])
    peer.holds.clear()
    peer.doubted = True
    assert takers.peer_obstacle(peer, H, world.now) is None
    assert takers.peer_obstacle(peer, H._replace(is_at_most_once=True), world.now) is Obstacle.DOUBTED
    peer.draining = True
    assert takers.peer_obstacle(peer, H, world.now) is Obstacle.DRAINING
