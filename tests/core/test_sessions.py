"""Sessions in the core: hello, heartbeats, the lease, held steps, and late messages."""

import pytest
from stepwire_broker.core.model import events
from stepwire_broker.core.model.principal import full_grant, with_built_in
from stepwire_broker.core.progress.step_outcomes import undeliver
from stepwire_protocol import codec
from stepwire_protocol import messages as wire

from .world import (
    BROKER,
    DEPLOYMENT,
    DIES_MS,
    LEASE_MS,
    ONCE,
    ONE,
    W2,
    W,
    World,
    held,
    item_of,
    once,
    one,
    worker_id,
)

# -- hello ------------------------------------------------------------------------------------------------------------


def test_a_hello_is_welcomed_with_its_n_and_the_terms() -> None:
    world = World()
    world.hello(n=41)
    assert world.last(wire.Welcome) == wire.Welcome(
        v="2.0",
        broker=BROKER,
        epoch=7,
        session="7.1",
        deployment=DEPLOYMENT,
        n=41,
        lease_ms=10_000,
        heartbeat_ms=2_000,
        max_message_bytes=world.settings.bus.max_message_bytes,
        brokers=[],
    )


@pytest.mark.parametrize(
    ("before", "k", "answer"),
    [
        (None, 1, wire.Welcome),
        (None, 5, wire.Welcome),
        (3, 3, wire.Welcome),
        (3, 4, wire.Welcome),
        (3, 2, None),
    ],
)
def test_the_answer_to_a_hello_depends_on_its_session_number(before: int | None, k: int, answer: type | None) -> None:
    world = World()
    if before is not None:
        world.hello(k=before)
        world.forget()
    world.hello(k=k, n=2)
    assert [type(m) for _, m in world.sent] == ([] if answer is None else [answer])
    assert world.state.sessions[W].k == max(k, before or 0)
    if answer:
        assert world.last(wire.Welcome).session == f"7.{k}"


def test_a_session_number_that_was_declared_dead_is_reset_and_a_higher_one_is_welcomed() -> None:
    world = World()
    world.hello(k=2)
    world.pass_time(DIES_MS)
    assert W not in world.state.sessions
    for k in (1, 2):
        world.hello(k=k)
        assert (world.last(wire.Reset).next, world.last(wire.Reset).code) == (k, "expired")
        assert W not in world.state.sessions
    world.hello(k=3)
    assert world.state.sessions[W].id == "7.3"


def test_a_resent_hello_is_welcomed_again_and_changes_nothing() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    session = world.state.sessions[W]
    world.hello(n=2)
    assert world.state.sessions[W] is session
    assert world.last(wire.Welcome).session == "7.1"
    assert world.step(task_id).session is session


def test_a_hello_without_a_number_for_this_broker_is_answered_with_here() -> None:
    world = World()
    world.hello(next={"other": 3})
    assert world.last(wire.Here).deployment == DEPLOYMENT
    assert not world.state.sessions


@pytest.mark.parametrize(
    ("versions", "welcome"), [(["2.0"], True), (["1.7", "2.9"], True), (["3.0"], False), ([], False)]
)
def test_a_hello_needs_a_version_in_common(versions: list[str], welcome: bool) -> None:
    world = World()
    world.hello(versions=versions, k=4)
    assert (W in world.state.sessions) is welcome
    if not welcome:
        reset = world.last(wire.Reset)
        assert (reset.next, reset.code, reset.versions) == (4, "version", ["2.0"])


# -- a new session of the same worker ---------------------------------------------------------------------------------


def test_steps_that_the_worker_still_holds_move_to_its_new_session() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.hello(k=2, n=9, holding=[held(batch, "running", 700)])
    step = world.step(task_id)
    assert step.session is world.state.sessions[W]
    assert step.session.id == "7.2"
    assert (step.delivery, step.started_ms) == (1, world.now.wall - 700)
    assert world.batches() == [batch]
    world.result(batch, session="7.2")
    assert world.stored(task_id).state == "completed"
    world.check()


@pytest.mark.parametrize("document", [ONE, ONCE])
def test_steps_that_the_worker_dropped_are_ready_again_at_once_even_if_granted(document: dict) -> None:
    world = World()
    task_id = world.task(document)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if document is ONCE:
        world.start(batch)
    world.hello(k=2, n=9)
    assert world.batches()[-1].steps[0].delivery == 2
    assert world.batches()[-1].session == "7.2"
    assert world.row(task_id).lost_sessions == 0
    world.check()


def test_a_batch_for_the_old_session_is_no_longer_sent() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello()
    world.submit()  # with its first dispatch in the same transaction
    world.hello(k=2, n=9)
    world.settle()
    (batch,) = world.batches()
    assert (batch.session, batch.steps[0].delivery) == ("7.2", 2)
    world.check()


def test_messages_of_the_old_session_are_ignored_and_its_results_are_accepted() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.hello(k=2, n=9, holding=[held(batch, "done")])
    world.forget()
    world.accept(batch)
    world.start(batch)
    assert world.sent == []
    rid = world.result(batch)
    assert world.acked == [rid]
    assert world.stored(task_id).state == "completed"


# -- messages of other sessions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "answer"),
    [("7.1", wire.Reset), ("6.1", wire.Here), ("8.1", wire.Here)],
)
def test_a_message_of_an_unknown_session_is_reset_and_one_of_another_epoch_is_answered_with_here(
    session: str, answer: type
) -> None:
    world = World()
    world.say(wire.Start(v="2.0", worker=W, session=session, items=[(1, 1)]))
    ((_, reply),) = world.sent
    assert type(reply) is answer
    if answer is wire.Reset:
        assert (reply.next, reply.code) == (1, "unknown_session")


def test_a_heartbeat_without_a_session_here_is_answered_with_here() -> None:
    world = World()
    world.say(wire.Heartbeat(v="2.0", worker=W, n=1, sessions={"other": "3.1"}))
    assert type(world.sent[0][1]) is wire.Here


def test_results_for_another_deployment_are_not_answered() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.forget()
    world.result(batch, deployment="e" * 32)
    assert world.sent == []
    assert world.row(task_id).state == "dispatched"


# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def test_a_heartbeat_is_acked_with_its_n() -> None:
    world = World()
    world.hello()
    world.beat(n=17)
    ack = world.last(wire.HeartbeatAck)
    assert (ack.session, ack.n, ack.quiet, ack.quit) == ("7.1", 17, False, False)


OLD, NEXT = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
USUAL = wire.Endpoints(BROKER, "tcp://h:1", "tcp://h:2", OLD)
UPCOMING = wire.Endpoints(BROKER, "tcp://h:3", "tcp://h:4", NEXT)
ROTATING = events.EndpointsBound("tcp://h:1", "tcp://h:2", OLD, events.NextEndpoints("tcp://h:3", "tcp://h:4", NEXT))


def test_a_changed_key_of_the_broker_is_sent_at_once_with_a_repeated_ack() -> None:
    world = World()
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", OLD))
    world.hello()
    world.beat(n=17)
    assert world.last(wire.HeartbeatAck).brokers is None, "nothing has changed"
    world.forget()
    world.handle(ROTATING)
    told = world.last(wire.HeartbeatAck)
    assert (told.session, told.n, told.brokers) == ("7.1", 17, [USUAL, UPCOMING])


def test_acks_repeat_the_keys_while_they_rotate_and_for_a_minute_after_the_change() -> None:
    world = World()
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", OLD))
    world.hello()
    world.handle(ROTATING)
    world.stay(W, 300_000)
    assert world.last(wire.HeartbeatAck).brokers == [USUAL, UPCOMING]
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", NEXT))
    replaced = [wire.Endpoints(BROKER, "tcp://h:1", "tcp://h:2", NEXT)]
    world.stay(W, 30_000)
    assert world.last(wire.HeartbeatAck).brokers == replaced
    world.stay(W, 60_000)
    assert world.last(wire.HeartbeatAck).brokers is None


def test_a_broker_that_starts_during_a_rotation_lists_both_keys_in_its_welcome() -> None:
    world = World()
    world.handle(ROTATING)
    world.hello()
    assert world.last(wire.Welcome).brokers == [USUAL, UPCOMING]
    world.beat(n=17)
    assert world.last(wire.HeartbeatAck).brokers == [USUAL, UPCOMING]


def test_a_welcome_lists_the_old_key_first_while_the_announced_key_is_not_served_yet() -> None:
    """The worker is disconnected in a moment. With two keys it tries the second one within its lease."""
    world = World()
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", OLD))
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", NEXT, replaced=OLD))
    world.hello()
    after = wire.Endpoints(BROKER, "tcp://h:1", "tcp://h:2", NEXT)
    assert world.last(wire.Welcome).brokers == [USUAL, after]
    world.beat(n=17)
    assert world.last(wire.HeartbeatAck).brokers == [after]
    world.forget()
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", NEXT))
    assert world.sent == [], "the workers know this list"
    world.hello(n=20)
    assert world.last(wire.Welcome).brokers == [after]


def test_a_session_without_rights_receives_no_list() -> None:
    world = World()
    world.handle(events.GrantsChanged(with_built_in([full_grant("shop")])))
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2", OLD))
    hello = wire.Hello(v="2.0", worker=W, n=1, handlers=["**"], slots=1, prefetch=0, next={BROKER: 1}, versions=["2.0"])
    world.handle(codec.decode_worker(codec.encode(hello)), "shop")
    world.handle(events.GrantsChanged(with_built_in()))
    world.forget()
    world.handle(ROTATING)
    assert world.sent == []


def test_a_session_lives_while_it_is_heard_and_dies_three_percent_after_its_lease() -> None:
    world = World()
    world.hello()
    world.stay(W, 60_000)
    world.pass_time(DIES_MS - 1)
    assert W in world.state.sessions
    world.pass_time(1)
    assert W not in world.state.sessions


@pytest.mark.parametrize("message", ["accept", "start", "result"])
def test_only_hello_and_heartbeat_renew_the_lease(message: str) -> None:
    world = World()
    world.apply(ONE)
    world.hello()
    world.submit()
    (batch,) = world.batches()
    world.pass_time(9_000)
    getattr(world, message)(batch)
    world.pass_time(DIES_MS - 9_000)
    assert W not in world.state.sessions


def test_time_in_which_the_loop_did_not_run_counts_as_silence_of_no_worker() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    world.mono += 60_000
    world.handle(events.LoopWasLate(60_000))
    world.handle(events.Tick())
    assert W in world.state.sessions
    assert not world.state.sessions[W].muted
    world.beat(n=9)
    assert world.last(wire.HeartbeatAck).n == 9
    assert world.row(task_id).delivery == 1
    world.check()


@pytest.mark.parametrize(
    ("document", "granted", "state"),
    [
        (ONE, False, "ready"),
        (ONCE, False, "ready"),
        (ONCE, True, "held"),
        (once(on_unknown="fail"), True, "failed"),
    ],
)
def test_a_step_of_a_dead_session_is_ready_again_or_held(document: dict, granted: bool, state: str) -> None:
    world = World()
    task_id = world.task(document)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    if granted:
        world.start(batch)
    world.pass_time(DIES_MS)
    assert (world.row(task_id).state, world.row(task_id).delivery) == (state, 1)
    assert world.stored(task_id).attention == ("held" if state == "held" else None)
    if state == "failed":
        assert world.row(task_id).reason == "outcome_unknown"
    world.check()


def test_only_steps_that_could_have_started_count_as_lost() -> None:
    """A worker starts steps in the order in which they were sent: the first `slots` of them can have started."""
    world = World()
    world.apply(ONE)
    ids = world.submit(count=6).task_ids
    world.hello(slots=2, prefetch=4)
    for batch in world.batches():
        world.accept(batch)
    fifth = next(b for b in world.batches() if ids[4] + 1 in [s.step_id for s in b.steps])
    position = [s.task_id for s in fifth.steps].index(ids[4])
    world.beat(n=2, holding=[held(fifth, "running", position=position)], free=0)
    world.pass_time(DIES_MS)
    assert [world.row(i).lost_sessions for i in ids] == [1, 1, 0, 0, 1, 0]


def test_a_step_that_needs_a_grant_and_had_none_does_not_count_as_lost() -> None:
    world = World()
    task_id = world.task(ONCE)
    world.hello()
    world.accept(world.batches()[0])
    world.pass_time(DIES_MS)
    assert world.row(task_id).lost_sessions == 0


# -- retransmission ---------------------------------------------------------------------------------------------------


def test_steps_are_resent_after_300_ms_and_then_after_twice_the_pause_up_to_3_s() -> None:
    world = World()
    world.hello()
    world.task(ONE)
    began = world.mono
    times = []
    while world.mono < began + 9_900:
        seen = len(world.heard(wire.Steps))
        world.pass_time(100)
        times += [world.mono - began] * (len(world.heard(wire.Steps)) - seen)
        if world.mono % 2_000 == 0:
            world.beat(n=world.mono)
    assert times == [300, 900, 2_100, 4_500, 7_500]
    assert len({f for f in world.frames if b'"type":"steps"' in f}) == 1  # the same bytes


@pytest.mark.parametrize("answer", ["accept", "refuse", "result", "start"])
def test_any_answer_ends_the_retransmission(answer: str) -> None:
    world = World()
    world.task(ONCE)
    world.hello()
    (batch,) = world.batches()
    if answer == "refuse":
        world.hello(W2, slots=1)
        world.refuse(batch, "draining")
    else:
        getattr(world, answer)(batch)
    world.forget()
    world.stay(W, 8_000)
    assert world.heard(wire.Steps, W) == []


def test_a_dead_session_is_sent_nothing_more() -> None:
    world = World()
    world.task(ONE)
    world.hello()
    world.pass_time(DIES_MS)
    world.forget()
    world.pass_time(60_000)
    assert world.sent == []


def test_retransmission_is_timed_from_when_the_steps_were_sent() -> None:
    world = World(auto=False)
    world.apply(ONE)
    world.settle()
    world.hello()
    world.submit()
    world.pass_time(5_000)  # the commit takes that long
    world.beat(n=2)
    assert world.heard(wire.Steps) == []
    world.commit()
    assert len(world.heard(wire.Steps)) == 1
    world.pass_time(299)
    assert len(world.heard(wire.Steps)) == 1
    world.pass_time(1)
    assert len(world.heard(wire.Steps)) == 2


def test_a_worker_that_leaves_a_batch_unanswered_for_a_lease_is_no_longer_acked_and_its_lease_ends() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    world.stay(W, 14_000)
    session = world.state.sessions[W]
    assert session.muted
    assert session.credit == 0
    world.forget()
    world.beat(n=world.mono)
    world.hello(n=world.mono)  # the same number renews nothing either
    assert world.sent == []
    for _ in range(5):
        world.pass_time(2_000)
        world.beat(n=world.mono)
    assert W not in world.state.sessions
    assert world.row(task_id).lost_sessions == 0  # the worker never had the step
    assert world.row(task_id).state == "ready"
    world.hello(k=2)
    assert world.batches(W)[-1].steps[0].delivery == 2
    world.check()


def test_unanswered_batches_are_resent_at_once_when_the_inbox_is_subscribed_again() -> None:
    world = World()
    world.task(ONE)
    world.hello()
    world.handle(events.Subscribed(W))
    assert len(world.heard(wire.Steps)) == 2


# -- holding ----------------------------------------------------------------------------------------------------------


def test_the_time_of_a_start_is_computed_from_its_age() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.beat(n=2, holding=[held(batch, "running", 1_234)])
    assert world.row(task_id).started_ms == world.now.wall - 1_234


def test_a_worker_is_asked_every_second_about_an_accepted_delivery_that_its_heartbeat_does_not_list() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.beat(n=2)
    world.beat(n=3)
    world.pass_time(0)
    assert [a.items for a in world.heard(wire.Adopt)] == [[item_of(batch)]]
    world.pass_time(3_000)
    world.beat(n=4)
    world.pass_time(3_000)
    assert len(world.heard(wire.Adopt)) == 7  # one `adopt` a second, however often the delivery is missing
    world.adopted(batch, "unknown")
    assert world.row(task_id).delivery == 2
    world.accept(world.batches()[-1])
    world.forget()
    world.pass_time(3_000)
    assert world.heard(wire.Adopt) == []
    world.check()


def test_a_delivery_in_an_unanswered_batch_is_not_missing() -> None:
    world = World()
    world.task(ONE)
    world.hello()
    world.beat(n=2)
    world.pass_time(2_000)
    assert world.heard(wire.Adopt) == []


@pytest.mark.parametrize("state", ["queued", "asking", "running", "done"])
def test_a_worker_is_not_asked_again_about_a_delivery_that_it_has_reported(state: str) -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.accept(batch)
    world.beat(n=2)
    world.adopted(batch, state)
    world.forget()
    world.pass_time(5_000)
    assert world.heard(wire.Adopt) == []
    assert world.row(task_id).delivery == 1


def test_a_granted_step_that_its_live_worker_does_not_hold_may_run_elsewhere() -> None:
    world = World()
    task_id = world.task(ONCE)
    world.hello()
    (batch,) = world.batches()
    world.start(batch)
    world.beat(n=2)
    world.adopted(batch, "unknown")
    assert (world.row(task_id).state, world.row(task_id).delivery, world.row(task_id).granted) == ("dispatched", 2, 0)


@pytest.mark.parametrize(("state", "is_cancelled"), [("queued", True), ("running", True), ("done", False)])
def test_a_worker_is_sent_a_cancel_at_each_heartbeat_that_lists_a_step_it_no_longer_has(
    state: str, is_cancelled: bool
) -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello()
    (batch,) = world.batches()
    world.pass_time(DIES_MS)
    world.hello(W2)
    world.hello(k=2)
    assert world.row(task_id).worker == W2
    world.forget()
    for n in (5, 6):
        world.beat(n=n, k=2, holding=[held(batch, state)])
    assert [(c.reason, c.items) for c in world.heard(wire.Cancel, W)] == [("superseded", [item_of(batch)])] * (
        2 * is_cancelled
    )


def test_a_listed_step_that_is_not_in_memory_is_not_cancelled() -> None:
    world = World()
    world.hello()
    world.forget()
    world.beat(n=2, holding=[(99_999, 1, "running", 0)])
    assert [type(m) for _, m in world.sent] == [wire.HeartbeatAck]


# -- stuck ------------------------------------------------------------------------------------------------------------


def two_on_one_slot(world: World) -> tuple[list[wire.Steps], list[tuple[int, int]]]:
    world.apply(one(timeout_ms=1_000, retry_limit=0))
    world.submit(count=2)
    world.hello(W, slots=1, prefetch=1)
    batches = world.batches(W)
    for batch in batches:
        world.accept(batch, free=0)
    return batches, [(s.step_id, s.delivery) for b in batches for s in b.steps]


def test_a_session_with_only_overdue_runs_gets_no_more_steps_and_its_waiting_steps_go_elsewhere() -> None:
    world = World()
    batches, (first, second) = two_on_one_slot(world)
    world.beat(W, n=10, holding=[(*first, "running", 0), (*second, "queued", 0)], free=0)
    for age in (2_000, 4_000, 6_000):
        world.pass_time(2_000)
        world.beat(W, n=world.mono, holding=[(*first, "running", age), (*second, "queued", age)], free=1)
    # The task of the first run is over by now, but the run still occupies its slot.
    assert world.stored(first[0] - 1).state == "failed"
    assert world.state.sessions[W].stuck
    assert ("superseded", [second]) in [(c.reason, c.items) for c in world.heard(wire.Cancel)]
    world.submit()
    assert len(world.batches(W)) == len(batches)
    refusal = wire.Refuse(v="2.0", worker=W, session="7.1", batch_id=batches[-1].batch_id, items=[second], code="stale")
    world.say(refusal)
    world.hello(W2)
    assert (second[0], 2) in [(s.step_id, s.delivery) for b in world.batches(W2) for s in b.steps]
    world.beat(W, n=world.mono + 1, holding=[], free=2)
    assert not world.state.sessions[W].stuck
    world.check()


def test_a_step_that_a_stuck_session_reports_later_is_withdrawn_too() -> None:
    world = World()
    _, (first, second) = two_on_one_slot(world)
    world.beat(W, n=10, holding=[(*first, "running", 6_000)], free=0)
    assert world.state.sessions[W].stuck
    assert world.heard(wire.Cancel) == []
    world.beat(W, n=11, holding=[(*first, "running", 6_000), (*second, "queued", 0)], free=0)
    assert [(c.reason, c.items) for c in world.heard(wire.Cancel)] == [("superseded", [second])]


# -- workers without heartbeats ---------------------------------------------------------------------------------------


def test_a_worker_without_heartbeats_needs_a_grant_for_every_step_and_has_no_lease() -> None:
    world = World()
    task_id = world.task(one(timeout_ms=1_000))
    world.hello(heartbeat_ms=0, slots=1, prefetch=0)
    (batch,) = world.batches()
    assert batch.steps[0].delivery_mode == "at_most_once"
    world.start(batch)
    assert world.last(wire.Go).items == [item_of(batch)]
    world.pass_time(5_999)
    assert world.row(task_id).state == "dispatched"
    world.pass_time(1)
    assert world.row(task_id).state == "retry_wait"
    assert world.row(task_id).reason == "timeout"
    assert W in world.state.sessions


def test_a_busy_worker_without_heartbeats_is_sent_its_batch_again_and_not_muted() -> None:
    world = World()
    task_id = world.task(ONE)
    world.hello(heartbeat_ms=0, slots=1, prefetch=0)
    world.pass_time(30_000)
    assert not world.state.sessions[W].muted
    assert len(world.heard(wire.Steps)) > 8
    world.accept(world.batches()[0], free=0)
    world.start(world.batches()[0])
    assert world.row(task_id).granted
    world.check()


def test_a_worker_without_heartbeats_that_never_accepts_a_batch_is_dead_when_its_time_is_over() -> None:
    world = World()
    task_id = world.task(one(timeout_ms=1_000))
    world.hello(heartbeat_ms=0, slots=1, prefetch=0)
    world.pass_time(6_000)
    assert W not in world.state.sessions
    assert world.row(task_id).state == "ready"
    assert world.row(task_id).lost_sessions == 0
    world.check()


def test_after_a_restart_a_granted_run_of_a_worker_without_heartbeats_has_its_time() -> None:
    world = World()
    task_id = world.task(one(timeout_ms=30_000))
    world.hello(heartbeat_ms=0, slots=1, prefetch=0)
    world.start(world.batches()[0])
    world.restart()
    world.pass_time(35_000)
    assert world.row(task_id).state == "dispatched"
    world.pass_time(LEASE_MS + 2_000)
    assert world.row(task_id).state == "ready"


def test_workers_are_distinguished_by_their_whole_id() -> None:
    world = World()
    for number in (1, 10):
        world.hello(worker_id(number=number))
    assert len(world.state.sessions) == 2


# -- late and duplicate messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("says", ["hello", "heartbeat"])
def test_a_late_copy_of_a_message_does_not_renew_a_report(says: str) -> None:
    """The run has ended, and its result is on the way. An old message that the network delayed must not count as a new
    report of what the worker holds."""
    world = World()
    world.hello(n=1)
    world.task(one(timeout_ms=1_000))
    steps = world.batches()[0]
    world.accept(steps)
    world.beat(n=7, holding=[held(steps, "running")])
    world.pass_time(4_000)
    heard = world.state.sessions[W].heard_mono
    if says == "hello":
        world.hello(n=1, holding=[held(steps, "running")])
        assert world.last(wire.Welcome).n == 1
    else:
        world.beat(n=6, holding=[held(steps, "running")])
        assert world.last(wire.HeartbeatAck).n == 6
    session = world.state.sessions[W]
    assert (session.heard_mono, session.reported_mono) == (heard, heard)


def test_a_resent_batch_leaves_out_withdrawn_deliveries() -> None:
    """The worker does not answer its batch, and one of its steps is withdrawn. The batch is resent without that step,
    and no longer once none is left."""
    world = World()
    world.hello(slots=2, prefetch=0)
    document = {**ONE, "name": "pair", "steps": [{"name": n, "handler_class": "h"} for n in ("a", "b")]}
    task_id = world.task(document)
    (batch,) = world.batches()
    assert len(batch.steps) == 2
    session = world.state.sessions[W]
    first = world.step(task_id, "a")
    undeliver(world.state, first, "not_held", world.now, avoid=True)
    world.handle(events.Tick())
    world.forget()
    world.pass_time(400)
    again = [b for b in world.heard(wire.Steps) if b.batch_id == batch.batch_id]
    assert [[s.step_name for s in b.steps] for b in again] == [["b"]]
    assert session.unanswered == 1 + sum(len(b.steps) for b in world.batches() if b.batch_id != batch.batch_id)
    undeliver(world.state, world.step(task_id, "b"), "not_held", world.now, avoid=True)
    world.handle(events.Tick())
    world.forget()
    world.pass_time(2_000)
    assert batch.batch_id not in {b.batch_id for b in world.heard(wire.Steps)}
    assert batch.batch_id not in session.unanswered_batches
