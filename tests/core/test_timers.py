"""When the core is woken: as rarely as it can be without missing anything."""

import msgspec
from stepwire_broker.core.commit.timers import SWEEP_FROM, Timers
from stepwire_broker.core.model import events
from stepwire_broker.core.model.events import Now
from stepwire_protocol import limits

from .world import World

FLOW = {"name": "flow", "steps": [{"name": "one", "handler_class": "h"}]}


class Timer(msgspec.Struct):
    name: str
    stale: bool = False

    def is_stale(self) -> bool:
        return self.stale


def at(mono: int) -> Now:
    return Now(mono, 0)


def due(timers: Timers[Timer], mono: int) -> list[str]:
    names = []
    while (timer := timers.pop_due(at(mono))) is not None:
        names.append(timer.name)
    return names


def test_timers_come_in_the_order_of_their_times_and_none_before_its_time() -> None:
    timers: Timers[Timer] = Timers()
    for mono in (30, 10, 20, 10):
        timers.set(mono, Timer(f"{mono} ms"))
    assert timers.wake_at == 10
    assert due(timers, 9) == []
    assert due(timers, 25) == ["10 ms", "10 ms", "20 ms"]
    assert timers.wake_at == 30


def test_the_core_does_not_wake_for_a_stale_timer() -> None:
    timers: Timers[Timer] = Timers()
    by_name = {name: Timer(name) for name in "abcd"}
    for position, timer in enumerate(by_name.values(), 1):
        timers.set(10 * position, timer)
    by_name["b"].stale = by_name["c"].stale = True
    assert due(timers, 10) == ["a"]
    assert timers.wake_at == 40
    assert due(timers, 40) == ["d"]
    assert timers.wake_at is None


def test_stale_timers_leave_the_heap_when_they_could_be_half_of_it() -> None:
    timers: Timers[Timer] = Timers()
    for mono in range(3 * SWEEP_FROM):
        timers.set(mono, Timer("t", stale=mono % 100 > 0))
    assert len(timers) < SWEEP_FROM
    assert sum(not timer.stale for timer in timers.all()) == -(-3 * SWEEP_FROM // 100)


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
