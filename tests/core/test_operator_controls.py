"""Controls that operators set at run time are stored, and survive a restart of the broker."""

import pytest
from stepwire_broker.core import explain
from stepwire_broker.core.guards.allowance import BreakerSet, SetBreaker
from stepwire_broker.core.guards.breaker import BreakerPhase
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.model import events
from stepwire_broker.core.workers.executor_control import PauseExecutor, ResumeExecutor
from stepwire_protocol import messages as wire

from .world import ONE, W, World

RESTARTS = 2  # a control that was read must stay stored


def restarted(world: World) -> World:
    for _ in range(RESTARTS):
        world.restart()
    return world


def test_a_breaker_that_an_operator_opened_is_open_after_a_restart_until_it_is_released() -> None:
    world = World()
    world.apply(ONE)
    world.ask(SetBreaker, handler_class="h", state="open", reason="the bank is being moved")
    task_id = world.task(ONE)
    since_ms = world.state.guards.by_handler["h"].since_wall
    world.mono += 5_000
    restarted(world).hello()
    assert world.row(task_id).state == "ready"
    since = explain.step(world.state, world.step(task_id), world.now)
    assert since.code == "breaker_open"
    assert since.message.endswith(": the bank is being moved")
    assert world.state.guards.by_handler["h"].since_wall == since_ms
    assert world.ask(SetBreaker, handler_class="h", state="auto") == BreakerSet("h", "closed", False)
    assert world.row(task_id).state == "dispatched"
    assert restarted(world).state.guards.by_handler == {}
    world.check()


def test_a_breaker_that_an_operator_closed_is_not_opened_by_failures_after_a_restart() -> None:
    world = World()
    world.apply(ONE)
    world.ask(SetBreaker, handler_class="h", state="closed")
    breaker = restarted(world).state.guards.by_handler["h"].breaker
    for _ in range(100):
        breaker.failed(breaker.turn, world.mono)
    assert (breaker.state, breaker.is_forced) == (BreakerPhase.CLOSED, True)


def test_a_paused_executor_is_paused_after_a_restart_until_it_is_resumed() -> None:
    world = World()
    paused = world.ask(PauseExecutor, executor="bus")
    world.mono += 5_000
    restarted(world).hello()
    task_id = world.task(ONE)
    assert world.row(task_id).state == "ready"
    assert world.ask(PauseExecutor, executor="bus") == paused  # the first pause continues
    world.ask(ResumeExecutor, executor="bus")
    assert world.row(task_id).state == "dispatched"
    assert restarted(world).state.executors == {}
    world.check()


@pytest.mark.parametrize("quits", [False, True])
def test_a_drained_worker_gets_no_steps_after_a_restart(quits: bool) -> None:
    world = World()
    world.hello()
    world.ask(DrainWorker, worker=W, quit=quits)
    restarted(world).hello()
    task_id = world.task(ONE)
    assert world.row(task_id).state == "ready"
    world.beat()
    ack = world.heard(wire.HeartbeatAck)[-1]
    assert (ack.quiet, ack.quit) == (True, quits)
    world.handle(events.ProcessDied(W))
    assert world.rows.controls == []
    world.check()
