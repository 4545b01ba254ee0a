"""Reports of workers in the history and the rows: durations, errors, standard error, and the names of operators."""

from typing import Any

import msgspec
import pytest
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.model import facts
from stepwire_protocol import messages as wire

from .test_results import FAST, dispatched
from .world import ONCE, ONE, World, once, one

TOOK = wire.ResultMetadata(execution_time_ms=12.6)


def recorded(world: World, task_id: int, kind: type) -> Any:
    """The last fact of this kind in the task's stored history."""
    stored = [fact for row in world.rows.history[task_id] for fact in facts.decode(row.facts)]
    return [fact for fact in stored if type(fact) is kind][-1]


def test_a_success_records_the_duration_that_the_worker_measured() -> None:
    world, task_id, batch = dispatched()
    world.result(batch, metadata=TOOK)
    assert recorded(world, task_id, facts.Completed).run_ms == 13
    assert world.row(task_id).run_ms == 13
    world.check()


def test_a_success_without_a_duration_records_none() -> None:
    world, task_id, batch = dispatched()
    world.result(batch)
    assert recorded(world, task_id, facts.Completed).run_ms is None
    assert world.row(task_id).run_ms is None
    world.check()


def test_every_failed_attempt_keeps_its_error_and_duration_in_the_history() -> None:
    world, task_id, batch = dispatched(one(retry_limit=1, **FAST))
    world.result(batch, status="failed", error=wire.ErrorDetail(message="first", code="ValueError"), metadata=TOOK)
    world.pass_time(200)
    batch = world.batches()[-1]
    world.result(batch, status="failed", error=wire.ErrorDetail(message="'nope'", code="KeyError"), metadata=TOOK)
    backed_off, failed = recorded(world, task_id, facts.BackedOff), recorded(world, task_id, facts.Failed)
    assert (backed_off.message, backed_off.run_ms) == ("ValueError: first", 13)
    assert (failed.message, failed.run_ms) == ("KeyError: 'nope'", 13)
    world.check()


def test_a_short_failed_run_has_its_start_from_its_duration() -> None:
    world, task_id, batch = dispatched()
    world.pass_time(50)
    world.result(batch, status="failed", error=wire.ErrorDetail(message="no", retryable=False), metadata=TOOK)
    row = world.row(task_id)
    assert (row.finished_ms - row.started_ms, row.run_ms) == (13, 13)
    world.check()


def test_a_run_that_claims_to_be_longer_than_its_delivery_started_at_the_dispatch() -> None:
    world, task_id, batch = dispatched()
    longer = wire.ResultMetadata(execution_time_ms=1e300)
    world.result(batch, status="failed", error=wire.ErrorDetail(message="no", retryable=False), metadata=longer)
    row = world.row(task_id)
    assert (row.started_ms, row.run_ms) == (row.dispatched_ms, 2**53 - 1)
    world.check()


def test_a_held_step_keeps_the_error_that_its_worker_reported() -> None:
    world, task_id, batch = dispatched(ONCE, granted=True)
    world.fail(batch, message="the bank did not answer", code="outcome_unknown")
    assert recorded(world, task_id, facts.Held).message == "the bank did not answer"
    world.check()


def test_a_timeout_that_the_broker_decides_has_a_message() -> None:
    world = World()
    task_id = world.task(one(retry_limit=0, queue_timeout_ms=100))
    world.pass_time(200)
    failed = recorded(world, task_id, facts.Failed)
    assert failed.message == "queue_timeout: the step was not started within its queue_timeout_ms"
    assert failed.run_ms is None


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        ("KeyError", "KeyError: 'nope'", "KeyError: 'nope'"),
        ("KeyError", "KeyError", "KeyError"),
        ("exit_3", "line 1\nline 2", "exit_3: line 1 line 2"),
        (None, "no code", "no code"),
        (None, "", "failed"),
        ("declined", "", "declined"),
        ("E", "x" * 500, f"E: {'x' * 196}…"),
    ],
)
def test_a_fact_has_the_type_and_the_text_of_an_error_on_one_line(code: str | None, message: str, text: str) -> None:
    world, task_id, batch = dispatched(one(retry_limit=0))
    world.fail(batch, message=message, code=code)
    assert recorded(world, task_id, facts.Failed).message == text
    assert len(text) <= facts.MESSAGE_CHARACTERS_MAX


def test_a_new_attempt_has_no_duration_of_the_one_before() -> None:
    world, task_id, batch = dispatched(one(**FAST))
    world.result(batch, status="failed", error=wire.ErrorDetail(message="no"), metadata=TOOK)
    world.pass_time(200)
    assert world.batches()
    assert (world.row(task_id).state, world.row(task_id).run_ms) == ("dispatched", None)
    world.check()


# -- operators --------------------------------------------------------------------------------------------------------


def test_the_history_names_the_operator_of_each_command() -> None:
    world = World()
    task_id = world.task(ONE)
    world.ask(PauseTask, task_id=task_id, by="ann")
    world.ask(ResumeTask, task_id=task_id, by="bob")
    world.ask(CancelTask, task_id=task_id, reason="wrong order", by="cem")
    world.ask(RetryTask, task_id=task_id, reason="right after all", by="dot")
    kinds = (facts.Paused, facts.Resumed, facts.CancelAsked, facts.Operated)
    assert [recorded(world, task_id, kind).by for kind in kinds] == ["ann", "bob", "cem", "dot"]
    world.check()


def test_the_history_names_the_operator_who_resolved_a_step() -> None:
    world, task_id, batch = dispatched(once())
    world.start(batch)
    world.fail(batch, code="outcome_unknown")
    step_id = batch.steps[0].step_id
    world.ask(ResolveStep, step_id=step_id, outcome="completed", reason="looked it up", by="eve")
    assert recorded(world, task_id, facts.Operated).by == "eve"
    world.check()


# -- rows from before -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "fact"),
    [
        ('["completed",1,0,1,2,3]', facts.Completed(1, 0, 1, 2, 3)),
        ('["backed_off",1,0,1,"timeout",99]', facts.BackedOff(1, 0, 1, "timeout", 99)),
        ('["failed",1,0,1,"x"]', facts.Failed(1, 0, 1, "x")),
        ('["held",1,0,1,"x"]', facts.Held(1, 0, 1, "x")),
        ('["paused",1]', facts.Paused(1)),
        ('["resumed",1]', facts.Resumed(1)),
        ('["cancel_asked",1,"why"]', facts.CancelAsked(1, "why")),
        ('["operated",1,"retry",null,"why"]', facts.Operated(1, "retry", None, "why")),
    ],
)
def test_a_fact_that_was_stored_without_its_last_members_still_decodes(stored: str, fact: facts.Fact) -> None:
    assert facts.decode(f"[{stored}]") == [fact]


def test_the_last_members_of_a_fact_keep_their_order() -> None:
    ends = [["run_ms", "message"], ["run_ms", "message"], ["run_ms", "message"], ["run_ms"], ["by"], ["by"]]
    kinds = [facts.BackedOff, facts.Failed, facts.Held, facts.Completed, facts.Operated, facts.CancelAsked]
    for kind, end in zip(kinds, ends, strict=True):
        assert list(kind.__struct_fields__[-len(end) :]) == end
        assert list(kind.__struct_defaults__) == [None] * len(end)


# -- standard error ---------------------------------------------------------------------------------------------------


def stderr_of(world: World, step_id: int) -> tuple[int, str] | None:
    row = world.rows.queries.step_stderr(step_id)
    return None if row is None else (row.delivery, row.text)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_the_standard_error_of_a_run_is_stored_with_its_delivery(status: Any) -> None:
    world, _, batch = dispatched()
    world.result(batch, status=status, metadata=wire.ResultMetadata(stderr="warning: slow\n"))
    assert stderr_of(world, batch.steps[0].step_id) == (1, "warning: slow\n")
    world.check()


def test_a_later_run_replaces_the_standard_error() -> None:
    world, _, batch = dispatched(one(**FAST))
    world.result(batch, status="failed", metadata=wire.ResultMetadata(stderr="first"))
    world.pass_time(200)
    batch = world.batches()[-1]
    world.result(batch, metadata=wire.ResultMetadata(stderr=""))
    assert stderr_of(world, batch.steps[0].step_id) == (2, "")
    world.check()


@pytest.mark.parametrize(("text", "kept"), [("x" * 20_000, "x" * 16_384), ("a" + "é" * 9_000, "é" * 8_192)])
def test_a_long_standard_error_is_cut_to_its_last_16_kilobytes(text: str, kept: str) -> None:
    world, _, batch = dispatched()
    world.result(batch, metadata=wire.ResultMetadata(stderr=text))
    assert stderr_of(world, batch.steps[0].step_id) == (1, kept)


def test_a_late_result_does_not_replace_the_standard_error() -> None:
    world, _, batch = dispatched()
    world.result(batch, metadata=wire.ResultMetadata(stderr="first"))
    world.result(batch, status="failed", metadata=wire.ResultMetadata(stderr="late"))
    assert stderr_of(world, batch.steps[0].step_id) == (1, "first")


def test_the_text_leaves_memory_with_the_commit() -> None:
    world, task_id, batch = dispatched(one(**FAST))
    world.result(batch, status="failed", metadata=wire.ResultMetadata(stderr="x"))
    step = world.step(task_id)
    assert (step.stderr, step.dirty) == (None, 0)
    assert msgspec.structs.asdict(step)["run_ms"] is None
