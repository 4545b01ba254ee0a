"""Lanes that this broker loses and takes while it runs: it forgets what it lost, and goes on with the others."""

from typing import Any

import msgspec
from stepwire_broker.core.answers.answers import CommandRefused, Done, TasksSubmitted
from stepwire_broker.core.answers.hints import HintCode
from stepwire_broker.core.definitions.settings import BusSettings, Level0Settings, Settings
from stepwire_broker.core.intake.commands import CancelTask, ResolveStep
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.lanes.releasing import CANCEL_AFTER_MS, LOOK_EVERY_MS
from stepwire_broker.core.model import events
from stepwire_broker.core.model.commit_group import LostCommits
from stepwire_broker.core.workers.executor_control import PauseExecutor
from stepwire_protocol import messages as wire

from .world import BROKER, CHAIN, DEPLOYMENT, DIES_MS, ONCE, ONE, W2, W, World, held

LOST, KEPT = 1, 2
RAW = msgspec.Raw(b"{}")


def two_lanes(document: dict[str, Any] = ONE, own: list[int] | None = None) -> tuple[World, int, int]:
    """A broker of two lanes, with a task in each. Returns the task of the lane that will be lost, and the other one."""
    world = World(lanes=2, own=own)
    tasks = {}
    while len(tasks) < 2:
        task_id = world.task(document)
        tasks[world.state.lane_of(task_id)] = task_id
    return world, tasks[LOST], tasks[KEPT]


def handed_out(document: dict[str, Any] = ONE, *workers: str) -> tuple[World, int, int, dict[int, wire.Steps]]:
    """The tasks of two lanes, each with its first step at a worker: the batches by task."""
    world = World(lanes=2)
    for worker in workers or (W, W2):
        world.hello(worker, slots=1, prefetch=1)
    batches: dict[int, wire.Steps] = {}
    tasks: dict[int, int] = {}
    while len(tasks) < 2:
        task_id = world.task(document)
        tasks[world.state.tasks[task_id].lane] = task_id
        batches[task_id] = world.batches()[-1]
    for worker, batch in {to: m for to, m in world.sent if isinstance(m, wire.Steps)}.items():
        world.accept(batch, worker, free=1)
    return world, tasks[LOST], tasks[KEPT], batches


def unknown(answer: Any) -> bool:
    assert isinstance(answer, CommandRefused)
    assert (answer.code, answer.hint.code) == ("commit_unknown", HintCode.SEND_AGAIN_WITH_KEY)  # type: ignore[union-attr]
    return True


# -- what is forgotten ------------------------------------------------------------------------------------------------


def test_the_tasks_of_a_lost_lane_leave_memory_and_the_other_lanes_go_on() -> None:
    world, lost, kept = two_lanes()
    world.lose(LOST)
    assert set(world.state.tasks) == {kept}
    assert world.state.open_steps == 1
    world.check()
    world.hello()
    world.result(world.last(wire.Steps))
    assert (world.row(kept).state, world.row(lost).state) == ("completed", "ready")
    assert world.state.lane_of(world.task(ONE)) == KEPT


def test_requests_whose_commit_is_lost_with_the_lane_get_commit_unknown_and_others_are_answered() -> None:
    world, lost, _kept = two_lanes()
    world.auto = False
    while len(world.writings) < 2:
        world.submit()
    asked = {lane: group.submissions[0].request for lane, group in world.writings.items()}
    cancelled = world.requests + 1
    world.ask(CancelTask, task_id=lost)
    waiting = world.requests + 1
    world.ask(events.AwaitTask, task_id=lost)
    world.lose(LOST)
    assert all(unknown(world.answers.get(request)) for request in (asked[LOST], cancelled, waiting))
    assert asked[KEPT] not in world.answers
    world.settle()
    assert isinstance(world.answers[asked[KEPT]], TasksSubmitted)
    world.check()


def test_a_submission_that_was_being_built_for_a_lost_lane_is_stored_nowhere() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    world.state.slice_steps = 1
    world.submit(count=3)
    ((request, building),) = world.state.building.items()
    world.lose(building.lane)
    assert unknown(world.answers[request])
    world.pass_time(1_000)
    assert (world.rows.tasks, world.state.open_steps, world.state.reserved_tasks) == ({}, 0, 0)
    world.check()


def test_nothing_that_rests_on_a_lost_group_is_sent() -> None:
    world, lost, kept, batches = handed_out(CHAIN)
    world.auto = False
    world.forget()
    rids = {task: world.result(batches[task], worker_of(world, task)) for task in (lost, kept)}
    world.lose(LOST)
    world.settle()
    assert world.acked == [rids[kept]]
    assert {item.step_id for batch in world.batches() for item in batch.steps} <= {kept + i for i in range(4)}
    world.check()


def test_an_ack_for_results_of_two_lanes_is_not_sent_if_one_of_them_is_lost() -> None:
    world, lost, kept, batches = handed_out(ONE, W)
    both = batches[kept]
    world.auto = False
    results = [wire.Result(step_id=s + 1, status="completed", delivery=1, output=RAW) for s in (lost, kept)]
    envelope = {"session": both.session, "deployment": DEPLOYMENT, "batch_id": both.batch_id, "rid": 1}
    for task in (lost, kept):
        world.step(task).batch_id = both.batch_id  # as if one batch had both
    world.say(wire.Results(v="2.0", worker=W, protocol_version="2.0", results=results, **envelope))
    world.commit(LOST)
    world.lose(LOST)
    world.settle()
    assert world.acked == []
    assert world.row(kept).state == "completed"


def test_the_answer_to_a_control_is_unknown_if_the_lane_with_its_row_is_lost_before_the_commit() -> None:
    world, _lost, _kept = two_lanes()
    world.auto = False
    while len(world.writings) < 2:
        world.submit()
    world.ask(PauseExecutor, executor="bus")
    asked = world.requests
    world.lose(LOST)
    assert unknown(world.answers[asked])
    world.settle()


def worker_of(world: World, task_id: int) -> str:
    return next(s.worker for s in world.state.tasks[task_id].steps if s.state == "dispatched")  # type: ignore[return-value]


def test_a_read_that_was_asked_before_the_loss_brings_no_task_of_the_lane_back() -> None:
    world, _lost, kept = two_lanes()
    world.answers_reads = False
    world.restart()
    world.answers_reads = False
    world.handle(events.Tick())
    assert world.reads
    world.lose(LOST)
    while world.reads:
        world.read()
    assert set(world.state.tasks) == {kept}
    world.check()


def test_commands_and_waits_for_a_task_of_a_lost_lane_go_to_its_owner() -> None:
    world, lost, _kept = two_lanes(own=[LOST, KEPT])
    world.ask(events.AwaitTask, task_id=lost)
    waiting = world.requests
    world.lose(LOST)
    assert [(wait.request, wait.task_id) for wait in world.waits] == [(waiting, lost)]
    decided = world.reads_decided
    world.ask(CancelTask, task_id=lost)
    world.ask(ResolveStep, step_id=lost + 1, outcome="failed", reason="")
    assert [order.lane for order in world.orders] == [LOST, LOST]
    assert world.reads_decided == decided


def test_an_open_order_of_a_lost_lane_is_left_to_its_next_owner() -> None:
    world, lost, kept = two_lanes(own=[LOST, KEPT])
    orders = {}
    for task in (lost, kept):
        orders[task] = world.order(CancelTask, world.state.lane_of(task), task_id=task, by="ann")
    world.auto = False
    world.look()
    world.lose(LOST)
    world.settle()
    assert world.order_answer(orders[lost]) is None
    assert world.order_answer(orders[kept]) == Done(kept, "cancelled")
    assert not world.state.orders.under_way


# -- workers ----------------------------------------------------------------------------------------------------------


def test_only_sessions_with_a_delivery_of_the_lost_lane_are_reset() -> None:
    world, lost, kept, _batches = handed_out()
    loser, keeper = worker_of(world, lost), worker_of(world, kept)
    world.forget()
    world.lose(LOST)
    assert [(to, m.code) for to, m in world.sent if isinstance(m, wire.Reset)] == [(loser, "expired")]
    world.forget()
    world.beat(loser)
    world.beat(keeper)
    assert [to for to, m in world.sent if isinstance(m, wire.HeartbeatAck)] == [keeper]
    assert [(to, m.code) for to, m in world.sent if isinstance(m, wire.Reset)] == [(loser, "expired")]
    world.check()


def test_a_run_of_a_kept_lane_goes_on_in_the_next_session_of_its_worker() -> None:
    world, lost, kept, batches = handed_out(ONE, W)
    world.beat(holding=[held(batches[task], "running") for task in (lost, kept)])
    world.lose(LOST)
    world.forget()
    world.hello(k=2, n=3, holding=[held(batches[task], "running") for task in (lost, kept)])
    assert world.heard(wire.Cancel) == []
    assert (world.step(kept).session.k, world.step(kept).delivery) == (2, 1)
    world.result(batches[kept], session=world.session_id(2))
    assert world.row(kept).state == "completed"
    world.check()


def test_a_step_that_did_not_start_goes_out_again_when_its_worker_opened_another_session() -> None:
    world, _lost, kept, _batches = handed_out(ONE, W)
    world.lose(LOST)
    world.hello(k=2, n=3)
    assert (world.step(kept).delivery, world.step(kept).session.k) == (2, 2)


def test_a_reset_worker_that_never_comes_back_loses_its_steps_when_its_lease_ends() -> None:
    world, _lost, kept, _batches = handed_out(ONE, W)
    world.lose(LOST)
    world.pass_time(DIES_MS + 1)
    assert world.row(kept).state == "ready"
    assert world.state.sessions == {}
    world.check()


def test_a_session_that_was_reset_gets_no_further_step() -> None:
    world = World(lanes=2)
    world.hello()
    world.task(ONE)
    world.accept(world.last(wire.Steps))
    world.lose(next(task.lane for task in world.state.tasks.values()))
    world.forget()
    task_id = world.task(ONE)
    assert world.row(task_id).state == "ready"
    assert world.heard(wire.Steps) == []


# -- taken again ------------------------------------------------------------------------------------------------------


def test_a_lane_that_is_taken_again_is_loaded_and_its_runs_are_adopted() -> None:
    world, lost, _kept, batches = handed_out(ONCE, W)
    world.start(batches[lost])
    world.lose(LOST)
    world.hello(k=2, n=3, holding=[held(batches[lost], "running")])
    world.take(LOST)
    world.pass_time(1)
    assert [item for m in world.heard(wire.Adopt) for item in m.items] == [(lost + 1, 1)]
    world.adopted(batches[lost], "running", k=2)
    world.result(batches[lost], session=world.session_id(2))
    assert world.row(lost).state == "completed"
    assert world.state.open_steps == world.rows.open_steps
    world.check()


def test_a_lane_has_its_own_safe_time_from_when_it_was_taken() -> None:
    world, lost, kept, _ = handed_out()
    loser, keeper = worker_of(world, lost), worker_of(world, kept)
    world.beat(loser)
    world.lose(LOST)
    world.stay(keeper, 2_000)
    world.take(LOST, lease_ms=20_000)
    world.stay(keeper, 15_000)
    world.state.await_safety(world.mono)  # another lane is safe before
    world.stay(keeper, 5_000)
    assert (world.step(lost).worker, world.step(lost).delivery) == (loser, 1)
    world.stay(keeper, 2_000)
    assert (world.step(lost).worker, world.step(lost).delivery) == (keeper, 2)
    world.check()


def test_a_run_of_a_taken_lane_outlives_the_session_that_adopted_it_until_the_lane_is_safe() -> None:
    world = World(lanes=2, own=[LOST, KEPT])
    world.hello()
    task_id = world.task(ONE)
    lane = world.state.tasks[task_id].lane
    batch = world.last(wire.Steps)
    world.accept(batch)
    world.lose(lane)
    world.hello(k=2, n=3, holding=[held(batch, "running")])
    world.take(lane, lease_ms=30_000)
    world.beat(k=2, n=4, holding=[held(batch, "running")])
    assert world.step(task_id).session is not None
    world.pass_time(2 * DIES_MS)  # the worker may still hold a lease from the former owner
    assert world.row(task_id).state == "dispatched"
    world.pass_time(DIES_MS)
    assert world.row(task_id).state == "ready"
    world.check()


def test_a_lane_that_is_taken_does_not_prolong_the_lease_of_a_session_without_its_deliveries() -> None:
    world = World(lanes=2, own=[LOST, KEPT])
    world.hello()  # the worker never confirms that it received the welcome
    world.lose(LOST)
    world.pass_time(DIES_MS - 1_000)
    world.take(LOST, lease_ms=30_000)
    world.pass_time(2_000)
    assert not world.state.sessions


def test_a_step_that_ended_before_its_lane_was_lost_is_not_superseded_when_the_lane_is_back() -> None:
    world, lost, _kept, batches = handed_out(ONE, W)
    world.result(batches[lost])
    assert lost + 1 in world.state.ended
    world.lose(LOST)
    world.take(LOST)  # another broker has reopened the task meanwhile, and its second delivery is with this worker
    world.forget()
    world.beat(n=9, holding=[(lost + 1, 2, "running", 0)])
    assert world.heard(wire.Cancel) == []


def test_tasks_that_were_only_in_the_database_are_counted_again() -> None:
    world, _lost, _kept = two_lanes()
    world.restart()
    before = (world.state.open_steps, len(world.state.tasks) + world.state.unloaded)
    world.lose(LOST)
    world.take(LOST)
    world.pass_time(1)
    assert (world.state.open_steps, len(world.state.tasks) + world.state.unloaded) == before == (2, 2)
    world.check()


# -- released ---------------------------------------------------------------------------------------------------------


def test_a_lane_without_anything_in_flight_is_released_at_once_and_its_steps_stay_for_the_next_owner() -> None:
    world, _lost, kept = two_lanes()
    world.handle(events.ReleaseLane(LOST))
    world.pass_time(LOOK_EVERY_MS)
    assert world.released == [LOST]
    world.hello()
    assert [batch.steps[0].step_id for batch in world.batches()] == [kept + 1]
    world.handle(events.LaneReleased(LOST))
    assert set(world.state.tasks) == {kept}
    world.check()


def test_new_tasks_go_to_lanes_that_stay() -> None:
    world, _lost, _kept = two_lanes()
    world.handle(events.ReleaseLane(LOST))
    assert {world.state.lane_of(world.task(ONE)) for _ in range(5)} == {KEPT}


def test_a_broker_that_gives_up_all_its_lanes_accepts_no_new_task() -> None:
    world, _lost, _kept = two_lanes()
    for lane in (LOST, KEPT):
        world.handle(events.ReleaseLane(lane))
    assert world.submit().code == "starting"


def test_unused_ids_of_a_released_lane_are_the_next_ones_of_its_next_owner() -> None:
    world, _lost, _kept = two_lanes()
    world.state.lanes[LOST].ids.is_asked = False
    first = world.state.lanes[LOST].ids.next
    world.handle(events.ReleaseLane(LOST))
    world.handle(events.LaneReleased(LOST))
    world.take(LOST)
    assert world.state.lanes[LOST].ids.next == first


def test_steps_that_their_workers_did_not_start_are_taken_back_after_two_seconds() -> None:
    world, lost, _kept, batches = handed_out()
    loser = worker_of(world, lost)
    world.forget()
    world.handle(events.ReleaseLane(LOST))
    world.pass_time(CANCEL_AFTER_MS - 1)
    assert world.heard(wire.Cancel) == []
    world.pass_time(LOOK_EVERY_MS)
    (cancel,) = world.heard(wire.Cancel)
    assert ([tuple(item) for item in cancel.items], cancel.reason) == ([(lost + 1, 1)], "superseded")
    assert world.released == []
    world.beat(loser, n=2, holding=[])
    world.pass_time(1)
    world.adopted(batches[lost], "unknown", loser)
    world.pass_time(LOOK_EVERY_MS)
    assert world.released == [LOST]
    assert world.row(lost).state == "ready"
    world.check()


def test_a_run_stays_with_its_worker_only_if_the_worker_has_a_session_with_every_other_broker() -> None:
    world, lost, _kept, batches = handed_out()
    loser = worker_of(world, lost)
    world.state.live_brokers = frozenset((BROKER, "b2", "b3"))
    world.handle(events.ReleaseLane(LOST))
    running = [held(batches[lost], "running")]
    for n, sessions in enumerate([("b2",), ("b2", "b3")], 2):
        assert world.released == []
        others = dict.fromkeys(sessions, "9.1")
        world.say(
            wire.Heartbeat(
                v="2.0", worker=loser, n=n, sessions={BROKER: world.session_id(), **others}, free={}, holding=running
            )
        )
        world.pass_time(LOOK_EVERY_MS)
    assert world.released == [LOST]
    world.forget()
    world.handle(events.LaneReleased(LOST))
    assert world.sent == []  # the session goes on, and the run with it
    world.check()


def test_a_lane_is_not_released_before_its_last_group_is_durable_and_its_last_message_sent() -> None:
    world, lost, _kept, batches = handed_out()
    world.auto = False
    rid = world.result(batches[lost], worker_of(world, lost))
    world.handle(events.ReleaseLane(LOST))
    world.pass_time(LOOK_EVERY_MS)
    assert (world.released, world.acked) == ([], [])
    world.settle()
    world.pass_time(LOOK_EVERY_MS)
    assert (world.released, world.acked) == ([LOST], [rid])


def test_a_batch_at_level_0_is_awaited() -> None:
    world = World(Settings(bus=BusSettings(level0=Level0Settings(handlers=["**"]))), lanes=2)
    world.peer()
    task_id = world.task(ONE)
    lane = world.state.tasks[task_id].lane
    world.handle(events.ReleaseLane(lane))
    world.pass_time(CANCEL_AFTER_MS + LOOK_EVERY_MS)
    assert world.released == []
    world.answer(world.handed[-1])
    world.pass_time(LOOK_EVERY_MS)
    assert world.released == [lane]


# -- lost commits -----------------------------------------------------------------------------------------------------


def test_a_lane_whose_commits_were_lost_is_stopped_and_named_and_the_others_go_on() -> None:
    world, lost, kept, batches = handed_out()
    keeper = worker_of(world, kept)
    world.forget()
    world.handle(LostCommits(LOST, "lane 1 ends before 9, which was committed: commits were lost"))
    refused = world.ask(CancelTask, task_id=lost)
    assert (refused.code, refused.hint.code) == ("database_unavailable", HintCode.ACCEPT_LOSS)
    assert world.state.stopped.keys() == {LOST}
    world.result(batches[kept], keeper)
    assert world.row(kept).state == "completed"
    assert not any(isinstance(m, wire.Steps) for _, m in world.sent)
    world.take(LOST)  # after an operator accepted the loss
    assert not world.state.stopped
    world.check()


# -- without a lane ---------------------------------------------------------------------------------------------------


def test_a_broker_without_a_lane_refuses_what_it_cannot_store_and_serves_again_with_one() -> None:
    world = World()
    world.apply(ONE)
    world.hello()
    world.lose(LOST)
    refused = [
        world.submit(),
        world.ask(PauseExecutor, executor="bus"),
        world.ask(DrainWorker, worker=W),
        world.apply(CHAIN),
    ]
    assert [(each.code, each.retry_after_ms) for each in refused] == [("starting", 1000)] * 4
    world.take(LOST)
    assert isinstance(world.submit(), TasksSubmitted)
    world.check()


def test_a_control_whose_group_was_lost_is_stored_in_another_lane() -> None:
    world, _lost, _kept = two_lanes()
    world.auto = False
    world.ask(PauseExecutor, executor="bus")
    world.lose(LOST)
    world.settle()
    assert [(row.kind, row.name) for row in world.rows.controls] == [("paused", "bus")]
    assert [row.action for row in world.rows.tables.audit if row.action == "pause_executor"] == ["pause_executor"]
    world.check()


def test_a_control_without_any_lane_is_stored_in_the_next_one() -> None:
    world = World()
    world.apply(ONE)
    world.auto = False
    world.ask(PauseExecutor, executor="bus")
    world.lose(LOST)
    world.take(LOST)
    world.settle()
    assert [(row.kind, row.name) for row in world.rows.controls] == [("paused", "bus")]


def test_a_large_submission_whose_lane_is_lost_meanwhile_is_unknown_and_no_more_of_it_is_built() -> None:
    world = World(lanes=2)
    world.apply(ONE)
    world.state.slice_steps = 1
    task = events.NewTask("default", "flow", None, b"{}", None, b"", 0, None)
    world.requests += 1
    request = world.requests
    world.handle(events.SubmitTasks(request, [task, task, task], 1 << 64))
    (building,) = world.state.building.values()
    world.lose(building.lane)
    world.pass_time(10)
    assert unknown(world.answers[request])
    assert not world.state.building
