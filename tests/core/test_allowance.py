"""Handlers that fail, on the whole machine: the opening of breakers, the steps dispatched meanwhile, and retries."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from stepwire_broker.core import explain
from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.decision import BreakerChanged
from stepwire_broker.core.definitions.settings import (
    BreakerSettings,
    BusSettings,
    DispatchSettings,
    Level0Settings,
    LimitSettings,
    RetryBudgetSettings,
    Settings,
)
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.guards.allowance import BreakerSet, SetBreaker
from stepwire_broker.core.guards.guard import GUARDS_MAX, Guard
from stepwire_broker.core.intake.commands import CancelTask
from stepwire_broker.core.model import events
from stepwire_protocol import messages as wire

from .world import BROKER, DEPLOYMENT, DIES_MS, ONE, W2, W, World, held, one, steps, worker_id

NEVER_AGAIN: dict[str, Any] = {"retry_limit": 0}
SOON: dict[str, Any] = {"retry_limit": 9, "backoff": {"kind": "constant", "base_ms": 100, "jitter": "none"}}
NO_BUDGET = RetryBudgetSettings(percent=100.0)


def guarded(budget: RetryBudgetSettings = NO_BUDGET, limits: LimitSettings | None = None, **breaker: Any) -> World:
    """A world with these breaker settings, and without a retry budget unless it is given."""
    breaker.setdefault("failure_threshold", 3)
    dispatch = DispatchSettings(breaker=BreakerSettings(**breaker), retry_budget=budget)
    return World(Settings(dispatch=dispatch, limits=limits or LimitSettings()))


def budgeted(**budget: Any) -> World:
    dispatch = DispatchSettings(breaker=BreakerSettings(enabled=False), retry_budget=RetryBudgetSettings(**budget))
    return World(Settings(dispatch=dispatch))


def guard(world: World, name: str = "h") -> Guard:
    return world.state.guards.by_handler[name]


def state(world: World, name: str = "h") -> str:
    found = world.state.guards.by_handler.get(name)
    return "none" if found is None else str(found.breaker.state)


def unavailable(world: World, count: int, worker: str = W) -> None:
    """Run this many steps, one after the other, whose handler reports that something it needs is unavailable."""
    for _ in range(count):
        world.submit()
        world.fail(world.batches(worker)[-1], worker, category="unavailable", code="gateway", message="no route to it")


def given(world: World, worker: str | None = None) -> list[int]:
    """The steps that were dispatched, in order."""
    return [step.step_id for batch in world.batches(worker) for step in batch.steps]


def open_one(world: World) -> None:
    """A worker, and a handler whose breaker has just opened."""
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    unavailable(world, 3)
    assert state(world) == "open"


def pass_open_time(world: World) -> None:
    left_ms = guard(world).breaker.until_mono - world.mono
    world.stay(W, left_ms)
    assert state(world) == "half_open"


# -- what opens it ----------------------------------------------------------------------------------------------------


def test_failures_of_something_the_handler_needs_open_the_breaker() -> None:
    world = guarded()
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    unavailable(world, 2)
    assert state(world) == "closed"
    unavailable(world, 1)
    assert state(world) == "open"
    assert world.state.counters.breakers_opened == 1
    world.check()


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        ({"category": "unavailable"}, True),
        ({"category": "payment"}, False),
        ({"code": "declined"}, False),
        ({"code": "timeout"}, False),
        ({"status": "error", "code": "unknown_handler"}, True),
        ({"status": "error", "code": "result_refused"}, True),
        ({"status": "error", "code": "process_died"}, True),
        ({"status": "error", "code": "bad_input"}, False),
        ({"status": "error", "code": "too_large"}, False),
        ({"status": "failed", "code": "unknown_handler"}, False),  # the handler's own word for something
    ],
)
def test_only_results_that_show_missing_infrastructure_count_as_failures(error: dict[str, Any], counts: bool) -> None:
    world = guarded()
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    for _ in range(3):
        world.submit()
        world.fail(world.batches()[-1], **error)
    assert (state(world) == "open") is counts


@pytest.mark.parametrize("answer", ["completed", "failed"])
def test_any_answer_of_the_handler_resets_the_failure_count(answer: str) -> None:
    world = guarded()
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    for _ in range(4):
        unavailable(world, 2)
        world.submit()
        if answer == "completed":
            world.result(world.batches()[-1])
        else:
            world.fail(world.batches()[-1])
    assert state(world) == "closed"


def test_failures_of_half_of_the_recent_outcomes_open_the_breaker() -> None:
    world = guarded(failure_threshold=100, window_outcomes=10)
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=50, prefetch=0)
    for i in range(6):
        assert state(world) != "open"
        unavailable(world, 1)
        if i < 4:
            world.submit()
            world.result(world.batches()[-1])
    assert state(world) == "open"
    assert guard(world).breaker.cause == "6 failures among 10 outcomes"


def test_one_dead_worker_is_one_failure_however_many_steps_ran_there() -> None:
    world = guarded(failure_threshold=2)
    world.apply(steps({"name": "a"}, {"name": "b", "handler_class": "g"}))
    world.hello(slots=20, prefetch=0)
    world.submit(count=10)
    world.handle(events.ProcessDied(W))
    assert guard(world).breaker.failures_in_row == 1
    assert guard(world, "g").breaker.failures_in_row == 1
    world.hello(W2, slots=20, prefetch=0)
    assert len(given(world, W2)) == 20  # at once
    world.check()


def test_workers_that_die_together_are_one_failure_and_those_that_die_apart_are_several() -> None:
    world = guarded()
    workers = [worker_id(number=i) for i in range(10, 20)]
    world.apply(ONE)
    for worker in workers[:5]:
        world.hello(worker, slots=1, prefetch=0)
    world.submit(count=5)
    for worker in workers[:5]:
        world.handle(events.ProcessDied(worker))  # their host
    assert guard(world).breaker.failures_in_row == 1
    for worker in workers[5:7]:
        world.pass_time(allowance.LOSSES_APART_MS)
        world.hello(worker, slots=1, prefetch=0)
        world.handle(events.ProcessDied(worker))
    assert state(world) == "open"


def test_a_step_that_only_waited_in_a_dead_worker_is_no_failure() -> None:
    world = guarded(failure_threshold=1)
    world.apply(steps({"name": "a"}, {"name": "b", "handler_class": "g"}))
    world.hello(slots=1, prefetch=5)
    world.submit()
    assert [s.handler_class for b in world.batches() for s in b.steps] == ["h", "g"]
    world.handle(events.ProcessDied(W))
    assert (state(world), state(world, "g")) == ("open", "none")


def test_an_expired_lease_is_a_failure_like_a_dead_worker() -> None:
    world = guarded(failure_threshold=1)
    world.task(ONE)
    world.hello()
    world.pass_time(DIES_MS)
    assert state(world) == "open"


@pytest.mark.parametrize(
    ("code", "counts"),
    [("busy", False), ("draining", False), ("stale", False), ("too_large", False), ("unknown_handler", True)],
)
def test_only_refused_deliveries_that_concern_the_handler_count(code: str, counts: bool) -> None:
    world = guarded(failure_threshold=1)
    world.task(one(retry_limit=0))
    world.hello(free={BROKER: 1})
    world.refuse(world.batches()[0], code, free=0)
    assert (state(world) == "open") is counts


def test_the_steps_of_one_refusal_are_one_failure() -> None:
    world = guarded()
    world.apply(ONE)
    world.hello(slots=10, prefetch=0)
    world.submit(count=8)
    (batch,) = world.batches()
    items = [(s.step_id, s.delivery) for s in batch.steps]
    world.say(
        wire.Refuse(
            v="2.0",
            worker=W,
            session=batch.session,
            batch_id=batch.batch_id,
            items=items,
            code="unknown_handler",
            free=2,
        )
    )
    assert guard(world).breaker.failures_in_row == 1


def test_a_loss_of_a_delivery_of_an_earlier_start_is_no_failure_of_the_handler() -> None:
    world = guarded(failure_threshold=1)
    world.apply(ONE)
    world.hello()
    world.submit(count=3)
    world.restart()
    world.pass_time(2 * DIES_MS)
    assert state(world) == "none"
    assert Counter(s.state for s in world.state.steps.values()) == {"ready": 3}


def test_breakers_can_be_switched_off() -> None:
    world = guarded(enabled=False, failure_threshold=1)
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    unavailable(world, 5)
    assert state(world) == "none"


# -- while it is open -------------------------------------------------------------------------------------------------


def test_an_open_breaker_holds_back_its_handler_only_and_uses_no_attempt() -> None:
    world = guarded()
    open_one(world)
    before = len(given(world))
    (task_id,) = world.submit().task_ids
    other = world.task({"name": "other", "steps": [{"name": "only", "handler_class": "g"}]})
    assert given(world)[before:] == [other + 1]
    assert (world.row(task_id).state, world.row(task_id).attempt, world.row(task_id).delivery) == ("ready", 0, 0)
    world.check()


def test_a_handler_is_tried_when_the_open_time_is_over_without_another_event() -> None:
    world = guarded()
    open_one(world)
    before = len(given(world))
    world.submit(count=5)
    world.beat(n=50, free=20)
    world.pass_time(guard(world).breaker.until_mono - world.mono - 1)
    assert len(given(world)) == before
    world.pass_time(1)
    assert len(given(world)) == before + 2
    assert [len(b.steps) for b in world.batches()[-2:]] == [1, 1]
    assert state(world) == "half_open"
    world.check()


def test_probes_that_succeed_close_the_breaker_and_release_all_steps() -> None:
    world = guarded()
    open_one(world)
    before = len(world.batches())
    world.submit(count=9)
    pass_open_time(world)
    first, second = world.batches()[before:]
    world.result(first)
    assert state(world) == "half_open"
    assert len(given(world)) == 3 + 3  # another in its place
    world.result(second)
    assert state(world) == "closed"
    assert len(given(world)) == 3 + 9
    world.check()


def test_a_probe_whose_handler_reports_its_own_error_counts_as_a_success() -> None:
    world = guarded(success_threshold=1)
    open_one(world)
    world.submit()
    pass_open_time(world)
    world.fail(world.batches()[-1], code="declined")
    assert state(world) == "closed"


def _says_so(world: World) -> None:
    world.fail(world.batches()[-1], category="unavailable")


def _times_out(world: World) -> None:
    world.fail(world.batches()[-1], code="timeout")


def _dies(world: World) -> None:
    world.handle(events.ProcessDied(W))


def _falls_silent(world: World) -> None:
    world.pass_time(DIES_MS)


def _is_refused(world: World) -> None:
    world.refuse(world.batches()[-1], "unknown_handler")


def _never_ends(world: World) -> None:
    world.accept(world.batches()[-1])
    world.stay(W, 30_000, [held(world.batches()[-1], "running", 29_000)])


@pytest.mark.parametrize("ends", [_says_so, _times_out, _dies, _falls_silent, _is_refused, _never_ends])
def test_a_probe_that_fails_or_is_lost_opens_the_breaker_again_for_longer(ends: Any) -> None:
    world = guarded(open_max_ms=1_000_000)
    open_one(world)
    world.submit()
    pass_open_time(world)
    assert len(world.state.guards.probes) == 1
    paused_ms = guard(world).breaker.pause_ms
    ends(world)
    assert guard(world).breaker.opened == 2
    assert guard(world).breaker.pause_ms > 1.5 * paused_ms
    world.check()


def _given_back(world: World) -> None:
    world.refuse(world.batches()[-1], "busy", free=0)


def _cancelled(world: World) -> None:
    world.ask(CancelTask, task_id=world.batches()[-1].steps[0].task_id)
    world.fail(world.batches()[-1], code="cancelled")


def _dropped(world: World) -> None:
    world.hello(W, k=2, n=1000, slots=20, prefetch=0, free={BROKER: 0})


@pytest.mark.parametrize("ends", [_given_back, _cancelled, _dropped])
def test_a_probe_without_a_known_outcome_is_replaced_by_another(ends: Any) -> None:
    world = guarded(success_threshold=1)
    open_one(world)
    world.submit(count=2)
    pass_open_time(world)
    ends(world)
    assert state(world) == "half_open"
    world.beat(n=2_000_000, k=max(1, world.state.sessions[W].k), free=5)
    assert len(world.state.guards.probes) == 1
    world.result(world.batches()[-1], session=world.batches()[-1].session)
    assert state(world) == "closed"
    world.check()


def test_a_result_of_a_step_dispatched_before_the_opening_decides_nothing() -> None:
    world = guarded(success_threshold=1)
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    world.submit(count=8)
    (batch,) = world.batches()
    for i in range(3):
        world.fail(batch, position=i, category="unavailable")
    world.submit()
    world.fail(batch, position=3, category="unavailable")
    assert guard(world).breaker.opened == 1
    world.stay(
        W, guard(world).breaker.until_mono - world.mono, [held(batch, "running", position=i) for i in range(4, 8)]
    )
    world.result(batch, position=4)
    world.fail(batch, position=5, category="unavailable")
    assert state(world) == "half_open"
    world.result(world.batches()[-1])
    assert state(world) == "closed"


def test_a_success_of_an_earlier_delivery_does_not_count_for_the_probe() -> None:
    world = guarded(success_threshold=1)
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    world.submit()
    first = world.batches()[0]
    unavailable(world, 3)
    world.handle(events.ProcessDied(W))
    world.hello(W2, slots=20, prefetch=0)
    world.stay(W2, guard(world).breaker.until_mono - world.mono)
    (probe,) = world.batches(W2)
    assert (probe.steps[0].step_id, probe.steps[0].delivery) == (first.steps[0].step_id, 2)
    world.result(first)
    assert world.row(first.steps[0].task_id).state == "completed"
    assert (state(world), guard(world).breaker.under_way) == ("half_open", 0)
    world.check()


def test_an_at_most_once_step_waits_until_the_breaker_is_closed() -> None:
    world = guarded(success_threshold=1)
    open_one(world)
    money = world.task(
        {"name": "pay", "steps": [{"name": "only", "handler_class": "h", "delivery_mode": "at_most_once"}]}
    )
    (task_id,) = world.submit().task_ids
    pass_open_time(world)
    assert given(world)[-1] == task_id + 1
    assert world.row(money).state == "ready"
    why = explain.step(world.state, world.step(money), world.now)
    assert why.code == "breaker_half_open"
    assert why.message.endswith(
        "1 trial step in progress; 1 must succeed; at_most_once steps wait until the breaker is closed"
    )
    world.result(world.batches()[-1])
    assert given(world)[-1] == money + 1


def test_a_breaker_without_possible_probes_closes_after_a_second_pause_and_one_failure_opens_it() -> None:
    world = guarded()
    open_one(world)
    money = world.task(
        {"name": "pay", "steps": [{"name": "only", "handler_class": "h", "delivery_mode": "at_most_once"}]}
    )
    paused_ms = guard(world).breaker.pause_ms
    pass_open_time(world)
    world.stay(W, paused_ms - 1)
    assert (state(world), world.row(money).state) == ("half_open", "ready")
    world.stay(W, 1)
    assert (state(world), world.row(money).state) == ("closed", "dispatched")
    world.start(world.batches()[-1])
    world.fail(world.batches()[-1], category="unavailable")
    assert state(world) == "open"
    assert guard(world).breaker.pause_ms > 1.5 * paused_ms


def test_every_breaker_is_closed_after_a_restart() -> None:
    world = guarded()
    open_one(world)
    (task_id,) = world.submit().task_ids
    world.restart()
    world.hello(slots=20, prefetch=0)
    assert world.row(task_id).state == "dispatched"


def test_deadlines_pass_while_the_breaker_is_open() -> None:
    world = guarded(open_ms=60_000)
    open_one(world)
    task_id = world.task({"name": "late", "steps": [{"name": "only", "handler_class": "h", "queue_timeout_ms": 1_000}]})
    world.pass_time(1_000)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "queue_timeout")


def test_steps_that_wait_for_an_open_breaker_leave_memory_for_others_and_return() -> None:
    world = guarded(open_ms=60_000, open_max_ms=60_000, limits=LimitSettings(max_active_tasks=4))
    open_one(world)
    waiting = world.submit(count=6).task_ids
    world.apply({"name": "other", "steps": [{"name": "only", "handler_class": "g"}]})
    others = world.submit("other", count=3).task_ids
    done: dict[str, int] = {}
    for _ in range(40):
        world.stay(W, 2_000)
        for batch in world.batches():
            for i, step in enumerate(batch.steps):
                if world.row(step.task_id).state == "dispatched":
                    world.result(batch, position=i)
                    done[step.handler_class] = world.mono
                    assert step.handler_class == "g" or state(world) != "open"
    assert done["g"] < done["h"] - 30_000
    assert {world.stored(i).state for i in others} == {"completed"}
    assert {world.stored(i).state for i in waiting} == {"completed"}
    world.check()


# -- level 0 ----------------------------------------------------------------------------------------------------------


def level0(**breaker: Any) -> World:
    breaker.setdefault("failure_threshold", 2)
    dispatch = DispatchSettings(breaker=BreakerSettings(**breaker), retry_budget=NO_BUDGET)
    return World(Settings(dispatch=dispatch, bus=BusSettings(level0=Level0Settings(batch_max_steps=3))))


def test_a_batch_that_level_0_does_not_answer_is_one_failure() -> None:
    world = level0()
    world.peer()
    world.apply(one(timeout_ms=1_000, retry_limit=0))
    world.submit(count=3)
    world.pass_time(3 * 1_000 + 5_000)
    assert guard(world).breaker.failures_in_row == 1
    world.pass_time(1_000 + 5_000)  # a doubted peer gets one at a time
    assert state(world) == "open"
    handed_out = len(world.handed)
    world.pass_time(guard(world).breaker.until_mono - world.mono - 1)
    assert len(world.handed) == handed_out
    world.pass_time(1)
    assert [len(b.steps) for b in world.handed[handed_out:]] == [1]
    world.answer(world.handed[-1])
    world.answer(world.handed[-1])
    assert state(world) == "closed"
    world.check()


def test_a_level_0_handler_may_report_that_something_is_unavailable() -> None:
    world = level0()
    world.peer()
    world.apply(one(retry_limit=0))
    world.submit(count=1)
    for _ in range(2):
        results = [
            wire.Result(step_id=s.step_id, status="failed", error=wire.ErrorDetail(category="unavailable"))
            for s in world.handed[-1].steps
        ]
        world.answer(world.handed[-1], results=results)
        if state(world) != "open":
            world.submit(count=1)
    assert state(world) == "open"


# -- the retry budget -------------------------------------------------------------------------------------------------


def refill(world: World, free: int) -> None:
    """Let the worker offer this many slots."""
    world.pass_time(1)
    world.beat(n=world.mono, free=free)


def end_all(world: World, **members: Any) -> int:
    """Answer all dispatched steps with this outcome, one message for each batch. Returns their number."""
    count = 0
    batches = world.batches()
    world.forget()
    for batch in batches:
        results = [
            wire.Result(step_id=s.step_id, delivery=s.delivery, **members)
            for s in batch.steps
            if s.step_id in world.state.steps and world.state.steps[s.step_id].batch_id == batch.batch_id
        ]
        if results:
            world.rid += 1
            names = {"worker": W, "session": batch.session, "deployment": DEPLOYMENT, "batch_id": batch.batch_id}
            world.say(wire.Results(v="2.0", protocol_version="2.0", rid=world.rid, results=results, **names))
            count += len(results)
    return count


def fail_all(world: World, **error: Any) -> int:
    return end_all(world, status="failed", error=wire.ErrorDetail(message="no", **error))


def complete_all(world: World) -> int:
    return end_all(world, status="completed", output=msgspec.Raw(b"{}"))


def test_retries_beyond_the_budget_wait_in_ready_and_first_attempts_do_not() -> None:
    world = budgeted(percent=20.0, at_least=5, window_ms=60_000)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=20)
    assert fail_all(world) == 20
    refill(world, 200)
    world.pass_time(100)
    assert fail_all(world) == 5
    waiting = [s for s in world.state.steps.values() if s.state == "ready"]
    assert len(waiting) == 15
    assert {s.attempt for s in waiting} == {1}
    why = explain.step(world.state, waiting[0], world.now)
    assert why.code == "retries_wait"
    assert why.message == (
        "retries of `h` wait: in the last 60 s 5 of its 5 starts were retries; the limit is 20 %, or 5 retries; "
        "first attempts are not delayed"
    )
    world.submit(count=30)
    refill(world, 200)
    assert len([s for s in world.state.steps.values() if s.state == "dispatched" and s.attempt == 0]) == 30
    world.check()


def test_the_minimum_of_retries_starts_in_each_window_even_if_all_fail() -> None:
    world = budgeted(percent=0.0, at_least=3, window_ms=10_000)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=10)
    fail_all(world)
    attempts_before = sum(s.attempt for s in world.state.steps.values())
    for _ in range(100):
        world.stay(W, 1_000)
        refill(world, 200)
        fail_all(world)
    went = sum(s.attempt for s in world.state.steps.values()) - attempts_before
    assert 3 * 9 <= went <= 3 * 12


def test_a_backlog_that_failed_once_is_done_soon_when_the_handler_works_again() -> None:
    world = budgeted()
    world.apply(one(**SOON))
    world.hello(slots=20_000, prefetch=0)
    for _ in range(3):
        world.submit(count=1_000)
    assert fail_all(world) == 3_000
    began = world.mono
    done = 0
    while done < 3_000:
        world.stay(W, 1_000)
        refill(world, 20_000)
        done += complete_all(world)
        assert world.mono - began < 20_000
    assert {t.state for t in world.rows.tasks.values()} == {"completed"}


def test_the_budget_starts_from_zero_when_the_breaker_closes() -> None:
    world = guarded(RetryBudgetSettings(percent=0.0, at_least=2, window_ms=600_000), success_threshold=1)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=6)
    fail_all(world)
    refill(world, 200)
    world.pass_time(100)
    assert fail_all(world) == 2  # and no more of them for ten minutes
    world.pass_time(1_000)
    assert world.batches() == []
    world.submit(count=3)
    fail_all(world, category="unavailable")
    while state(world) != "half_open":
        world.stay(W, 1_000)
    refill(world, 200)
    assert complete_all(world) == 1  # it is a retry, and goes to try the handler all the same
    assert state(world) == "closed"
    assert [complete_all(world) for _ in range(3)] == [2, 4, 2]
    assert {t.state for t in world.rows.tasks.values()} == {"completed"}


def test_a_batch_of_another_handler_contains_no_retry_that_must_wait() -> None:
    world = budgeted(percent=0.0, at_least=1, window_ms=600_000)
    world.apply(one(**SOON))
    world.apply({"name": "other", "steps": [{"name": "only", "handler_class": "g"}]})
    world.hello(slots=200, prefetch=0)
    retries = world.submit(count=8).task_ids
    fail_all(world)
    refill(world, 0)
    world.pass_time(100)
    world.submit("other", count=5, priority=9)
    assert world.batches() == []
    refill(world, 200)
    assert Counter(s.handler_class for b in world.batches() for s in b.steps) == {"g": 5, "h": 1}
    assert Counter(world.row(i).state for i in retries) == {"ready": 7, "dispatched": 1}


def test_retries_that_wait_leave_memory_for_others_and_return() -> None:
    budget = RetryBudgetSettings(percent=0.0, at_least=1, window_ms=60_000)
    world = guarded(budget, LimitSettings(max_active_tasks=4))
    world.apply(one(**SOON))
    world.apply({"name": "other", "steps": [{"name": "only", "handler_class": "g"}]})
    world.hello(slots=50, prefetch=0)
    waiting = world.submit(count=4).task_ids
    fail_all(world)
    refill(world, 50)
    world.pass_time(100)
    fail_all(world)  # the only one that may go for a minute
    others = world.submit("other", count=6).task_ids
    for _ in range(12):
        world.stay(W, 2_000)
        complete_all(world)
    assert {world.stored(i).state for i in others} == {"completed"}
    assert {world.stored(i).state for i in waiting} == {"running"}
    for _ in range(60):
        world.stay(W, 2_000)
        complete_all(world)
    assert {world.stored(i).state for i in waiting} == {"completed"}
    world.check()


def test_retries_start_again_when_the_budget_has_room_without_another_event() -> None:
    world = budgeted(percent=0.0, at_least=1, window_ms=5_000)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=2)
    fail_all(world)
    refill(world, 200)
    world.pass_time(100)
    assert fail_all(world) == 1
    world.pass_time(4_000)
    assert world.batches() == []
    world.pass_time(1_000)
    assert len(world.batches()) == 1


def test_a_retry_whose_time_the_handler_named_is_not_counted() -> None:
    world = budgeted(percent=0.0, at_least=1, window_ms=60_000)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=20)
    fail_all(world, retry_after_ms=500)
    refill(world, 200)
    world.pass_time(500)
    assert len([s for s in world.state.steps.values() if s.state == "dispatched"]) == 20
    assert guard(world).budget.lately(world.mono)[1] == 0 if "h" in world.state.guards.by_handler else True


def test_a_retry_that_a_worker_gives_back_does_not_wait_again() -> None:
    world = budgeted(percent=0.0, at_least=1, window_ms=60_000)
    world.apply(one(**SOON))
    world.hello(W, slots=5, prefetch=0)
    (task_id,) = world.submit().task_ids
    world.fail(world.batches()[-1])
    world.beat(n=50, free=5)
    world.pass_time(100)
    assert world.row(task_id).delivery == 2
    world.refuse(world.batches()[-1], "busy", free=5)
    assert (world.row(task_id).state, world.row(task_id).delivery) == ("dispatched", 3)


def test_a_budget_of_a_hundred_percent_is_no_limit() -> None:
    world = budgeted(percent=100.0, at_least=1)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=20)
    fail_all(world)
    refill(world, 200)
    world.pass_time(100)
    assert len([s for s in world.state.steps.values() if s.state == "dispatched"]) == 20
    assert world.state.guards.by_handler == {}


def test_a_restart_begins_a_new_budget() -> None:
    world = budgeted(percent=0.0, at_least=2, window_ms=60_000)
    world.apply(one(**SOON))
    world.hello(slots=200, prefetch=0)
    world.submit(count=20)
    fail_all(world)
    world.restart()
    world.pass_time(200)
    world.hello(slots=200, prefetch=0, n=5)
    assert len([s for s in world.state.steps.values() if s.state == "dispatched"]) == 2
    world.check()


def test_retries_that_wait_block_no_other_step() -> None:
    world = budgeted(percent=0.0, at_least=1, window_ms=60_000)
    world.apply(one(priority=50, **SOON))
    world.apply({"name": "other", "steps": [{"name": "only", "handler_class": "g"}]})
    world.hello(slots=500, prefetch=0)
    world.submit(count=300)
    fail_all(world)
    refill(world, 500)
    world.pass_time(100)
    others = world.submit("other", count=50).task_ids
    assert {world.row(i).state for i in others} == {"dispatched"}


# -- people -----------------------------------------------------------------------------------------------------------


def test_a_breaker_stays_as_an_operator_forced_it_until_it_is_automatic_again() -> None:
    world = guarded()
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    put = world.ask(SetBreaker, handler_class="h", state="open", reason="the bank is being moved")
    assert put == BreakerSet("h", "open", True)
    (task_id,) = world.submit().task_ids
    world.stay(W, 1_000_000)
    assert world.row(task_id).state == "ready"
    since = explain.step(world.state, world.step(task_id), world.now)
    assert since.code == "breaker_open"
    assert since.message.startswith("the breaker for `h` is held open by an operator since ")
    assert since.message.endswith(": the bank is being moved")
    assert since.hint == Hint(HintCode.RELEASE_BREAKER, handler_class="h")
    assert world.ask(SetBreaker, handler_class="h", state="closed") == BreakerSet("h", "closed", True)
    assert world.row(task_id).state == "dispatched"
    unavailable(world, 10)
    assert state(world) == "closed"
    assert world.ask(SetBreaker, handler_class="h", state="auto") == BreakerSet("h", "closed", False)
    unavailable(world, 3)
    assert state(world) == "open"


def test_the_breaker_of_an_unknown_handler_cannot_be_forced() -> None:
    world = guarded()
    refused = world.ask(SetBreaker, handler_class="typo", state="open")
    assert isinstance(refused, CommandRefused)
    assert refused.code == "not_found"
    world.hello(handlers=["typo"])
    assert isinstance(world.ask(SetBreaker, handler_class="typo", state="open"), BreakerSet)


def test_why_explains_that_a_step_waits_for_an_open_breaker() -> None:
    world = guarded()
    open_one(world)
    (task_id,) = world.submit().task_ids
    why = explain.step(world.state, world.step(task_id), world.now)
    at = guard(world).since_wall
    assert why.since_ms == at
    assert why.message == (
        f"the breaker for `h` is open since {explain._at(at, world.now)}, after 3 failures in a row "
        f"(the last: gateway: no route to it); the handler is tried again at "
        f"{explain._at(guard(world).until_wall, world.now)}"
    )


# -- how much is remembered -------------------------------------------------------------------------------------------


def test_a_handler_without_recent_failures_is_forgotten() -> None:
    world = guarded(open_max_ms=120_000)
    open_one(world)
    world.submit(count=2)
    pass_open_time(world)
    for batch in world.batches()[-2:]:
        world.result(batch)
    assert state(world) == "closed"
    world.stay(W, 119_000)
    assert state(world) == "closed"
    world.stay(W, 61_000)
    assert state(world) == "none"


def test_handlers_beyond_the_limit_of_guards_have_no_breaker() -> None:
    world = guarded()
    for i in range(GUARDS_MAX):
        made = world.state.guards.add(f"x{i}", world.mono, 0)
        assert made is not None
        made.breaker.force_open()
    assert world.state.guards.add("h", world.mono, 0) is None
    world.apply(one(**NEVER_AGAIN))
    world.hello(slots=20, prefetch=0)
    unavailable(world, 9)
    (task_id,) = world.submit().task_ids
    assert world.row(task_id).state == "dispatched"
    made.breaker.automatic(world.mono)
    world.pass_time(world.settings.dispatch.breaker.open_max_ms)
    assert world.state.guards.add("h", world.mono, 0) is not None


def test_every_change_of_a_breaker_is_reported() -> None:
    world = guarded()
    changes: list[BreakerChanged] = []
    act = world._act
    world._act = lambda decision: (changes.extend(decision.breaker_changes), act(decision))[0]  # type: ignore[method-assign]
    open_one(world)
    world.submit(count=2)
    pass_open_time(world)
    for batch in world.batches()[-2:]:
        world.result(batch)
    assert [(each.handler_class, each.state) for each in changes] == [
        ("h", "open"),
        ("h", "half_open"),
        ("h", "closed"),
    ]
    assert changes[0].cause == "3 failures in a row"
    assert msgspec.structs.asdict(changes[0])["left_ms"] > 3_900
