"""Sessions in the core: how they end, what follows for their steps, and what a restarted broker adopts."""

import pytest
from stepwire_broker.core import overview
from stepwire_broker.core.intake.drain import DrainWorker, Quieted
from stepwire_broker.core.model import events
from stepwire_protocol import messages as wire

from .world import (
    HOST,
    ONCE,
    ONE,
    W2,
    W,
    World,
    held,
    item_of,
)

# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_worker_that_says_bye_gets_nothing_new_and_keeps_what_it_has() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.say(wire.Bye(v="2.0", worker=W, n=5))
    world.submit()
    assert world.batches() == [batch]
    world.result(batch)
    assert world.stored(task_id).state == "completed"


def test_a_refusal_because_the_worker_drains_has_the_effect_of_a_bye() -> None:
    world = World()
    world.task(ONE)
    world.hello()
    world.refuse(world.batches()[0], "draining")
    assert len(world.batches()) == 1
    world.hello(W2)
    assert len(world.batches(W2)) == 1


PROCESS = {"host": HOST, "pid": 4711, "pid_started": 99, "proof": True}


def test_the_process_of_a_vanished_subscription_is_checked_and_its_death_ends_the_session_before_its_lease() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello(**PROCESS)
    world.accept(world.batches()[0])
    world.watches.clear()
    world.handle(events.SubscriptionVanished(W))
    ((worker, pid, started),) = [(w.worker, w.pid, w.pid_started) for w in world.watches]
    assert (worker, pid, started) == (W, 4711, 99)
    assert W in world.state.sessions
    world.hello(W2)
    world.handle(events.ProcessDied(W))
    assert W not in world.state.sessions
    assert world.row(task_id).worker == W2
    assert world.row(task_id).lost_sessions == 1


def test_the_process_of_a_worker_is_checked_when_its_hello_arrives() -> None:
    """Subscriptions and hellos come over two sockets, so either may arrive first."""
    world = World()
    task_id = world.task(ONE)
    world.handle(events.SubscriptionVanished(W))
    assert world.watches == []
    world.hello(**PROCESS)
    assert [(w.worker, w.pid, w.pid_started) for w in world.watches] == [(W, 4711, 99)]
    world.hello(W2)
    world.handle(events.ProcessDied(W))
    assert world.row(task_id).worker == W2


def test_a_resent_hello_starts_no_second_check_of_the_process() -> None:
    world = World()
    world.hello(**PROCESS)
    world.hello(n=2, **PROCESS)
    assert len(world.watches) == 1
    world.hello(k=2, n=3, **PROCESS)
    assert len(world.watches) == 2


UNPROVABLE = [
    ({"proof": False}, "`proof` false"),
    ({"pid": 0}, "lacks the pid or the start time"),
    ({"pid_started": 0}, "lacks the pid or the start time"),
    ({"host": ""}, "has no `host`"),
    ({"host": "9a1e6d0c-77aa-4bd1-9a5b-1f6f5a1c2d3e"}, "has not the form <boot id>:<pid namespace>:<time namespace>"),
    ({"host": "9a1e6d0c-77aa-4bd1-9a5b-1f6f5a1c2d3e:1:2"}, "another host"),
]


@pytest.mark.parametrize(("without", "because"), UNPROVABLE)
def test_without_proof_the_lease_decides_and_the_worker_is_listed_with_the_reason(without: dict, because: str) -> None:
    world = World()
    world.hello(**{**PROCESS, **without})
    world.handle(events.SubscriptionVanished(W))
    assert world.watches == []
    assert W in world.state.sessions
    (view,) = overview.workers(world.state, world.now)
    assert because in (view.unprovable or "")


def test_a_provable_worker_is_listed_without_a_reason() -> None:
    world = World()
    world.hello(**PROCESS)
    (view,) = overview.workers(world.state, world.now)
    assert view.unprovable is None


def test_a_worker_with_a_wrong_start_time_keeps_its_session_and_is_not_checked_again() -> None:
    world = World()
    world.hello(**PROCESS)
    world.watches.clear()
    world.handle(events.ClaimRefuted(W))
    world.handle(events.SubscriptionVanished(W))
    assert world.watches == []
    assert W in world.state.sessions
    (view,) = overview.workers(world.state, world.now)
    assert "started at another time" in (view.unprovable or "")


def test_every_message_of_a_session_that_was_declared_dead_is_answered_with_expired() -> None:
    world = World()
    world.hello(**PROCESS)
    session = world.state.sessions[W].id
    world.handle(events.ProcessDied(W))
    world.say(wire.Heartbeat(v="2.0", worker=W, n=9, next={"b1": 1}, sessions={"b1": session}))
    world.say(wire.Accept(v="2.0", worker=W, session=session, batch_id="batch_1_1", free=1))
    assert [r.code for r in world.heard(wire.Reset)] == ["expired", "expired"]


def test_the_end_of_a_worker_that_was_proven_dead_is_reported_once() -> None:
    world = World()
    world.hello(**PROCESS)
    world.handle(events.ProcessDied(W))
    world.handle(events.ProcessDied(W))
    assert [(news.worker, news.pid) for news in world.worker_news] == [(W, 4711)]


def test_a_worker_that_is_reset_again_and_again_is_reported_once_in_ten_seconds() -> None:
    world = World()
    beat = wire.Heartbeat(v="2.0", worker=W, n=1, next={"b1": 1}, sessions={"b1": f"{world.state.identity.epoch}.1"})
    for _ in range(4):
        world.say(beat)
    assert world.worker_news == []
    for _ in range(40):
        world.say(beat)
    assert [(news.code, news.resets) for news in world.worker_news] == [("unknown_session", 5)]
    world.pass_time(10_001)
    for _ in range(5):
        world.say(beat)
    assert len(world.worker_news) == 2


def test_a_few_resets_over_a_long_time_are_not_reported() -> None:
    world = World()
    for _ in range(20):
        world.say(
            wire.Heartbeat(v="2.0", worker=W, n=1, next={"b1": 1}, sessions={"b1": f"{world.state.identity.epoch}.1"})
        )
        world.pass_time(3_000)
    assert world.worker_news == []


def test_a_reaped_child_is_checked_on_this_host_and_its_supervisor_is_believed_elsewhere() -> None:
    world = World()
    world.hello(W, **PROCESS)
    world.hello(W2, host="elsewhere", pid=1)
    world.watches.clear()
    for worker in (W, W2):
        world.say(wire.Gone(v="2.0", worker=worker))
    assert [w.worker for w in world.watches] == [W]
    assert list(world.state.sessions) == [W]


def test_a_leaving_broker_resets_its_sessions() -> None:
    world = World()
    world.hello(W)
    world.hello(W2, k=4)
    world.handle(events.Leave())
    assert [(r.next, r.code) for r in world.heard(wire.Reset)] == [(1, "shutdown"), (4, "shutdown")]


def test_a_draining_broker_dispatches_nothing_tells_its_workers_and_lets_runs_finish() -> None:
    world = World()
    world.apply(ONE)
    first, second = world.submit(count=2).task_ids
    world.hello(slots=1, prefetch=0)
    (batch,) = world.batches()
    world.handle(events.Drain())
    world.beat(n=2, free=14)
    assert world.last(wire.HeartbeatAck).quiet
    assert world.submit().code == "draining"
    world.result(batch)
    assert world.stored(first).state == "completed"
    assert world.row(second).state == "ready"
    assert world.batches() == [batch]


def test_a_drained_worker_gets_nothing_new_finishes_what_it_has_and_is_asked_to_leave() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    assert world.ask(DrainWorker, worker=W, quit=True) == Quieted(W, True)
    world.submit()
    world.beat(n=2, free=14, holding=[held(batch, "running", 5)])
    ack = world.last(wire.HeartbeatAck)
    assert (ack.quiet, ack.quit) == (True, False)
    world.result(batch)
    assert world.stored(task_id).state == "completed"
    world.beat(n=3, free=14)
    ack = world.last(wire.HeartbeatAck)
    assert (ack.quiet, ack.quit) == (True, True)
    world.hello(k=2, n=4)  # the same process in a new session is as drained as before
    assert len(world.batches()) == 1
    world.hello(W2)
    assert len(world.batches(W2)) == 1


def test_a_worker_that_is_drained_without_quit_stays() -> None:
    world = World()
    world.hello()
    assert world.ask(DrainWorker, worker=W) == Quieted(W, False)
    world.beat(n=2)
    ack = world.last(wire.HeartbeatAck)
    assert (ack.quiet, ack.quit) == (True, False)
    assert world.ask(DrainWorker, worker=W, quit=True) == Quieted(W, True)
    assert world.ask(DrainWorker, worker=W) == Quieted(W, True), "what was ordered is not taken back"
    assert world.ask(DrainWorker, worker=W2).code == "not_found"


# -- a restart of the broker ------------------------------------------------------------------------------------------


def restarted(document: dict, *, granted: bool = False, seen: str | None = None) -> tuple[World, int, wire.Steps]:
    world = World()
    task_id = world.task(document)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if granted:
        world.start(batch)
    if seen:
        world.beat(n=2, holding=[held(batch, seen, 500)])
    world.restart()
    assert world.state.recovered == {W: {batch.steps[0].step_id: world.step(task_id)}}
    return world, task_id, batch


def test_a_message_of_the_epoch_before_is_answered_with_here_and_its_results_are_accepted() -> None:
    world, task_id, batch = restarted(ONE)
    rid = world.result(batch)
    assert type(world.sent[0][1]) is wire.Here
    assert world.acked == [rid]
    assert world.stored(task_id).state == "completed"
    world.check()


def test_deliveries_that_a_hello_lists_are_adopted_and_not_resent() -> None:
    world, task_id, batch = restarted(ONE, seen="running")
    world.hello(holding=[held(batch, "running", 900)])
    assert world.state.recovered == {}
    assert world.step(task_id).session is world.state.sessions[W]
    world.stay(W, 30_000, holding=[held(batch, "running", 900)])
    assert world.row(task_id).delivery == 1
    assert world.batches() == []
    world.check()


def test_a_worker_is_asked_about_deliveries_that_its_hello_does_not_list_and_only_its_answer_releases_them() -> None:
    world, task_id, batch = restarted(ONCE, granted=True)
    world.hello()
    world.stay(W, 20_000)
    assert all(a.items == [item_of(batch)] for a in world.heard(wire.Adopt))
    assert 19 <= len(world.heard(wire.Adopt)) <= 21
    assert world.row(task_id).state == "dispatched"  # long past safe_at: its worker lives
    world.adopted(batch, "unknown")
    assert (world.row(task_id).state, world.row(task_id).delivery) == ("dispatched", 2)
    world.check()


def test_an_adopted_delivery_belongs_to_the_new_session_and_is_lost_with_it() -> None:
    world, task_id, batch = restarted(ONE)
    world.hello(holding=[held(batch, "queued")])
    world.hello(k=2, n=9)
    assert world.row(task_id).delivery == 2
    assert world.heard(wire.Adopt) == []


@pytest.mark.parametrize(
    ("document", "granted", "state"), [(ONE, False, "ready"), (ONCE, False, "ready"), (ONCE, True, "held")]
)
def test_a_delivery_whose_worker_does_not_come_back_is_lost_at_safe_at_and_not_before(
    document: dict, granted: bool, state: str
) -> None:
    world, task_id, _ = restarted(document, granted=granted)
    world.hello(W2)
    world.stay(W2, 10_299)
    assert world.row(task_id).state == "dispatched"
    assert world.row(task_id).delivery == 1
    world.pass_time(1)
    world.say(wire.Bye(v="2.0", worker=W2))
    assert world.row(task_id).state in (state, "dispatched")
    assert world.row(task_id).delivery == (1 if state == "held" else 2)
    world.check()


def test_a_death_that_is_proven_before_safe_at_releases_the_workers_steps() -> None:
    world, task_id, _ = restarted(ONE, seen="running")
    world.handle(events.ProcessDied(W))
    assert world.row(task_id).state == "ready"
    assert world.row(task_id).lost_sessions == 1
    assert world.state.recovered == {}


def test_a_queued_hello_of_before_the_restart_does_no_harm() -> None:
    world, task_id, batch = restarted(ONE)
    world.hello(k=1, n=1)  # it was under way when the broker died, and lists nothing
    assert world.row(task_id).delivery == 1
    world.hello(k=2, n=3, holding=[held(batch, "running", 100)])
    assert world.step(task_id).session is world.state.sessions[W]
    assert world.row(task_id).delivery == 1


@pytest.mark.parametrize("has_heard_us", [False, True])
def test_a_worker_that_may_not_know_of_a_shorter_lease_keeps_the_longer_one(has_heard_us: bool) -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.lease_before_ms = 30_000
    world.restart()
    world.hello(k=2, n=2, holding=[held(batch, "running", 100)])
    if has_heard_us:
        world.beat(k=2, n=3, holding=[held(batch, "running", 101)])
    world.pass_time(11_000)
    assert (W in world.state.sessions) is not has_heard_us
    assert world.row(task_id).state == ("ready" if has_heard_us else "dispatched")
    world.pass_time(20_000)
    assert W not in world.state.sessions
    assert world.row(task_id).state == "ready"
    world.check()
