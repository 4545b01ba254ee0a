"""Timers expire by the clock that the pulse has checked, not by a later one."""

from stepwire_broker.core.model import events

from .test_darkness import Turning
from .world import ONE, W

SUSPENDED_MS = 60_000


def turning() -> Turning:
    world = Turning()
    world.state.members = None
    world.apply(ONE)
    world.hello()
    return world


def test_a_broker_suspended_after_the_check_of_its_clock_does_not_call_a_worker_silent() -> None:
    world = turning()
    checked = world.mono
    world.mono += SUSPENDED_MS
    world.turn.tick(checked)
    assert W in world.state.sessions
    world.handle(events.LoopWasLate(SUSPENDED_MS))  # the next check
    world.turn.tick(world.mono)
    assert W in world.state.sessions


def test_a_worker_that_was_silent_while_the_loop_turned_is_dead_at_the_next_tick() -> None:
    world = turning()
    world.mono += SUSPENDED_MS
    world.turn.tick(world.mono)
    assert W not in world.state.sessions
