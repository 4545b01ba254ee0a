"""Time limits: timeouts of runs, queue timeouts, and deadlines of steps and tasks."""

from collections.abc import Callable

import pytest
from stepwire_broker.core.definitions.settings import BusSettings, Level0Settings, Settings
from stepwire_broker.core.intake.commands import CancelTask, RetryTask
from stepwire_protocol import messages as wire

from .test_commands import FINAL, dispatched
from .world import DIES_MS, ONE, W, World, held, item_of, once, one, steps

# -- timeouts of a run ------------------------------------------------------------------------------------------------


def run_to(world: World, batch: wire.Steps, ms: int) -> None:
    world.beat(n=world.mono, holding=[held(batch, "running", 0)])
    world.stay(W, ms, holding=[held(batch, "running", 0)])


@pytest.mark.parametrize(
    ("document", "granted", "state"),
    [
        (one(timeout_ms=10_000), False, "retry_wait"),
        (one(timeout_ms=10_000, **FINAL), False, "failed"),
        (once(timeout_ms=10_000), True, "held"),
    ],
)
def test_a_run_ends_five_seconds_after_its_timeout_counted_from_its_start(
    document: dict, granted: bool, state: str
) -> None:
    world, task_id, batch = dispatched(document, granted=granted)
    run_to(world, batch, 14_999)
    assert world.row(task_id).state == "dispatched"
    world.forget()
    world.pass_time(1)
    assert world.row(task_id).state == state
    assert world.row(task_id).reason == ("stopped" if granted else "timeout")
    assert [(c.reason, c.items) for c in world.heard(wire.Cancel)] == [("timeout", [item_of(batch)])]
    world.check()


RETRIED = {"retry_reported_failures": True, "retry_limit": 1}


def _overdue(world: World, batch: wire.Steps, task_id: int) -> None:
    run_to(world, batch, 15_000)


def _past_deadline(world: World, batch: wire.Steps, task_id: int) -> None:
    run_to(world, batch, 5_000)


def _cancelled_and_lost(world: World, batch: wire.Steps, task_id: int) -> None:
    world.ask(CancelTask, task_id=task_id)
    world.pass_time(DIES_MS)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("more", [{}, RETRIED], ids=["", "retried"])
@pytest.mark.parametrize(
    ("members", "head", "until"),
    [
        ({"timeout_ms": 10_000}, {}, _overdue),
        ({"deadline_ms": 5_000}, {}, _past_deadline),
        ({}, {"deadline_ms": 5_000}, _past_deadline),
        ({}, {}, _cancelled_and_lost),
    ],
    ids=["timeout", "deadline", "deadline of the task", "lost after a cancel"],
)
def test_a_failure_of_a_run_that_was_asked_to_stop_leaves_its_step_held(
    members: dict, head: dict, until: Callable[..., None], more: dict, restarts: bool
) -> None:
    """A stopped run may have had its effect or not, whatever its worker reports. Only a success decides the step."""
    world, task_id, batch = dispatched({**once(**members, **more), **head}, granted=True)
    until(world, batch, task_id)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("held", "stopped")
    if restarts:
        world.restart()
        world.hello(k=1)
    assert world.fail(batch) in world.acked
    assert world.fail(batch, code="killed", status="error") in world.acked
    assert (world.row(task_id).state, world.row(task_id).reason) == ("held", "stopped")
    world.result(batch)
    assert world.row(task_id).state == "completed"
    world.check()


def test_a_failure_of_a_level_0_handler_after_the_deadline_is_a_verdict() -> None:
    """No message asks a level-0 handler to stop."""
    world = World(Settings(bus=BusSettings(level0=Level0Settings(at_most_once=True))))
    world.peer()
    task_id = world.task(once(deadline_ms=5_000))
    world.pass_time(5_000)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("held", "outcome_unknown")
    world.answer(world.handed[0], "failed")
    assert world.row(task_id).state == "failed"
    world.check()


def test_waiting_at_a_worker_does_not_count_towards_the_timeout() -> None:
    world, task_id, batch = dispatched(one(timeout_ms=1_000))
    world.stay(W, 60_000, holding=[held(batch, "queued")])
    assert (world.row(task_id).state, world.row(task_id).delivery) == ("dispatched", 1)


# -- queue timeouts ---------------------------------------------------------------------------------------------------


def test_a_step_that_is_ready_too_long_fails() -> None:
    world = World()
    task_id = world.task(one(queue_timeout_ms=5_000))
    world.pass_time(4_999)
    assert world.row(task_id).state == "ready"
    world.pass_time(1)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "queue_timeout")
    world.check()


@pytest.mark.parametrize(
    ("answer", "state"), [("stale", "failed"), ("running", "dispatched"), ("completed", "completed")]
)
def test_a_step_that_waits_at_a_worker_too_long_is_withdrawn_and_fails_only_if_it_never_started(
    answer: str, state: str
) -> None:
    world, task_id, batch = dispatched(one(queue_timeout_ms=5_000, timeout_ms=3_000_000))
    world.stay(W, 5_000, holding=[held(batch, "queued")])
    assert [c.reason for c in world.heard(wire.Cancel)][:1] == ["superseded"]
    if answer == "stale":
        world.refuse(batch, "stale")
        assert world.row(task_id).reason == "queue_timeout"
    elif answer == "running":
        world.forget()
        world.stay(W, 5_000, holding=[held(batch, "running")])
        assert world.heard(wire.Cancel) == []
    else:
        world.result(batch)
    assert world.row(task_id).state == state
    world.check()


def test_an_at_most_once_step_without_a_grant_fails_at_once_at_its_queue_timeout() -> None:
    world, task_id, batch = dispatched(once(queue_timeout_ms=5_000))
    world.stay(W, 5_000, holding=[held(batch, "queued")])
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "queue_timeout")
    world.start(batch)
    assert world.heard(wire.Go) == []


def test_a_step_that_had_started_and_was_lost_does_not_fail_for_its_queue_timeout() -> None:
    world, task_id, batch = dispatched(one(queue_timeout_ms=5_000, timeout_ms=3_000_000))
    world.stay(W, 8_000, holding=[held(batch, "running")])
    world.pass_time(DIES_MS)
    assert world.row(task_id).state == "ready"


def test_a_queue_timeout_continues_over_a_restart() -> None:
    world, _, batch = dispatched(one(queue_timeout_ms=5_000))
    world.pass_time(2_000)
    world.restart()
    world.hello(holding=[held(batch, "queued")])
    world.forget()
    world.pass_time(3_000)
    assert [c.reason for c in world.heard(wire.Cancel)] == ["superseded"]


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["ready", "dispatched", "retry_wait"])
@pytest.mark.parametrize("hour", [-3_600_000, 0, 3_600_000])
def test_a_steps_deadline_counts_all_its_attempts_whatever_the_wall_clock_does(where: str, hour: int) -> None:
    world = World()
    task_id = world.task(one(deadline_ms=6_000, backoff={"base_ms": 60_000, "jitter": "none"}))
    if where != "ready":
        world.hello()
    if where == "retry_wait":
        world.fail(world.batches()[0])
    assert world.row(task_id).state == where
    world.wall_shift += hour
    world.pass_time(6_000)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "deadline")
    world.pass_time(120_000)
    assert world.row(task_id).state == "failed"
    world.check()


def test_a_deadline_leaves_a_granted_at_most_once_step_held() -> None:
    world, task_id, _ = dispatched(once(deadline_ms=6_000), granted=True)
    world.pass_time(6_000)
    assert world.row(task_id).state == "held"
    assert world.last(wire.Cancel).reason == "timeout"


@pytest.mark.parametrize("where", ["dispatched", "retry_wait"])
def test_a_deadline_continues_over_a_restart(where: str) -> None:
    world, task_id, batch = dispatched(one(deadline_ms=8_000, backoff={"base_ms": 60_000, "jitter": "none"}))
    if where == "retry_wait":
        world.fail(batch)
    world.pass_time(2_000)
    world.restart()
    world.pass_time(5_999)
    assert world.row(task_id).state == where
    world.pass_time(1)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "deadline")


def test_a_tasks_deadline_ends_the_steps_under_way_and_steps_after_a_failure_still_run() -> None:
    world = World()
    task_id = world.task(
        steps(
            {"name": "a", "handler_class": "nobody"},
            {"name": "b", "depends_on": ["a"]},
            {"name": "undo", "depends_on": ["a"], "trigger_rule": {"failed": "a"}},
            deadline_ms=5_000,
        )
    )
    world.hello(handlers=["h"])
    world.stay(W, 5_000)
    assert world.states(task_id) == {"a": "failed", "b": "skipped", "undo": "dispatched"}
    assert world.row(task_id, "a").reason == "task_deadline"
    world.result(world.batches()[-1])
    assert world.stored(task_id).state == "failed"
    world.check()


def test_a_submissions_deadline_replaces_its_workflows() -> None:
    world = World()
    task_id = world.task({**ONE, "deadline_ms": 5_000}, deadline_ms=1_000)
    world.pass_time(1_000)
    assert world.stored(task_id).state == "failed"


def test_an_operators_retry_ends_the_old_deadlines() -> None:
    world = World()
    task_id = world.task({**one(deadline_ms=4_000), "deadline_ms": 5_000})
    world.pass_time(4_000)
    assert world.stored(task_id).state == "failed"
    world.ask(RetryTask, task_id=task_id)
    world.pass_time(3_999)
    assert world.row(task_id).state == "ready"
    world.pass_time(1)
    assert world.row(task_id).reason == "deadline"
