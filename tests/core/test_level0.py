"""Level 0 in the core: peers take turns, one lease decides, and late or wrong answers do no harm."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwire_broker.core import explain
from stepwire_broker.core.brokers import addresses
from stepwire_broker.core.brokers.listeners import BrokerEndpoints
from stepwire_broker.core.definitions.settings import BusSettings, Level0Settings, Settings
from stepwire_broker.core.intake.commands import CancelTask
from stepwire_broker.core.intake.drain import DrainWorker
from stepwire_broker.core.model import events
from stepwire_broker.core.takers import is_free
from stepwire_protocol import messages as wire

from .world import CHAIN, ONE, W, World, once, one, steps

LEASE_MS = 35_000  # a timeout of 30 s, plus 5 s


def level0(**members: Any) -> World:
    return World(Settings(bus=BusSettings(level0=Level0Settings(**members))))


def submitted(world: World, count: int, document: dict[str, Any] = ONE) -> list[int]:
    world.apply(document)
    return list(world.submit(count=count).task_ids)


def other(name: str) -> BrokerEndpoints:
    return BrokerEndpoints(name, "", ())


def live_beside(world: World, *names: str) -> None:
    addresses.on_others(world.state, [other(name) for name in names], world.now)


# -- several brokers --------------------------------------------------------------------------------------------------


def test_the_lease_has_time_for_a_batch_of_each_live_broker() -> None:
    world = World()
    live_beside(world, "b2", "b3")
    world.peer()
    task_id = world.task(ONE)
    world.pass_time(3 * LEASE_MS - 1)
    assert world.row(task_id).delivery == 1
    world.pass_time(1)
    assert (world.row(task_id).delivery, world.state.counters.level0_expiries) == (2, 1)


def test_a_lease_is_extended_when_another_broker_comes_to_life_and_not_shortened_when_one_dies() -> None:
    world = World()
    world.peer()
    task_id = world.task(ONE)
    world.pass_time(1_000)
    live_beside(world, "b2")
    live_beside(world)
    world.pass_time(2 * LEASE_MS - 1_001)
    assert world.row(task_id).delivery == 1
    world.pass_time(1)
    assert world.row(task_id).delivery == 2


def test_a_batch_from_before_a_restart_has_a_whole_lease_for_each_live_broker() -> None:
    world = World()
    world.peer()
    task_id = world.task(ONE)
    world.restart()
    live_beside(world, "b2")
    world.pass_time(2 * LEASE_MS - 1)
    assert world.row(task_id).state == "dispatched"
    world.pass_time(1)
    assert world.row(task_id).state == "ready"


def test_an_error_for_a_batch_of_another_broker_is_no_late_result() -> None:
    world = World()
    live_beside(world, "b2")
    error = wire.ResultsLevel0(batch_id="batch_of_b2", protocol_version="1.0", error="no")
    world.handle(error)
    assert (world.state.counters.ignored, world.state.counters.late_results) == (1, 0)


def test_a_peer_is_free_when_it_has_answered_a_batch_whose_lane_was_lost_meanwhile() -> None:
    world = World(lanes=2)
    world.peer()
    submitted(world, 1)
    submitted(world, 1)
    (batch,) = world.handed
    world.lose(world.state.lane_of(batch.steps[0].step_id))
    assert len(world.handed) == 1
    world.answer(batch)
    assert [step.task_id for step in world.handed[-1].steps] == list(world.state.tasks)
    assert world.state.counters.level0_expiries == 0


def test_an_answer_with_the_results_of_a_lost_lane_only_leaves_the_rest_of_its_batch_to_the_lease() -> None:
    world = World(Settings(bus=BusSettings(level0=Level0Settings(batch_max_steps=2))), lanes=2)
    submitted(world, 1)
    submitted(world, 1)
    world.peer()
    (batch,) = world.handed
    lost, kept = sorted((step.step_id for step in batch.steps), key=lambda id: world.state.lane_of(id) or 0)
    world.lose(1)
    done: dict[str, Any] = {"status": "completed", "output": msgspec.Raw(b"{}")}
    world.answer(batch, results=[wire.Result(step_id=lost, **done)])
    assert batch.batch_id in world.state.level0.handouts
    world.answer(batch, results=[wire.Result(step_id=kept, **done)])
    assert world.state.level0.handouts == {}


# -- dispatch ---------------------------------------------------------------------------------------------------------


def test_peers_take_turns_one_step_at_a_time() -> None:
    world = World()
    peers = [world.peer() for _ in range(3)]
    submitted(world, 9)
    assert [b.to for b in world.handed] == peers
    for batch in list(world.handed):
        world.answer(batch)
        world.check()
    assert [b.to for b in world.handed] == peers * 2
    assert all(len(b.steps) == 1 for b in world.handed)
    assert len({b.steps[0].step_id for b in world.handed}) == 6


def test_a_task_completes_with_level_0_handlers_only() -> None:
    world = World()
    world.peer()
    task_id = world.task(CHAIN, context=b'{"n":1}')
    for name in "abc":
        batch = world.handed[-1]
        assert batch.protocol_version == "1.0"
        assert batch.steps[0].step_name == name
        assert bytes(batch.steps[0].task_context) == b'{"n":1}'
        world.answer(batch)
        world.check()
    assert world.stored(task_id).state == "completed"


def test_a_new_peer_gets_nothing_until_its_pub_socket_can_reach_the_broker() -> None:
    world = World()
    submitted(world, 1)
    world.handle(events.PeerSubscribed())
    world.pass_time(499)
    assert not world.handed
    world.pass_time(1)
    assert len(world.handed) == 1


def test_a_peer_is_free_once_it_has_settled_and_while_it_holds_nothing() -> None:
    world = World()
    world.handle(events.PeerSubscribed())
    (peer,) = world.state.level0.peers.values()
    seen = [is_free(peer, world.now)]
    world.pass_time(500)
    seen.append(is_free(peer, world.now))
    submitted(world, 1)
    seen.append(is_free(peer, world.now))
    world.answer(world.handed[-1])
    seen.append(is_free(peer, world.now))
    assert seen == [False, True, False, True]


def test_a_worker_with_a_session_comes_first() -> None:
    world = World()
    world.peer()
    world.hello(free={"b1": 1}, slots=1, prefetch=0)
    submitted(world, 3)
    assert len(world.batches(W)) == 1
    assert not world.handed  # the other steps wait for the worker
    world.say(wire.Bye(v="2.0", worker=W))
    world.flush()
    assert len(world.handed) == 1


@pytest.mark.parametrize(
    ("members", "document", "is_served"),
    [
        ({}, ONE, True),
        ({"handlers": ("h",)}, ONE, True),
        ({"handlers": ("Other::**",)}, ONE, False),
        ({}, one(worker_selector={"gpu": "yes"}), False),
        ({}, one(worker_selector="local"), False),
        ({}, once(), False),
        ({"at_most_once": True}, once(), True),
    ],
)
def test_level_0_takes_only_the_steps_that_the_settings_allow(
    members: dict[str, Any], document: dict[str, Any], is_served: bool
) -> None:
    world = level0(**members)
    world.peer()
    submitted(world, 1, document)
    assert len(world.handed) == is_served


def test_a_peer_is_granted_nothing_while_no_handlers_are_allowed() -> None:
    world = level0(handlers=())
    world.handle(events.PeerSubscribed())
    assert not world.granted


def test_steps_that_level_0_may_not_take_do_not_block_the_others() -> None:
    world = World()
    mixed = steps({"name": "once", "delivery_mode": "at_most_once"}, {"name": "often"})
    submitted(world, 300, mixed)
    world.peer()
    assert [b.steps[0].step_name for b in world.handed] == ["often"]


def test_a_batch_is_as_large_as_configured_and_shared_out() -> None:
    world = level0(batch_max_steps=10)
    for _ in range(3):
        world.handle(events.PeerSubscribed())
    submitted(world, 12)
    world.pass_time(500)
    assert [len(b.steps) for b in world.handed] == [4, 4, 4]
    world.check()


def test_a_batch_leaves_after_its_commit_and_not_to_a_peer_that_left() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    to = world.peer()
    world.submit(count=1)
    assert world.writing is not None
    assert not world.handed
    world.commit()
    assert [b.to for b in world.handed] == [to]
    (row,) = world.rows.steps.values()
    assert row.state == "dispatched"

    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    to = world.peer()
    world.submit(count=1)
    world.handle(events.PeerVanished(to))
    world.settle()
    assert not world.handed
    (step,) = world.state.steps.values()
    assert (step.state, step.reason, step.lost_sessions) == ("ready", "unsent", 0)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_step_that_is_not_answered_within_its_lease_runs_elsewhere() -> None:
    world = World()
    dead, heir = world.peer(), world.peer()
    (task_id,) = submitted(world, 1)
    assert [b.to for b in world.handed] == [dead]
    world.handle(events.PeerVanished(dead))
    world.pass_time(LEASE_MS - 1)
    assert len(world.handed) == 1
    world.pass_time(1)
    assert [b.to for b in world.handed] == [dead, heir]
    world.answer(world.handed[1])
    assert world.stored(task_id).state == "completed"
    world.check()


def test_a_late_success_completes_the_step_although_it_runs_a_second_time() -> None:
    world = World()
    world.peer()
    world.peer()
    (task_id,) = submitted(world, 1)
    world.pass_time(LEASE_MS)
    first, second = world.handed
    assert first.to != second.to
    world.answer(first)
    assert world.stored(task_id).state == "completed"
    world.answer(second)
    world.answer(first)
    assert world.state.counters.late_results == 2
    assert not any(peer.doubted for peer in world.state.level0.peers.values())
    world.check()


def test_a_late_failure_changes_nothing() -> None:
    world = World()
    world.peer()
    (task_id,) = submitted(world, 1)
    world.pass_time(LEASE_MS)
    first, second = world.handed
    world.answer(first, "failed")
    assert world.step(task_id).state == "dispatched"
    world.answer(second)
    assert world.stored(task_id).state == "completed"


def test_a_peer_that_let_a_lease_expire_gets_one_step_at_a_time_until_it_answers() -> None:
    world = level0(batch_max_steps=3, at_most_once=True)
    to = world.peer()
    submitted(world, 9)
    assert len(world.handed[0].steps) == 3
    world.pass_time(95_000)
    assert [len(b.steps) for b in world.handed] == [3, 1]
    assert world.state.level0.peers[to].doubted
    world.answer(world.handed[1])
    assert not world.state.level0.peers[to].doubted
    world.check()


def test_a_doubted_peer_gets_no_at_most_once_step() -> None:
    world = level0(at_most_once=True)
    world.peer()
    submitted(world, 1)
    world.pass_time(LEASE_MS)
    world.answer(world.handed[0])
    # The peer is doubted again, because the second delivery of that step is not answered either.
    world.pass_time(LEASE_MS)
    assert next(iter(world.state.level0.peers.values())).doubted
    world.apply({**once(), "name": "pay"})
    (pay,) = world.submit("pay").task_ids
    assert len(world.handed) == 2
    why = explain.step(world.state, world.step(pay), world.now)
    assert (why.code, "restart one" in why.message) == ("workers_leaving", True)
    assert world.peer() == world.handed[-1].to
    assert len(world.handed) == 3


def test_a_step_fails_when_three_leases_ended_on_it() -> None:
    world = World()
    world.peer()
    (task_id,) = submitted(world, 1)
    world.pass_time(3 * LEASE_MS)
    assert (world.stored(task_id).state, world.row(task_id).reason) == ("failed", "worker_lost")
    world.check()


def test_time_in_which_the_loop_did_not_run_is_not_part_of_a_lease() -> None:
    world = World()
    world.peer()
    submitted(world, 1)
    world.handle(events.LoopWasLate(gap_ms=20_000))
    world.pass_time(LEASE_MS + 19_999)
    assert len(world.handed) == 1
    world.pass_time(1)
    assert len(world.handed) == 2


# -- at_most_once -----------------------------------------------------------------------------------------------------


def test_an_at_most_once_step_is_granted_at_dispatch_sent_once_and_held_when_its_lease_ends() -> None:
    world = level0(at_most_once=True)
    world.peer()
    world.peer()
    (task_id,) = submitted(world, 1, once())
    assert world.row(task_id).granted
    world.pass_time(10 * LEASE_MS)
    assert len(world.handed) == 1
    assert world.row(task_id).state == "held"
    assert world.stored(task_id).attention == "held"
    world.answer(world.handed[0])
    assert world.stored(task_id).state == "completed"
    world.check()


def test_a_reported_failure_of_an_at_most_once_step_is_final_even_while_its_task_is_cancelled() -> None:
    world = level0(at_most_once=True)
    world.peer()
    (task_id,) = submitted(world, 1, once(retry_limit=0))
    world.ask(CancelTask, task_id=task_id)
    world.answer(world.handed[0], "failed")
    assert world.stored(task_id).state == "cancelled"


def test_a_cancelled_task_ends_with_the_answer_or_the_lease() -> None:
    world = World()
    world.peer()
    answered, silent = world.task(ONE), world.task(ONE)
    for task_id in (answered, silent):
        world.ask(CancelTask, task_id=task_id)
    assert world.step(answered).state == "dispatched"
    world.answer(world.handed[0])
    assert world.stored(answered).state == "completed"
    assert world.stored(silent).state == "cancelled"


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "state"),
    [
        ({"status": "completed"}, "completed"),
        ({"status": "failed"}, "failed"),
        ({"status": "error"}, "failed"),
        ({"results": [], "error": "unexpected token"}, "failed"),
        ({"results": [], "error": wire.ErrorDetail(message="unexpected token")}, "failed"),
    ],
)
def test_an_answer_decides_its_step(members: dict[str, Any], state: str) -> None:
    world = World()
    world.peer()
    (task_id,) = submitted(world, 1, one(retry_limit=0))
    world.answer(world.handed[0], **members)
    assert world.stored(task_id).state == state
    world.answer(world.handed[0], **members)
    world.check()


def test_an_answer_to_a_part_of_a_batch_leaves_the_rest_to_its_lease() -> None:
    world = level0(batch_max_steps=2)
    world.peer()
    submitted(world, 2)
    (batch,) = world.handed
    world.answer(batch, results=[wire.Result(step_id=batch.steps[0].step_id, status="completed")])
    assert len(world.handed) == 1
    world.check()
    world.pass_time(65_000)
    assert [b.steps[0].step_id for b in world.handed[1:]] == [batch.steps[1].step_id]


def test_a_result_for_a_step_of_another_batch_is_refused_and_the_rest_of_the_answer_counts() -> None:
    world = World()
    world.peer()
    world.peer()
    mine, other = submitted(world, 2)
    first, second = world.handed
    results = [wire.Result(step_id=b.steps[0].step_id, status="completed") for b in (first, second)]
    world.answer(first, results=results)
    assert world.stored(mine).state == "completed"
    assert world.step(other).state == "dispatched"
    assert world.state.counters.refused["wrong_batch"] == 1
    world.check()


def test_a_level_0_answer_cannot_decide_a_workers_delivery() -> None:
    world = World()
    world.hello()
    (task_id,) = submitted(world, 1)
    batch = world.last(wire.Steps)
    forged = wire.StepsLevel0(batch_id=batch.batch_id, protocol_version="1.0", steps=[])
    world.answer(forged, results=[wire.Result(step_id=batch.steps[0].step_id, status="completed")])
    assert world.step(task_id).state == "dispatched"
    assert world.state.counters.refused["wrong_sender"] == 1


def test_a_worker_cannot_decide_a_peers_delivery() -> None:
    world = World()
    world.peer()
    (task_id,) = submitted(world, 1)
    world.hello()
    (batch,) = world.handed
    world.say(
        wire.Results(
            v="2.0",
            worker=W,
            session="7.1",
            deployment="d" * 32,
            batch_id=batch.batch_id,
            protocol_version="2.0",
            rid=1,
            results=[wire.Result(step_id=batch.steps[0].step_id, delivery=1, status="completed")],
        )
    )
    assert world.step(task_id).state == "dispatched"
    assert world.state.counters.refused["wrong_sender"] == 1


def test_an_answer_to_an_unknown_batch_is_late_or_refused() -> None:
    world = World()
    world.peer()
    submitted(world, 1)
    nobodys = wire.StepsLevel0(batch_id="batch_x_1", protocol_version="1.0", steps=[])
    world.answer(nobodys, results=[wire.Result(step_id=99_999, status="completed")])
    assert world.state.counters.late_results == 1
    world.answer(nobodys, results=[wire.Result(step_id=world.handed[0].steps[0].step_id, status="completed")])
    assert world.state.counters.refused["wrong_batch"] == 1
    world.answer(nobodys, results=[], error="all of it")
    world.check()


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_batch_of_before_a_restart_counts() -> None:
    world = World()
    to = world.peer()
    (task_id,) = submitted(world, 1)
    world.restart()
    world.peer()
    assert world.granted[-1] != to
    assert world.step(task_id).state == "dispatched"
    world.check()
    world.answer(world.handed[0])
    assert world.stored(task_id).state == "completed"
    world.check()


def test_a_batch_of_before_a_restart_has_its_whole_lease_again() -> None:
    world = level0(at_most_once=True)
    for _ in range(2):
        world.handle(events.PeerSubscribed())
    often, charge = world.task(ONE), world.task({**once(), "name": "pay"})
    world.pass_time(500)
    world.restart()
    world.peer()
    world.pass_time(LEASE_MS - 1_000)
    assert len(world.handed) == 2
    world.pass_time(1_000)
    assert [b.steps[0].task_id for b in world.handed[2:]] == [often]
    assert world.row(charge).state == "held"
    world.answer(world.handed[2])
    assert world.stored(often).state == "completed"
    world.check()


# -- presentation -----------------------------------------------------------------------------------------------------


def test_why_names_the_level_0_handler_of_a_step() -> None:
    world = World()
    task_id = world.task(ONE)
    assert explain.step(world.state, world.step(task_id), world.now).code == "no_worker_offers"
    to = world.peer()
    why = explain.step(world.state, world.step(task_id), world.now)
    assert why.code == "handed_out"
    assert f"level0.{to}" in why.message
    assert "before this broker started" not in why.message
    second = world.task(ONE)
    assert explain.step(world.state, world.step(second), world.now).code == "workers_busy"
    pay = world.task({**once(), "name": "pay"})
    why = explain.step(world.state, world.step(pay), world.now)
    assert why.code == "no_worker_offers"
    assert "bus.level0.at_most_once" in why.message


def test_a_drained_peer_finishes_its_batch_and_gets_no_more() -> None:
    world = World()
    to = world.peer()
    submitted(world, 2)
    assert world.ask(DrainWorker, worker=f"level0.{to}").worker == f"level0.{to}"
    world.answer(world.handed[0])
    assert len(world.handed) == 1


# -- properties -------------------------------------------------------------------------------------------------------

ORDERS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "peer",
                "gone",
                "uncertain",
                "answer",
                "again",
                "fail",
                "error",
                "time",
                "lease",
                "submit",
                "restart",
                "cancel",
            ]
        ),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(ORDERS, st.booleans(), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_never_a_second_start_of_at_most_once_never_two_leases_never_more_than_one_batch(
    orders: list[tuple[str, int]], is_auto: bool, batch_max_steps: int
) -> None:
    world = level0(at_most_once=True, batch_max_steps=batch_max_steps)
    world.apply(steps({"name": "a"}, {"name": "b", "delivery_mode": "at_most_once", "depends_on": ["a"]}))
    tasks: list[int] = []
    seen = 0
    for order, which in orders:
        peers = list(world.state.level0.peers)
        match order:
            case "peer":
                world.peer()
            case "gone" if peers:
                world.handle(events.PeerVanished(peers[which % len(peers)]))
            case "uncertain":
                world.handle(events.PeersUncertain())
            case "answer" | "again" | "fail" | "error" if world.handed:
                batch = world.handed[which % len(world.handed)] if order == "again" else world.handed[-1]
                if order == "error":
                    world.answer(batch, results=[], error="no")
                else:
                    world.answer(batch, "failed" if order == "fail" else "completed")
            case "time":
                world.pass_time(which * 1_000)
            case "lease":
                world.pass_time(4 * LEASE_MS)
            case "submit":
                tasks += world.submit(count=which % 3 + 1).task_ids
            case "restart":
                world.restart()
            case "cancel" if tasks:
                world.ask(CancelTask, task_id=tasks[which % len(tasks)])
        world.check()
        for batch in world.handed[seen:]:
            assert len(batch.steps) <= batch_max_steps
            once_in_it = [s for s in batch.steps if s.step_name == "b"]
            assert not once_in_it or len(batch.steps) == 1
        seen = len(world.handed)
        for peer in world.state.level0.peers.values():
            assert len(peer.holds) <= 1
    started = [s.step_id for b in world.handed for s in b.steps if s.step_name == "b"]
    assert len(started) == len(set(started))
    deliveries = [(s.step_id, b.batch_id) for b in world.handed for s in b.steps]
    assert len(deliveries) == len(set(deliveries))


def test_an_error_of_a_batch_that_is_over_is_late() -> None:
    world = World()
    world.peer()
    submitted(world, 1)
    world.pass_time(LEASE_MS)
    world.answer(world.handed[0], results=[], error="late")
    assert world.state.counters.late_results == 1
