"""The database refuses the rows of one task, or a submission: no message that depends on them is ever sent."""

import pytest
from stepwire_broker.core.answers.answers import CommandRefused, Done
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, RetryTask
from stepwire_broker.core.model import events
from stepwire_protocol import messages as wire

from .world import CHAIN, DIES_MS, ONCE, ONE, W, World, steps


def test_a_refused_submission_dispatches_nothing_and_leaves_nothing() -> None:
    world = World()
    world.apply(ONE)
    world.hello()
    world.rows.refuses_submissions = True
    refused = world.submit(count=3)
    assert isinstance(refused, CommandRefused)
    assert refused.code == "refused_by_database"
    assert world.heard(wire.Steps) == []
    assert not world.state.tasks
    assert world.state.open_steps == 0
    assert world.state.sessions[W].credit == 14
    world.check()
    world.rows.refuses_submissions = False
    world.submit()
    assert len(world.heard(wire.Steps)) == 1


def test_changes_of_a_task_whose_insert_is_refused_are_never_written() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.submit()
    world.rows.refuses_submissions = True
    (task_id,) = world.state.tasks
    world.ask(CancelTask, task_id=task_id)  # decided while the insert is being written
    cancel = world.requests
    world.settle()
    assert world.answers[cancel].code == "refused_by_database"
    assert world.rows.tasks == {}
    assert world.rows.history == {}
    world.check()


def test_the_result_of_a_task_whose_rows_are_refused_is_not_acked_and_the_step_fails_as_unstorable() -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.hello()
    (batch,) = world.batches()
    world.rows.refuses = {task_id}
    world.answers_reads = False
    rid = world.result(batch)
    assert world.acked == []
    assert task_id not in world.state.tasks
    assert world.batches() == [batch]  # the next step is not known to be ready
    world.rows.refuses = set()
    world.read()
    assert world.states(task_id) == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert world.row(task_id, "a").reason == "unstorable"
    assert [p.code for p in world.rows.parked] == ["refused_by_database", "unstorable"]
    world.result(batch, rid=rid)
    assert world.acked == [rid]
    assert world.state.open_steps == 0
    world.check()


def test_a_batch_that_holds_a_step_of_a_refused_task_never_leaves_and_the_others_go_in_another() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.submit(count=2)
    world.settle()
    first, second = world.state.tasks
    world.hello()
    world.rows.refuses = {first}
    assert world.writing is not None
    assert {row.id for row in world.writing.steps_dispatched} == {first + 1, second + 1}
    world.commit()
    world.rows.refuses = set()
    world.settle()
    batches = world.batches()
    assert [[s.step_id for s in b.steps] for b in batches].count([second + 1]) == 1
    sent = sorted(s.step_id for b in batches for s in b.steps)
    assert sent == [first + 1, second + 1]
    assert world.state.sessions[W].unanswered == 2
    world.check()


def test_a_request_that_awaits_a_task_is_not_answered_with_an_end_that_was_not_stored() -> None:
    world = World()
    task_id = world.task(ONE)
    world.ask(events.AwaitTask, task_id=task_id)
    waits = world.requests
    world.hello()
    world.rows.refuses = {task_id}
    world.answers_reads = False
    world.result(world.batches()[0])
    assert waits not in world.answers
    world.rows.refuses = set()
    world.read()
    assert world.answers[waits] == Done(task_id, "failed", None)


def test_a_command_whose_rows_are_refused_is_refused() -> None:
    world = World()
    task_id = world.task(ONE)
    world.rows.refuses = {task_id}
    world.answers_reads = False
    refused = world.ask(PauseTask, task_id=task_id)
    assert refused.code == "refused_by_database"
    world.rows.refuses = set()
    world.read()
    assert world.state.tasks[task_id].state == "running"
    assert world.state.open_steps == 1
    world.check()


def test_a_failed_reload_of_a_refused_task_is_tried_again() -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b"}))
    world.rows.refuses = {task_id}
    world.answers_reads = False
    world.ask(PauseTask, task_id=task_id)
    world.rows.refuses = set()
    while world.reads:
        world.fail_read()
    world.answers_reads = True
    world.pass_time(1_000)
    assert world.state.tasks[task_id].state == "running"
    assert world.state.open_steps == 2
    world.check()


@pytest.mark.parametrize("outcome", ["completed", "failed", "retry"])
def test_a_held_step_stays_held_when_the_database_refuses_its_resolution(outcome: str) -> None:
    world = World()
    task_id = world.task(ONCE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.start(batch)
    world.pass_time(DIES_MS)
    world.ask(CancelTask, task_id=task_id)
    world.rows.refuses = {task_id}
    world.answers_reads = False
    refused = world.ask(ResolveStep, step_id=task_id + 1, outcome=outcome, reason="looked it up")
    assert refused.code == "refused_by_database"
    world.rows.refuses = set()
    world.read()
    assert world.states(task_id) == {"only": "held"}
    assert [p.code for p in world.rows.parked] == ["refused_by_database"]
    world.check()
    assert isinstance(world.ask(ResolveStep, step_id=task_id + 1, outcome=outcome, reason="again"), Done)
    assert world.states(task_id)["only"] != "held"


def test_a_step_that_a_refused_cancel_ended_goes_on() -> None:
    world = World()
    task_id = world.task(ONCE)
    world.hello()
    world.rows.refuses = {task_id}
    world.answers_reads = False
    assert world.ask(CancelTask, task_id=task_id).code == "refused_by_database"
    world.rows.refuses = set()
    world.read()
    assert world.states(task_id) == {"only": "dispatched"}
    world.check()


def test_a_late_success_of_a_held_step_whose_rows_are_refused_fails_the_step_as_unstorable() -> None:
    world = World()
    task_id = world.task(ONCE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.start(batch)
    world.pass_time(DIES_MS)
    world.rows.refuses = {task_id}
    world.answers_reads = False
    rid = world.result(batch)
    world.rows.refuses = set()
    world.read()
    assert (world.row(task_id).state, world.row(task_id).reason) == ("failed", "unstorable")
    world.result(batch, rid=rid)
    assert rid in world.acked
    world.check()


def test_a_result_after_a_retry_is_to_blame_although_a_command_ended_the_step_before() -> None:
    world = World()
    task_id = world.task(ONCE)
    world.hello()
    world.accept(world.batches()[0])
    world.start(world.batches()[0])
    world.pass_time(DIES_MS)
    world.hello(k=2, n=50)
    world.ask(ResolveStep, step_id=task_id + 1, outcome="failed", reason="looked it up")
    assert world.row(task_id).state == "failed"
    world.ask(RetryTask, task_id=task_id, from_step=None, again=False, new_key=False, reason="again")
    batch = world.batches()[-1]
    world.rows.refuses = {task_id}
    world.answers_reads = False
    world.result(batch)
    world.rows.refuses = set()
    world.read()
    assert world.row(task_id).reason == "unstorable"
    world.check()


def test_a_result_that_was_not_in_the_refused_group_is_applied_when_it_comes_again() -> None:
    """The command before it is at fault. Its rows were refused while the result waited for the next group."""
    world = World(auto=False, answers_reads=False)
    world.apply(ONE)
    world.settle()
    world.submit()
    world.settle()
    (task_id,) = world.state.tasks
    world.hello()
    world.settle()
    (batch,) = world.batches()
    world.rows.refuses = {task_id}
    world.ask(PauseTask, task_id=task_id)
    pause = world.requests
    assert world.writing is not None
    rid = world.result(batch)  # decided while the pause is being written
    world.commit()
    world.rows.refuses = set()
    world.settle()
    world.read()
    world.settle()
    assert world.answers[pause].code == "refused_by_database"
    assert world.states(task_id) == {"only": "dispatched"}
    assert [p.code for p in world.rows.parked] == ["refused_by_database"]
    assert world.acked == []
    world.result(batch, rid=rid)
    world.settle()
    assert (world.states(task_id), world.acked) == ({"only": "completed"}, [rid])
    world.check()


def test_of_two_results_only_the_one_in_the_refused_group_fails_its_step() -> None:
    world = World(auto=False, answers_reads=False)
    world.apply(steps({"name": "a"}, {"name": "b"}))
    world.settle()
    world.submit()
    world.settle()
    (task_id,) = world.state.tasks
    world.hello()
    world.settle()
    (batch,) = world.batches()
    world.rows.refuses = {task_id}
    refused = world.result(batch, position=0)
    rid = world.result(batch, position=1)
    world.commit()
    world.rows.refuses = set()
    world.settle()
    world.read()
    world.settle()
    assert world.states(task_id) == {"a": "failed", "b": "dispatched"}
    assert world.row(task_id, "a").reason == "unstorable"
    world.result(batch, rid=rid, position=1)
    world.result(batch, rid=refused, position=0)
    world.settle()
    assert world.states(task_id) == {"a": "failed", "b": "completed"}
    assert sorted(world.acked) == sorted([refused, rid])
    world.check()
