"""Commands on tasks and steps: cancel, pause, resume, retry, resolve and await; and what a stalled database refuses."""

import msgspec
import pytest
from stepwire_broker.core.answers.answers import CommandRefused, Done
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.model import events
from stepwire_protocol import messages as wire

from .world import CHAIN, DIES_MS, ONCE, ONE, W2, World, held, item_of, once, one, steps

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


def test_steps_that_have_not_started_are_cancelled_at_once() -> None:
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
def test_a_cancel_stops_a_running_step_and_the_task_is_cancelled_when_the_step_ends(
    outcome: str, state: str, task: str
) -> None:
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


def test_a_task_whose_last_step_completes_after_the_cancel_is_completed() -> None:
    world, task_id, batch = dispatched()
    world.ask(CancelTask, task_id=task_id)
    world.result(batch)
    assert world.stored(task_id).state == "completed"


def test_a_cancelled_task_with_a_failed_step_is_cancelled() -> None:
    world = World()
    task_id = world.task(steps({"name": "a", **FINAL}, {"name": "b", "handler_class": "nobody"}))
    world.hello(handlers=["h"])
    world.fail(world.batches()[0])
    world.ask(CancelTask, task_id=task_id)
    assert world.states(task_id) == {"a": "failed", "b": "cancelled"}
    assert world.stored(task_id).state == "cancelled"


def test_a_cancel_leaves_a_granted_at_most_once_step_to_its_outcome() -> None:
    world, task_id, _ = dispatched(ONCE, granted=True)
    world.ask(CancelTask, task_id=task_id)
    world.pass_time(DIES_MS)
    assert (world.row(task_id).state, world.stored(task_id).attention) == ("held", "held")
    assert world.stored(task_id).state == "running"
    world.ask(ResolveStep, step_id=task_id + 1, outcome="retry", reason="it did not")
    assert world.stored(task_id).state == "cancelled"


def test_an_at_most_once_step_without_a_grant_is_cancelled_at_once() -> None:
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


def test_a_second_cancel_changes_nothing() -> None:
    world, task_id, _ = dispatched()
    world.ask(CancelTask, task_id=task_id)
    groups = len(world.groups)
    assert world.ask(CancelTask, task_id=task_id) == Done(task_id, "running")
    assert len(world.groups) == groups + 1, "only the row of the audit is written"
    assert world.groups[-1].audit[0].outcome == "unchanged"
    assert not world.groups[-1].tasks_changed


@pytest.mark.parametrize("kind", [CancelTask, PauseTask, ResumeTask, RetryTask])
def test_a_command_on_an_ended_task_is_refused_and_leaves_nothing_in_memory(kind: type) -> None:
    world, task_id, batch = dispatched()
    world.result(batch)
    assert task_id not in world.state.tasks
    refused = world.ask(kind, task_id=task_id)
    assert refused.code == "wrong_state"
    assert world.state.tasks == {}
    assert world.state.steps == {}
    world.check()


@pytest.mark.parametrize("kind", [CancelTask, PauseTask, ResumeTask, RetryTask])
def test_a_command_on_an_unknown_task_is_refused(kind: type) -> None:
    world = World()
    assert world.ask(kind, task_id=99).code == "not_found"
    assert world.ask(ResolveStep, step_id=99, outcome="failed", reason="").code == "not_found"


def test_a_command_whose_task_cannot_be_read_is_refused() -> None:
    world = World(answers_reads=False)
    world.ask(CancelTask, task_id=99)
    world.fail_read()
    assert world.answers[world.requests].code == "database_unavailable"


# -- pause and resume -------------------------------------------------------------------------------------------------


def test_a_paused_task_finishes_running_steps_and_dispatches_no_other_until_it_is_resumed() -> None:
    world, task_id, batch = dispatched(CHAIN)
    assert world.ask(PauseTask, task_id=task_id) == Done(task_id, "paused")
    world.result(batch)
    assert world.states(task_id) == {"a": "completed", "b": "ready", "c": "waiting"}
    assert len(world.batches()) == 1
    assert world.ask(ResumeTask, task_id=task_id) == Done(task_id, "running")
    assert world.states(task_id)["b"] == "dispatched"
    world.check()


def test_a_step_returned_to_a_paused_task_waits_in_ready() -> None:
    world, task_id, batch = dispatched()
    world.ask(PauseTask, task_id=task_id)
    world.refuse(batch, "busy")
    assert world.row(task_id).state == "ready"
    assert len(world.batches()) == 1
    world.ask(ResumeTask, task_id=task_id)
    assert world.row(task_id).delivery == 2


def test_a_back_off_ends_in_a_paused_task_and_the_task_can_end_while_paused() -> None:
    world, task_id, batch = dispatched(one(**FAST))
    world.ask(PauseTask, task_id=task_id)
    world.fail(batch)
    world.pass_time(100)
    assert world.row(task_id).state == "ready"
    world.result(batch)  # a late success
    assert world.stored(task_id).state == "completed"


def test_pausing_a_paused_task_and_resuming_a_running_one_changes_nothing() -> None:
    world, task_id, _ = dispatched()
    groups = len(world.groups)
    assert world.ask(ResumeTask, task_id=task_id) == Done(task_id, "running")
    assert len(world.groups) == groups + 1, "only the row of the audit is written"
    assert (world.groups[-1].audit[0].outcome, world.groups[-1].tasks_changed) == ("unchanged", [])
    world.ask(PauseTask, task_id=task_id)
    assert world.ask(PauseTask, task_id=task_id) == Done(task_id, "paused")


# -- retry ------------------------------------------------------------------------------------------------------------


def test_a_retry_runs_failed_and_skipped_steps_again_and_no_completed_ones() -> None:
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


def test_results_from_before_an_operators_retry_change_nothing() -> None:
    world, task_id, batch = dispatched(one(**FINAL))
    world.fail(batch)
    world.ask(RetryTask, task_id=task_id)
    assert world.row(task_id).accept_from == 2
    rid = world.result(batch)
    assert rid in world.acked
    assert world.row(task_id).state == "dispatched"
    world.result(world.batches()[-1])
    assert world.row(task_id).state == "completed"


def test_a_retry_with_a_new_key_changes_the_idempotency_key() -> None:
    world, task_id, batch = dispatched(one(**FINAL))
    key = batch.steps[0].metadata.idempotency_key
    for number in (1, 2):
        world.fail(world.batches()[-1])
        world.ask(RetryTask, task_id=task_id, new_key=True)
        assert world.batches()[-1].steps[0].metadata.idempotency_key == f"{key}/{number}"


def test_a_retried_skipped_step_is_stored_whole_with_its_first_delivery() -> None:
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


def test_a_retry_from_a_step_runs_that_step_and_all_after_it_again() -> None:
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
def test_a_retry_from_a_step_is_refused_while_a_later_step_runs_or_is_held(state: str) -> None:
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


def test_a_completed_at_most_once_step_runs_again_only_if_the_operator_confirms() -> None:
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
def test_an_unknown_step_is_named_in_the_refusal(members: dict) -> None:
    world, task_id, _ = dispatched()
    refused = world.ask(RetryTask, task_id=task_id, **members)
    assert (refused.code, refused.hint) == ("invalid", Hint(HintCode.NAME_A_STEP, names=("only",)))


RECOVERY = steps(
    {"name": "ship", **FINAL},
    {"name": "undo", "depends_on": ["ship"], "trigger_rule": {"failed": "ship"}, **FAST},
    {"name": "after", "depends_on": ["undo"]},
)


def test_a_retry_takes_back_steps_that_were_ready_because_of_the_failure() -> None:
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


def test_a_retry_is_refused_while_a_step_runs_because_of_the_failure() -> None:
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


def test_payloads_fetched_for_a_step_that_waits_again_are_not_used() -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b", "depends_on": ["a"]}))
    world.hello(slots=1, prefetch=0)
    world.answers_reads = False
    old, new = (msgspec.Raw(b'"' + letter * 20_000 + b'"') for letter in (b"o", b"n"))
    world.result(world.batches()[-1], output=old)
    world.beat(n=5, free=1)
    fetch = world.reads.popleft()
    brought = world.rows.read(fetch, world.now.wall, 16_384)  # it is read now, and comes late
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


def test_a_task_that_is_being_cancelled_is_not_retried() -> None:
    world, task_id, _ = dispatched(CHAIN)
    world.ask(CancelTask, task_id=task_id)
    assert world.ask(RetryTask, task_id=task_id).code == "wrong_state"
    assert world.states(task_id) == {"a": "dispatched", "b": "cancelled", "c": "cancelled"}


def test_after_a_retry_a_late_success_completes_its_held_step_even_if_the_step_left_memory() -> None:
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
        ({"outcome": "completed", "output": b'{"paid":1}'}, "completed", "completed"),
        ({"outcome": "completed"}, "completed", "completed"),
        ({"outcome": "failed", "message": "it did not"}, "failed", "failed"),
        ({"outcome": "retry"}, "ready", "running"),
    ],
)
def test_an_operator_sets_the_outcome_of_a_held_step(members: dict, state: str, task: str) -> None:
    world, task_id, _ = held_step()
    noticed = world.rows.tables.attention
    assert {number: row.kind for number, row in noticed.items()} == {task_id: "task_held", task_id + 1: "held"}
    answer = world.ask(ResolveStep, step_id=task_id + 1, reason="looked it up", **members)
    assert {number: row.kind for number, row in noticed.items()} == (
        {task_id + 1: "failed"} if state == "failed" else {}
    )
    assert answer == Done(task_id, task, None)
    assert world.row(task_id).state == state
    assert (world.stored(task_id).state, world.stored(task_id).attention) == (task, None)
    if members.get("output"):
        assert world.row(task_id).output == '{"paid":1}'
    facts = b"".join(row.facts for row in world.rows.history[task_id])
    assert b"looked it up" in facts
    world.check()


@pytest.mark.parametrize(("new_key", "suffix"), [(False, ""), (True, "/1")])
def test_a_step_resolved_as_retry_runs_again_and_keeps_its_key_unless_a_new_one_is_requested(
    new_key: bool, suffix: str
) -> None:
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


def test_a_request_that_awaits_a_task_is_answered_when_the_task_ends() -> None:
    world, task_id, batch = dispatched()
    assert world.ask(events.AwaitTask, task_id=task_id) is None
    waits = world.requests
    world.result(batch)
    assert world.answers[waits] == Done(task_id, "completed")
    assert (world.state.waiters, world.state.asked) == ({}, {})


def test_a_request_that_awaits_a_task_is_answered_when_the_task_waits_on_a_held_step() -> None:
    world, task_id, _ = dispatched(ONCE, granted=True)
    world.ask(events.AwaitTask, task_id=task_id)
    waits = world.requests
    world.pass_time(DIES_MS)
    assert world.answers[waits] == Done(task_id, "running", "held")
    assert world.ask(events.AwaitTask, task_id=task_id) == Done(task_id, "running", "held")


def test_a_request_whose_caller_went_away_is_forgotten() -> None:
    world, task_id, batch = dispatched()
    world.ask(events.AwaitTask, task_id=task_id)
    waits = world.requests
    world.handle(events.Forget(waits))
    world.handle(events.Forget(waits))
    world.result(batch)
    assert waits not in world.answers
    assert world.state.waiters == {}


# -- while the database is away ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cancel", "resolve", "retry", "apply", "activate", "submit"])
@pytest.mark.parametrize("code", ["disk_full", "database_locked", "database_read_only", "database_unavailable"])
def test_submissions_and_commands_are_refused_while_nothing_can_be_stored(kind: str, code: str) -> None:
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
    assert world.state.outbox.stalled is None
    assert not isinstance(world.submit(), CommandRefused)


def test_dispatches_acks_and_grants_wait_while_the_database_is_away() -> None:
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


def test_a_stalled_lane_stops_its_own_tasks_and_no_others() -> None:
    world = World(lanes=2)
    ids = [world.task(ONE) for _ in range(2)]
    slow, quick = (next(i for i in ids if world.state.tasks[i].lane == lane) for lane in (1, 2))
    world.auto = False
    world.state.write(world.state.tasks[slow])
    world.flush()
    world.stall(lane=1)
    world.hello()
    world.commit(2)
    assert [item.task_id for batch in world.batches() for item in batch.steps] == [quick]
    refused = world.ask(CancelTask, task_id=slow)
    assert isinstance(refused, CommandRefused)
    assert refused.code == "disk_full"
    created = world.submit()
    assert created is None  # it is being written
    while 2 in world.writings:
        world.commit(2)
    world.commit(1)
    world.settle()
    assert world.state.outbox.lanes[1].waiting == []
    assert {item.task_id for batch in world.batches() for item in batch.steps} >= {slow, quick}
    newest = max(world.state.tasks)
    assert world.state.tasks[newest].lane == 2
    world.check()
