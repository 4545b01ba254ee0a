"""Answers of workers to their steps: refuse, start, progress and results, with every branch of the result rule."""

import msgspec
import pytest
from stepwire_broker.core.definitions.settings import LimitSettings, Settings
from stepwire_broker.core.intake.commands import CancelTask, PauseTask
from stepwire_broker.store.ports import LANE
from stepwire_protocol import messages as wire

from .world import CHAIN, DIES_MS, ONCE, ONE, W2, W, World, held, item_of, once, one, steps

FAST = {"backoff": {"kind": "constant", "base_ms": 100, "jitter": "none"}}


def dispatched(document: dict = ONE, *, granted: bool = False) -> tuple[World, int, wire.Steps]:
    world = World()
    task_id = world.task(document)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if granted:
        world.start(batch)
    return world, task_id, batch


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["busy", "draining", "stale", "unknown_handler"])
def test_a_refused_step_is_ready_again_and_no_attempt_is_charged(code: str) -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.hello(W2, slots=1)
    world.refuse(batch, code)
    assert (world.row(task_id).attempt, world.row(task_id).lost_sessions) == (0, 0)
    assert world.row(task_id).delivery == 2
    assert world.row(task_id).worker == W2
    world.check()


@pytest.mark.parametrize("code", ["bad_message", "too_large"])
def test_a_step_that_a_worker_cannot_read_fails_for_good_and_its_bytes_are_parked(code: str) -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.refuse(batch, code)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", code)
    (parked,) = world.rows.parked
    assert (parked.code, parked.task_id, parked.source) == (code, task_id, W)
    assert batch.batch_id.encode() in parked.body
    world.check()


def test_a_refusal_of_another_delivery_changes_nothing() -> None:
    world, task_id, batch = dispatched()
    world.say(
        wire.Refuse(
            v="2.0",
            worker=W,
            session="7.1",
            batch_id=batch.batch_id,
            items=[(batch.steps[0].step_id, 9), (777, 1)],
            code="stale",
            free=9,
        )
    )
    assert (world.row(task_id).state, world.row(task_id).delivery) == ("dispatched", 1)


def test_a_copy_of_results_names_no_credit_again() -> None:
    world = World()
    for _ in range(3):
        world.task(ONE)
    world.hello(slots=1, prefetch=0)
    (first,) = world.batches()
    rid = world.result(first, n=5, free=1)
    second = world.batches()[-1]
    world.accept(second, free=0)
    world.result(first, n=5, free=1, rid=rid)
    assert world.batches()[-1] == second


# -- start and go -----------------------------------------------------------------------------------------------------


def test_a_go_answers_each_start_so_a_lost_go_is_sent_again() -> None:
    world, task_id, batch = dispatched(ONCE)
    assert not world.row(task_id).granted
    world.start(batch)
    assert world.row(task_id).granted
    world.start(batch)
    assert [g.items for g in world.heard(wire.Go)] == [[item_of(batch)]] * 2
    assert world.heard(wire.Cancel) == []


def test_a_start_answers_its_batch() -> None:
    world = World()
    world.task(ONCE)
    world.hello()
    world.start(world.batches()[0])
    assert world.state.sessions[W].unanswered == 0


@pytest.mark.parametrize("why", ["paused", "cancelled", "moved on", "never"])
def test_a_step_that_must_not_start_is_not_granted(why: str) -> None:
    world, task_id, batch = dispatched(ONCE)
    if why == "paused":
        world.ask(PauseTask, task_id=task_id)
    elif why == "cancelled":
        world.ask(CancelTask, task_id=task_id)
    elif why == "moved on":
        world.refuse(batch, "stale")
    world.forget()
    if why == "never":
        world.say(wire.Start(v="2.0", worker=W, session="7.1", items=[(4242, 1)]))
    else:
        world.start(batch)
    assert world.heard(wire.Go) == []
    assert [c.reason for c in world.heard(wire.Cancel)] == ["not_granted"]
    state = {"paused": "ready", "cancelled": "cancelled", "moved on": "dispatched", "never": "dispatched"}[why]
    assert world.row(task_id).state == state
    assert not world.row(task_id).granted
    world.check()


def test_a_granted_step_of_a_paused_task_goes_on_when_its_go_was_lost() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.ask(PauseTask, task_id=task_id)
    world.forget()
    world.start(batch)
    assert [type(m) for _, m in world.sent] == [wire.Go]


def test_after_a_restart_a_step_of_a_cancelled_task_is_not_granted_either() -> None:
    world, task_id, batch = dispatched(once(retry_limit=0), granted=True)
    world.ask(CancelTask, task_id=task_id)
    world.restart()
    world.hello(holding=[held(batch, "asking")])
    assert world.last(wire.Cancel).reason == "task_cancelled"
    world.say(wire.Start(v="2.0", worker=W, session=world.session_id(), items=[item_of(batch)]))
    assert world.heard(wire.Go) == []
    assert world.row(task_id).granted


# -- results that count -----------------------------------------------------------------------------------------------


def test_a_success_is_stored_then_acked_and_what_depends_on_it_runs() -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.hello()
    for n, name in enumerate("abc", 1):
        batch = world.batches()[-1]
        assert batch.steps[0].step_name == name
        rid = world.result(batch)
        assert world.acked == list(range(1, n + 1))
        assert rid == n
    assert world.stored(task_id).state == "completed"
    assert set(world.states(task_id).values()) == {"completed"}
    assert world.state.tasks == {}
    world.check()


def test_a_resent_result_is_acked_again_and_changes_nothing() -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.hello()
    (batch,) = world.batches()
    rid = world.result(batch)
    groups = len(world.groups)
    world.result(batch, rid=rid, output=msgspec.Raw(b'"other"'))
    assert world.acked == [rid, rid]
    assert len(world.groups) == groups
    assert world.row(task_id, "a").output == '{"ok":true}'


@pytest.mark.parametrize("when", ["ready", "retry_wait", "dispatched", "held"])
def test_a_late_success_completes_a_step_that_is_still_open(when: str) -> None:
    if when == "retry_wait":
        world, task_id, batch = dispatched(one(timeout_ms=1_000))
        world.beat(n=2, holding=[held(batch, "running", 1_000)])
        world.stay(W, 5_000, holding=[held(batch, "running", 1_000)])
    elif when == "held":
        world, task_id, batch = dispatched(ONCE, granted=True)
        world.pass_time(DIES_MS)
    else:
        world, task_id, batch = dispatched()
        world.pass_time(DIES_MS)
        if when == "dispatched":
            world.hello(W2)
    assert world.row(task_id).state == when
    world.forget()
    rid = world.result(batch)
    assert world.acked == [rid]
    assert world.row(task_id).state == "completed"
    assert world.stored(task_id).state == "completed"
    assert world.stored(task_id).attention is None
    if when == "dispatched":  # and the worker that runs it in vain is sent a cancel
        assert [(c.reason, c.items) for c in world.heard(wire.Cancel, W2)] == [
            ("superseded", [(batch.steps[0].step_id, 2)])
        ]
    world.check()


@pytest.mark.parametrize("when", ["ready", "dispatched", "retry_wait"])
def test_a_late_failure_changes_nothing(when: str) -> None:
    world, task_id, batch = dispatched(one(**FAST))
    if when == "retry_wait":
        world.fail(batch)
    else:
        world.pass_time(DIES_MS)
        if when == "dispatched":
            world.hello(W2)
    before = world.row(task_id)
    assert before.state == when
    rid = world.fail(batch)
    assert rid in world.acked
    assert world.row(task_id) == before
    world.check()


def test_a_final_step_never_changes() -> None:
    world, task_id, batch = dispatched(one(retry_limit=0))
    world.fail(batch)
    before = world.row(task_id)
    assert before.state == "failed"
    for worker in (W, W2):  # the sender is not checked: the result is late from any worker
        rid = world.result(batch, worker)
        assert rid in world.acked
    assert world.row(task_id) == before
    assert world.stored(task_id).state == "failed"


# -- results that are refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "worker", "changes"),
    [
        ("wrong_batch", W, {"batch_id": "batch_n7_99"}),
        ("wrong_sender", W2, {}),
        ("unknown_delivery", W, {"delivery": 2}),
    ],
)
def test_a_result_must_be_of_the_batch_and_the_worker_of_its_delivery(code: str, worker: str, changes: dict) -> None:
    world, task_id, batch = dispatched()
    world.hello(W2)
    world.forget()
    rid = world.result(batch, worker, **changes)
    refused = world.last(wire.Refused, worker)
    assert (refused.code, refused.refused, refused.rid) == (code, "results", rid)
    assert world.state.counters.refused[code] == 1
    assert world.row(task_id).state == "dispatched"
    world.check()


@pytest.mark.parametrize(("code", "worker", "batch_id"), [("wrong_batch", W, "batch_x"), ("wrong_sender", W2, None)])
def test_a_late_success_must_be_of_its_own_batch_and_worker_too(code: str, worker: str, batch_id: str | None) -> None:
    world, task_id, batch = dispatched()
    world.pass_time(DIES_MS)
    world.result(batch, worker, batch_id=batch_id or batch.batch_id)
    assert world.last(wire.Refused).code == code
    assert world.row(task_id).state == "ready"


def test_one_refused_result_of_a_message_does_not_affect_the_others() -> None:
    world = World()
    world.apply(ONE)
    ids = world.submit(count=2).task_ids
    world.hello()
    (batch,) = world.batches()
    good = wire.Result(step_id=ids[0] + 1, delivery=1, status="completed", output=msgspec.Raw(b"1"))
    bad = wire.Result(step_id=ids[1] + 1, delivery=5, status="completed", output=msgspec.Raw(b"1"))
    world.say(
        wire.Results(
            v="2.0",
            worker=W,
            session="7.1",
            deployment="d" * 32,
            batch_id=batch.batch_id,
            protocol_version="2.0",
            rid=5,
            results=[bad, good],
        )
    )
    assert world.stored(ids[0]).state == "completed"
    assert world.row(ids[1]).state == "dispatched"
    assert world.acked == [5]


# -- results of steps that are not in memory --------------------------------------------------------------------------


def test_a_result_of_an_unknown_step_is_looked_up_and_acked() -> None:
    world, _, batch = dispatched()
    world.answers_reads = False
    rid = world.result(batch, step_id=9_999)
    assert world.acked == []
    world.read()
    assert world.acked == [rid]


def test_a_result_of_a_task_that_is_over_and_forgotten_is_looked_up_and_acked() -> None:
    world, task_id, batch = dispatched()
    world.result(batch)
    world.state.ended.clear()
    rid = world.result(batch)
    assert rid in world.acked
    assert world.row(task_id).state == "completed"


def test_a_result_for_a_task_that_is_not_in_memory_loads_the_task_and_is_applied() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.pass_time(DIES_MS)
    evict(world, task_id)
    rid = world.result(batch)
    assert world.acked == [rid]
    assert world.row(task_id).state == "completed"
    assert world.stored(task_id).state == "completed"
    world.check()


def evict(world: World, task_id: int) -> None:
    """Make the task leave memory, as it does when other tasks need the room."""
    task = world.state.tasks[task_id]
    task.evicting = task.dirty = True
    world.state.outbox.mark(task)
    world.flush()
    assert task_id not in world.state.tasks
    assert world.stored(task_id).stored


def test_a_failed_look_up_acks_nothing_and_the_worker_resends() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.pass_time(DIES_MS)
    evict(world, task_id)
    world.answers_reads = False
    rid = world.result(batch)
    world.fail_read()
    assert world.acked == []
    world.answers_reads = True
    world.result(batch, rid=rid)
    assert world.acked == [rid]


def test_a_result_is_left_with_its_worker_while_the_database_is_far_behind() -> None:
    world = World(Settings(limits=LimitSettings(uncommitted_bytes=10_000)))
    world.apply(ONE)
    world.submit(count=2)
    world.hello()
    (batch,) = world.batches()
    world.auto = False
    big = msgspec.Raw(b'"' + b"x" * 11_000 + b'"')
    world.result(batch, position=0, output=big)
    second = world.result(batch, position=1)
    world.settle()
    assert second not in world.acked
    world.result(batch, position=1, rid=second)
    world.settle()
    assert second in world.acked


# -- failures and retries ---------------------------------------------------------------------------------------------


def test_a_failed_step_is_retried_after_its_back_off_up_to_the_limit() -> None:
    world, task_id, batch = dispatched(one(retry_limit=2, **FAST))
    for attempt in (1, 2):
        world.fail(batch)
        assert (world.row(task_id).state, world.row(task_id).attempt) == ("retry_wait", attempt)
        world.pass_time(99)
        assert world.row(task_id).state == "retry_wait"
        world.pass_time(1)
        batch = world.batches()[-1]
        assert batch.steps[0].metadata.attempt == attempt
    world.fail(batch, message="boom", code="E1")
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "E1")
    assert msgspec.json.decode(world.row(task_id).error)["message"] == "boom"
    assert world.stored(task_id).state == "failed"


@pytest.mark.parametrize(
    ("error", "metadata", "again"),
    [
        ({}, None, True),
        ({"retryable": True}, wire.ResultMetadata(retryable=False), True),
        ({"retryable": False}, wire.ResultMetadata(retryable=True), False),
        ({}, wire.ResultMetadata(retryable=False), False),
        ({}, wire.ResultMetadata(retryable=True), True),
    ],
)
@pytest.mark.parametrize("status", ["failed", "error"])
def test_retryable_of_the_error_comes_before_that_of_the_metadata(
    status: str, error: dict, metadata: wire.ResultMetadata | None, again: bool
) -> None:
    world, task_id, batch = dispatched()
    world.result(batch, status=status, error=wire.ErrorDetail(message="no", **error), metadata=metadata)
    assert world.row(task_id).state == ("retry_wait" if again else "failed")


def test_a_failure_without_an_error_is_a_failure() -> None:
    world, task_id, batch = dispatched()
    world.result(batch, status="failed")
    assert world.row(task_id).state == "retry_wait"


def test_a_retry_after_of_the_handler_replaces_the_back_off() -> None:
    world, task_id, batch = dispatched()
    world.fail(batch, retry_after_ms=7_000)
    assert world.row(task_id).not_before_ms == world.now.wall + 7_000


def test_a_retry_after_is_bounded() -> None:
    world, task_id, batch = dispatched()
    world.fail(batch, retry_after_ms=2**53 - 1)
    assert world.row(task_id).not_before_ms - world.now.wall == 366 * 24 * 3600 * 1000


def test_a_long_error_is_cut() -> None:
    world, task_id, batch = dispatched(one(retry_limit=0))
    world.fail(batch, message="m" * 20_000, backtrace=["l" * 1_000] * 50)
    assert len(world.row(task_id).error) < 20_000


@pytest.mark.parametrize("hour", [-3_600_000, 3_600_000])
def test_a_back_off_runs_by_the_monotonic_clock(hour: int) -> None:
    world, task_id, batch = dispatched(one(**FAST))
    world.fail(batch)
    world.wall_shift += hour
    world.pass_time(100)
    assert world.row(task_id).state == "dispatched"


# -- at most once -----------------------------------------------------------------------------------------------------


def test_a_reported_failure_of_an_at_most_once_step_is_final() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.fail(batch, message="card declined")
    assert world.row(task_id).state == "failed"


def test_a_reported_failure_of_an_at_most_once_step_is_final_even_with_attempts_left() -> None:
    """Validation refuses such a definition, and the core follows the rule all the same."""
    world = World()
    world.apply(ONCE)
    workflow = world.state.workflows[1]
    patient = msgspec.structs.replace(workflow.steps[0], retry_limit=5)
    world.state.active[("default", "flow")] = msgspec.structs.replace(workflow, steps=(patient,))
    task_id = world.submit().task_ids[0]
    world.hello()
    world.start(world.batches()[0])
    world.fail(world.batches()[0], retryable=True)
    assert world.row(task_id).state == "failed"


def test_a_reported_failure_of_an_at_most_once_step_is_retried_if_the_definition_says_so() -> None:
    world, task_id, batch = dispatched(once(retry_reported_failures=True, retry_limit=1, **FAST), granted=True)
    world.fail(batch)
    assert (world.row(task_id).state, world.row(task_id).granted) == ("retry_wait", 0)
    world.pass_time(100)
    assert world.row(task_id).delivery == 2
    world.start(world.batches()[-1])
    world.fail(world.batches()[-1])
    assert world.row(task_id).state == "failed"


@pytest.mark.parametrize(
    ("document", "state"), [(ONE, "retry_wait"), (ONCE, "held"), (once(on_unknown="fail"), "failed")]
)
def test_an_outcome_that_the_handler_does_not_know_holds_an_at_most_once_step(document: dict, state: str) -> None:
    world, task_id, batch = dispatched(document, granted=document is not ONE)
    world.fail(batch, code="outcome_unknown", message="the line is dead", retryable=False)
    row = world.row(task_id)
    assert row.state == state
    assert "the line is dead" in row.error or state == "failed"
    world.check()


def test_a_failure_after_a_cancel_holds_an_at_most_once_step() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.ask(CancelTask, task_id=task_id)
    assert world.row(task_id).state == "dispatched"
    world.fail(batch)
    assert (world.row(task_id).state, world.row(task_id).reason) == ("held", "stopped")
    assert world.stored(task_id).attention == "held"


@pytest.mark.parametrize("retry_reported_failures", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_resent_failure_of_a_stopped_step_leaves_it_held(restarts: bool, retry_reported_failures: bool) -> None:
    """The worker resends a result whose ack was lost. The same report may not become a verdict the second time."""
    document = once(retry_reported_failures=True, retry_limit=1, **FAST) if retry_reported_failures else ONCE
    world, task_id, batch = dispatched(document, granted=True)
    world.ask(CancelTask, task_id=task_id)
    rid = world.fail(batch, code="stopped by a signal")
    if restarts:
        world.restart()
        world.hello(k=1)
    assert world.fail(batch, code="stopped by a signal", rid=rid) in world.acked
    assert world.fail(batch, code="stopped by a signal") in world.acked
    assert world.row(task_id).state == "held"
    assert (world.stored(task_id).state, world.stored(task_id).attention) == ("running", "held")
    world.check()


@pytest.mark.parametrize(("code", "state"), [(None, "completed"), ("outcome_unknown", "held")])
def test_a_stopped_step_that_is_held_completes_by_a_late_success_only(code: str | None, state: str) -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.ask(CancelTask, task_id=task_id)
    world.fail(batch)
    if code is None:
        world.result(batch)
    else:
        world.fail(batch, code=code)
    assert world.row(task_id).state == state
    world.check()


@pytest.mark.parametrize(
    ("say", "state"),
    [("completed", "completed"), ("failed", "failed"), ("outcome_unknown", "held")],
)
def test_a_late_result_of_its_own_delivery_decides_a_held_step(say: str, state: str) -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.pass_time(DIES_MS)
    assert world.row(task_id).state == "held"
    if say == "completed":
        world.result(batch)
    else:
        world.fail(batch, code=None if say == "failed" else say)
    assert world.row(task_id).state == state
    world.check()


def test_a_step_that_depends_on_a_held_step_does_not_run_whatever_its_rule() -> None:
    world = World()
    rule = {"none": [{"completed": "pay"}]}
    task_id = world.task(
        steps(
            {"name": "pay", "delivery_mode": "at_most_once"},
            {"name": "ship", "depends_on": ["pay"]},
            {"name": "undo", "depends_on": ["pay"], "trigger_rule": rule},
            {"name": "other"},
        )
    )
    world.hello(slots=1, prefetch=0)
    while world.step(task_id, "pay").state != "dispatched":
        world.result(world.batches()[-1], free=1, n=world.mono)
    world.start(world.batches()[-1])
    world.pass_time(DIES_MS)
    world.hello(W2)
    for batch in world.batches(W2):
        world.result(batch, W2)
    assert world.states(task_id) == {"pay": "held", "ship": "waiting", "undo": "waiting", "other": "completed"}
    assert (world.stored(task_id).state, world.stored(task_id).attention) == ("running", "held")


def test_a_step_at_most_once_is_granted_once_through_all_that_can_happen_to_it() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.hello(k=2, n=50, holding=[held(batch, "running")])
    world.restart()
    world.hello(k=1, holding=[held(batch, "running")])
    world.pass_time(DIES_MS)
    world.hello(W2)
    world.stay(W2, 60_000)
    assert world.row(task_id).state == "held"
    assert world.heard(wire.Go) == []


# -- the earlier deliveries -------------------------------------------------------------------------------------------


def test_only_the_latest_earlier_deliveries_are_remembered() -> None:
    world, task_id, batch = dispatched()
    for _ in range(40):
        batch = world.batches()[-1]
        world.refuse(batch, "busy")
    assert len(msgspec.json.decode(world.row(task_id).earlier)) == 32
    rid = world.result(world.batches()[0])
    assert rid in world.acked  # the result can no longer change anything
    assert world.row(task_id).state == "dispatched"
    world.result(batch)
    assert world.row(task_id).state == "completed"


def test_progress_of_the_current_delivery_is_kept() -> None:
    world, task_id, batch = dispatched()
    items = [(*item_of(batch), 3, 10, "half way"), (99, 1, 1, None, None)]
    world.say(wire.Progress(v="2.0", worker=W, session="7.1", items=items))
    report = world.state.progress[world.step(task_id).id]
    assert (report.done, report.total, report.note) == (3, 10, "half way")
    assert list(world.state.progress) == [world.step(task_id).id]


def test_a_progress_note_is_cut_to_200_characters_and_the_newest_report_is_kept() -> None:
    world, task_id, batch = dispatched()
    for done, note in ((1, "first"), (2, "x" * 300)):
        world.say(wire.Progress(v="2.0", worker=W, session="7.1", items=[(*item_of(batch), done, None, note)]))
    report = world.state.progress[world.step(task_id).id]
    assert (report.done, report.total, report.note) == (2, None, "x" * 200)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_progress_is_forgotten_when_the_run_ends(status: str) -> None:
    world, _, batch = dispatched()
    world.say(wire.Progress(v="2.0", worker=W, session="7.1", items=[(*item_of(batch), 1, 2, None)]))
    assert world.state.progress
    world.result(batch, status=status)
    assert not world.state.progress


def test_progress_is_forgotten_when_the_worker_is_lost() -> None:
    world, _, batch = dispatched()
    world.say(wire.Progress(v="2.0", worker=W, session="7.1", items=[(*item_of(batch), 1, 2, None)]))
    world.pass_time(30_000)
    assert not world.state.progress


def test_a_task_that_was_in_memory_is_loaded_by_the_next_start_without_a_write() -> None:
    world = World()
    task_id = world.task(ONE)
    world.restart()
    assert task_id in world.state.tasks
    assert not world.state.outbox.lanes[LANE].dirty
    assert not world.stored(task_id).stored
    assert world.state.lanes[LANE].left_behind is None
