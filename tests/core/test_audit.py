"""The rows of the audit that the core decides, in the group of their effect."""

import msgspec
import pytest
from stepwire_broker.core.intake.auditing import RecordAction
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.model import events, facts
from stepwire_broker.core.model.commit_group import AuditNew
from stepwire_broker.core.model.principal import Grant, with_built_in
from stepwire_broker.core.workers.executor_control import PauseExecutor

from .test_commands import held_step
from .world import ONE, W, World


def last(world: World) -> AuditNew:
    return world.groups[-1].audit[-1]


def test_the_row_is_in_the_group_that_has_the_effect() -> None:
    world = World()
    task_id = world.task(ONE)
    world.ask(PauseTask, task_id=task_id, by="ci", via="token")
    (row,) = world.groups[-1].audit
    assert (row.principal, row.via, row.action, row.target) == ("ci", "token", "pause_task", f"task {task_id}")
    assert (row.outcome, row.part, row.at_ms) == ("done", ("task", task_id), world.now.wall)
    assert [one.id for one in world.groups[-1].tasks_changed] == [task_id]
    assert b'"ci"' in world.groups[-1].history[-1].facts


def test_a_resolved_step_leaves_a_row_without_its_output() -> None:
    world, task_id, _ = held_step()
    output = b'{"card":"4111"}'
    world.ask(ResolveStep, step_id=task_id + 1, outcome="completed", reason="looked it up", output=output, by="ci")
    row = next(row for group in world.groups for row in group.audit if row.action == "resolve_step")
    assert (row.target, row.reason) == (f"step {task_id + 1}", "looked it up")
    assert msgspec.json.decode(row.detail)["output_bytes"] == 15
    assert "4111" not in repr(row)


@pytest.mark.parametrize(
    ("command", "members", "target"),
    [(DrainWorker, {"worker": W}, f"worker {W}"), (PauseExecutor, {"executor": "bus"}, "executor bus")],
)
def test_a_command_that_stores_nothing_else_is_answered_when_its_row_is_committed(
    command: type, members: dict[str, str], target: str
) -> None:
    world = World(auto=False)
    world.hello()
    world.settle()
    assert world.ask(command, by="ci", **members) is None
    assert world.writing is not None
    (row,) = world.writing.audit
    assert (row.principal, row.target) == ("ci", target)
    world.settle()
    assert world.answers[world.requests] is not None


def test_the_answer_is_a_refusal_and_no_row_is_stored_if_the_database_refuses_the_effect() -> None:
    world = World()
    task_id = world.task(ONE)
    before = len(world.rows.tables.audit)
    world.rows.refuses = {task_id}
    world.answers_reads = False
    assert world.ask(CancelTask, task_id=task_id, by="ci").code == "refused_by_database"
    assert len(world.rows.tables.audit) == before


def test_a_command_of_an_embedding_program_names_the_process() -> None:
    world = World()
    world.ask(CancelTask, task_id=world.task(ONE))
    assert (last(world).principal, last(world).via) == ("process", "process")


def test_an_action_outside_of_the_core_is_recorded_before_it_is_answered_and_refused_while_nothing_is_stored() -> None:
    world = World(auto=False)
    assert world.ask(RecordAction, action="prune_database", by="ci") is None
    assert world.writing is not None
    assert world.writing.audit[0].action == "prune_database"
    world.stall()
    assert world.ask(RecordAction, action="prune_database", by="ci").code == "disk_full"


def test_changed_grants_leave_a_row_each_and_the_grants_of_the_start_leave_none() -> None:
    world = World()
    shop = Grant(principal="shop", handlers=("shop.*",))
    world.handle(events.GrantsChanged(with_built_in((shop,))))
    assert not any(group.audit for group in world.groups)
    wider = msgspec.structs.replace(shop, handlers=("**",))
    for grants in ((wider,), (wider,), (), (shop,)):
        world.handle(events.GrantsChanged(with_built_in(grants)))
    found = [(row.action, row.target, row.via) for group in world.groups for row in group.audit]
    assert found == [(action, "principal shop", "file") for action in ("grant_changed", "grant_revoked", "grant_added")]


def test_facts_from_before_they_had_an_author_are_still_read() -> None:
    old = b'[["paused",1],["resumed",2],["cancel_asked",3,"no"],["operated",4,"retry",null,"again"]]'
    assert facts.decode(old) == [
        facts.Paused(1),
        facts.Resumed(2),
        facts.CancelAsked(3, "no"),
        facts.Operated(4, "retry", None, "again"),
    ]


def test_a_command_decided_while_the_refused_rows_of_its_task_are_written_leaves_no_row() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.submit()
    world.settle()
    (task_id,) = world.state.tasks
    world.answers_reads = False
    world.rows.refuses = {task_id}
    world.ask(PauseTask, task_id=task_id)
    first = world.writing
    world.ask(CancelTask, task_id=task_id)  # goes into the next group
    world.settle()
    assert first is not None
    assert [row.action for row in first.audit] == ["pause_task"]
    later = world.groups[world.groups.index(first) + 1 :]
    assert [row for group in later for row in group.audit] == []
    assert world.answers[world.requests].code == "refused_by_database"
