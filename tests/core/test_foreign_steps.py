"""Steps of lanes that other brokers own: their results are left to the owners, and never acknowledged here."""

import msgspec
from stepwire_broker.core.answers.answers import ResultTaken
from stepwire_broker.core.brokers import addresses
from stepwire_broker.core.brokers.listeners import BrokerEndpoints
from stepwire_broker.core.commit.decision import LoadBySteps, ResultsElsewhere
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.stored_rows import Loaded
from stepwire_broker.core.model import events
from stepwire_broker.core.sharing.order_texts import command_text, read_command
from stepwire_broker.store.ports import LANE
from stepwire_protocol import messages as wire

from .world import DEPLOYMENT, ONE, W, World, one

FOREIGN_LANE = 77
FOREIGN = 500 * IDS_PER_BLOCK + 5  # a step of that lane
OTHER_SESSION = "9.1"  # with the broker that owns it


def with_a_foreign_lane(world: World | None = None) -> World:
    world = world or World()
    world.state.blocks[500] = FOREIGN_LANE
    return world


def result(step_id: int, delivery: int = 1) -> wire.Result:
    return wire.Result(step_id=step_id, delivery=delivery, status="completed", output=msgspec.Raw(b"{}"))


def report(world: World, batch_id: str, *results: wire.Result, session: str = "7.1", rid: int = 1) -> None:
    world.say(
        wire.Results(
            v="2.0",
            worker=W,
            session=session,
            deployment=DEPLOYMENT,
            batch_id=batch_id,
            protocol_version="2.0",
            rid=rid,
            results=list(results),
        )
    )


def test_a_result_of_another_brokers_step_is_neither_read_nor_acknowledged() -> None:
    world = with_a_foreign_lane()
    world.hello()
    world.forget()
    report(world, "batch_1", result(FOREIGN), session=OTHER_SESSION)
    assert world.sent == []
    assert world.reads_decided == 0
    assert world.state.counters.ignored == 1


def test_a_result_that_ended_here_before_its_lane_moved_is_not_acknowledged() -> None:
    world = with_a_foreign_lane()
    world.hello()
    world.state.ended[FOREIGN] = 30_000
    report(world, "batch_1", result(FOREIGN))
    assert world.acked == []


def test_a_message_with_steps_of_two_brokers_is_applied_and_not_acknowledged() -> None:
    world = with_a_foreign_lane()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    report(world, batch.batch_id, result(batch.steps[0].step_id), result(FOREIGN))
    assert world.row(task_id).state == "completed"
    assert world.acked == []
    assert world.heard(wire.Adopt) == [], "the worker reports it to this broker already"
    world.check()


def test_a_broker_adopts_its_steps_of_a_message_that_the_worker_sends_to_another_broker() -> None:
    world = with_a_foreign_lane()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    own = (batch.steps[0].step_id, 1)
    report(world, batch.batch_id, result(own[0]), result(FOREIGN), session=OTHER_SESSION)
    assert world.row(task_id).state == "completed"
    assert world.acked == []
    assert [adopt.items for adopt in world.heard(wire.Adopt, W)] == [[own]]
    report(world, batch.batch_id, result(own[0]), rid=2)
    assert world.acked == [2], "the worker reports the step in a message of its own now"


def test_a_delivery_of_a_former_owner_is_claimed_before_it_is_cancelled() -> None:
    world = with_a_foreign_lane()
    world.state.is_shared = True
    world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    item = (batch.steps[0].step_id, 1)
    earlier = (item[0], 9)  # a delivery that is not the current one, of the broker that owned the lane before
    world.hello(n=2, holding=[(*item, "queued", 5), (*earlier, "asking", 5)])
    sent = [message for _, message in world.sent if isinstance(message, wire.Adopt | wire.Cancel)]
    assert [(type(message), message.items) for message in sent[:2]] == [
        (wire.Adopt, [earlier]),
        (wire.Cancel, [earlier]),
    ]
    world.pass_time(1_500)
    assert world.heard(wire.Adopt)[-1].items == [earlier], "asked again, because the first message may be lost"
    world.say(wire.Adopted(v="2.0", worker=W, session="7.1", items=[(*earlier, "unknown", 0)]))
    asked = len(world.heard(wire.Adopt))
    world.pass_time(3_000)
    assert len(world.heard(wire.Adopt)) == asked


def test_a_step_that_a_heartbeat_lists_before_it_is_adopted_is_claimed_all_the_same() -> None:
    world = World()
    world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    item = (batch.steps[0].step_id, 1)
    world.restart()
    world.state.is_shared = True
    world.hello(holding=[(*item, "asking", 5)])
    world.pass_time(10)
    assert [adopt.items for adopt in world.heard(wire.Adopt)][-1] == [item]
    world.check()


def test_a_refusal_of_one_step_does_not_make_the_worker_forget_the_steps_of_another_broker() -> None:
    world = with_a_foreign_lane()
    world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    report(world, "batch_9", result(batch.steps[0].step_id), result(FOREIGN))
    assert world.heard(wire.Refused) == []


def test_a_result_of_an_unknown_block_teaches_its_lane_so_the_next_one_is_not_read() -> None:
    world = World(answers_reads=False)
    task_id = world.task(ONE)
    stored = world.rows.read(LoadBySteps(0, [task_id + 1]), world.now.wall, 1_000).loaded
    world.hello()
    report(world, "batch_1", result(FOREIGN), session=OTHER_SESSION)
    (read,) = world.reads
    task = stored.tasks[0]._replace(id=FOREIGN - 1, lane=FOREIGN_LANE)
    step = stored.steps[0]._replace(id=FOREIGN, task_id=FOREIGN - 1)
    world.reads.clear()
    world.handle(events.LoadedTasks(Loaded([task], [step]), read.request))
    assert FOREIGN - 1 not in world.state.tasks
    report(world, "batch_1", result(FOREIGN), session=OTHER_SESSION)
    assert world.reads_decided == 1
    assert world.acked == []


# -- level 0 ----------------------------------------------------------------------------------------------------------


def answer(world: World, batch_id: str, *results: wire.Result) -> None:
    world.handle(wire.ResultsLevel0(batch_id=batch_id, protocol_version="1.0", results=list(results)))


def test_an_answer_of_a_level_0_handler_to_another_broker_is_neither_read_nor_refused() -> None:
    world = with_a_foreign_lane()
    world.peer()
    answer(world, "batch_1", result(FOREIGN))
    assert world.reads_decided == 0
    assert world.complaints == []
    assert world.state.counters.late_results == 0


def test_an_answer_with_steps_of_two_brokers_counts_for_the_own_ones() -> None:
    world = with_a_foreign_lane()
    world.peer()
    task_id = world.task(one(timeout="30s"))
    (batch,) = world.handed
    answer(world, batch.batch_id, result(batch.steps[0].step_id), result(FOREIGN))
    assert world.row(task_id).state == "completed"
    assert world.reads_decided == 0
    assert world.complaints == []
    world.check()


# -- results that are passed on to their owners -----------------------------------------------------------------------


def shared() -> World:
    """A broker that owns the first of two lanes, next to another live broker."""
    world = World(lanes=2, own=[LANE])
    addresses.on_others(world.state, [BrokerEndpoints("b2")], world.now)
    return world


ELSEWHERE = IDS_PER_BLOCK + 7  # an id of the second lane


def test_a_result_of_a_worker_that_misses_a_live_broker_is_passed_on() -> None:
    world = shared()
    world.hello()
    world.beat()
    report(world, "batch_1", result(ELSEWHERE))
    assert world.passed_on == [ResultsElsewhere(W, 1, "batch_1", (result(ELSEWHERE),))]
    assert (world.acked, world.reads_decided) == ([], 0)
    world.handle(events.ResultsTaken(W, 1))
    assert world.acked == [1]


def test_a_result_of_a_worker_that_sees_every_broker_is_left_to_the_third_try() -> None:
    world = shared()
    world.hello()
    world.say(wire.Heartbeat(v="2.0", worker=W, n=2, sessions={"b1": "7.1", "b2": "9.1"}, free={}))
    report(world, "batch_1", result(ELSEWHERE))
    assert world.passed_on == []


def test_a_result_of_a_worker_inside_the_process_is_passed_on() -> None:
    world = shared()
    world.hello(executor="poll")
    world.say(wire.Heartbeat(v="2.0", worker=W, n=2, sessions={"b1": "7.1", "b2": "9.1"}, free={}))
    report(world, "batch_1", result(ELSEWHERE))
    assert len(world.passed_on) == 1


def test_a_result_over_http_is_passed_on_also_without_a_session_and_before_another_broker_is_known() -> None:
    world = World(lanes=2, own=[LANE])
    world.handle(events.Attached(W, "poll"))
    report(world, "batch_1", result(ELSEWHERE))
    assert len(world.passed_on) == 1
    world.handle(events.ResultsTaken(W, 1))
    assert world.acked == [1]


def test_own_steps_of_a_message_that_is_passed_on_are_applied_at_once() -> None:
    world = shared()
    task_id = world.task(ONE)
    world.hello()
    world.beat()
    (batch,) = world.batches()
    world.accept(batch)
    report(world, batch.batch_id, result(batch.steps[0].step_id), result(ELSEWHERE))
    assert world.row(task_id).state == "completed"
    assert [len(each.results) for each in world.passed_on] == [1]
    assert world.acked == []


def test_a_report_becomes_an_order_to_the_owner_of_the_lane() -> None:
    world = shared()
    members = {"step_id": ELSEWHERE, "worker": W, "batch_id": "batch_1", "result": result(ELSEWHERE)}
    assert world.ask(events.ReportResult, **members) is None
    (order,) = world.orders
    assert (order.lane, read_command(command_text(order.command))) == (LANE + 1, order.command)


def dispatched_here() -> tuple[World, int, wire.Steps]:
    """A step of this broker, whose worker reports the result to another one."""
    world = shared()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    return world, task_id, batch


def passed(world: World, batch: wire.Steps, **changed: object) -> int:
    step = batch.steps[0]
    members = {
        "step_id": step.step_id,
        "worker": W,
        "batch_id": batch.batch_id,
        "result": result(step.step_id, step.delivery),
    }
    return world.order(events.ReportResult, **members | changed)


def test_the_owner_applies_a_result_that_another_broker_passed_on_once() -> None:
    world, task_id, batch = dispatched_here()
    first, second = passed(world, batch), passed(world, batch)
    world.look()
    assert world.row(task_id).state == "completed"
    assert [world.order_answer(order) for order in (first, second)] == [ResultTaken(), ResultTaken()]
    assert world.state.counters.completed == 1
    world.check()


def test_a_result_of_another_batch_is_not_applied_and_is_over() -> None:
    world, task_id, batch = dispatched_here()
    order = passed(world, batch, batch_id="batch_9")
    world.look()
    assert world.row(task_id).state == "dispatched"
    assert world.order_answer(order) == ResultTaken()
    assert world.state.counters.refused == {"wrong_batch": 1}


def test_a_result_of_a_step_that_is_not_in_memory_is_applied_after_a_read() -> None:
    world, task_id, batch = dispatched_here()
    world.restart()
    order = passed(world, batch)
    world.look()
    assert world.row(task_id).state == "completed"
    assert world.order_answer(order) == ResultTaken()


def test_a_result_of_a_removed_step_is_answered_as_not_found() -> None:
    world, _, batch = dispatched_here()
    order = passed(world, batch, step_id=batch.steps[0].step_id + 900)
    world.look()
    assert world.order_answer(order).code == "not_found"


def test_a_result_of_a_lane_that_no_live_broker_owns_waits_for_the_next_copy() -> None:
    world = World(lanes=2, own=[LANE])
    world.hello()
    world.beat()
    report(world, "batch_1", result(ELSEWHERE))
    assert (world.passed_on, world.acked) == ([], [])
