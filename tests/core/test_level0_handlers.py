"""Which handlers level 0 gets: what SDK workers have offered, and what programs answered that they do not know."""

from typing import Any

import pytest
from stepwire_broker.core import explain, takers
from stepwire_broker.core.answers.hints import HintCode
from stepwire_broker.core.definitions.settings import (
    BreakerSettings,
    BusSettings,
    DispatchSettings,
    Level0Settings,
    RetryBudgetSettings,
    Settings,
)
from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.intake.commands import CancelTask
from stepwire_broker.core.intake.routing_rules import SetRule
from stepwire_broker.core.model import events
from stepwire_broker.core.model.level0_peer import UNKNOWN_REMEMBERED_MAX
from stepwire_broker.core.routing import level0_handlers
from stepwire_broker.core.routing.level0_handlers import Level0Handlers
from stepwire_protocol import messages as wire

from .world import CHAIN, ONE, W2, W, World, once, one, steps

LEASE_MS = 35_000  # a timeout of 30 s, plus 5 s
UNKNOWN = wire.ErrorDetail(message="python has no h", code="unknown_handler", retryable=False)


def level0(**members: Any) -> World:
    return World(Settings(bus=BusSettings(level0=Level0Settings(**members))))


def unknown(world: World, batch: wire.StepsLevel0, *positions: int) -> None:
    """Answer that the handlers of these steps are not known, or those of all steps."""
    chosen = [batch.steps[i] for i in positions] or batch.steps
    world.answer(batch, results=[wire.Result(step_id=s.step_id, status="error", error=UNKNOWN) for s in chosen])


def why(world: World, task_id: int) -> explain.Why:
    return explain.step(world.state, world.step(task_id), world.now)


def to_of(world: World) -> list[str]:
    return [batch.to for batch in world.handed]


# -- a program that does not know the handler -------------------------------------------------------------------------


@pytest.mark.parametrize("retryable", [None, True, False])
@pytest.mark.parametrize("form", ["error", "failed", "whole batch"])
def test_a_step_that_a_program_does_not_know_is_ready_again_without_an_attempt(
    form: str, retryable: bool | None
) -> None:
    world = World()
    world.peer()
    world.apply(one(retry_limit=0))
    task_id = world.task(one(retry_limit=0))
    (batch,) = world.handed
    error = wire.ErrorDetail(message="no", code="unknown_handler", retryable=retryable)
    if form == "whole batch":
        world.answer(batch, results=[], error=error)
    else:
        world.answer(batch, results=[wire.Result(step_id=batch.steps[0].step_id, status=form, error=error)])  # type: ignore[arg-type]
    row = world.row(task_id)
    assert (row.state, row.attempt, row.reason, row.lost_sessions) == ("ready", 0, "unknown_handler", 0)
    assert world.state.counters.level0_unknown == 1
    world.pass_time(LEASE_MS)
    assert len(world.handed) == 1  # the program is not asked again
    world.check()


def test_a_program_is_not_asked_again_for_a_handler_that_it_does_not_know() -> None:
    world = World()
    first, second = world.peer(), world.peer()
    task_ids = [world.task(ONE) for _ in range(4)]
    unknown(world, next(b for b in world.handed if b.to == first))
    for _ in range(8):
        held = [b for b in world.handed if world.state.level0.handouts.get(b.batch_id)]
        assert {b.to for b in held} <= {second}
        for batch in held:
            world.answer(batch)
        world.check()
    assert [world.stored(i).state for i in task_ids] == ["completed"] * 4
    assert to_of(world).count(first) == 1


def test_a_program_that_connects_again_is_asked_again() -> None:
    world = World()
    first = world.peer()
    world.task(ONE)
    unknown(world, world.handed[0])
    world.handle(events.PeerVanished(first))
    second = world.peer()
    assert to_of(world) == [first, second]


def test_a_program_that_does_not_know_one_handler_gets_the_others() -> None:
    world = World()
    to = world.peer()
    task_id = world.task(steps({"name": "a", "handler_class": "x"}, {"name": "b", "handler_class": "y"}))
    unknown(world, world.handed[0])
    assert [b.steps[0].step_name for b in world.handed] == ["a", "b"]
    assert to_of(world) == [to, to]
    world.answer(world.handed[1])
    assert world.states(task_id) == {"a": "ready", "b": "completed"}


def test_an_answer_can_know_some_steps_of_a_batch_and_not_the_others() -> None:
    world = level0(batch_max_steps=4)
    world.handle(events.PeerSubscribed())
    task_id = world.task(steps(*({"name": n, "handler_class": n} for n in "abcd")))
    world.pass_time(500)
    (batch,) = world.handed
    assert [s.step_name for s in batch.steps] == ["a", "b", "c", "d"]
    results = [
        wire.Result(step_id=batch.steps[0].step_id, status="completed"),
        wire.Result(step_id=batch.steps[1].step_id, status="error", error=UNKNOWN),
    ]
    world.answer(batch, results=results)
    assert world.states(task_id) == {"a": "completed", "b": "ready", "c": "dispatched", "d": "dispatched"}
    assert len(world.handed) == 1  # the peer is still busy with two steps
    unknown(world, batch, 2, 3)
    assert world.states(task_id) == {"a": "completed", "b": "ready", "c": "ready", "d": "ready"}
    world.check()


def test_a_mixed_batch_that_is_refused_as_a_whole_tells_nothing_of_one_handler() -> None:
    world = level0(batch_max_steps=2)
    world.handle(events.PeerSubscribed())
    (peer,) = world.state.level0.peers.values()
    task_id = world.task(steps({"name": "a", "handler_class": "x"}, {"name": "b", "handler_class": "y"}))
    world.pass_time(500)
    (mixed,) = world.handed
    world.answer(mixed, results=[], error=UNKNOWN)
    assert peer.unknown == {}
    first = world.handed[1]
    assert [s.step_name for s in first.steps] == ["a"]  # from now on, each batch has one handler
    world.answer(first)
    world.answer(world.handed[2], results=[], error=UNKNOWN)
    assert peer.unknown == {"y": None}
    assert world.states(task_id) == {"a": "completed", "b": "ready"}
    assert len(world.handed) == 3


def test_an_at_most_once_step_that_a_program_does_not_know_did_not_run() -> None:
    world = level0(at_most_once=True)
    first, second = world.peer(), world.peer()
    task_id = world.task(once())
    assert world.row(task_id).granted
    unknown(world, world.handed[0])
    world.answer(world.handed[1])
    assert to_of(world) == [first, second]
    assert world.stored(task_id).state == "completed"
    world.check()


def test_a_held_step_is_ready_again_when_its_program_answers_late_that_it_does_not_know_the_handler() -> None:
    world = level0(at_most_once=True)
    world.peer()
    task_id = world.task(once())
    world.pass_time(LEASE_MS)
    assert world.states(task_id) == {"only": "held"}
    unknown(world, world.handed[0])
    assert world.states(task_id) == {"only": "ready"}
    assert world.stored(task_id).attention is None
    second = world.peer()
    assert world.handed[-1].to == second
    unknown(world, world.handed[0])  # a duplicate of the first answer
    assert world.states(task_id) == {"only": "dispatched"}
    world.answer(world.handed[-1])
    assert world.stored(task_id).state == "completed"
    world.check()


@pytest.mark.parametrize("limit", [{"deadline_ms": 60_000}, {"task": 60_000}], ids=["of the step", "of the task"])
def test_a_held_step_that_did_not_run_fails_if_its_deadline_is_over(limit: dict[str, int]) -> None:
    world = level0(at_most_once=True)
    world.peer()
    head = {"deadline_ms": limit.pop("task")} if "task" in limit else {}
    task_id = world.task({**once(**limit), **head})
    world.pass_time(LEASE_MS)
    world.pass_time(60_000)
    assert world.states(task_id) == {"only": "held"}
    world.peer()
    unknown(world, world.handed[0])
    world.pass_time(1)
    assert world.states(task_id) == {"only": "failed"}
    assert len(world.handed) == 1
    world.check()


def test_a_late_answer_of_an_expired_batch_still_tells_which_handler_the_program_does_not_know() -> None:
    world = World()
    first, second = world.peer(), world.peer()
    task_id = world.task(ONE)
    world.pass_time(LEASE_MS)
    assert to_of(world) == [first, second]
    unknown(world, world.handed[0])
    assert world.states(task_id) == {"only": "dispatched"}
    assert world.state.counters.late_results == 1
    world.handle(events.PeerVanished(second))
    world.pass_time(2 * LEASE_MS)
    assert to_of(world) == [first, second]  # the first is not asked again
    assert world.states(task_id) == {"only": "ready"}
    world.check()


def test_a_duplicate_of_the_answer_changes_nothing() -> None:
    world = World()
    world.peer()
    task_id = world.task(ONE)
    unknown(world, world.handed[0])
    second = world.peer()
    unknown(world, world.handed[0])
    assert world.handed[-1].to == second
    assert world.states(task_id) == {"only": "dispatched"}
    world.check()


@pytest.mark.parametrize("document", [ONE, once()], ids=["at least once", "at most once"])
def test_an_unknown_handler_of_a_batch_of_before_a_restart_makes_the_step_ready(document: dict[str, Any]) -> None:
    world = level0(at_most_once=True)
    world.peer()
    task_id = world.task(document)
    world.restart()
    unknown(world, world.handed[0])
    row = world.row(task_id)
    assert (row.state, row.attempt, row.reason) == ("ready", 0, "unknown_handler")
    world.check()


def test_a_step_of_a_cancelled_task_is_cancelled_when_its_program_does_not_know_it() -> None:
    world = level0(at_most_once=True)
    world.peer()
    task_id = world.task(once())
    world.ask(CancelTask, task_id=task_id)
    unknown(world, world.handed[0])
    assert world.stored(task_id).state == "cancelled"
    world.check()


def test_a_program_that_does_not_know_a_handler_counts_for_no_breaker_and_no_retry_budget() -> None:
    breaker = BreakerSettings(failure_threshold=2)
    budget = RetryBudgetSettings(percent=10.0, at_least=1)
    world = World(Settings(dispatch=DispatchSettings(breaker=breaker, retry_budget=budget)))
    world.peer()
    task_id = world.task(one(retry_limit=5, backoff={"kind": "constant", "base_ms": 1_000, "jitter": "none"}))
    world.answer(world.handed[0], "failed")
    world.pass_time(1_000)
    assert world.row(task_id).attempt == 1
    guard = world.state.guards.by_handler["h"]
    assert guard.budget is not None
    for _ in range(5):
        before = len(world.handed)
        assert guard.budget.lately(world.mono)[1] == 1  # the retry that is under way
        unknown(world, world.handed[-1])
        assert guard.budget.lately(world.mono)[1] == 0
        world.peer()
        assert len(world.handed) == before + 1
    assert world.state.counters.infrastructure_failures == 0
    assert not world.state.guards.barred
    (peer, *_) = world.state.level0.peers.values()
    assert peer.failed == 1
    world.check()


def test_a_peer_remembers_a_bounded_number_of_unknown_handlers() -> None:
    world = World()
    world.peer()
    (peer,) = world.state.level0.peers.values()
    for number in range(UNKNOWN_REMEMBERED_MAX + 10):
        peer.learn_unknown(f"h{number}")
    assert len(peer.unknown) == UNKNOWN_REMEMBERED_MAX
    assert next(iter(peer.unknown)) == "h10"


def test_why_names_the_programs_that_do_not_know_the_handler() -> None:
    world = World()
    world.peer()
    task_id = world.task(ONE)
    unknown(world, world.handed[0])
    assert why(world, task_id).code == "no_worker_offers"
    assert why(world, task_id).message.endswith(
        "; the only connected level-0 handler answered that it does not know `h`"
    )
    world.peer()
    unknown(world, world.handed[1])
    assert "each of 2 connected level-0 handlers answered that it does not know `h`" in why(world, task_id).message
    world.peer()
    other = world.task(ONE)
    assert why(world, other).message.startswith("no level-0 handler is free (1 connected, and 2 more that do not know")


# -- a handler that a worker has offered ------------------------------------------------------------------------------


def test_a_handler_that_a_worker_offered_does_not_go_to_level_0_by_any_pattern() -> None:
    world = World()
    world.hello(handlers=["h"])
    world.handle(events.ProcessDied(W))
    world.peer()
    task_id = world.task(ONE)
    assert not world.handed
    reason = why(world, task_id)
    assert reason.code == "no_worker_offers"
    assert f"`{W}` offered it" in reason.message
    assert "only if bus.level0.handlers names it" in reason.message
    assert reason.hint is not None
    assert (reason.hint.code, reason.hint.handler_class) == (HintCode.NAME_FOR_LEVEL0, "h")
    other = world.task({**one(handler_class="other"), "name": "other"})
    assert [b.steps[0].task_id for b in world.handed] == [other]


@pytest.mark.parametrize(
    ("offered", "configured", "handler_class", "is_allowed"),
    [
        ("h", "**", "h", False),
        ("h", "*", "h", False),
        ("h", "*::**", "h", False),
        ("h", "h", "h", True),
        ("h", "h*", "h", True),
        ("h", "**", "k", True),
        ("order.*", "**", "order.pay", False),
        ("order.*", "**", "orders.pay", True),
        ("order.*", "order.p*", "order.pay", True),
        ("order.*", "order.p*", "order.ship", False),
        ("shop::**", "**", "shop::a::b", False),
        ("shop::**", "*::a", "shop::a", True),
        ("**", "**", "h", True),
        ("*::*", "**", "a::b", True),
    ],
)
def test_only_a_pattern_with_a_literal_part_gives_level_0_an_offered_handler(
    offered: str, configured: str, handler_class: str, is_allowed: bool
) -> None:
    handlers = Level0Handlers([configured], [])
    handlers.allows(handler_class)
    handlers.record([offered], W, 1)
    assert handlers.allows(handler_class) is is_allowed


def test_an_offer_is_kept_over_a_restart_and_written_once() -> None:
    world = World()
    world.hello(handlers=["h", "order.*"])
    kept = [StoredControl(c.kind, c.name, c.value, c.position) for c in world.rows.controls]
    assert [(c.kind, c.name) for c in kept] == [("offered", "h"), ("offered", "order.*")]
    world.hello(k=2, n=2, handlers=["h"])
    world.hello(W2, handlers=["h", "order.*"])
    assert not any(group.controls for group in world.groups[1:])
    world.restart()
    world.hello(k=3, n=3, handlers=["h", "k"])
    assert [c.name for group in world.groups[1:] for c in group.controls] == ["k"]
    world.handle(events.ProcessDied(W))
    world.restart()
    world.peer()
    world.task(ONE)
    assert not world.handed


def test_a_step_goes_to_a_worker_only_when_its_offer_is_stored() -> None:
    """A step that a worker has been sent never goes to level 0 by `**`, whenever the broker is killed."""
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello(handlers=["h"])
    world.submit()
    world.flush()
    while world.writing is not None:
        assert not world.batches(W) or ("offered", "h") in {(c.kind, c.name) for c in world.rows.controls}
        world.commit()
    assert world.batches(W)


def test_a_worker_of_an_executor_that_level_0_has_no_part_in_reserves_no_handler() -> None:
    world = World(executors=["exec"])
    world.ask(SetRule, match="x::**", rule=None)
    world.hello(handlers=["h"], executor="exec")
    assert world.rows.controls == []
    world.peer()
    world.task(ONE)
    assert len(world.handed) == 1


def test_a_worker_that_offers_any_handler_reserves_those_that_it_completed() -> None:
    world = World()
    world.hello(handlers=["**"])
    assert world.rows.controls == []
    world.task(CHAIN)
    batch = world.batches()[-1]
    world.start(batch)
    world.result(batch, status="failed", error=wire.ErrorDetail(message="no"))
    assert world.rows.controls == []
    world.task({**one(handler_class="k"), "name": "other"})
    world.result(world.batches()[-1])
    assert [(c.kind, c.name) for c in world.rows.controls] == [("offered", "k")]
    assert takers.is_offered(world.state, "k")
    world.handle(events.ProcessDied(W))
    world.peer()
    assert not takers.is_offered(world.state, "k")
    assert takers.is_offered(world.state, "another")


def test_handlers_beyond_the_limit_are_not_recorded_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level0_handlers, "OFFERED_MAX", 3)
    world = World()
    left_out: list[Any] = []
    act = world._act
    world._act = lambda decision: (left_out.extend(decision.offers_left_out), act(decision))[0]  # type: ignore[method-assign]
    world.hello(handlers=["a", "b", "c", "d", "e"])
    assert [c.name for c in world.rows.controls] == ["a", "b", "c"]
    assert [(one.worker, one.handlers) for one in left_out] == [(W, 2)]
    assert not world.state.level0_handlers.allows("c")
    assert world.state.level0_handlers.allows("d")


def test_a_draining_worker_leaves_its_steps_to_a_named_level_0_only() -> None:
    for configured, handed in ((("**",), 0), (("h",), 1)):
        world = level0(handlers=configured)
        world.peer()
        world.hello(handlers=["h"])
        world.say(wire.Bye(v="2.0", worker=W))
        task_id = world.task(ONE)
        assert len(world.handed) == handed
        if not handed:
            assert why(world, task_id).code == "workers_leaving"
