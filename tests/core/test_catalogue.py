"""Workflows, blocks of ids and controls of other brokers reach this broker, and its own changes are not undone by reads
that are older than them.

The other broker is a second world over the same tables, which owns the other lane.
"""

from typing import Any

from stepwire_broker.core.answers.answers import Applied, TasksSubmitted
from stepwire_broker.core.commit.decision import ReadCatalogue
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.settings import RuleSettings
from stepwire_broker.core.guards.allowance import SetBreaker
from stepwire_broker.core.intake.commands import CancelTask
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.intake.routing_rules import SetRule
from stepwire_broker.core.loading.residency import PAGE_PAUSE_MS
from stepwire_broker.core.model import events
from stepwire_broker.core.workers.executor_control import PauseExecutor, ResumeExecutor
from stepwire_broker.store.ports import LANE

from tests.memory_store.database import taken_lane

from .world import ONE, W, World, steps

RULE = RuleSettings(match="default::**", worker_selector={"gpu": "true"})
OTHER_RULE = RuleSettings(match="shop::**", worker_selector={"gpu": "true"})


def two(**members: Any) -> tuple[World, World]:
    """Two brokers on one database, each with one of its two lanes."""
    first = World(lanes=2, own=[LANE], **members)
    return first, World(own=[LANE + 1], other=first, **members)


# -- workflows --------------------------------------------------------------------------------------------------------


def test_a_task_of_a_workflow_that_another_broker_applied_is_accepted_and_runs() -> None:
    first, second = two()
    second.apply(ONE)
    first.hello()
    submitted = first.submit()
    assert isinstance(submitted, TasksSubmitted)
    first.result(first.batches()[0])
    assert first.stored(submitted.task_ids[0]).state == "completed"


def test_an_unknown_workflow_is_looked_up_once_before_the_submission_is_refused() -> None:
    first, _ = two()
    reads = first.reads_decided
    assert first.submit("nothing").code == "not_found"
    assert first.reads_decided == reads + 1


def test_a_broker_alone_refuses_an_unknown_workflow_without_a_read() -> None:
    world = World()
    assert world.submit("nothing").code == "not_found"
    assert world.reads_decided == 0


def test_a_submission_during_a_read_waits_for_the_next_one() -> None:
    """The read under way may be older than the workflow."""
    first, second = two(answers_reads=False)
    first.submit("other")
    early = first.rows.read(first.reads.popleft(), first.now.wall, 1 << 20)
    second.apply(ONE)
    assert first.submit() is None
    request = first.requests
    first.handle(early)
    assert request not in first.answers
    first.read()
    assert isinstance(first.answers[request], TasksSubmitted)


def test_a_version_that_another_broker_activated_is_used() -> None:
    first, second = two()
    first.apply(ONE | {"version": "1"})
    second.look()
    second.apply(ONE | {"version": "2"})
    first.look()
    assert first.state.active["default", "flow"].version == "2"
    second.ask(events.ActivateWorkflow, namespace="default", name="flow", version="1")
    first.look()
    assert first.state.active["default", "flow"].version == "1"


def test_a_version_of_another_broker_can_be_activated_at_once() -> None:
    first, second = two()
    second.apply(ONE | {"version": "1"})
    second.apply(ONE | {"version": "2"})
    activated = first.ask(events.ActivateWorkflow, namespace="default", name="flow", version="1")
    assert isinstance(activated, Applied)


def test_an_activation_outlives_a_read_from_before_its_commit() -> None:
    first, _ = two(auto=False, answers_reads=False)
    for version in ("1", "2"):
        first.apply(ONE | {"version": version})
        first.settle()
    first.look()
    while not isinstance(first.reads[0], ReadCatalogue):
        first.read()
    first.ask(events.ActivateWorkflow, namespace="default", name="flow", version="1")
    first.read()
    first.settle()
    assert first.state.active["default", "flow"].version == "1"
    for _ in range(3):
        first.look()
        while first.reads:
            first.read()
    assert first.state.active["default", "flow"].version == "1"
    assert first.state.catalogue.revision == first.rows.queries.controls_revision()


def test_a_task_of_an_unknown_workflow_runs_after_its_lane_was_taken() -> None:
    first, second = two()
    second.apply(ONE)
    task_id = second.submit().task_ids[0]
    first.handle(events.LanesTaken((taken_lane(first.rows.tables, LANE + 1, 0),)))
    first.hello()
    first.pass_time(PAGE_PAUSE_MS)
    first.result(first.batches()[0])
    assert first.stored(task_id).state == "completed"


# -- ids --------------------------------------------------------------------------------------------------------------


def test_an_id_of_a_block_that_another_broker_reserved_is_looked_up_before_the_decision() -> None:
    first, second = two()
    second.apply(ONE)
    second.rows.tables.reserve_ids(LANE + 1, IDS_PER_BLOCK)
    last = max(second.rows.tables.blocks)
    assert last not in first.state.blocks
    first.ask(CancelTask, task_id=last * IDS_PER_BLOCK + 3)
    assert [order.lane for order in first.orders] == [LANE + 1]


def test_an_id_that_was_never_given_is_not_found() -> None:
    first, _ = two()
    assert first.ask(CancelTask, task_id=900 * IDS_PER_BLOCK).code == "not_found"


def test_commands_that_wait_for_a_read_are_refused_when_it_fails() -> None:
    first, _ = two(answers_reads=False)
    first.ask(CancelTask, task_id=900 * IDS_PER_BLOCK)
    first.fail_read()
    assert first.answers[first.requests].code == "database_unavailable"


# -- controls ---------------------------------------------------------------------------------------------------------


def test_rules_of_two_brokers_stand_beside_each_other() -> None:
    first, second = two()
    first.ask(SetRule, match=RULE.match, rule=RULE)
    second.ask(SetRule, match=OTHER_RULE.match, rule=OTHER_RULE)
    first.look()
    second.look()
    matches = [[placed.rule.match for placed in world.state.runtime_rules] for world in (first, second)]
    assert sorted(matches[0]) == sorted([RULE.match, OTHER_RULE.match])
    assert matches[0] == matches[1]


def test_a_rule_of_another_broker_applies_to_ready_steps() -> None:
    first, second = two()
    first.apply(ONE)
    second.ask(SetRule, match=RULE.match, rule=RULE)
    first.look()
    first.hello(labels={})
    task_id = first.submit().task_ids[0]
    assert first.row(task_id).state == "ready"
    second.ask(SetRule, match=RULE.match, rule=None)
    first.look()
    assert first.row(task_id).state == "dispatched"


def test_a_breaker_is_forced_and_released_at_every_broker() -> None:
    first, second = two()
    first.apply(ONE)
    second.look()
    second.ask(SetBreaker, handler_class="h", state="open", reason="the bank moves")
    first.look()
    guard = first.state.guards.by_handler["h"]
    assert (guard.breaker.is_forced, guard.breaker.state, guard.reason) == (True, "open", "the bank moves")
    first.hello()
    task_id = first.submit().task_ids[0]
    assert first.row(task_id).state == "ready"
    second.ask(SetBreaker, handler_class="h", state="auto")
    first.look()
    assert first.row(task_id).state == "dispatched"


def test_a_pause_of_an_executor_holds_at_every_broker_until_it_is_resumed() -> None:
    first, second = two()
    first.apply(ONE)
    second.ask(PauseExecutor, executor="bus")
    first.look()
    first.hello()
    task_id = first.submit().task_ids[0]
    assert first.row(task_id).state == "ready"
    second.ask(ResumeExecutor, executor="bus")
    first.look()
    assert first.row(task_id).state == "dispatched"


def test_a_worker_that_is_drained_at_one_broker_gets_no_steps_of_the_other() -> None:
    first, second = two()
    first.apply(ONE)
    for world in (first, second):
        world.hello()
    second.ask(DrainWorker, worker=W)
    first.look()
    task_id = first.submit().task_ids[0]
    assert first.row(task_id).state == "ready"
    assert W in first.state.quieted


def test_a_change_that_is_not_committed_is_not_undone_by_a_read() -> None:
    first, second = two(auto=False, answers_reads=False)
    second.ask(SetRule, match=OTHER_RULE.match, rule=OTHER_RULE)
    second.settle()
    first.ask(SetRule, match=RULE.match, rule=RULE)
    first.ask(PauseExecutor, executor="bus")
    first.look()
    while first.reads:
        first.read()
    matches = {placed.rule.match for placed in first.state.runtime_rules}
    assert matches == {RULE.match, OTHER_RULE.match}
    assert first.state.executor("bus").paused_wall is not None
    first.settle()
    for _ in range(2):
        first.look()
        while first.reads:
            first.read()
    assert {placed.rule.match for placed in first.state.runtime_rules} == matches
    assert not first.state.catalogue.own
    assert first.state.catalogue.revision == first.rows.queries.controls_revision()


def test_an_older_row_of_a_control_does_not_replace_a_change_that_is_not_committed() -> None:
    first, second = two(auto=False, answers_reads=False)
    first.ask(SetRule, match=RULE.match, rule=RULE)
    first.ask(PauseExecutor, executor="bus")
    first.settle()
    second.ask(SetRule, match=OTHER_RULE.match, rule=OTHER_RULE)
    second.settle()
    changed = RuleSettings(match=RULE.match, worker_selector={"gpu": "false"})
    first.ask(SetRule, match=RULE.match, rule=changed)
    first.ask(ResumeExecutor, executor="bus")
    first.look()
    while first.reads:
        first.read()
    assert [placed.rule for placed in first.state.runtime_rules if placed.rule.match == RULE.match] == [changed]
    assert first.state.executor("bus").paused_wall is None


def test_a_change_of_another_broker_that_an_early_read_must_leave_out_is_read_again() -> None:
    first, second = two(auto=False, answers_reads=False)
    first.ask(SetRule, match=RULE.match, rule=RULE)
    first.submit("nothing")  # the catalogue is read, and the read is slow
    first.settle()
    changed = RuleSettings(match=RULE.match, worker_selector={"gpu": "false"})
    second.ask(SetRule, match=RULE.match, rule=changed)
    second.settle()
    first.read()
    assert [placed.rule for placed in first.state.runtime_rules] == [RULE]
    first.look()
    while first.reads:
        first.read()
    assert [placed.rule for placed in first.state.runtime_rules] == [changed]


def test_a_look_without_news_reads_nothing_more() -> None:
    first, second = two()
    second.ask(SetRule, match=RULE.match, rule=RULE)
    first.look()
    before = first.reads_decided
    first.look()
    assert first.reads_decided == before + 1


def test_level_0_learns_the_handlers_that_workers_offered_at_other_brokers() -> None:
    first, second = two()
    second.hello(handlers=["order.charge"])
    first.look()
    assert first.state.level0_handlers.offer_of("order.charge") is not None


def test_a_held_workflow_with_two_steps_is_compiled_with_its_number() -> None:
    first, second = two()
    second.apply(steps({"name": "a", "handler_class": "h"}, {"name": "b", "handler_class": "h"}))
    first.look()
    (number,) = first.state.workflows
    assert first.state.workflows[number].id == number
