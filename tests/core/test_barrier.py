"""A decision has no visible effect before it is durable; messages that depend on nothing stored leave at once."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from stepwire_broker.core.commit.outbox import Outbox, SendAck, SendAnswer, SendMessage
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResumeTask, RetryTask
from stepwire_broker.core.model import events
from stepwire_broker.core.workers.executor_control import PauseExecutor
from stepwire_protocol import messages as wire

from .world import CHAIN, DIES_MS, ONCE, ONE, W2, W, World, held


def settled(document: dict = CHAIN, *, granted: bool = False) -> tuple[World, int, wire.Steps]:
    """A task whose first step a worker holds, all of it durable. From here on the test commits each group."""
    world = World()
    task_id = world.task(document)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if granted:
        world.start(batch)
    world.auto = False
    world.forget()
    return world, task_id, batch


def other_write(world: World) -> None:
    """Let another write be on its way to the disk."""
    world.submit(context=b'{"other":1}')
    assert world.writing is not None


def test_a_result_and_the_dispatch_that_follows_from_it_are_one_transaction_and_nothing_leaves_before_it() -> None:
    world, _, batch = settled()
    world.result(batch)
    assert world.writing is not None
    assert (len(world.writing.steps_completed), len(world.writing.steps_dispatched)) == (1, 1)
    assert world.sent == []
    world.commit()
    assert {type(m) for _, m in world.sent} == {wire.Ack, wire.Steps}


def test_the_ack_of_a_duplicate_waits_although_the_duplicate_writes_nothing() -> None:
    world, _, batch = settled()
    rid = world.result(batch)
    world.result(batch, rid=rid)
    assert world.acked == []
    world.commit()
    assert world.acked == [rid, rid]


def test_go_and_a_repeated_go_wait_for_the_commit_of_the_grant() -> None:
    world, _, batch = settled(ONCE)
    world.start(batch)
    world.start(batch)
    assert world.sent == []
    world.commit()
    assert [type(m) for _, m in world.sent] == [wire.Go, wire.Go]
    world.forget()
    world.start(batch)  # the grant is durable
    assert [type(m) for _, m in world.sent] == [wire.Go]


def test_a_go_whose_grant_is_durable_waits_for_the_commit_under_way() -> None:
    world, _, batch = settled(ONCE, granted=True)
    other_write(world)
    world.start(batch)
    assert world.heard(wire.Go) == []
    world.commit()
    assert len(world.heard(wire.Go)) == 1


@pytest.mark.parametrize(
    ("say", "kind"),
    [
        (lambda w, t, b: w.ask(CancelTask, task_id=t), wire.Cancel),
        (lambda w, t, b: w.start(b), wire.Cancel),  # a paused task's: not granted
        (lambda w, t, b: w.beat(n=9), wire.Adopt),  # it does not list what it accepted
        (lambda w, t, b: w.result(b), wire.Ack),
    ],
)
def test_every_message_that_depends_on_the_state_waits_for_everything_decided_before(
    say: Callable[[World, int, wire.Steps], Any], kind: type
) -> None:
    world, task_id, batch = settled(ONCE)
    if kind is wire.Cancel:
        world.ask(PauseTask, task_id=task_id)
    other_write(world)
    say(world, task_id, batch)
    world.pass_time(0)
    assert world.heard(kind) == []
    while world.writing is not None and not world.heard(kind):
        world.commit()
    assert len(world.heard(kind)) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda w, t: w.ask(PauseTask, task_id=t),
        lambda w, t: w.ask(CancelTask, task_id=t),
        lambda w, t: w.ask(ResumeTask, task_id=t),  # changes nothing, and waits as well
        lambda w, t: w.submit(),
        lambda w, t: w.apply({**ONE, "version": "2"}),
        lambda w, t: w.ask(events.ActivateWorkflow, namespace="default", name="flow", version="1"),
    ],
)
def test_an_answer_waits_for_everything_decided_before(ask: Callable[[World, int], Any]) -> None:
    world, task_id, _ = settled()
    other_write(world)
    assert ask(world, task_id) is None
    request = world.requests
    world.settle()
    assert request in world.answers


def test_a_request_that_awaits_the_end_is_answered_when_the_end_is_stored() -> None:
    world, task_id, batch = settled(ONE)
    world.ask(events.AwaitTask, task_id=task_id)
    waits = world.requests
    world.result(batch)
    assert waits not in world.answers
    world.commit()
    assert waits in world.answers


def test_messages_that_depend_on_nothing_stored_leave_at_once() -> None:
    world, _, batch = settled()
    other_write(world)
    world.hello(W2)
    world.beat(n=3, holding=[held(batch, "running")])
    world.hello("x:" + "0" * 16, versions=["9.0"])
    world.beat("y:" + "0" * 16)
    world.say(wire.Heartbeat(v="2.0", worker="z:" + "0" * 16, n=1))
    world.result(batch, W2)
    assert {type(m) for _, m in world.sent} == {
        wire.Welcome,
        wire.HeartbeatAck,
        wire.Reset,
        wire.Here,
        wire.Refused,
    }


def test_refusals_of_commands_leave_at_once() -> None:
    world, _, _ = settled()
    other_write(world)
    for asked in (
        lambda: world.submit("nothing"),
        lambda: world.ask(RetryTask, task_id=1, from_step="nothing"),
        lambda: world.ask(events.ActivateWorkflow, namespace="default", name="flow", version="77"),
    ):
        assert asked().code in ("not_found", "invalid", "wrong_state")


def test_messages_for_a_session_that_died_before_the_commit_are_never_sent() -> None:
    world, _, batch = settled(ONCE)
    world.start(batch)
    world.mono += DIES_MS
    world.handle(events.Tick())
    world.settle()
    assert world.heard(wire.Go) == []


def test_an_ack_is_sent_even_if_the_session_has_died() -> None:
    world, _, batch = settled()
    rid = world.result(batch)
    world.mono += DIES_MS
    world.handle(events.Tick())
    assert W not in world.state.sessions
    world.settle()
    assert world.acked == [rid]


def test_all_changes_during_a_transaction_are_in_the_next_one() -> None:
    world, task_id, batch = settled()
    other_write(world)
    in_flight = world.writing
    assert in_flight is not None
    world.result(batch)
    world.ask(PauseTask, task_id=task_id)
    world.submit()
    world.commit()
    group = world.writing
    assert group is not None
    assert group.seq == in_flight.seq + 1
    assert (len(group.steps_completed), len(group.submissions)) == (1, 1)
    assert [row.state for row in group.tasks_changed if row.id == task_id] == ["paused"]


def test_steps_are_not_dispatched_while_a_commit_is_under_way() -> None:
    world, _, batch = settled()
    other_write(world)
    world.result(batch)
    world.submit(count=3)
    first = world.groups[-1]
    world.commit()
    assert world.groups[-1] is not first
    assert len(world.groups[-1].steps_dispatched) == 4  # all that piled up, in one go


def test_messages_leave_in_the_order_they_were_decided() -> None:
    world, task_id, batch = settled(ONCE)
    other_write(world)
    world.start(batch)
    world.ask(CancelTask, task_id=task_id)
    world.result(batch)
    world.settle()
    assert [type(m) for _, m in world.sent if not isinstance(m, wire.Steps)] == [wire.Go, wire.Cancel, wire.Ack]


def test_the_answer_to_a_submission_comes_with_its_own_commit() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    assert world.submit(context=msgspec.json.encode({"a": 1})) is None
    request = world.requests
    assert request not in world.answers
    world.commit()
    assert request in world.answers


def test_the_answer_to_a_submission_waits_for_its_own_lane_only() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    world.auto = False
    while len(world.writings) < 2:
        world.submit()
    of_lane = {lane: group.submissions[0].request for lane, group in world.writings.items()}
    world.commit(2)
    assert (of_lane[2] in world.answers, of_lane[1] in world.answers) == (True, False)


def test_the_answer_to_a_command_that_belongs_to_no_task_waits_only_for_the_lane_with_its_row() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    world.auto = False
    while len(world.writings) < 2:
        world.submit()
    world.ask(PauseExecutor, executor="bus")
    of_pause = world.requests
    world.commit(1)
    assert of_pause not in world.answers
    world.commit(1)
    assert of_pause in world.answers
    assert world.writings.keys() == {2}


def test_a_command_that_changes_no_control_waits_for_a_control_in_a_lane_that_was_the_lowest() -> None:
    world = World(lanes=2, own=[2])
    world.auto = False
    world.settle()
    world.ask(PauseExecutor, executor="bus")
    world.take(1)
    world.ask(PauseExecutor, executor="bus")
    unchanged = world.requests
    while 1 in world.writings:
        world.commit(1)
    assert unchanged not in world.answers
    world.commit(2)
    assert unchanged in world.answers


def test_a_send_waits_for_the_lanes_of_its_tasks_and_without_a_task_for_all_lanes() -> None:
    world = World()
    ids = [world.task(ONE) for _ in range(2)]
    of_one, of_two = (world.state.tasks[task_id] for task_id in ids)
    of_one.lane, of_two.lane = 1, 2
    outbox = Outbox()
    outbox.add_lane(1, 10)
    outbox.add_lane(2, 20)
    sends = {
        "one": SendAnswer(1, None, of_one),
        "two": SendAnswer(2, None, of_two),
        "both": SendAck(b"", None, (of_one, of_two)),
        "unnamed": SendMessage(None, None),
        "control": SendAnswer(3, None),
    }
    outbox.touch(1).promised = outbox.touch(2).promised = True
    for send in sends.values():
        outbox.send(send)
    names = {id(send): name for name, send in sends.items()}

    def released() -> list[str]:
        return [names[id(send)] for send in outbox.released()]

    assert released() == []
    for lane in (1, 2):
        assert outbox.close(lane, world.now) is not None
    outbox.committed(2, 21)
    assert released() == ["two"]
    outbox.send(sends["two"])  # lane 2 has nothing open now
    assert released() == ["two"]
    outbox.committed(1, 11)
    assert released() == ["one", "control", "both", "unnamed"]
    assert len(outbox) == 0


def test_a_send_of_two_lanes_does_not_wait_behind_one_that_waits_for_a_stalled_lane() -> None:
    world = World()
    tasks = [world.state.tasks[world.task(ONE)] for _ in range(3)]
    outbox = Outbox()
    for lane, task in enumerate(tasks, 1):
        task.lane = lane
        outbox.add_lane(lane, 10)
        outbox.touch(lane).promised = True
    behind_stall = SendAck(b"", None, (tasks[0], tasks[1]))
    other = SendAck(b"", None, (tasks[1], tasks[2]))
    outbox.send(behind_stall)
    outbox.send(other)
    for lane in (1, 2, 3):
        assert outbox.close(lane, world.now) is not None
    outbox.lanes[1].stalled = "disk_full"
    outbox.committed(2, 11)
    outbox.committed(3, 11)
    assert list(outbox.released()) == [other]
    outbox.committed(1, 11)
    assert list(outbox.released()) == [behind_stall]


def test_steps_wait_for_the_row_of_the_offer_that_they_depend_on_in_another_lane() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    world.auto = False
    world.submit()
    world.submit()
    world.settle()
    (of_lowest,) = [task.id for task in world.rows.tables.tasks.values() if task.lane == 1]
    world.ask(CancelTask, task_id=of_lowest)
    world.settle()
    world.hello(handlers=["h"])  # its offer is a row in the lowest lane
    assert world.writings.keys() == {1, 2}
    world.commit(2)
    assert world.batches() == []
    world.commit(1)
    assert world.batches() != []


def test_steps_that_wait_for_an_offer_leave_although_the_lane_of_the_offer_is_lost() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    world.auto = False
    world.submit()
    world.submit()
    world.settle()
    (of_lowest,) = [task.id for task in world.rows.tables.tasks.values() if task.lane == 1]
    world.ask(CancelTask, task_id=of_lowest)
    world.settle()
    world.hello(handlers=["h"])
    world.lose(1)
    world.settle()
    assert world.batches() != []
