"""Steps, answers to repeats, at_most_once, cancels, adoption, timeouts, credit, drain."""

import itertools

import msgspec
import pytest
from stepwire.actions import Quit
from stepwire.session import Offer, credit
from stepwire.session.tombstones import TOMBSTONES_MAX
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import Accept, Adopted, Bye, Heartbeat, Progress, Refuse, Result, Results, Start, Steps

from .dialogue import WORKER, Broker, Dialogue, once, step, welcomed


def test_a_batch_is_accepted_once_and_its_steps_run_in_order():
    dialogue, broker = welcomed(slots=2)
    batch = broker.steps(step(1), step(2), step(3))
    (accept,) = dialogue.take(Accept)
    assert (accept.batch_id, accept.free) == (batch, 2 + 10 - 3)
    assert dialogue.runs() == [(1, 1), (2, 1)]
    dialogue.finish(2)
    assert dialogue.runs() == [(1, 1), (2, 1), (3, 1)]


def test_results_that_answer_a_whole_batch_make_its_accept_superfluous():
    dialogue, broker = welcomed(accept_delay_ms=5)
    broker.steps(step(1), step(2))
    dialogue.finish_with(*[_completed(1), _completed(2)])
    dialogue.pass_time(100)
    assert len(dialogue.take(Results)) == 1
    assert not dialogue.take(Accept)


def test_results_of_a_part_of_a_batch_leave_the_accept_due():
    dialogue, broker = welcomed(accept_delay_ms=5)
    broker.steps(step(1), step(2))
    dialogue.finish(1)
    dialogue.pass_time(5)
    assert len(dialogue.take(Accept)) == 1


@pytest.mark.parametrize(
    ("config", "may_need_opening"),
    [
        (b'{"currency":"EUR","note":"a\\nb, \\"c\\""}', False),
        (b'{"key":{"$secret":"stripe/live"}}', True),
        (b'{"key":{"\\u0024secret":"stripe/live"}}', True),
    ],
)
def test_a_run_says_whether_its_message_names_secrets_or_is_sealed(config, may_need_opening):
    dialogue, broker = welcomed(slots=2)
    broker.steps(step(1), step(2, handler_config=msgspec.Raw(config)))
    assert [run.may_need_opening for run in dialogue.handed.values()] == [may_need_opening] * 2


def _completed(step_id, delivery=1):
    return Result(step_id=step_id, delivery=delivery, status="completed")


@pytest.mark.parametrize("state", ["queued", "asking", "running"])
def test_a_repeat_of_a_held_delivery_is_accepted_again_and_runs_nothing_twice(state):
    dialogue, broker = welcomed(slots=1)
    if state == "queued":
        broker.steps(step(9))
    request = once(1) if state == "asking" else step(1)
    batch = broker.steps(request)
    assert dialogue.states()[1, 1] == state
    runs = dialogue.runs()
    dialogue.take(Accept)
    broker.steps(request, batch_id=batch)
    assert [a.batch_id for a in dialogue.take(Accept)] == [batch]
    assert dialogue.runs() == runs


def test_a_repeat_of_a_done_delivery_is_answered_by_its_results_again():
    dialogue, broker = welcomed()
    batch = broker.steps(step(1))
    dialogue.finish(1, output=b'{"a":1}')
    first = dialogue.take(Results)
    broker.steps(step(1), batch_id=batch)
    assert dialogue.take(Results) == first


def test_a_repeat_of_an_acked_delivery_is_refused_as_stale():
    dialogue, broker = welcomed()
    batch = broker.steps(step(1))
    dialogue.finish(1)
    broker.ack(1)
    broker.steps(step(1), batch_id=batch)
    (refuse,) = dialogue.take(Refuse)
    assert (refuse.code, refuse.items, refuse.batch_id) == ("stale", [(1, 1)], batch)
    assert dialogue.runs() == [(1, 1)]


def test_each_part_of_a_mixed_repeat_gets_its_own_answer():
    dialogue, broker = welcomed(slots=2)
    batch = broker.steps(step(1), step(2), step(3))
    dialogue.finish(1)
    (results,) = dialogue.take(Results)
    broker.ack(results.rid)
    dialogue.finish(2)
    dialogue.sent.clear()
    broker.steps(step(1), step(2), step(3), batch_id=batch)
    assert [r.items for r in dialogue.take(Refuse)] == [[(1, 1)]]
    assert [r.results[0].step_id for r in dialogue.take(Results)] == [2]
    assert [a.batch_id for a in dialogue.take(Accept)] == [batch]


def test_an_unknown_delivery_below_the_sessions_floor_is_stale():
    dialogue, broker = welcomed(slots=1)
    for first in range(1, TOMBSTONES_MAX + 12, 10):
        broker.steps(*[step(i, handler="h") for i in range(first, first + 10)])
        for i in range(first, first + 10):
            dialogue.finish(i)
        broker.ack(*[r.rid for r in dialogue.take(Results)])
        dialogue.actions.clear()
    dialogue.sent.clear()
    dialogue.begun.clear()
    broker.steps(step(5_000_000), batch_id="batch_b17_1")
    assert [r.code for r in dialogue.take(Refuse)] == ["stale"]
    assert dialogue.runs() == []
    broker.steps(step(5_000_001))
    assert dialogue.runs() == [(5_000_001, 1)]
    dialogue.finish(5_000_001)
    broker.reset()
    dialogue.pass_time(300)
    broker.welcome()
    broker.steps(step(5_000_002), batch_id="batch_b17_1")  # numbers start again with each session
    assert dialogue.runs()[-1] == (5_000_002, 1)
    dialogue.finish(5_000_002)
    for _ in range(30):
        dialogue.session.holdings.tombstones.forget_oldest()  # the previous session: its floor is not this one
    broker.steps(step(5_000_003), batch_id="batch_b17_2")
    assert dialogue.runs()[-1] == (5_000_003, 1)


def test_a_step_of_an_unknown_handler_is_refused_and_stays_refused():
    dialogue, broker = welcomed(offers=(Offer("a::*"),))
    batch = broker.steps(step(1, handler="a::b"), step(2, handler="c"))
    (refuse,) = dialogue.take(Refuse)
    assert (refuse.code, refuse.items) == ("unknown_handler", [(2, 1)])
    broker.steps(step(1, handler="a::b"), step(2, handler="c"), batch_id=batch)
    assert [r.code for r in dialogue.take(Refuse)] == ["stale"]


def test_steps_above_twice_the_capacity_are_refused_as_busy():
    dialogue, broker = welcomed(slots=1, prefetch=1)
    broker.steps(*[step(i) for i in range(1, 7)])
    (refuse,) = dialogue.take(Refuse)
    assert (refuse.code, refuse.items) == ("busy", [(5, 1), (6, 1)])


def test_unreadable_steps_are_refused_so_that_they_are_not_resent_for_ever():
    dialogue, _broker = welcomed()
    good = Steps(
        v="2.0", broker="b1", epoch=7, session="7.1", batch_id="batch_x_1", protocol_version="2.0", steps=[step(1)]
    )
    document = msgspec.json.decode(codec.encode(good))
    document["steps"][0]["metadata"]["timeout_ms"] = "soon"
    dialogue.session.receive(topics.to_worker(WORKER), msgspec.json.encode(document), dialogue.now)
    dialogue.act()
    (refuse,) = dialogue.take(Refuse)
    assert (refuse.code, refuse.items) == ("bad_message", [(1, 1)])
    dialogue.send(good)
    assert dialogue.take(Refuse)[0].code == "stale"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b'{"type":"steps"}', b"[" * 100_000])
def test_a_frame_that_is_no_message_changes_nothing(body):
    dialogue, broker = welcomed()
    dialogue.session.receive(topics.to_worker(WORKER), body, dialogue.now)
    dialogue.act()
    broker.steps(step(1))
    assert dialogue.runs() == [(1, 1)]


def test_a_message_type_of_a_later_version_is_ignored_silently():
    dialogue, _ = welcomed()
    body = b'{"type":"dance","v":"2.7","broker":"b1","epoch":7}'
    dialogue.session.receive(topics.to_worker(WORKER), body, dialogue.now)
    assert dialogue.act() == []


def test_a_handlers_own_concurrency_does_not_delay_the_others():
    dialogue, broker = welcomed(offers=(Offer("slow", concurrency=1), Offer("fast")), slots=3)
    broker.steps(step(1, handler="slow"), step(2, handler="slow"), step(3, handler="slow"), step(4, handler="fast"))
    assert dialogue.runs() == [(1, 1), (4, 1)]
    broker.cancel((2, 1))
    dialogue.finish(1)
    assert dialogue.runs() == [(1, 1), (4, 1), (3, 1)]


def test_a_cancel_of_the_next_delivery_in_turn_lets_the_one_after_start():
    """The first has ended; the second is next, and is cancelled before it starts: the third is not forgotten."""
    dialogue, broker = welcomed(offers=(Offer("slow", concurrency=1),), slots=3)
    broker.steps(step(1, handler="slow"), step(2, handler="slow"), step(3, handler="slow"))
    result = Result(step_id=1, delivery=1, status="completed", output=msgspec.Raw(b"null"))
    dialogue.release((1, 1))
    dialogue.session.finished((1, 1), result, dialogue.now)
    broker.cancel((2, 1))
    assert dialogue.runs() == [(1, 1), (3, 1)]


# -- at_most_once -----------------------------------------------------------------------------------------------------


def test_an_at_most_once_step_resends_start_and_starts_only_on_go():
    dialogue, broker = welcomed()
    broker.steps(once(1))
    start_times = [dialogue.now] * len(dialogue.take(Start))
    end = dialogue.now + 7_000
    while dialogue.now < end:
        dialogue.pass_time(10)
        start_times += [dialogue.now] * len(dialogue.take(Start))
    gaps = [round(b - a, -2) for a, b in itertools.pairwise(start_times)]
    assert gaps == [300, 600, 1200, 2400]
    assert dialogue.runs() == []
    broker.go((1, 1))
    broker.go((1, 1))
    assert dialogue.runs() == [(1, 1)]
    dialogue.pass_time(2_000)
    assert not dialogue.take(Start)


def test_the_wait_for_a_go_is_not_part_of_a_runs_age(monkeypatch):
    dialogue, broker = welcomed()
    broker.steps(once(1))
    dialogue.pass_time(7_000)
    monkeypatch.setattr(dialogue, "begin", lambda *runs: None)  # the runner has the run, and has not begun it yet
    broker.go((1, 1))
    assert [tuple(item) for item in dialogue.session.holding(dialogue.now)] == [(1, 1, "running", 0)]


def test_an_asking_step_has_a_slot_and_a_queued_one_does_not_ask():
    dialogue, broker = welcomed(slots=1)
    broker.steps(once(1), once(2))
    assert [s.items for s in dialogue.take(Start)] == [[(1, 1)]]
    assert dialogue.states() == {(1, 1): "asking", (2, 1): "queued"}


def test_a_go_for_a_delivery_that_does_not_ask_starts_nothing():
    dialogue, broker = welcomed(slots=1)
    broker.steps(step(1), once(2))
    broker.go((1, 1), (2, 1), (3, 1))
    assert dialogue.runs() == [(1, 1)]


def test_not_granted_frees_the_slot_for_the_next():
    dialogue, broker = welcomed(slots=1)
    batch = broker.steps(once(1), step(2))
    broker.cancel((1, 1), reason="not_granted")
    assert dialogue.runs() == [(2, 1)]
    broker.go((1, 1))
    broker.steps(once(1), step(2), batch_id=batch)
    assert dialogue.runs() == [(2, 1)]


@pytest.mark.parametrize("end", ["timeout", "cancel", "lease_lost"])
def test_a_failure_after_an_interruption_is_no_verdict_for_an_at_most_once_step(end):
    dialogue, broker = welcomed()
    broker.steps(once(1, timeout_ms=1_000), step(2, timeout_ms=1_000))
    broker.go((1, 1))
    if end == "timeout":
        dialogue.pass_time(1_000)
    elif end == "cancel":
        broker.cancel((1, 1), (2, 1))
    else:
        broker.reset()
    dialogue.fail(1, code="boom")
    dialogue.fail(2, code="boom")
    codes = [m.results[0].error.code for m in dialogue.take(Results) if m.results[0].error]
    assert codes == ["outcome_unknown", "boom"]


def test_a_reported_failure_of_an_at_most_once_step_is_a_verdict():
    dialogue, broker = welcomed()
    broker.steps(once(1))
    broker.go((1, 1))
    dialogue.fail(1, code="declined")
    (results,) = dialogue.take(Results)
    assert results.results[0].error.code == "declined"


# -- timeouts, cancel -------------------------------------------------------------------------------------------------


def test_a_timeout_runs_from_the_start_of_the_step_and_not_from_its_receipt():
    dialogue, broker = welcomed(slots=1, prefetch=1)
    broker.steps(step(1, timeout_ms=5_000), step(2, timeout_ms=1_000))
    dialogue.pass_time(3_000)
    dialogue.finish(1)
    dialogue.pass_time(900)
    assert dialogue.cancels() == []
    dialogue.pass_time(100)
    assert dialogue.cancels() == [((2, 1), "timeout")]


def test_a_handlers_own_timeout_only_shortens_the_steps():
    dialogue, broker = welcomed(offers=(Offer("h", timeout_ms=500), Offer("long", timeout_ms=9_000)))
    broker.steps(step(1), step(2, handler="long", timeout_ms=700))
    dialogue.pass_time(800)
    assert dialogue.cancels() == [((1, 1), "timeout"), ((2, 1), "timeout")]


def test_an_overdue_run_keeps_its_slot_until_it_ends_and_may_still_succeed():
    dialogue, broker = welcomed(slots=1)
    broker.steps(step(1, timeout_ms=100), step(2))
    dialogue.pass_time(200)
    assert dialogue.runs() == [(1, 1)]
    dialogue.finish(1)
    assert dialogue.take(Results)[0].results[0].status == "completed"
    assert dialogue.runs() == [(1, 1), (2, 1)]


def test_a_cancel_drops_unstarted_deliveries_and_asks_runs_to_stop():
    dialogue, broker = welcomed(slots=1)
    batch = broker.steps(step(1), step(2))
    broker.cancel((1, 1), (2, 1), (3, 1))
    assert dialogue.cancels() == [((1, 1), "task_cancelled")]
    assert dialogue.states() == {(1, 1): "running"}
    assert [(r.code, r.items, r.batch_id) for r in dialogue.take(Refuse)] == [("stale", [(2, 1)], batch)]
    broker.steps(step(3))  # crossed the cancel
    assert dialogue.take(Refuse)[0].code == "stale"


def test_a_run_is_asked_to_stop_once_although_its_broker_repeats_the_cancel():
    dialogue, broker = welcomed()
    broker.steps(step(1, timeout_ms=100), step(2))
    dialogue.pass_time(200)
    for _ in range(3):
        broker.cancel((1, 1), (2, 1), reason="superseded")
    assert dialogue.cancels() == [((1, 1), "timeout"), ((2, 1), "superseded")]


def test_the_rest_of_a_steps_own_deadline_shortens_its_timeout():
    dialogue, broker = welcomed()
    request = step(1)
    broker.steps(msgspec.structs.replace(request, metadata=msgspec.structs.replace(request.metadata, deadline_ms=700)))
    dialogue.pass_time(699)
    assert dialogue.cancels() == []
    dialogue.pass_time(1)
    assert dialogue.cancels() == [((1, 1), "timeout")]


# -- adoption ---------------------------------------------------------------------------------------------------------


def test_each_adopted_step_is_answered_with_its_state_and_an_unknown_one_never_starts():
    dialogue, broker = welcomed(slots=3)
    broker.steps(step(1), step(2), once(3), step(4))
    dialogue.finish(1)
    dialogue.sent.clear()
    broker.adopt((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    (adopted,) = dialogue.take(Adopted)
    states = ["done", "running", "asking", "queued", "unknown"]
    assert [i[2] for i in adopted.items][:3] == states[:3]
    assert adopted.items[4] == (5, 1, "unknown", 0)
    broker.steps(step(5))
    assert (5, 1) not in dialogue.runs()
    assert dialogue.take(Refuse)[0].code == "stale"


def test_another_broker_that_adopts_gets_the_results():
    dialogue, b1 = welcomed()
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    batch = b1.steps(step(1), step(2))
    dialogue.finish_with(_completed(1), _completed(2))
    (both,) = dialogue.take(Results)
    dialogue.topics.clear()
    b2.adopt((1, 1))
    split = dialogue.take(Results)
    assert [(m.session, m.batch_id, [r.step_id for r in m.results]) for m in split] == [
        (b1.session, batch, [2]),
        (b2.session, batch, [1]),
    ]
    assert b"results@b2 " in dialogue.topics
    assert len({m.rid for m in split} | {both.rid}) == 3
    b1.ack(both.rid)
    assert len(dialogue.states()) == 2
    b1.ack(split[0].rid)
    b2.ack(split[1].rid)
    assert dialogue.states() == {}


def test_a_running_step_adopted_by_another_broker_is_reported_to_that_one():
    dialogue, b1 = welcomed(prefetch=10)
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    b1.steps(step(1))
    b2.adopt((1, 1))
    b1.beat()
    b2.beat()
    dialogue.pass_time(2_000)
    b1.beat()
    b2.beat()
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 7, "b2": 6}  # its credit moved with it
    dialogue.topics.clear()
    dialogue.finish(1)
    assert dialogue.topics == [b"results@b2 "]
    assert dialogue.take(Results)[0].session == b2.session


def test_an_asking_step_asks_its_new_owner_after_an_adoption():
    dialogue, b1 = welcomed()
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    b1.steps(once(1))
    b2.adopt((1, 1))
    b1.go((1, 1))
    assert dialogue.runs() == []
    dialogue.take(Start)
    dialogue.pass_time(400)
    assert dialogue.take(Start)[0].session == b2.session
    b2.go((1, 1))
    assert dialogue.runs() == [(1, 1)]


# -- credit -----------------------------------------------------------------------------------------------------------


def test_a_done_delivery_uses_no_credit_and_results_carry_the_new_credit():
    dialogue, broker = welcomed(slots=1, prefetch=1)
    broker.steps(step(1), step(2))
    assert dialogue.take(Accept)[0].free == 0
    dialogue.pass_time(100)
    dialogue.finish(1)
    (results,) = dialogue.take(Results)
    assert (results.free, results.slots_free) == (1, 0)
    dialogue.finish(2)
    assert dialogue.take(Results)[0].slots_free == 1


def test_a_broker_that_does_not_ack_gets_no_credit_when_the_outbox_is_full(monkeypatch):
    monkeypatch.setattr(credit, "OUTBOX_BYTES_MAX", 1_000)
    dialogue, broker = welcomed(prefetch=10)
    broker.steps(step(1))
    dialogue.pass_time(100)
    dialogue.finish(1, output=b'"' + b"x" * 1_000 + b'"')
    dialogue.pass_time(2_000)
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 0}
    broker.ack(1)
    dialogue.pass_time(2_000)
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 14}


# -- progress, drain --------------------------------------------------------------------------------------------------


def test_only_the_latest_progress_is_sent_and_not_too_often():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    for done in range(5):
        dialogue.session.progressed((1, 1), done, 10, None, dialogue.now)
        dialogue.act()
    assert [p.items for p in dialogue.take(Progress)] == [[(1, 1, 0, 10, None)]]
    dialogue.pass_time(200)
    assert [p.items for p in dialogue.take(Progress)] == [[(1, 1, 4, 10, None)]]


def test_a_drain_gives_back_unstarted_steps_and_quits_when_the_rest_is_acked():
    dialogue, broker = welcomed(slots=2)
    batch = broker.steps(step(1), once(2), step(3))
    dialogue.session.drain(dialogue.now)
    dialogue.act()
    (refuse,) = dialogue.take(Refuse)
    assert (refuse.code, refuse.items, refuse.batch_id) == ("draining", [(2, 1), (3, 1)], batch)
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 0}
    assert dialogue.take(Bye)
    broker.steps(step(4))
    assert dialogue.take(Refuse)[0].code == "draining"
    dialogue.finish(1)
    assert not dialogue.of(Quit)
    broker.ack(dialogue.take(Results)[0].rid)
    assert dialogue.of(Quit) == [Quit()]
    assert dialogue.take(Heartbeat)[-1].holding == []
    assert dialogue.take(Bye)


def test_a_quit_from_the_broker_drains_the_worker():
    dialogue, broker = welcomed()
    dialogue.pass_time(2_000)
    broker.beat(quit=True)
    assert dialogue.of(Quit) == [Quit()]


def test_a_run_that_was_never_started_is_given_back():
    dialogue, broker = welcomed(slots=1)
    batch = broker.steps(step(1), step(2))
    dialogue.give_back(1)
    assert [(r.code, r.items, r.batch_id) for r in dialogue.take(Refuse)] == [("busy", [(1, 1)], batch)]
    assert dialogue.runs() == [(1, 1), (2, 1)]
    broker.steps(step(1), step(2), batch_id=batch)
    assert dialogue.runs() == [(1, 1), (2, 1)]


def test_the_worker_ignores_frames_on_other_topics():
    dialogue, _broker = welcomed()
    body = codec.encode(
        Steps(v="2.0", broker="b1", epoch=7, session="7.1", batch_id="b_1", protocol_version="2.0", steps=[step(1)])
    )
    for topic in (b"steps ", b"@w:fedcba9876543210 ", b"brokers "):
        dialogue.session.receive(topic, body, dialogue.now)
    dialogue.act()
    assert dialogue.runs() == []


def test_a_worker_with_no_broker_waits_and_does_not_quit():
    dialogue = Dialogue()
    dialogue.pass_time(60_000)
    assert not dialogue.of(Quit)
    dialogue.session.drain(dialogue.now)
    dialogue.act()
    assert dialogue.of(Quit)
