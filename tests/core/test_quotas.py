"""Quotas of namespaces: what is refused, what counts, and what stays right over restarts and refused rows."""

from typing import Any

import pytest
from stepwire_broker.core.answers.answers import CommandRefused, TasksSubmitted
from stepwire_broker.core.answers.hints import HintCode, hint_text
from stepwire_broker.core.definitions.settings import LimitSettings, QuotaSettings, Settings
from stepwire_broker.core.intake.commands import CancelTask, RetryTask
from stepwire_broker.core.lanes.beats import presence
from stepwire_broker.core.membership.cluster_rows import ALL, Beaten, BrokerRow
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.model import events

from .world import World

SHOP: dict[str, Any] = {
    "name": "flow",
    "namespace": "shop",
    "steps": [
        {"name": "a", "handler_class": "h", "priority": 5},
        {"name": "b", "handler_class": "h", "depends_on": ["a"], "retry_limit": 0},
    ],
}
OTHER = {**SHOP, "namespace": "billing"}


def with_quota(**limits: Any) -> World:
    """A world in which only the namespace `shop` has a quota."""
    world = World(Settings(limits=LimitSettings(namespaces={"shop": QuotaSettings(**limits)})))
    world.apply(SHOP)
    world.apply(OTHER)
    return world


def assert_counts(world: World) -> None:
    assert world.state.open_by_namespace == world.rows.open_by_namespace
    assert world.state.open_steps == sum(world.state.open_by_namespace.values())


# -- max_open_steps ---------------------------------------------------------------------------------------------------


def test_a_submission_over_the_open_steps_of_its_namespace_is_refused_and_stores_nothing() -> None:
    world = with_quota(max_open_steps=5)
    world.submit(namespace="shop", count=2)
    refused = world.submit(namespace="shop")
    assert (refused.code, refused.limit, refused.owner) == ("quota", "open_steps_of_namespace", "shop")
    assert refused.retry_after_ms == 1_000
    assert refused.message == (
        "4 steps of the namespace shop are open and this submission adds 2; the quota is 5 (max_open_steps)"
    )
    assert hint_text(refused.hint) == "submit again later, or raise the limit of shop in limits.namespaces"
    assert len(world.rows.tasks) == 2
    assert_counts(world)


def see(world: World, *others: BrokerRow) -> None:
    """A beat of this broker reads its own row and these."""
    identity, mono = world.state.identity, world.now.mono
    if world.state.members is None:
        world.state.members = Members(identity.broker, identity.epoch, "1", 10_000, mono)
    own = BrokerRow(id=identity.broker, epoch=identity.epoch, beat=1, lease_ms=10_000)
    world.handle(Beaten(sent_mono=mono, received_mono=mono, brokers=(own, *others), lanes=()))


def other(**open_steps: int) -> BrokerRow:
    return BrokerRow(id="b2", epoch=99, beat=1, lease_ms=10_000, open_steps={ALL: 6, **open_steps})


def test_open_steps_of_other_brokers_count_for_the_quota_of_a_namespace() -> None:
    world = with_quota(max_open_steps=5)
    see(world, other(shop=4))
    refused = world.submit(namespace="shop")
    assert (refused.code, refused.message[:45]) == ("quota", "4 steps of the namespace shop are open and th")
    see(world, other(shop=3))
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)
    see(world)  # the row of a broker that has left is removed
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)


def test_open_steps_of_other_brokers_count_for_the_limit_of_all_namespaces() -> None:
    world = World(Settings(limits=LimitSettings(max_open_steps=9)))
    world.apply(OTHER)
    see(world, other())
    assert isinstance(world.submit(namespace="billing"), TasksSubmitted)
    refused = world.submit(namespace="billing")
    assert (refused.code, refused.message[:16]) == ("too_many_open_steps", "8 steps are open")


def test_a_broker_describes_its_open_steps_in_all_and_of_namespaces_with_a_quota() -> None:
    world = with_quota(max_open_steps=50)
    world.submit(namespace="shop", count=2)
    world.submit(namespace="billing")
    assert presence(world.state, None, "").open_steps == {ALL: 6, "shop": 4}


def test_a_quota_is_used_up_to_its_last_step_and_no_other_namespace_is_limited() -> None:
    world = with_quota(max_open_steps=4)
    assert isinstance(world.submit(namespace="shop", count=2), TasksSubmitted)
    assert isinstance(world.submit(namespace="billing", count=9), TasksSubmitted)
    assert world.state.open_by_namespace == {"shop": 4, "billing": 18}


def test_a_batch_of_several_namespaces_is_refused_whole_if_one_of_them_is_over_its_quota() -> None:
    world = with_quota(max_open_steps=3)
    new = events.NewTask("billing", "flow", None, b"{}", None, b"", 0, None)
    refused = world.ask(events.SubmitTasks, tasks=[new, *[new._replace(namespace="shop")] * 2], entropy=1)
    assert (refused.code, refused.owner) == ("quota", "shop")
    assert (world.rows.tasks, world.state.open_by_namespace) == ({}, {})


@pytest.mark.parametrize(
    ("tasks", "hint"), [(1, HintCode.RAISE_QUOTA), (2, HintCode.SPLIT_SUBMISSION)], ids=["a task", "a batch"]
)
def test_a_submission_that_no_quota_could_ever_hold_names_no_time_to_wait(tasks: int, hint: HintCode) -> None:
    world = with_quota(max_open_steps=1)
    refused = world.submit(namespace="shop", count=tasks)
    assert (refused.code, refused.retry_after_ms, refused.hint.code) == ("quota", None, hint)


def test_steps_that_end_free_their_quota_whether_they_complete_or_are_cancelled() -> None:
    world = with_quota(max_open_steps=4)
    cancelled, _ = world.submit(namespace="shop", count=2).task_ids
    assert world.submit(namespace="shop").code == "quota"
    world.ask(CancelTask, task_id=cancelled)
    assert world.state.open_by_namespace == {"shop": 2}
    world.hello()
    world.result(world.batches()[-1])
    world.result(world.batches()[-1])
    assert world.state.open_by_namespace == {}
    assert_counts(world)
    assert isinstance(world.submit(namespace="shop", count=2), TasksSubmitted)
    assert_counts(world)


def test_the_open_steps_of_each_namespace_are_the_same_after_a_restart() -> None:
    world = with_quota(max_open_steps=5)
    world.submit(namespace="shop", count=2)
    world.submit(namespace="billing")
    world.hello()
    world.result(world.batches()[0])
    counts = dict(world.state.open_by_namespace)
    world.restart()
    assert world.state.open_by_namespace == world.rows.open_by_namespace == counts == {"shop": 3, "billing": 2}
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)
    assert world.submit(namespace="shop").code == "quota"


def test_tasks_that_wait_in_the_database_count_as_well() -> None:
    quota = {"shop": QuotaSettings(max_open_steps=6)}
    world = World(Settings(limits=LimitSettings(namespaces=quota, max_active_tasks=1)))
    world.apply(SHOP)
    world.submit(namespace="shop", count=3)
    assert len(world.state.tasks) < 3
    assert world.submit(namespace="shop").code == "quota"
    assert_counts(world)


def test_a_repeated_submission_counts_its_steps_once() -> None:
    world = with_quota(max_open_steps=4)
    world.submit(namespace="shop", key="k")
    assert world.submit(namespace="shop", key="k").created == [False]
    assert_counts(world)
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)


def test_a_retry_counts_and_is_never_refused() -> None:
    world = with_quota(max_open_steps=2)
    (task_id,) = world.submit(namespace="shop").task_ids
    world.ask(CancelTask, task_id=task_id)
    world.submit(namespace="shop")
    assert not isinstance(world.ask(RetryTask, task_id=task_id, reason="again"), CommandRefused)
    assert world.state.open_by_namespace == {"shop": 4}
    assert_counts(world)
    assert world.submit(namespace="shop").code == "quota"


# -- steps_per_s ------------------------------------------------------------------------------------------------------


def test_a_rate_admits_its_steps_of_a_second_at_once_and_then_as_they_are_paid() -> None:
    world = with_quota(steps_per_s=4)
    world.submit(namespace="shop", count=2)
    refused = world.submit(namespace="shop")
    assert (refused.code, refused.limit, refused.retry_after_ms) == ("quota", "steps_per_s_of_namespace", 250)
    assert "more steps than its quota of 4 per second" in refused.message
    world.pass_time(249)
    assert world.submit(namespace="shop").retry_after_ms == 1
    world.pass_time(1)
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)
    assert world.submit(namespace="shop").code == "quota"


def test_a_submission_larger_than_the_rate_is_accepted_and_the_next_waits_until_it_is_paid() -> None:
    world = with_quota(steps_per_s=4)
    assert isinstance(world.submit(namespace="shop", count=10), TasksSubmitted)
    refused = world.submit(namespace="shop")
    assert refused.retry_after_ms == 4_250
    world.pass_time(refused.retry_after_ms)
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)


def test_a_refused_submission_pays_nothing() -> None:
    world = with_quota(steps_per_s=4, max_open_steps=6)
    world.submit(namespace="shop")
    for _ in range(3):
        assert world.submit(namespace="shop", count=3).limit == "open_steps_of_namespace"
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)


# -- priority_max -----------------------------------------------------------------------------------------------------


def test_a_priority_counts_with_that_of_the_steps_and_names_no_time_to_wait() -> None:
    world = with_quota(priority_max=7)
    assert isinstance(world.submit(namespace="shop", priority=2), TasksSubmitted)
    refused = world.submit(namespace="shop", priority=3)
    assert (refused.code, refused.limit, refused.retry_after_ms) == ("quota", "priority_of_namespace", None)
    assert refused.message == (
        "the priority is 8 (3 of the task and 5 of a step); the quota of the namespace shop is 7 (priority_max)"
    )
    assert world.submit(namespace="shop", count=2, priority=3).message.startswith("tasks[0]: ")
    assert isinstance(world.submit(namespace="billing", priority=100), TasksSubmitted)


# -- changes at run time ----------------------------------------------------------------------------------------------


def test_a_changed_quota_applies_to_the_next_submission_and_open_steps_stay() -> None:
    world = with_quota(max_open_steps=4)
    world.submit(namespace="shop", count=2)
    world.handle(events.QuotasChanged({"shop": QuotaSettings(max_open_steps=2)}))
    assert world.state.open_by_namespace == {"shop": 4}
    assert world.submit(namespace="shop").code == "quota"
    world.handle(events.QuotasChanged({}))
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)
    world.handle(events.QuotasChanged({"shop": QuotaSettings(max_open_steps=7)}))
    assert world.submit(namespace="shop").code == "quota"


def test_a_namespace_keeps_what_it_has_used_of_its_rate_when_the_rate_changes() -> None:
    world = with_quota(steps_per_s=4)
    world.submit(namespace="shop", count=2)
    world.handle(events.QuotasChanged({"shop": QuotaSettings(steps_per_s=2)}))
    assert world.submit(namespace="shop").retry_after_ms == 500


def test_a_namespace_that_has_paid_all_its_steps_begins_a_new_rate_with_a_full_second() -> None:
    world = with_quota(steps_per_s=2)
    world.submit(namespace="shop")
    world.pass_time(1_000)
    world.handle(events.QuotasChanged({"shop": QuotaSettings(steps_per_s=6)}))
    world.submit(namespace="shop", count=2)
    assert isinstance(world.submit(namespace="shop"), TasksSubmitted)


def test_refusals_are_counted_by_namespace_and_limit() -> None:
    world = with_quota(max_open_steps=2, priority_max=9)
    world.submit(namespace="shop")
    for priority in (0, 0, 100):
        world.submit(namespace="shop", priority=priority)
    assert world.state.counters.over_quota == {
        ("shop", "open_steps_of_namespace"): 2,
        ("shop", "priority_of_namespace"): 1,
    }
