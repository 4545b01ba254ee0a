"""Submissions of tasks and workflows: keys, limits, loading and eviction."""

from typing import Any

import pytest
from stepwire_broker.core.answers.answers import Applied, CommandRefused, TasksSubmitted
from stepwire_broker.core.commit.id_blocks import block_of
from stepwire_broker.core.definitions.settings import LimitSettings, Settings
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask
from stepwire_broker.core.intake.submission import IDS_RESERVED, reserve_numbers
from stepwire_broker.core.model import events
from stepwire_broker.core.model.commit_group import Committed, WorkflowOutcome
from stepwire_broker.store.ports import LANE

from tests.memory_store.tables import BlockRow

from .world import CHAIN, ONE, W, World, one, steps


def limited(**limits: Any) -> World:
    return World(Settings(limits=LimitSettings(**limits)))


# -- workflows --------------------------------------------------------------------------------------------------------


def test_a_workflow_is_applied_once_and_applying_the_same_again_succeeds() -> None:
    world = World()
    first = world.apply(ONE)
    assert first == Applied(1, "default", "flow", "1", created=True)
    assert world.apply(ONE) == Applied(1, "default", "flow", "1", created=False)


def test_a_version_never_changes_its_content() -> None:
    world = World()
    world.apply(ONE)
    refused = world.apply(one(retry_limit=7))
    assert refused.code == "version_conflict"
    assert world.state.active[("default", "flow")].steps[0].retry_limit == 3


def test_the_newest_applied_version_is_the_default_and_applying_an_old_one_again_changes_nothing() -> None:
    world = World()
    world.apply(ONE)
    world.apply({**CHAIN, "version": "2"})
    world.apply(ONE)
    task_id = world.submit().task_ids[0]
    assert len(world.states(task_id)) == 3
    old = world.submit(version="1").task_ids[0]
    assert len(world.states(old)) == 1


def test_a_version_applied_without_activation_waits_to_be_activated() -> None:
    world = World()
    world.apply(ONE)
    world.apply({**CHAIN, "version": "2"}, activate=False)
    assert len(world.states(world.submit().task_ids[0])) == 1
    world.ask(events.ActivateWorkflow, namespace="default", name="flow", version="2")
    assert len(world.states(world.submit().task_ids[0])) == 3
    assert world.rows.active == {2}


def test_tasks_stay_on_the_version_they_started_with() -> None:
    world = World()
    task_id = world.task(ONE)
    world.apply({**CHAIN, "version": "2"})
    world.hello()
    world.result(world.batches()[0])
    assert world.stored(task_id).state == "completed"


def test_a_workflow_that_the_database_refuses_is_not_known() -> None:
    world = World(auto=False)
    request = world.requests + 1
    world.apply(ONE)
    group = world.writing
    assert group is not None
    world.writings.clear()
    failed = WorkflowOutcome(request, 0, created=False, conflict=False, failed="no")
    world.handle(Committed(group.lane, group.seq, workflows=[failed]))
    assert world.answers[request].code == "refused_by_database"
    assert world.state.workflows == {}
    assert world.state.active == {}


# -- submissions ------------------------------------------------------------------------------------------------------


def test_a_submission_is_stored_whole_with_its_first_dispatch_in_one_transaction() -> None:
    world = World()
    world.apply(CHAIN)
    world.hello()
    before = len(world.groups)
    submitted = world.submit(count=3)
    assert submitted == TasksSubmitted([1, 5, 9], [True] * 3)
    (group,) = world.groups[before:]
    assert (len(group.submissions[0].tasks), len(group.submissions[0].steps)) == (3, 9)
    assert len(group.steps_dispatched) == 3
    assert len(world.batches()[0].steps) == 3


def test_an_unknown_workflow_or_version_is_not_found() -> None:
    world = World()
    world.apply(ONE)
    assert world.submit("other").code == "not_found"
    assert world.submit(version="9").code == "not_found"
    assert world.submit(namespace="other").code == "not_found"
    assert world.rows.tasks == {}


def test_one_unknown_workflow_refuses_the_whole_submission() -> None:
    world = World()
    world.apply(ONE)
    good = events.NewTask("default", "flow", None, b"{}", None, b"", 0, None)
    bad = good._replace(workflow="nope")
    refused = world.ask(events.SubmitTasks, tasks=[good, bad], entropy=1)
    assert (refused.code, "tasks[1]" in refused.message) == ("not_found", True)
    assert (world.rows.tasks, world.state.open_steps) == ({}, 0)


def test_open_steps_are_limited_and_count_one_by_one_also_over_a_restart() -> None:
    world = limited(max_open_steps=4)
    world.apply(CHAIN)
    world.submit()
    assert world.state.open_steps == 3
    refused = world.submit()
    assert (refused.code, refused.retry_after_ms is not None) == ("too_many_open_steps", True)
    world.hello()
    world.result(world.batches()[-1])
    world.result(world.batches()[-1])
    assert world.state.open_steps == world.rows.open_steps == 1
    assert isinstance(world.submit(), TasksSubmitted)
    world.restart()
    assert world.state.open_steps == world.rows.open_steps == 4
    world.hello()
    world.check()
    task_id = min(world.state.tasks)
    world.ask(CancelTask, task_id=task_id)
    assert world.state.open_steps == world.rows.open_steps


def test_numbers_are_reserved_before_they_are_used_up() -> None:
    world = World()
    ids = world.state.lanes[LANE].ids
    ids.last = ids.next + 10
    world.rows.tables.blocks[0] = BlockRow(LANE, ids.last)
    world.apply(ONE)
    waited = world.submit(count=20)
    assert ids.last > IDS_RESERVED
    submitted = world.submit(count=20)
    for answer in (waited, submitted):
        assert isinstance(answer, TasksSubmitted)
        assert len({i for t in answer.task_ids for i in (t, t + 1)}) == 40
    assert not set(waited.task_ids) & set(submitted.task_ids)


def test_a_lane_continues_in_a_block_of_its_own_after_its_last_id() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    for lane in world.state.lanes.values():
        lane.ids.next = lane.ids.last - 2
        reserve_numbers(world.state, lane.number, 1)
    answers = [world.submit(count=2) for _ in range(6)]
    assert all(isinstance(answer, TasksSubmitted) for answer in answers)
    world.restart()
    world.submit(count=2)
    tasks = world.rows.tasks
    assert len(tasks) == 14
    assert {block_of(task_id) for task_id in tasks} == {2, 3}
    for task in tasks.values():
        assert {world.state.lane_of(task.id), world.state.lane_of(task.id + 1)} == {task.lane}
        assert block_of(task.id) == block_of(task.id + 1)
    assert world.state.lane_of(1 << 40) is None
    world.check()


def test_too_many_submissions_that_wait_for_ids_are_refused() -> None:
    world = limited(uncommitted_bytes=8_000)
    world.apply(ONE)
    ids = world.state.lanes[LANE].ids
    ids.last, ids.is_asked = ids.next, True  # further ids are on their way
    answers = [world.submit(context=b'{"a":"%s"}' % (b"x" * 500)) for _ in range(5)]
    assert answers[:2] == [None, None]
    refused = answers[-1]
    assert isinstance(refused, CommandRefused)
    assert (refused.code, refused.message) == ("overloaded", "new ids are being reserved")


def test_a_broker_that_leaves_returns_its_unused_ids_and_uses_none_of_them() -> None:
    world = World()
    world.apply(ONE)
    world.submit()
    unused = (world.state.lanes[LANE].ids.next, world.state.lanes[LANE].ids.last)
    world.handle(events.Leave())
    assert world.groups[-1].unused_ids == unused
    refused = world.submit()
    assert isinstance(refused, CommandRefused)
    assert refused.code == "overloaded"


def test_a_broker_that_leaves_while_it_reserves_ids_returns_none() -> None:
    world = World()
    world.apply(ONE)
    world.state.lanes[LANE].ids.is_asked = True
    world.handle(events.Leave())
    assert [group.unused_ids for group in world.groups if group.unused_ids is not None] == []


def test_submissions_are_refused_before_results_when_the_database_is_far_behind() -> None:
    world = limited(uncommitted_bytes=10_000)
    world.apply(ONE)
    world.submit(context=b'"' + b"x" * 100 + b'"')
    world.hello()
    world.auto = False
    world.submit(context=b'"' + b"x" * 6_000 + b'"')
    refused = world.submit()
    assert (refused.code, refused.retry_after_ms is not None) == ("overloaded", True)
    rid = world.result(world.batches()[0])
    world.settle()
    assert world.acked == [rid]
    assert not isinstance(world.submit(), CommandRefused)


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_submission_with_the_same_key_returns_the_same_task() -> None:
    world = World()
    world.apply(ONE)
    first = world.submit(key="k")
    again = world.submit(key="k")
    assert (first.created, again.created) == ([True], [False])
    assert again.task_ids == first.task_ids
    assert len(world.rows.tasks) == 1
    assert world.state.open_steps == 1
    world.check()


def test_a_submission_with_the_same_key_and_other_content_is_a_conflict_and_stores_nothing() -> None:
    world = World()
    world.apply(ONE)
    world.submit(key="k")
    refused = world.submit(key="k", context=b'{"b":2}')
    assert refused.code == "key_conflict"
    assert len(world.rows.tasks) == 1
    assert world.state.open_steps == 1
    assert world.state.reserved_tasks == 0
    world.check()


def test_keys_of_different_namespaces_are_independent() -> None:
    world = World()
    world.apply(ONE)
    world.apply({**ONE, "namespace": "shop"})
    assert world.submit(key="k").created == [True]
    assert world.submit(key="k", namespace="shop").created == [True]


def test_a_task_with_a_key_is_dispatched_only_after_it_owns_the_key() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello()
    world.apply({**ONE, "name": "other"})  # the writer has something to do
    world.submit(key="k")
    assert world.state.tasks == {}
    world.commit()
    assert world.state.tasks == {}
    assert world.groups[-1].steps_dispatched == []
    world.commit()
    assert len(world.groups[-1].steps_dispatched) == 1
    world.settle()
    assert len(world.batches()) == 1


def test_a_task_submitted_alone_is_dispatched_in_its_own_commit_and_sent_after_it() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello()
    world.submit(key="k")
    assert len(world.groups[-1].steps_dispatched) == 1
    assert world.batches() == []
    world.commit()
    assert len(world.batches()) == 1


@pytest.mark.parametrize("context", [b"{}", b'{"another":"content"}'])
def test_decisions_on_a_task_submitted_alone_are_taken_back_when_its_key_is_taken(context: bytes) -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello(slots=2, prefetch=0)
    world.submit(key="k")
    world.settle()
    assert len(world.batches()) == 1
    world.submit(key="k", context=context)
    again = world.requests
    other = world.submit(key="new")
    assert other is None
    assert len(world.groups[-1].steps_dispatched) == 1
    world.settle()
    answer = world.answers[again]
    assert isinstance(answer, CommandRefused) if context != b"{}" else answer.created == [False]
    # Nothing of it has left, and its slot is free for the next.
    assert [len(batch.steps) for batch in world.batches()] == [1, 1]
    assert len(world.rows.tasks) == 2
    assert world.state.open_steps == 2
    for batch in world.batches():
        world.result(batch)
    world.settle()
    assert world.state.open_steps == 0
    world.check()


def test_two_simultaneous_submissions_with_the_same_key_make_one_task() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.submit(context=b'{"busy":1}')
    requests = []
    for _ in range(2):
        world.submit(key="k")
        requests.append(world.requests)
    world.settle()
    answers = [world.answers[r] for r in requests]
    assert [a.created for a in answers] == [[True], [False]]
    assert answers[0].task_ids == answers[1].task_ids


def test_a_batch_leaves_out_the_tasks_whose_keys_are_taken() -> None:
    world = World()
    world.apply(ONE)
    world.hello()
    first = world.submit(key="k").task_ids[0]
    new = events.NewTask("default", "flow", None, b"{}", "k", b"{}", 0, None)
    tasks = [new, new._replace(key="other"), new._replace(key=None)]
    submitted = world.ask(events.SubmitTasks, tasks=tasks, entropy=77)
    assert submitted.created == [False, True, True]
    assert submitted.task_ids[0] == first
    assert sum(len(b.steps) for b in world.batches()) == 3
    assert world.state.open_steps == 3
    world.check()


def test_a_batch_with_a_key_conflict_stores_nothing() -> None:
    world = World()
    world.apply(ONE)
    world.submit(key="k")
    new = events.NewTask("default", "flow", None, b"{}", "k", b"different", 0, None)
    refused = world.ask(events.SubmitTasks, tasks=[new._replace(key=None), new], entropy=77)
    assert refused.code == "key_conflict"
    assert len(world.rows.tasks) == 1
    assert world.state.open_steps == 1
    world.check()


# -- dependencies, rules, and how a task ends -------------------------------------------------------------------------


def run(world: World, task_id: int, outcomes: dict[str, str]) -> dict[str, str]:
    """Run every step that comes, to the end."""
    world.hello()
    done: set[tuple[int, int]] = set()
    for _ in range(30):
        for batch in world.batches():
            for position, step in enumerate(batch.steps):
                if (step.step_id, step.delivery) not in done:
                    done.add((step.step_id, step.delivery))
                    if outcomes.get(step.step_name, "completed") == "completed":
                        world.result(batch, position=position)
                    else:
                        world.fail(batch, position=position, retryable=False)
    assert task_id not in world.state.tasks
    return world.states(task_id)


RULED = steps(
    {"name": "a"},
    {"name": "b", "depends_on": ["a"]},
    {"name": "undo", "depends_on": ["a", "b"], "trigger_rule": {"any": [{"failed": "a"}, {"failed": "b"}]}},
    {"name": "always", "depends_on": ["undo"], "trigger_rule": {"any": [{"completed": "undo"}, {"skipped": "undo"}]}},
)


@pytest.mark.parametrize(
    ("outcomes", "states", "task"),
    [
        ({}, {"a": "completed", "b": "completed", "undo": "skipped", "always": "completed"}, "completed"),
        ({"a": "failed"}, {"a": "failed", "b": "skipped", "undo": "completed", "always": "completed"}, "failed"),
        ({"b": "failed"}, {"a": "completed", "b": "failed", "undo": "completed", "always": "completed"}, "failed"),
        (
            {"a": "failed", "undo": "failed"},
            {"a": "failed", "b": "skipped", "undo": "failed", "always": "skipped"},
            "failed",
        ),
    ],
)
def test_a_rule_is_decided_when_all_dependencies_are_final(
    outcomes: dict[str, str], states: dict[str, str], task: str
) -> None:
    world = World()
    task_id = world.task(RULED)
    assert run(world, task_id, outcomes) == states
    assert world.stored(task_id).state == task


@pytest.mark.parametrize(("allowed", "task"), [(True, "completed"), (False, "failed")])
def test_a_failure_that_is_allowed_does_not_fail_the_task(allowed: bool, task: str) -> None:
    world = World()
    task_id = world.task(
        steps({"name": "a", "allow_failure": allowed}, {"name": "b", "depends_on": ["a"]}, {"name": "c"})
    )
    assert run(world, task_id, {"a": "failed"}) == {"a": "failed", "b": "skipped", "c": "completed"}
    assert world.stored(task_id).state == task


def test_a_rule_on_values_compares_context_and_outputs() -> None:
    world = World()
    rule = {
        "all": [
            {"context": "amount", "op": "greater_than", "value": 5},
            {"result": "a.ok", "op": "equals", "value": True},
        ]
    }
    document = steps({"name": "a"}, {"name": "b", "depends_on": ["a"], "trigger_rule": rule})
    large = world.task(document, context=b'{"amount":9}')
    small = world.task(document, context=b'{"amount":1}')
    world.hello()
    for batch in world.batches():
        for position in range(len(batch.steps)):
            world.result(batch, position=position)
    assert world.states(large)["b"] == "dispatched"
    assert world.states(small)["b"] == "skipped"


def test_a_step_waits_for_all_its_dependencies_and_is_dispatched_once() -> None:
    world = World()
    task_id = world.task(steps({"name": "a"}, {"name": "b"}, {"name": "join", "depends_on": ["a", "b"]}))
    world.hello()
    (batch,) = world.batches()
    world.result(batch, position=0)
    assert world.states(task_id)["join"] == "waiting"
    world.result(batch, position=1)
    assert world.states(task_id)["join"] == "dispatched"
    assert len(world.batches()) == 2


def test_a_skipped_step_skips_a_long_chain_of_dependents() -> None:
    chain = [{"name": "s0", "retry_limit": 0}] + [{"name": f"s{i}", "depends_on": [f"s{i - 1}"]} for i in range(1, 500)]
    world = World()
    task_id = world.task(steps(*chain))
    world.hello()
    world.fail(world.batches()[0])
    assert list(world.states(task_id).values()).count("skipped") == 499
    assert world.stored(task_id).state == "failed"


# -- what only waits in the database ----------------------------------------------------------------------------------


def small_world(**limits: Any) -> World:
    world = limited(max_active_tasks=2, **limits)
    world.apply(ONE)
    return world


def test_tasks_that_do_not_fit_into_memory_are_stored_and_loaded_when_there_is_room() -> None:
    world = small_world()
    world.hello(free={})  # it offers the handler, and has no room yet
    submitted = world.submit(count=5)
    assert len(world.state.tasks) == 2
    assert [world.stored(i).state for i in submitted.task_ids] == ["running"] * 2 + ["pending"] * 3
    assert world.state.unloaded == 3
    world.beat(n=2)
    finish_all(world)
    assert {world.stored(i).state for i in submitted.task_ids} == {"completed"}
    assert world.state.unloaded == 0
    for task_id in submitted.task_ids:
        assert world.rows.differences(task_id, world.state.workflows[1]) == []
    world.check()


def finish_all(world: World, worker: str = W) -> None:
    done: set[tuple[int, int]] = set()
    for _ in range(20):
        for batch in world.batches(worker):
            for position, step in enumerate(batch.steps):
                if (step.step_id, step.delivery) not in done:
                    done.add((step.step_id, step.delivery))
                    world.result(batch, worker, position=position, free=14, n=world.mono)
        world.stay(worker, 1_000)


def test_a_stored_task_with_a_deadline_runs_before_its_deadline() -> None:
    world = small_world()
    submitted = world.submit(count=4, deadline_ms=3_600_000)
    world.hello()
    finish_all(world)
    assert {world.stored(i).state for i in submitted.task_ids} == {"completed"}


def test_a_stored_task_whose_deadline_passes_in_the_database_fails() -> None:
    world = small_world()
    submitted = world.submit(count=4, deadline_ms=60_000)
    world.pass_time(130_000)
    assert {world.stored(i).state for i in submitted.task_ids} == {"failed"}
    world.check()


@pytest.mark.parametrize("paused", [False, True])
def test_tasks_without_a_worker_make_room_for_tasks_with_one(paused: bool) -> None:
    world = small_world()
    world.apply({"name": "other", "steps": [{"name": "only", "handler_class": "nobody"}]})
    if paused:
        idle = world.submit(count=2).task_ids
        for task_id in idle:
            world.ask(PauseTask, task_id=task_id)
    else:
        idle = world.submit("other", count=2).task_ids
    world.hello(handlers=["h"])
    wanted = world.submit(count=3).task_ids
    finish_all(world)
    assert {world.stored(i).state for i in wanted} == {"completed"}
    assert {world.row(i).state for i in idle} == {"ready"}
    loads = len(world.groups)
    world.stay(W, 5_000)
    assert len(world.groups) <= loads + 2  # and they do not come and go
    if paused:
        world.ask(ResumeTask, task_id=idle[0])
        assert world.row(idle[0]).state == "dispatched"
    else:
        world.hello("v:" + "0" * 16, handlers=["nobody"])
        finish_all(world, "v:" + "0" * 16)
        assert {world.stored(i).state for i in idle} == {"completed"}
    world.check()


def test_an_idle_task_leaves_memory_when_payload_bytes_are_short() -> None:
    world = limited(active_bytes=600)
    world.apply(ONE)
    resting = world.submit(context=b'"' + b"x" * 700 + b'"').task_ids[0]
    world.ask(PauseTask, task_id=resting)
    wanted = world.submit(count=3).task_ids
    assert [world.stored(i).state for i in wanted] == ["pending"] * 3
    world.hello()
    finish_all(world)
    assert {world.stored(i).state for i in wanted} == {"completed"}
    assert world.stored(resting).state == "paused"
    world.check()


def test_a_step_that_left_memory_and_was_loaded_again_is_queued_once() -> None:
    world = World()
    task_id = world.task(ONE)
    for _ in range(3):
        task = world.state.tasks[task_id]
        task.evicting = task.dirty = True
        world.state.outbox.mark(task)
        world.flush()
        assert world.state.tasks == {}
        world.ask(ResumeTask, task_id=task_id)
        assert task_id in world.state.tasks
    world.hello()
    assert [len(b.steps) for b in world.batches()] == [1]


@pytest.mark.parametrize("full", [{"max_active_tasks": 1}, {"active_bytes": 1}], ids=["tasks", "bytes"])
def test_a_held_task_stays_in_the_database_until_an_operator_resolves_it(full: dict[str, int]) -> None:
    world = limited(**full)
    step = {"name": "only", "handler_class": "h", "delivery_mode": "at_most_once", "deadline_ms": 5_000}
    world.apply({"name": "flow", "steps": [step]})
    held = world.submit(deadline_ms=6_000).task_ids[0]
    world.hello()
    world.start(world.batches()[0])
    world.pass_time(11_000)
    assert world.row(held).state == "held"
    other = world.submit().task_ids[0]
    world.hello(k=2)
    world.stay(W, 4_000, k=2)
    assert list(world.state.tasks) == [other]
    world.ask(ResolveStep, step_id=held + 1, outcome="completed", reason="seen")
    assert world.stored(held).state == "completed"
    world.check()


def test_a_page_that_cannot_be_read_is_read_again() -> None:
    world = small_world()
    world.hello()
    world.submit(count=3)
    world.answers_reads = False
    for batch in world.batches():
        for position in range(len(batch.steps)):
            world.result(batch, position=position)
    assert len(world.reads) == 1
    world.fail_read()
    world.stay(W, 1_001)
    assert len(world.reads) == 1
    world.read()
    assert len(world.state.tasks) == 1


def test_a_task_read_before_the_outcome_of_its_commit_arrives_is_not_loaded_twice() -> None:
    world = World(auto=False, answers_reads=False)
    world.apply(ONE)
    world.settle()
    world.apply({**ONE, "name": "other"})  # the writer has something to do
    world.submit(key="k")
    world.commit()
    group = world.writing
    assert group is not None
    outcome = world.rows.write(group)  # durable, and we have not heard of it
    task_id = group.submissions[0].tasks[0].id
    world.ask(PauseTask, task_id=task_id)
    pause = world.requests
    world.read()
    assert world.state.tasks == {}
    world.writings.clear()
    world.handle(outcome)
    world.settle()
    while world.reads:
        world.read()
    world.settle()
    assert world.answers[pause].state == "paused"
    assert world.state.unloaded == 0
    world.check()


@pytest.mark.parametrize("evicted", [True, False], ids=["left memory", "never in memory"])
def test_a_stored_task_is_loaded_when_any_of_its_ready_steps_is_offered(evicted: bool) -> None:
    world = small_world()
    roots = [{"name": name, "handler_class": f"{name}.handler"} for name in ("first", "second")]
    world.apply({"name": "wide", "steps": roots})
    if evicted:
        wide = world.submit("wide").task_ids[0]
        world.hello(handlers=["h"])
        finish_all_of(world, world.submit(count=6).task_ids)
    else:
        world.submit(count=2)
        wide = world.submit("wide").task_ids[0]
        world.hello(handlers=["h"])
        finish_all(world)
    other = "v:" + "0" * 16
    world.hello(other, handlers=["second.handler"])
    finish_all(world, other)
    assert world.states(wide) == {"first": "ready", "second": "completed"}
    world.check()


def finish_all_of(world: World, task_ids: list[int]) -> None:
    finish_all(world)
    assert {world.stored(i).state for i in task_ids} == {"completed"}


def idle_beside(world: World, count: int) -> list[int]:
    """Submit tasks whose handler no worker offers."""
    world.apply({"name": "idle", "steps": [{"name": "only", "handler_class": "nobody"}]})
    return world.submit("idle", count=count).task_ids


def test_new_tasks_go_into_memory_past_stored_tasks_that_no_worker_can_run() -> None:
    world = limited(max_active_tasks=8)
    world.apply(ONE)
    idle = idle_beside(world, 20)
    world.hello(handlers=["h"])
    world.stay(W, 2_000)  # one look at the stored tasks
    reads = world.reads_decided
    for task_id in world.submit(count=3).task_ids:
        assert world.stored(task_id).state == "running"
        assert task_id in world.state.tasks
    assert world.reads_decided == reads
    finish_all(world)
    assert {world.row(i).state for i in idle} == {"ready"}
    world.check()


def test_tasks_that_no_worker_can_run_fill_at_most_half_of_the_memory() -> None:
    world = limited(max_active_tasks=8)
    idle_beside(world, 20)
    assert len(world.state.tasks) == 4
    world.apply(ONE)
    world.hello(handlers=["h"])
    world.stay(W, 2_000)
    assert {world.stored(i).state for i in world.submit(count=2).task_ids} == {"running"}


def test_a_new_task_waits_behind_an_older_stored_task_that_could_run() -> None:
    world = small_world()
    world.hello(free={})
    world.submit(count=3)
    world.beat(n=2)
    batch = world.batches()[0]
    world.answers_reads = False
    world.result(batch, position=0)
    newer = world.submit().task_ids[0]
    assert world.stored(newer).state == "pending"


def test_stored_tasks_whose_handler_appears_run_although_new_tasks_never_stop_coming() -> None:
    world = limited(max_active_tasks=8)
    world.apply(ONE)
    idle = idle_beside(world, 12)
    world.hello(handlers=["h", "nobody"])
    done: set[tuple[int, int]] = set()
    for _ in range(12):
        world.submit(count=8)
        for batch in world.batches():
            for position, step in enumerate(batch.steps):
                if (step.step_id, step.delivery) not in done:
                    done.add((step.step_id, step.delivery))
                    world.result(batch, position=position, free=14, n=world.mono)
        world.stay(W, 500)
    assert {world.stored(i).state for i in idle} == {"completed"}
    world.check()


# -- large submissions ------------------------------------------------------------------------------------------------


def slicing_world(slice_steps: int, **limits: Any) -> World:
    world = limited(**limits)
    world.apply(ONE)
    world.apply({**CHAIN, "name": "chain"})
    world.state.slice_steps = slice_steps
    return world


def begin_large(world: World, count: int, key: str | None = None) -> int:
    """Submit tasks of 3 steps that are built in slices. Returns the number of the request."""
    tasks = [
        events.NewTask("default", "chain", None, b"{}", None if key is None else f"{key}{n}", b"{}", 0, None)
        for n in range(count)
    ]
    world.requests += 1
    world.handle(events.SubmitTasks(world.requests, tasks, world.requests << 64))
    return world.requests


def finish_building(world: World) -> int:
    """Let the turns of a large submission pass. Returns their number."""
    turns = 0
    while world.state.building:
        turns += 1
        world.mono += 1
        world.handle(events.Tick())
    return turns


@pytest.mark.parametrize("key", [None, "k"])
def test_a_large_submission_is_built_over_several_turns_and_stored_in_one_transaction(key: str | None) -> None:
    world = slicing_world(6)
    world.hello()
    request = begin_large(world, 10, key=key)
    groups = len(world.groups)
    assert world.state.building
    other = world.submit().task_ids[0]
    assert other in world.state.tasks  # a small submission does not wait for the large one
    assert finish_building(world) == 4
    world.settle()
    submitted = world.answers[request]
    stored = [len(s.tasks) for group in world.groups[groups:] for s in group.submissions]
    assert sorted(stored) == [1, 10]
    assert submitted.task_ids == list(range(submitted.task_ids[0], submitted.task_ids[0] + 40, 4))
    assert other > max(submitted.task_ids)
    finish_all(world)
    assert {world.stored(i).state for i in [*submitted.task_ids, other]} == {"completed"}
    world.check()


def test_nothing_of_a_large_submission_is_stored_if_the_broker_dies_while_it_is_built() -> None:
    world = slicing_world(6)
    begin_large(world, 10)
    world.handle(events.Tick())
    world.restart()
    assert world.rows.tasks == {}
    assert world.state.open_steps == 0


def test_a_large_submission_fills_the_memory_in_order_and_the_rest_is_stored() -> None:
    world = slicing_world(6, max_active_tasks=5)
    world.hello(free={})
    request = begin_large(world, 10)
    finish_building(world)
    world.settle()
    ids = world.answers[request].task_ids
    assert [i in world.state.tasks for i in ids] == [True] * 5 + [False] * 5
    assert world.state.reserved_tasks == 0
    world.check()


def test_a_submission_with_too_many_steps_is_refused_unless_it_is_a_single_task() -> None:
    world = slicing_world(4_000, steps_per_batch=8)
    refused = world.submit("chain", count=3)
    assert (refused.code, refused.retry_after_ms) == ("too_large", None)
    assert "9 steps; the limit of one submission is 8" in refused.message
    assert len(world.submit("chain", count=2).task_ids) == 2
    world.apply({"name": "long", "steps": [{"name": f"s{i}", "handler_class": "h"} for i in range(9)]})
    assert len(world.submit("long").task_ids) == 1


def test_a_submission_of_more_than_100_000_steps_is_refused_before_any_step_exists() -> None:
    world = World()
    world.apply({"name": "wide", "steps": [{"name": f"s{i}", "handler_class": "h"} for i in range(2_000)]})
    for tasks in (60, 51):
        refused = world.submit("wide", count=tasks)
        assert refused.code == "too_large"
        assert f"have {tasks * 2_000} steps; the limit of one submission is 100000" in refused.message
    assert (world.state.open_steps, world.state.building) == (0, {})


def test_many_large_submissions_at_once_are_refused_until_some_are_stored() -> None:
    world = slicing_world(3)
    requests = [begin_large(world, 3) for _ in range(9)]
    assert world.answers[requests[-1]].code == "overloaded"
    finish_building(world)
    world.settle()
    assert all(len(world.answers[request].task_ids) == 3 for request in requests[:-1])
    assert len(world.submit().task_ids) == 1


# -- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_can_be_written_twice() -> None:
    world = World()
    task_id = world.task(CHAIN)
    world.hello()
    for _ in range(3):
        world.result(world.batches()[-1])
    before = (world.rows.tasks.copy(), world.rows.steps.copy())
    world.rows.again(world.groups[-1])
    assert before == (world.rows.tasks, world.rows.steps)
    assert world.stored(task_id).state == "completed"


def test_an_idle_broker_writes_nothing() -> None:
    world = World()
    world.hello()
    world.stay(W, 10_000)
    assert world.groups == []
