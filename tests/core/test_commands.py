"""What people order: cancel, pause, resume, retry, resolve; and what time does: time-outs, queue times, deadlines."""

import msgspec
import pytest
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.model import events
from stepwire_broker.core.model.answers import CommandRefused, Done
from stepwire_broker.core.model.hints import Hint, HintCode
from stepwire_protocol import messages as wire

from .world import CHAIN, DIES_MS, ONCE, ONE, W2, W, World, held, item_of, once, one, steps

FAST = {"backoff": {"kind": "constant", "base_ms": 100, "jitter": "none"}}
FINAL = {"retry_limit": 0}


def dispatched(document: dict = ONE, *, granted: bool = False) -> tuple[World, int, wire.Steps]:
    world = World()
    task_id = world.task(document)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if granted:
        world.start(batch)
    return world, task_id, batch


def held_step(document: dict = ONCE) -> tuple[World, int, wire.Steps]:
    world, task_id, batch = dispatched(document, granted=True)
    world.pass_time(DIES_MS)
    assert world.stored(task_id).attention == "held"
    return world, task_id, batch


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_what_has_not_started_is_cancelled_at_once() -> None:
    world = World()
    task_id = world.task(CHAIN)
    assert world.ask(CancelTask, task_id=task_id) == Done(task_id, "cancelled")
    assert set(world.states(task_id).values()) == {"cancelled"}
    assert world.stored(task_id).state == "cancelled"
    world.hello()
    assert world.batches() == []
    world.check()


@pytest.mark.parametrize(
    ("outcome", "state", "task"),
    [
        ("completed", "completed", "cancelled"),
        ("failed", "cancelled", "cancelled"),
        ("stale", "cancelled", "cancelled"),
        ("death", "cancelled", "cancelled"),
        ("unknown", "cancelled", "cancelled"),
    ],
)
def test_a_running_step_is_told_and_the_task_is_cancelled_when_it_ends(outcome: str, state: str, task: str) -> None:
    world, task_id, batch = dispatched(CHAIN)
    assert world.ask(CancelTask, task_id=task_id, reason="why not") == Done(task_id, "running")
    assert world.stored(task_id).cancelling
    assert world.states(task_id) == {"a": "dispatched", "b": "cancelled", "c": "cancelled"}
    assert [(c.reason, c.items) for c in world.heard(wire.Cancel)] == [("task_cancelled", [item_of(batch)])]
    world.beat(n=5, holding=[held(batch, "running")])
    assert len(world.heard(wire.Cancel)) == 2  # until it is gone from holding
    match outcome:
        case "completed":
            world.result(batch)
        case "failed":
            world.fail(batch)
        case "stale":
            world.refuse(batch, "stale")
        case "death":
            world.pass_time(DIES_MS)
        case "unknown":
            world.adopted(batch, "unknown")
    assert world.states(task_id)["a"] == state
    assert world.stored(task_id).state == task
    world.check()


def test_a_task_whose_last_step_completes_after_the_cancel_has_completed() -> None:
    world, task_id, batch = dispatched()
    world.ask(CancelTask, task_id=task_id)
    world.result(batch)
    assert world.stored(task_id).state == "completed"


def test_a_cancelled_task_is_cancelled_also_when_something_in_it_had_failed() -> None:
    world = World()
    task_id = world.task(steps({"name": "a", **FINAL}, {"name": "b", "handler_class": "nobody"}))
    world.hello(handlers=["h"])
    world.fail(world.batches()[0])
    world.ask(CancelTask, task_id=task_id)
    assert world.states(task_id) == {"a": "failed", "b": "cancelled"}
    assert world.stored(task_id).state == "cancelled"


def test_a_granted_at_most_once_step_is_left_to_its_outcome() -> None:
    world, task_id, _ = dispatched(ONCE, granted=True)
    world.ask(CancelTask, task_id=task_id)
    world.pass_time(DIES_MS)
    assert (world.row(task_id).state, world.stored(task_id).attention) == ("held", "held")
    assert world.stored(task_id).state == "running"
    world.ask(ResolveStep, step_id=task_id + 1, outcome="retry", reason="it did not")
    assert world.stored(task_id).state == "cancelled"


def test_an_at_most_once_step_that_has_no_grant_is_cancelled_at_once() -> None:
    world, task_id, batch = dispatched(ONCE)
    world.ask(CancelTask, task_id=task_id)
    assert world.stored(task_id).state == "cancelled"
    assert [c.reason for c in world.heard(wire.Cancel)] == ["task_cancelled"]
    world.start(batch)
    assert world.heard(wire.Go) == []
    world.check()


def test_a_step_in_its_back_off_is_cancelled_and_does_not_come_back() -> None:
    world, task_id, batch = dispatched(one(**FAST))
    world.fail(batch)
    world.ask(CancelTask, task_id=task_id)
    world.pass_time(5_000)
    assert world.row(task_id).state == "cancelled"


def test_cancelling_twice_is_cancelling_once() -> None:
    world, task_id, _ = dispatched()
    world.ask(CancelTask, task_id=task_id)
    groups = len(world.groups)
    assert world.ask(CancelTask, task_id=task_id) == Done(task_id, "running")
    assert len(world.groups) == groups


@pytest.mark.parametrize("kind", [CancelTask, PauseTask, ResumeTask, RetryTask])
def test_a_command_on_a_task_that_is_over_says_so_and_leaves_nothing_in_memory(kind: type) -> None:
    world, task_id, batch = dispatched()
    world.result(batch)
    assert task_id not in world.state.tasks
    refused = world.ask(kind, task_id=task_id)
    assert refused.code == "wrong_state"
    assert world.state.tasks == {}
    assert world.state.steps == {}
    world.check()


@pytest.mark.parametrize("kind", [CancelTask, PauseTask, ResumeTask, RetryTask])
def test_a_command_on_a_task_that_there_is_not_says_so(kind: type) -> None:
    world = World()
    assert world.ask(kind, task_id=99).code == "not_found"
    assert world.ask(ResolveStep, step_id=99, outcome="failed", reason="").code == "not_found"


def test_a_command_whose_task_cannot_be_read_is_refused() -> None:
    world = World(answers_reads=False)
    world.ask(CancelTask, task_id=99)
    world.fail_read()
    assert world.answers[world.requests].code == "database_unavailable"


# -- pause and resume -------------------------------------------------------------------------------------------------


def test_a_paused_task_dispatches_nothing_what_runs_finishes_and_it_goes_on_when_resumed() -> None:
    world, task_id, batch = dispatched(CHAIN)
    assert world.ask(PauseTask, task_id=task_id) == Done(task_id, "paused")
    world.result(batch)
    assert world.states(task_id) == {"a": "completed", "b": "ready", "c": "waiting"}
    assert len(world.batches()) == 1
    assert world.ask(ResumeTask, task_id=task_id) == Done(task_id, "running")
    assert world.states(task_id)["b"] == "dispatched"
    world.check()


def test_what_comes_back_to_a_paused_task_waits_in_ready() -> None:
    world, task_id, batch = dispatched()
    world.ask(PauseTask, task_id=task_id)
    world.refuse(batch, "busy")
    assert world.row(task_id).state == "ready"
    assert len(world.batches()) == 1
    world.ask(ResumeTask, task_id=task_id)
    assert world.row(task_id).delivery == 2


def test_a_back_off_ends_in_a_paused_task_too_and_it_can_end_in_pause() -> None:
    world, task_id, batch = dispatched(one(**FAST))
    world.ask(PauseTask, task_id=task_id)
    world.fail(batch)
    world.pass_time(100)
    assert world.row(task_id).state == "ready"
    world.result(batch)  # a late success
    assert world.stored(task_id).state == "completed"


def test_pausing_what_is_paused_and_resuming_what_runs_changes_nothing() -> None:
    world, task_id, _ = dispatched()
    groups = len(world.groups)
    assert world.ask(ResumeTask, task_id=task_id) == Done(task_id, "running")
    assert len(world.groups) == groups
    world.ask(PauseTask, task_id=task_id)
    assert world.ask(PauseTask, task_id=task_id) == Done(task_id, "paused")


# -- retry ------------------------------------------------------------------------------------------------------------


def test_failed_and_skipped_steps_run_again_and_completed_ones_do_not() -> None:
    world = World()
    task_id = world.task(
        steps({"name": "a"}, {"name": "b", "depends_on": ["a"], **FINAL}, {"name": "c", "depends_on": ["b"]})
    )
    world.hello()
    world.result(world.batches()[-1])
    world.fail(world.batches()[-1])
    assert world.states(task_id) == {"a": "completed", "b": "failed", "c": "skipped"}
    key = world.batches()[-1].steps[0].metadata.idempotency_key
    assert world.state.tasks == {}
    assert world.ask(RetryTask, task_id=task_id, reason="fixed") == Done(task_id, "running")
    assert world.states(task_id) == {"a": "completed", "b": "dispatched", "c": "waiting"}
    again = world.batches()[-1].steps[0]
    assert (again.delivery, again.metadata.attempt, again.metadata.idempotency_key) == (2, 0, key)
    assert bytes(again.previous_results) == b'{"a":{"ok":true}}'
    world.result(world.batches()[-1])
    world.result(world.batches()[-1])
    assert world.stored(task_id).state == "completed"
    world.check()


def test_results_of_before_an_operators_retry_are_history() -> None:
    world, task_id, batch = dispatched(one(**FINAL))
    world.fail(batch)
    world.ask(RetryTask, task_id=task_id)
    assert world.row(task_id).accept_from == 2
    rid = world.result(batch)
    assert rid in world.acked
    assert world.row(task_id).state == "dispatched"
    world.result(world.batches()[-1])
    assert world.row(task_id).state == "completed"


def test_a_new_key_is_asked_for() -> None:
    world, task_id, batch = dispatched(one(**FINAL))
    key = batch.steps[0].metadata.idempotency_key
    for number in (1, 2):
        world.fail(world.batches()[-1])
        world.ask(RetryTask, task_id=task_id, new_key=True)
        assert world.batches()[-1].steps[0].metadata.idempotency_key == f"{key}/{number}"


def test_a_skipped_step_that_is_run_again_is_stored_whole_with_its_first_delivery() -> None:
    """Its first hand-over comes in the same transaction as its reopening: nothing of that may be lost."""
    world = World()
    task_id = world.task(
        steps({"name": "a", **FINAL}, {"name": "b", "depends_on": ["a"], "trigger_rule": {"skipped": "a"}})
    )
    world.hello()
    world.fail(world.batches()[-1])
    assert world.states(task_id) == {"a": "failed", "b": "skipped"}
    world = World()
    task_id = world.task(steps({"name": "a", "handler_class": "x"}))
    world.ask(CancelTask, task_id=task_id)
    world.hello()
    world.ask(RetryTask, task_id=task_id, new_key=True)
    row = world.row(task_id, "a")
    assert (row.state, row.delivery, row.accept_from) == ("dispatched", 1, 1)
    assert (row.finished_ms, row.reason, row.key_number) == (None, None, 1)
    assert world.rows.differences(task_id, world.state.tasks[task_id].workflow) == []


def test_from_a_step_on_everything_runs_again() -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.hello()
    for _ in range(3):
        world.result(world.batches()[-1])
    assert world.ask(RetryTask, task_id=task_id, from_step="b") == Done(task_id, "running")
    assert world.states(task_id) == {"a": "completed", "b": "dispatched", "c": "waiting"}
    assert world.row(task_id, "c").output is None
    world.check()
    for _ in range(2):
        world.result(world.batches()[-1])
    assert world.stored(task_id).state == "completed"
    world.check()


@pytest.mark.parametrize("state", ["dispatched", "held"])
def test_nothing_runs_again_from_a_step_on_while_something_after_it_runs_or_is_held(state: str) -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b", "depends_on": ["a"], "delivery_mode": "at_most_once"}))
    world.hello()
    world.result(world.batches()[-1])
    world.start(world.batches()[-1])
    if state == "held":
        world.pass_time(DIES_MS)
    assert world.states(task_id)["b"] == state
    refused = world.ask(RetryTask, task_id=task_id, from_step="a")
    assert refused.code == "wrong_state"
    assert "b" in refused.message
    assert world.states(task_id)["a"] == "completed"


def test_a_completed_at_most_once_step_runs_again_only_if_that_is_said() -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b", "depends_on": ["a"], "delivery_mode": "at_most_once"}))
    world.hello()
    world.result(world.batches()[-1])
    world.start(world.batches()[-1])
    world.result(world.batches()[-1])
    refused = world.ask(RetryTask, task_id=task_id, from_step="a")
    assert (refused.code, refused.hint) == ("wrong_state", Hint(HintCode.CONFIRM_SECOND_RUN))
    assert world.ask(RetryTask, task_id=task_id, from_step="a", again=True) == Done(task_id, "running")


@pytest.mark.parametrize("members", [{"from_step": "nope"}])
def test_a_step_that_there_is_not_is_named(members: dict) -> None:
    world, task_id, _ = dispatched()
    refused = world.ask(RetryTask, task_id=task_id, **members)
    assert (refused.code, refused.hint) == ("invalid", Hint(HintCode.NAME_A_STEP, names=("only",)))


RECOVERY = steps(
    {"name": "ship", **FINAL},
    {"name": "undo", "depends_on": ["ship"], "trigger_rule": {"failed": "ship"}, **FAST},
    {"name": "after", "depends_on": ["undo"]},
)


def test_a_retry_takes_back_what_was_ready_because_of_the_failure() -> None:
    """Nothing may run on a dependency that is about to run again."""
    world = World()
    task_id = world.task(RECOVERY)
    world.hello()
    world.fail(world.batches()[-1])
    world.fail(world.batches()[-1])
    assert world.states(task_id) == {"ship": "failed", "undo": "retry_wait", "after": "waiting"}
    world.ask(RetryTask, task_id=task_id)
    assert world.states(task_id) == {"ship": "dispatched", "undo": "waiting", "after": "waiting"}
    world.pass_time(1_000)
    assert world.states(task_id)["undo"] == "waiting"
    world.result(world.batches()[-1])
    assert world.states(task_id) == {"ship": "completed", "undo": "skipped", "after": "skipped"}
    assert world.stored(task_id).state == "completed"
    world.check()


def test_a_retry_waits_for_what_runs_because_of_the_failure() -> None:
    world = World()
    task_id = world.task(RECOVERY)
    world.hello()
    world.fail(world.batches()[-1])
    refused = world.ask(RetryTask, task_id=task_id)
    assert (refused.code, "undo" in refused.message) == ("wrong_state", True)
    world.result(world.batches()[-1])
    world.result(world.batches()[-1])
    assert world.stored(task_id).state == "failed"
    world.ask(RetryTask, task_id=task_id)
    # What was done because of the failure stays done.
    assert world.states(task_id) == {"ship": "dispatched", "undo": "completed", "after": "completed"}


def test_what_was_being_fetched_for_a_step_that_waits_again_is_not_used_when_it_comes() -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b", "depends_on": ["a"]}))
    world.hello(slots=1, prefetch=0)
    world.answers_reads = False
    old, new = (msgspec.Raw(b'"' + letter * 20_000 + b'"') for letter in (b"o", b"n"))
    world.result(world.batches()[-1], output=old)
    world.beat(n=5, free=1)
    fetch = world.reads.popleft()
    brought = world.rows.read(fetch, 7, world.now.wall, 16_384)  # it is read now, and comes late
    world.ask(RetryTask, task_id=task_id, from_step="a")
    assert world.states(task_id) == {"a": "dispatched", "b": "waiting"}
    world.result(world.batches()[-1], output=new)
    assert world.states(task_id) == {"a": "completed", "b": "ready"}
    world.handle(brought)
    world.beat(n=6, free=1)
    while world.reads:
        world.read()
    assert bytes(world.batches()[-1].steps[0].previous_results) == b'{"a":' + bytes(new) + b"}"
    world.check()


def test_a_retry_leaves_held_steps_alone() -> None:
    world = World()
    task_id = world.task(steps({"name": "a", **FINAL}, {"name": "pay", "delivery_mode": "at_most_once"}))
    world.hello(slots=1, prefetch=9)
    batches = {s.step_name: (b, i) for b in world.batches() for i, s in enumerate(b.steps)}
    world.start(batches["pay"][0], position=batches["pay"][1])
    world.fail(batches["a"][0], position=batches["a"][1])
    world.pass_time(DIES_MS)
    assert world.states(task_id) == {"a": "failed", "pay": "held"}
    assert world.stored(task_id).attention == "held"
    world.ask(RetryTask, task_id=task_id)
    assert world.states(task_id) == {"a": "ready", "pay": "held"}
    assert world.stored(task_id).attention is None  # something moves again


def test_what_is_being_cancelled_is_not_retried_meanwhile() -> None:
    world, task_id, _ = dispatched(CHAIN)
    world.ask(CancelTask, task_id=task_id)
    assert world.ask(RetryTask, task_id=task_id).code == "wrong_state"
    assert world.states(task_id) == {"a": "dispatched", "b": "cancelled", "c": "cancelled"}


def test_after_a_retry_a_late_success_finds_its_held_step_also_when_that_left_memory() -> None:
    world = World()
    task_id = world.task(once(**FINAL))
    world.hello()
    world.start(world.batches()[-1])
    world.fail(world.batches()[-1])
    assert task_id + 1 in world.state.ended
    world.ask(RetryTask, task_id=task_id)
    second = world.batches()[-1]
    world.start(second)
    world.pass_time(DIES_MS)
    assert world.row(task_id).state == "held"
    task = world.state.tasks[task_id]
    task.evicting = task.dirty = True
    world.state.outbox.mark(task)
    world.flush()
    assert task_id not in world.state.tasks
    world.result(second)
    assert world.row(task_id).state == "completed"


# -- resolve ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "state", "task"),
    [
        ({"outcome": "completed", "output": msgspec.Raw(b'{"paid":1}')}, "completed", "completed"),
        ({"outcome": "completed"}, "completed", "completed"),
        ({"outcome": "failed", "message": "it did not"}, "failed", "failed"),
        ({"outcome": "retry"}, "ready", "running"),
    ],
)
def test_an_operator_says_what_became_of_a_held_step(members: dict, state: str, task: str) -> None:
    world, task_id, _ = held_step()
    answer = world.ask(ResolveStep, step_id=task_id + 1, reason="looked it up", **members)
    assert answer == Done(task_id, task, None)
    assert world.row(task_id).state == state
    assert (world.stored(task_id).state, world.stored(task_id).attention) == (task, None)
    if members.get("output"):
        assert world.row(task_id).output == '{"paid":1}'
    facts = b"".join(row.facts for row in world.rows.history[task_id])
    assert b"looked it up" in facts
    world.check()


@pytest.mark.parametrize(("new_key", "suffix"), [(False, ""), (True, "/1")])
def test_a_resolved_retry_runs_again_with_leave_and_keeps_its_key_unless_told(new_key: bool, suffix: str) -> None:
    world, task_id, batch = held_step()
    world.ask(ResolveStep, step_id=task_id + 1, outcome="retry", reason="x", new_key=new_key)
    world.hello(W2)
    again = world.batches(W2)[-1]
    assert again.steps[0].metadata.idempotency_key == batch.steps[0].metadata.idempotency_key + suffix
    rid = world.result(batch)  # the first run reports after all: too late, somebody has decided
    assert rid in world.acked
    assert world.row(task_id).state == "dispatched"
    world.start(again, W2)
    assert world.last(wire.Go, W2).items == [item_of(again)]


def test_only_a_held_step_is_resolved() -> None:
    world, task_id, batch = dispatched()
    assert world.ask(ResolveStep, step_id=task_id + 1, outcome="failed", reason="x").code == "wrong_state"
    world.result(batch)
    assert world.ask(ResolveStep, step_id=task_id + 1, outcome="failed", reason="x").code == "wrong_state"
    assert world.state.tasks == {}


# -- awaiting ---------------------------------------------------------------------------------------------------------


def test_who_awaits_a_task_is_told_when_it_is_over() -> None:
    world, task_id, batch = dispatched()
    assert world.ask(events.AwaitTask, task_id=task_id) is None
    waits = world.requests
    world.result(batch)
    assert world.answers[waits] == Done(task_id, "completed")
    assert (world.state.waiters, world.state.asked) == ({}, {})


def test_who_awaits_a_task_is_told_when_it_waits_on_a_held_step() -> None:
    world, task_id, _ = dispatched(ONCE, granted=True)
    world.ask(events.AwaitTask, task_id=task_id)
    waits = world.requests
    world.pass_time(DIES_MS)
    assert world.answers[waits] == Done(task_id, "running", "held")
    assert world.ask(events.AwaitTask, task_id=task_id) == Done(task_id, "running", "held")


def test_who_went_away_is_forgotten() -> None:
    world, task_id, batch = dispatched()
    world.ask(events.AwaitTask, task_id=task_id)
    waits = world.requests
    world.handle(events.Forget(waits))
    world.handle(events.Forget(waits))
    world.result(batch)
    assert waits not in world.answers
    assert world.state.waiters == {}


# -- time-outs of a run -----------------------------------------------------------------------------------------------


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
def test_a_run_ends_five_seconds_after_its_time_out_from_its_start(document: dict, granted: bool, state: str) -> None:
    world, task_id, batch = dispatched(document, granted=granted)
    run_to(world, batch, 14_999)
    assert world.row(task_id).state == "dispatched"
    world.forget()
    world.pass_time(1)
    assert world.row(task_id).state == state
    assert world.row(task_id).reason == ("outcome_unknown" if granted else "timeout")
    assert [(c.reason, c.items) for c in world.heard(wire.Cancel)] == [("timeout", [item_of(batch)])]
    world.check()


def test_waiting_at_a_worker_costs_no_time_out() -> None:
    world, task_id, batch = dispatched(one(timeout_ms=1_000))
    world.stay(W, 60_000, holding=[held(batch, "queued")])
    assert (world.row(task_id).state, world.row(task_id).delivery) == ("dispatched", 1)


# -- queue time -------------------------------------------------------------------------------------------------------


def test_what_is_ready_too_long_fails() -> None:
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
def test_what_waits_at_a_worker_too_long_is_withdrawn_and_fails_only_if_it_never_started(
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


def test_an_at_most_once_step_without_a_grant_fails_at_once_when_its_queue_time_is_over() -> None:
    world, task_id, batch = dispatched(once(queue_timeout_ms=5_000))
    world.stay(W, 5_000, holding=[held(batch, "queued")])
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "queue_timeout")
    world.start(batch)
    assert world.heard(wire.Go) == []


def test_a_step_that_had_started_and_was_lost_does_not_fail_for_its_queue_time() -> None:
    world, task_id, batch = dispatched(one(queue_timeout_ms=5_000, timeout_ms=3_000_000))
    world.stay(W, 8_000, holding=[held(batch, "running")])
    world.pass_time(DIES_MS)
    assert world.row(task_id).state == "ready"


def test_a_queue_time_goes_on_over_a_restart() -> None:
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
def test_a_steps_deadline_is_for_all_its_attempts_together_whatever_the_wall_clock_does(where: str, hour: int) -> None:
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
def test_a_deadline_goes_on_over_a_restart(where: str) -> None:
    world, task_id, batch = dispatched(one(deadline_ms=8_000, backoff={"base_ms": 60_000, "jitter": "none"}))
    if where == "retry_wait":
        world.fail(batch)
    world.pass_time(2_000)
    world.restart()
    world.pass_time(5_999)
    assert world.row(task_id).state == where
    world.pass_time(1)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "deadline")


def test_a_tasks_deadline_ends_what_is_under_way_and_what_is_to_run_then_runs() -> None:
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


def test_a_submissions_own_deadline_goes_before_its_workflows() -> None:
    world = World()
    task_id = world.task({**ONE, "deadline_ms": 5_000}, deadline_ms=1_000)
    world.pass_time(1_000)
    assert world.stored(task_id).state == "failed"


def test_after_an_operators_retry_the_old_deadlines_count_no_more() -> None:
    world = World()
    task_id = world.task({**one(deadline_ms=4_000), "deadline_ms": 5_000})
    world.pass_time(4_000)
    assert world.stored(task_id).state == "failed"
    world.ask(RetryTask, task_id=task_id)
    world.pass_time(3_999)
    assert world.row(task_id).state == "ready"
    world.pass_time(1)
    assert world.row(task_id).reason == "deadline"


# -- while the database is away ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cancel", "resolve", "retry", "apply", "activate", "submit"])
@pytest.mark.parametrize("code", ["disk_full", "database_locked", "database_read_only", "database_unavailable"])
def test_while_nothing_can_be_stored_nothing_is_accepted(kind: str, code: str) -> None:
    world, task_id, _ = held_step()
    world.auto = False
    world.submit()
    world.stall(code)
    requests = {
        "cancel": lambda: world.ask(CancelTask, task_id=task_id),
        "resolve": lambda: world.ask(ResolveStep, step_id=task_id + 1, outcome="retry", reason="x"),
        "retry": lambda: world.ask(RetryTask, task_id=task_id),
        "apply": lambda: world.apply({**ONE, "version": "9"}),
        "activate": lambda: world.ask(events.ActivateWorkflow, namespace="default", name="flow", version="1"),
        "submit": lambda: world.submit(),
    }
    refused = requests[kind]()
    assert isinstance(refused, CommandRefused)
    assert (refused.code, refused.retry_after_ms is not None) == (code, True)
    world.commit()
    world.settle()
    assert world.state.stalled is None
    assert not isinstance(world.submit(), CommandRefused)


def test_while_the_database_is_away_nothing_is_dispatched_acked_or_granted_and_all_of_it_comes_after() -> None:
    world = World()
    once_id = world.task(ONCE)
    world.apply({**ONE, "name": "other"})
    world.hello()
    (batch,) = world.batches()
    world.auto = False
    world.start(batch)
    world.stall()
    world.forget()
    world.hello(W2)
    world.start(batch)
    rid = world.result(batch)
    world.beat(n=5)
    assert {type(m) for _, m in world.sent} == {wire.Welcome, wire.HeartbeatAck}
    world.commit()
    world.settle()
    assert len(world.heard(wire.Go)) == 2
    assert world.acked == [rid]
    assert world.stored(once_id).state == "completed"
    world.check()
