"""Orders: the owner of a lane carries out commands that came in at other brokers, once each, and answers with them.

The other broker is played by the test: it stores the order, and reads the answer.
"""

import random
from typing import Any

import msgspec
import pytest
import stepwire_protocol.messages as wire
from stepwire_broker.core.answers.answers import CommandRefused, Done
from stepwire_broker.core.answers.hints import HintCode
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.settings import LimitSettings, Settings
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.intake.erasure import ErasedTask, EraseTask
from stepwire_broker.core.membership.cluster_rows import LaneOwner
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model import events, facts
from stepwire_broker.core.sharing.explaining import StepsAnswer, WhyAnswer
from stepwire_broker.core.sharing.order_texts import COMMANDS, command_text, read_command
from stepwire_broker.core.sharing.orders import LOOK_EVERY_MS, ORDER_LIVES_MS, forget_lane
from stepwire_broker.store.ports import LANE

from .world import CHAIN, DIES_MS, ONCE, ONE, W, World

ELSEWHERE = IDS_PER_BLOCK + 7  # an id of the second lane
ANN = {"by": "ann", "via": "token", "request_id": "9.5"}  # the client of another broker


def shared(**members: object) -> World:
    """A broker that owns the first of two lanes."""
    return World(lanes=2, own=[LANE], **members)  # type: ignore[arg-type]


def submitted(document: dict[str, Any]) -> tuple[World, int]:
    """Such a broker with one stored task. From here on the test says when a group is committed."""
    world = shared()
    task_id = world.task(document)
    world.auto = False
    return world, task_id


def kinds(world: World, task_id: int) -> list[str]:
    return [fact[0] for row in world.rows.history[task_id] for fact in msgspec.json.decode(row.facts)]


# -- the broker that the client is connected to -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (CancelTask, {"task_id": ELSEWHERE, "reason": "sold out"}),
        (RetryTask, {"task_id": ELSEWHERE, "from_step": "a"}),
        (ResolveStep, {"step_id": ELSEWHERE, "outcome": "failed", "reason": "asked the bank"}),
        (
            ResolveStep,
            {"step_id": ELSEWHERE, "outcome": "completed", "reason": "r", "output": b'{"a":"z"}'},
        ),
        (ResolveStep, {"step_id": ELSEWHERE, "outcome": "completed", "reason": "r", "output": b"null"}),
        (EraseTask, {"task_id": ELSEWHERE, "reason": "a request"}),
    ],
)
def test_a_command_on_a_task_of_another_broker_becomes_an_order_with_its_author(kind: type, members: object) -> None:
    world = shared()
    assert isinstance(members, dict)
    assert world.ask(kind, by="ann", via="token", **members) is None
    (order,) = world.orders
    assert (order.request, order.lane) == (1, LANE + 1)
    assert order.command == kind(request=1, by="ann", via="token", request_id="7.1", **members)
    assert world.reads_decided == 0  # the task is not loaded, which would make it this broker's
    assert read_command(command_text(order.command)) == order.command


def test_a_client_waits_by_the_rows_for_a_task_of_another_broker() -> None:
    world = shared()
    world.ask(events.AwaitTask, task_id=ELSEWHERE)
    ((request, task_id),) = [(wait.request, wait.task_id) for wait in world.waits]
    assert (request, task_id) == (1, ELSEWHERE)
    assert not world.state.waiters


def test_every_command_on_a_task_or_step_has_a_form_as_an_order() -> None:
    members = {"task_id", "step_id"}
    of_tasks = {kind.__name__ for kind in events.Command.__subclasses__() if members & set(kind.__struct_fields__)} | {
        kind.__name__ for kind in events.CommandOfOperator.__subclasses__() if members & set(kind.__struct_fields__)
    }
    assert of_tasks - {"AwaitTask"} == set(COMMANDS) - {"MoveLane"}


# -- the owner of the lane --------------------------------------------------------------------------------------------


def test_the_answer_to_an_order_is_in_the_transaction_of_its_effect() -> None:
    world, task_id = submitted(CHAIN)
    order = world.order(CancelTask, task_id=task_id, reason="sold out", **ANN)
    world.look()
    group = world.groups[-1]
    assert [row.id for row in group.tasks_changed] == [task_id]
    assert [row.id for row in group.orders_answered] == [order]
    assert world.order_answer(order) is None
    world.settle()
    assert world.order_answer(order) == Done(task_id, "cancelled")
    assert world.rows.tables.orders[order].request == ""


def test_the_history_and_the_audit_name_the_author_of_an_order() -> None:
    world = shared()
    task_id = world.task(CHAIN)
    world.order(CancelTask, task_id=task_id, reason="sold out", **ANN)
    world.look()
    (asked,) = [f for row in world.rows.history[task_id] for f in facts.decode(row.facts) if hasattr(f, "by")]
    assert asked == facts.CancelAsked(asked.at, "sold out", "ann")
    row = world.rows.tables.audit[-1]
    assert (row.principal, row.via, row.action, row.request_id) == ("ann", "token", "cancel_task", "9.5")


def test_an_order_that_is_found_again_before_its_commit_is_carried_out_once() -> None:
    world, task_id = submitted(CHAIN)
    world.order(PauseTask, task_id=task_id, **ANN)
    for _ in range(3):
        world.look()
    world.settle()
    world.look()
    world.settle()
    assert kinds(world, task_id).count("paused") == 1


def test_a_read_from_before_the_commit_that_arrives_after_it_finds_nothing_to_do() -> None:
    world = shared(auto=False, answers_reads=False)
    world.apply(ONE)
    world.settle()
    world.submit()
    world.settle()
    (task_id,) = world.state.tasks
    order = world.order(PauseTask, task_id=task_id, **ANN)
    world.look()
    while world.reads:
        world.read()
    world.look()
    early = world.rows.read(world.reads.popleft(), world.now.wall, 1 << 20)
    assert isinstance(early, events.LookedAround)
    world.settle()
    assert world.order_answer(order) is not None
    world.handle(early)
    world.settle()
    assert kinds(world, task_id).count("paused") == 1
    assert len(world.rows.tables.audit) == 2  # of the workflow and of the order
    assert world.rows.parked == []
    assert not world.state.orders.under_way
    world.look()
    while world.reads:
        world.read()
    assert not world.state.orders.answered  # no later read can find it open


def test_a_refused_order_is_answered_without_an_effect() -> None:
    world = shared()
    task_id = world.task(ONE)
    absent = world.order(CancelTask, task_id=task_id + 999, **ANN)
    not_held = world.order(ResolveStep, step_id=task_id + 1, outcome="retry", reason="r", **ANN)
    world.look()
    assert world.order_answer(absent).code == "not_found"
    assert world.order_answer(not_held).code == "wrong_state"
    assert kinds(world, task_id) == ["submitted", "readied"]


def test_an_order_for_a_task_that_is_not_in_memory_is_answered_after_the_read() -> None:
    world = shared()
    world.hello(handlers=["nothing"])
    task_id = world.task(ONE)
    cancel = world.order(CancelTask, task_id=task_id, **ANN)
    world.look()
    assert world.order_answer(cancel) == Done(task_id, "cancelled")
    assert task_id not in world.state.tasks
    erase = world.order(EraseTask, task_id=task_id, reason="a request", **ANN)
    again = world.order(RetryTask, task_id=task_id, **ANN)
    world.look()
    erased = world.order_answer(erase)
    assert isinstance(erased, ErasedTask)
    assert erased.uid == world.stored(task_id).uid
    assert world.order_answer(again).code == "wrong_state"  # in the order in which they were stored


def test_an_order_whose_effect_the_database_refuses_is_refused() -> None:
    world = shared()
    task_id = world.task(CHAIN)
    world.rows.refuses = {task_id}
    order = world.order(CancelTask, task_id=task_id, **ANN)
    world.look()
    assert world.order_answer(order).code == "refused_by_database"
    assert world.stored(task_id).state == "running"
    assert not world.state.orders.under_way


def test_orders_in_the_group_after_a_refused_one_are_refused_with_their_task() -> None:
    world, task_id = submitted(CHAIN)
    first = world.order(PauseTask, task_id=task_id, **ANN)
    world.rows.refuses = {task_id}
    world.look()
    second = world.order(ResumeTask, task_id=task_id, **ANN)
    world.look()  # its effect is in the open group
    world.settle()
    assert [world.order_answer(n).code for n in (first, second)] == ["refused_by_database"] * 2
    assert len(world.rows.parked) == 1  # the effect of the first order
    assert kinds(world, task_id) == ["submitted", "readied"]


def test_an_order_that_meets_a_stalled_lane_stays_open_and_is_carried_out_later() -> None:
    world, task_id = submitted(CHAIN)
    world.ask(PauseTask, task_id=task_id)
    world.stall()
    order = world.order(CancelTask, task_id=task_id, **ANN)
    world.look()
    world.settle()
    assert world.order_answer(order) is None
    world.look()
    world.settle()
    assert world.order_answer(order) == Done(task_id, "cancelled")


def test_a_broker_that_is_killed_before_the_commit_leaves_the_order_to_the_next_owner() -> None:
    world, task_id = submitted(CHAIN)
    order = world.order(CancelTask, task_id=task_id, **ANN)
    world.look()
    assert world.groups[-1].orders_answered
    world.restart()
    world.look()
    world.settle()
    assert world.order_answer(order) == Done(task_id, "cancelled")
    assert kinds(world, task_id).count("cancel_asked") == 1


def test_a_broker_that_loses_the_lane_forgets_its_orders() -> None:
    world = shared(answers_reads=False)
    task_id = world.task(ONE)
    order = world.order(RetryTask, task_id=task_id + 999, **ANN)
    world.look()
    world.read()  # the order is found, and its task must be read
    forget_lane(world.state, LANE)
    while world.reads:
        world.read()
    assert world.order_answer(order) is None


def test_an_order_that_waited_too_long_is_not_carried_out() -> None:
    world = shared()
    task_id = world.task(CHAIN)
    order = world.order(CancelTask, task_id=task_id, **ANN)
    row = world.rows.tables.orders[order]
    world.rows.tables.orders[order] = row._replace(asked_ms=row.asked_ms - ORDER_LIVES_MS - 1)
    world.look()
    assert world.order_answer(order).code == "commit_unknown"
    assert world.stored(task_id).state == "running"


def test_a_command_of_a_newer_version_is_refused_by_name_of_the_broker() -> None:
    world = shared()
    order = world.order(CancelTask, task_id=1, **ANN)
    row = world.rows.tables.orders[order]
    world.rows.tables.orders[order] = row._replace(request=row.request.replace("CancelTask", "SignalTask"))
    world.look()
    refused = world.order_answer(order)
    assert isinstance(refused, CommandRefused)
    assert (refused.code, "b1" in refused.message) == ("invalid", True)


def test_orders_of_other_lanes_are_left_to_their_owners() -> None:
    world = shared()
    order = world.order(CancelTask, lane_of_order=LANE + 1, task_id=ELSEWHERE, **ANN)
    world.look()
    assert world.order_answer(order) is None


def test_a_failed_look_is_repeated() -> None:
    world = shared(answers_reads=False)
    world.look()
    world.fail_read()
    order = world.order(CancelTask, task_id=1, **ANN)
    world.look()
    while world.reads:
        world.read()
    assert world.order_answer(order).code == "not_found"


def test_a_broker_with_a_database_of_its_own_never_looks() -> None:
    world = World(answers_reads=False)
    world.pass_time(10 * LOOK_EVERY_MS)
    assert not world.reads


def test_the_owner_explains_a_task_in_memory_and_a_task_that_is_only_stored() -> None:
    world = shared()
    world.hello(handlers=["other"])
    task_id = world.task(CHAIN)
    waits = world.order(events.Explain, task_id=task_id)
    step = world.order(events.Explain, task_id=task_id, step="b")
    absent = world.order(events.Explain, task_id=task_id, step="z")
    world.look()
    why = world.order_answer(waits)
    assert isinstance(why, WhyAnswer)
    assert (why.task_id, why.state, why.code, why.step) == (task_id, "running", "no_worker_offers", "a")
    assert world.order_answer(step).code == "waits_for"
    assert world.order_answer(absent).code == "not_found"
    world.ask(CancelTask, task_id=task_id)
    assert task_id not in world.state.tasks
    ended = world.order(events.Explain, task_id=task_id)
    world.look()
    assert world.order_answer(ended).code == "cancelled"
    assert task_id not in world.state.tasks


def test_a_command_on_a_task_in_a_lane_that_may_have_lost_commits_is_refused_at_once() -> None:
    """No broker takes such a lane over, so an order would wait for nothing."""
    world = shared()
    world.state.members = Members("b1", 7, "1.2", 10_000, begun_mono=world.mono)
    world.state.members.lanes = (LaneOwner(LANE, "b1", 7, 1), LaneOwner(LANE + 1, "b2", 3, 1, is_in_doubt=True))
    refused = world.ask(CancelTask, task_id=ELSEWHERE)
    assert (refused.code, refused.hint.code) == ("database_unavailable", HintCode.ACCEPT_LOSS)
    assert refused.message.startswith(f"lane {LANE + 1}, which has the task, is not served: commits may have been lost")
    assert not world.orders


def test_the_owner_explains_the_open_steps_of_a_task_and_reports_their_progress() -> None:
    world = shared()
    task_id = world.task(CHAIN)
    stored = world.order(events.ExplainSteps, task_id=task_id)
    world.look()
    answer = world.order_answer(stored)
    assert isinstance(answer, StepsAnswer)
    assert [(why.step_id, why.code) for why in answer.steps] == [
        (task_id + 1, "no_worker_offers"),
        (task_id + 2, "waits_for"),
        (task_id + 3, "waits_for"),
    ]
    world.hello()
    (batch,) = world.batches()
    item = (batch.steps[0].step_id, batch.steps[0].delivery)
    world.accept(batch)
    world.say(wire.Progress(v="2.0", worker=W, session=world.session_id(1), items=[(*item, 3, 10, "half way")]))
    both = world.order(events.ExplainSteps, task_id=task_id)
    second = world.order(events.ExplainSteps, task_id=task_id, step_id=task_id + 2)
    world.look()
    answer = world.order_answer(both)
    (running, waiting, _), (report,) = answer.steps, answer.progress
    assert (running.code, running.delivery, report.step_id, report.done) == ("running", 1, task_id + 1, 3.0)
    assert world.order_answer(second).steps == (waiting,)


def test_the_owner_explains_the_open_steps_of_a_task_that_is_only_stored() -> None:
    world = shared(settings=Settings(limits=LimitSettings(max_active_tasks=1)))
    world.task(ONE)
    task_id = world.task(ONE)
    assert task_id not in world.state.tasks
    order = world.order(events.ExplainSteps, task_id=task_id)
    world.look()
    assert [why.code for why in world.order_answer(order).steps] == ["no_worker_offers"]
    assert task_id not in world.state.tasks


def test_a_held_step_is_resolved_by_an_order() -> None:
    world = shared()
    task_id = world.task(ONCE)
    world.hello()
    (batch,) = world.batches()
    world.start(batch)
    world.pass_time(DIES_MS)
    order = world.order(ResolveStep, step_id=task_id + 1, outcome="completed", reason="looked", **ANN)
    world.look()
    assert world.order_answer(order) == Done(task_id, "completed")


@pytest.mark.parametrize("seed", range(40))
def test_every_order_is_carried_out_once_whenever_brokers_are_killed_and_commits_are_late(seed: int) -> None:
    chance = random.Random(seed)
    world = shared(auto=False, answers_reads=False)
    world.apply(CHAIN)
    world.settle()
    world.submit(count=3)
    world.settle()
    task_ids = sorted(world.state.tasks)
    done: dict[int, int] = {}  # by order: the task
    for _ in range(60):
        match chance.randrange(7):
            case 0:
                task_id = chance.choice(task_ids)
                done[world.order(chance.choice([PauseTask, ResumeTask]), task_id=task_id, **ANN)] = task_id
            case 1 | 2:
                world.look()
            case 3 | 4 if world.reads:
                world.read()
            case 5 if world.writing is not None:
                world.commit()
            case 6 if chance.random() < 0.2:
                world.restart()
    for _ in range(4):
        world.look()
        for _ in range(20):
            while world.reads:
                world.read()
            world.settle()
    commands = [row for row in world.rows.tables.audit if row.action in ("pause_task", "resume_task")]
    assert [world.order_answer(order) is None for order in done] == [False] * len(done)
    assert len(commands) == len(done)
    for task_id in task_ids:
        changes = [row.outcome for row in commands if row.target == f"task {task_id}"]
        facts_of_task = [kind for kind in kinds(world, task_id) if kind in ("paused", "resumed")]
        assert changes.count("done") == len(facts_of_task)


# -- notifications ----------------------------------------------------------------------------------------------------


def test_an_order_is_carried_out_at_once_when_its_owner_is_notified() -> None:
    world = shared()
    task_id = world.task(CHAIN)
    order = world.order(PauseTask, task_id=task_id, **ANN)
    world.handle(Notification(orders=(LANE + 1,)))
    assert world.order_answer(order) is None  # that lane is another broker's
    world.handle(Notification(orders=(LANE,)))
    assert world.order_answer(order) == Done(task_id, "paused")
    assert world.notifications[-1] == Notification(answers=(order,))


def test_a_notification_during_a_look_is_followed_by_another_look() -> None:
    world = shared(answers_reads=False)
    world.look()
    world.handle(Notification(orders=(LANE,)))
    world.handle(Notification(orders=(LANE,)))
    assert len(world.reads) == 1
    world.read()
    assert len(world.reads) == 1
    world.read()
    assert not world.reads


def test_a_control_of_another_broker_is_used_at_once_after_a_notification() -> None:
    world = shared()
    before = world.reads_decided
    world.handle(Notification(controls=True))
    assert world.reads_decided == before + 1


def test_a_committed_change_of_the_controls_is_notified() -> None:
    world = shared()
    world.apply(CHAIN)
    assert world.notifications == [Notification(controls=True)]
