"""Shadows: copies of steps that run elsewhere, are compared and have no effect."""

from typing import Any

import msgspec
import pytest
from stepwire_broker.core.definitions.settings import (
    BatchSettings,
    BusSettings,
    ExecutionSettings,
    RuleSettings,
    Settings,
    ShadowSettings,
)
from stepwire_broker.core.model import events
from stepwire_broker.core.shadows.shadow import FIRST, Tally, difference
from stepwire_protocol import messages as wire

from .world import W2, W, World, worker_id

NEXT = {"release": "next"}
ONE: dict[str, Any] = {"name": "flow", "steps": [{"name": "s", "handler_class": "h", "retry_limit": 0}]}


def world_of(percent: float = 100.0, **shadow: Any) -> World:
    shadow = shadow or {"worker_selector": NEXT}
    rule = RuleSettings("**", shadow=ShadowSettings(percent=percent, **shadow))
    return World(Settings(execution=ExecutionSettings(rules=(rule,))), executors=["exec"])


def both(world: World, *, slots: int = 4, **members: Any) -> None:
    """W takes real steps, and W2 takes their shadows."""
    world.hello(W, slots=slots, prefetch=0)
    members.setdefault("shadow_safe", ["**"])
    world.hello(W2, labels=NEXT, handlers=members.pop("handlers", ["h"]), slots=slots, prefetch=0, **members)


def real(world: World) -> wire.Steps:
    return next(b for b in world.batches() if b.steps[0].step_id < FIRST)


def shadow(world: World) -> wire.Steps:
    (batch,) = [b for b in world.batches(W2) if b.steps[0].step_id >= FIRST]
    return batch


def tally(world: World) -> Tally:
    (only,) = world.state.shadows.tallies.values()
    return only


def output(text: str) -> Any:
    return {"output": msgspec.Raw(text.encode())}


def run(world: World, real_output: str, copied: str) -> None:
    """End the real step, on the worker that has it, and its shadow."""
    batch = real(world)
    worker = next(w for w in (W, W2) if batch in world.batches(w))
    world.result(batch, worker, **output(real_output))
    world.result(shadow(world), W2, **output(copied))


def test_a_shadow_is_a_copy_with_a_number_a_key_and_a_mode_of_its_own() -> None:
    world = world_of()
    world.hello(W2, labels=NEXT, shadow_safe=["h"], handlers=["h"], slots=4, prefetch=0)
    world.task({**ONE, "steps": [{**ONE["steps"][0], "delivery_mode": "at_most_once"}]})
    step, copy = real(world).steps[0], shadow(world).steps[0]
    assert copy.step_id >= FIRST
    assert (copy.task_id, copy.step_name, copy.delivery, copy.metadata.shadow) == (step.task_id, "s", 1, True)
    assert copy.delivery_mode == "at_least_once"
    assert copy.metadata.idempotency_key == f"{step.metadata.idempotency_key}/shadow"
    assert not step.metadata.shadow


@pytest.mark.parametrize(
    ("real_output", "copied", "expected"),
    [
        ('{"a":1,"b":[1,2]}', '{"b":[1,2],"a":1.0}', None),
        ('{"a":1}', '{"a":2}', "$.a"),
        ('{"a":1}', "{}", "$.a"),
        ("{}", '{"a":1}', "$.a"),
        ('{"lines":[{"total":1},{"total":2}]}', '{"lines":[{"total":1},{"total":3}]}', "$.lines[1].total"),
        ("[1,2]", "[1]", "$[1]"),
        ("true", "1", "$"),
        ("null", "false", "$"),
        ('"a"', '"b"', "$"),
    ],
)
def test_outputs_are_compared_as_json(real_output: str, copied: str, expected: str | None) -> None:
    assert difference(msgspec.json.decode(real_output), msgspec.json.decode(copied)) == expected
    world = world_of()
    both(world)
    task_id = world.task(ONE)
    run(world, real_output, copied)
    counts = tally(world)
    assert (counts.equal, counts.differs) == (int(expected is None), int(expected is not None))
    assert [(d.task_id, d.what) for d in counts.lately] == (
        [] if expected is None else [(task_id, f"differs at {expected}")]
    )


@pytest.mark.parametrize("order", ["real first", "shadow first"])
def test_a_shadow_that_fails_is_counted_and_changes_nothing(order: str) -> None:
    world = world_of()
    both(world)
    task_id = world.task(ONE)
    batch, copy = real(world), shadow(world)
    worker = next(w for w in (W, W2) if batch in world.batches(w))
    if order == "real first":
        world.result(batch, worker)
        world.fail(copy, W2, message="kaput")
    else:
        world.fail(copy, W2, message="kaput")
        assert world.step(task_id, "s").state == "dispatched"
        world.result(batch, worker)
    assert world.stored(task_id).state == "completed"
    assert (tally(world).failed, [d.what for d in tally(world).lately]) == (1, ["failed: kaput"])
    assert len(world.acked) == 2
    assert not world.state.shadows.by_id
    assert not world.state.shadows.of_step


def test_a_handler_that_does_not_declare_itself_shadow_safe_gets_no_copy() -> None:
    world = world_of()
    both(world, shadow_safe=[])
    world.task(ONE)
    assert all(s.step_id < FIRST for b in world.batches() for s in b.steps)
    assert tally(world).dropped == 1


def test_a_shadow_goes_only_into_slots_that_real_steps_leave_free() -> None:
    """The real steps fill the two slots, so their copies are dropped."""
    world = world_of(worker_selector={"zone": "a"})
    world.hello(W, labels={"zone": "a"}, shadow_safe=["**"], slots=2, prefetch=10, free={"b1": 12})
    world.apply(ONE)
    world.submit("flow", count=3)
    assert all(s.step_id < FIRST for b in world.batches() for s in b.steps)
    assert tally(world).dropped == 3


def test_a_shadow_leaves_after_the_commit_that_hands_out_the_step() -> None:
    world = world_of()
    both(world)
    world.apply(ONE)
    world.auto = False
    world.submit("flow")
    assert not world.batches()
    world.settle()
    assert {s.step_id >= FIRST for b in world.batches() for s in b.steps} == {True, False}


def test_a_lost_shadow_is_counted_after_its_time_and_not_resent() -> None:
    world = world_of()
    both(world)
    world.task(ONE)
    batch = real(world)
    world.result(batch, next(w for w in (W, W2) if batch in world.batches(w)))
    sent = len([b for b in world.heard(wire.Steps) if b.steps[0].step_id >= FIRST])
    for n in range(20):
        world.pass_time(2_000)
        for worker in (W, W2):
            world.beat(worker, n=1_000 + n)
    assert tally(world).lost == 1
    assert len([b for b in world.heard(wire.Steps) if b.steps[0].step_id >= FIRST]) == sent == 1
    assert not world.state.shadows.by_id


def test_a_result_of_a_shadow_of_before_a_restart_is_acked_without_a_look_up() -> None:
    world = world_of()
    both(world)
    world.task(ONE)
    copy = shadow(world)
    world.restart()
    world.answers_reads = False
    world.hello(W2)
    reads = len(world.reads)
    world.result(copy, W2)
    assert len(world.acked) == 1
    assert len(world.reads) == reads


def test_a_step_that_failed_is_not_compared() -> None:
    world = world_of()
    both(world)
    world.task(ONE)
    batch = real(world)
    world.fail(batch, next(w for w in (W, W2) if batch in world.batches(w)), retryable=False)
    world.result(shadow(world), W2)
    assert tally(world).not_compared == 1


def test_only_the_first_delivery_has_a_shadow() -> None:
    world = world_of()
    world.hello(W, slots=4, prefetch=0)
    world.task({**ONE, "steps": [{**ONE["steps"][0], "retry_limit": 1, "backoff": {"base_ms": 0, "jitter": "none"}}]})
    first = real(world)
    world.hello(W2, labels=NEXT, shadow_safe=["**"], handlers=["h"], slots=4, prefetch=0)
    world.fail(first, W)
    world.pass_time(1_000)
    assert [s.step_id < FIRST for b in world.batches() for s in b.steps] == [True, True]


def test_a_percentage_of_zero_makes_no_shadows() -> None:
    world = world_of(percent=0)
    both(world)
    world.task(ONE)
    assert not world.state.shadows.tallies


def test_a_level0_handlers_step_has_a_shadow_too() -> None:
    world = world_of(executor="exec")
    world.hello(W2, executor="exec", shadow_safe=["**"], slots=1, prefetch=0)
    world.peer()
    world.task(ONE)
    assert len(world.handed) == 1
    assert shadow(world).steps[0].metadata.shadow
    world.answer(world.handed[0])
    world.result(shadow(world), W2)
    assert tally(world).equal == 1


def test_a_worker_that_dies_with_a_shadow_loses_nothing_real() -> None:
    world = world_of(executor="exec")
    world.hello(W)
    world.hello(W2, executor="exec", shadow_safe=["**"], slots=1, prefetch=0)
    task_id = world.task(ONE)
    world.handle(events.Detached(W2))
    assert world.step(task_id, "s").worker == W
    world.result(real(world), W)
    assert world.stored(task_id).state == "completed"


def test_a_copy_goes_to_no_worker_that_refused_its_handler_as_unknown() -> None:
    world = world_of()
    shadows = {"labels": NEXT, "handlers": ["h"], "shadow_safe": ["**"], "slots": 4, "prefetch": 0}
    world.hello(W2, **shadows)
    world.task(ONE)
    world.refuse(world.batches(W2)[0], "unknown_handler", W2)
    world.forget()
    world.hello(W, slots=4, prefetch=0)
    world.task(ONE)
    world.task(ONE)
    assert not [b for b in world.batches(W2) if b.steps[0].step_id >= FIRST]
    world.hello(worker_id(number=3), **shadows)
    world.task(ONE)
    assert [b for b in world.batches(worker_id(number=3)) if b.steps[0].step_id >= FIRST]


def test_a_copy_of_a_step_whose_lane_was_lost_is_not_sent() -> None:
    rule = RuleSettings("**", shadow=ShadowSettings(percent=100.0, worker_selector=NEXT))
    bus = BusSettings(batch=BatchSettings(max_steps=1))
    world = World(Settings(execution=ExecutionSettings(rules=(rule,)), bus=bus), executors=["exec"], lanes=2)
    both(world, slots=8)
    world.apply(ONE)
    world.auto = False
    while not world.state.shadows.wanted:
        world.submit()
    (wanted,) = world.state.shadows.wanted  # the writer of its lane was busy when the step was dispatched
    world.lose(wanted.step.task.lane)
    world.settle()
    assert not [b for b in world.batches(W2) if b.steps[0].task_id == wanted.request.task_id]
