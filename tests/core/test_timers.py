"""When the core wants to be woken: as rarely as nothing is missed."""

from typing import Any

from stepwire_broker.core.commit.timers import Timers
from stepwire_broker.core.model import events
from stepwire_broker.core.model.events import Now
from stepwire_protocol import limits

from .world import World

FLOW = {"name": "flow", "steps": [{"name": "one", "handler_class": "h"}]}


def at(mono: int) -> Now:
    return Now(mono, 0)


def due(timers: Timers, mono: int) -> list[Any]:
    found = []
    while (timer := timers.pop_due(at(mono))) is not None:
        found.append(timer[1])
    return found


def test_timers_come_in_the_order_of_their_times_and_none_before_it() -> None:
    timers = Timers(lambda kind, what: False)
    for mono in (30, 10, 20, 10):
        timers.set(mono, "x", mono)
    assert timers.wake_at == 10
    assert due(timers, 9) == []
    assert due(timers, 25) == [10, 10, 20]
    assert timers.wake_at == 30


def test_nobody_is_woken_for_what_means_nothing_any_more() -> None:
    over: set[str] = set()
    timers = Timers(lambda kind, what: what in over)
    for mono, what in ((10, "a"), (20, "b"), (30, "c"), (40, "d")):
        timers.set(mono, "x", what)
    over |= {"b", "c"}
    assert due(timers, 10) == ["a"]
    assert timers.wake_at == 40
    assert due(timers, 40) == ["d"]
    assert timers.wake_at is None


def test_a_hundred_answered_batches_wake_the_broker_a_few_times_and_not_a_hundred() -> None:
    world = World()
    world.hello()
    ticks = 0
    for _ in range(100):
        world.task(FLOW)
        world.result(world.batches()[-1])
        end = world.mono + 10
        while world.machine.wake_at is not None and world.machine.wake_at <= end:
            world.mono = max(world.mono, world.machine.wake_at)
            world.handle(events.Tick())
            ticks += 1
        world.mono = end
    assert world.state.counters.retransmitted == 0
    assert ticks <= 100 * 10 // limits.STEPS_RETRANSMIT_MS + 1
