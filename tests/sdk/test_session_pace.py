"""Credit, run-ahead, returned steps and the wait of results follow the pace that the session observes."""

import pytest
from msgspec import Raw
from stepwire.session import Offer
from stepwire.session import credit as sdk_credit
from stepwire.session.pace import FADE_MS, Pace
from stepwire.session.reporting import HOLD_MS
from stepwire_protocol import limits
from stepwire_protocol.messages import Accept, Heartbeat, Refuse, Result, Results, Start

from .dialogue import Broker, Dialogue, once, step, welcomed


def run_steps(dialogue: Dialogue, broker: Broker, count: int, length_ms: float, first: int = 1) -> None:
    """Run this number of steps one after another, each for `length_ms`."""
    for step_id in range(first, first + count):
        broker.steps(step(step_id))
        dialogue.pass_time(length_ms)
        dialogue.finish(step_id)


# -- the pace ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length_ms", [0.1, 1.0, 50.0, 5_000.0])
def test_the_pace_is_the_rate_at_which_steps_end(length_ms: float) -> None:
    pace, now_ms = Pace(10.0), 0.0
    pace.resume(now_ms)
    for _ in range(max(10, int(1_000 / length_ms))):
        now_ms += length_ms
        pace.count_end(now_ms)
    rate = pace.steps_in(1_000, now_ms + length_ms / 2) / 1_000
    if length_ms <= FADE_MS:
        assert rate == pytest.approx(1 / length_ms, rel=0.1)
    else:
        assert rate <= 1 / length_ms  # an end that is long ago is forgotten


def test_the_pace_falls_while_steps_run_and_none_ends_and_keeps_while_there_is_none() -> None:
    pace = Pace(10.0)
    pace.resume(0.0)
    for now_ms in range(1, 201):
        pace.count_end(float(now_ms))
    before = pace.steps_in(40, 200.0)
    pace.pause(200.0)
    assert pace.steps_in(40, 10_000.0) == before
    pace.resume(10_000.0)
    assert pace.steps_in(40, 10_000.0 + FADE_MS) == pytest.approx(before / 2.718, rel=0.1)


# -- credit -----------------------------------------------------------------------------------------------------------


def test_credit_grows_with_short_steps_and_is_only_the_slots_with_long_ones() -> None:
    dialogue, broker = welcomed(slots=4)
    assert dialogue.session.credit.room(dialogue.now) == limits.PREFETCH_MIN
    run_steps(dialogue, broker, 500, 0.5)
    fast = dialogue.take(Results)[-1]
    assert fast.free == pytest.approx(4 + limits.PREFETCH_MS / 0.5, rel=0.1)
    assert fast.slots_free == 4
    run_steps(dialogue, broker, 2, 5_000, first=1_000)
    slow = dialogue.take(Results)[-1]
    assert (slow.free, slow.slots_free) == (4, 4)


def test_a_declared_prefetch_is_the_least_room() -> None:
    dialogue, broker = welcomed(slots=4, prefetch=7)
    run_steps(dialogue, broker, 2, 5_000)
    assert dialogue.take(Results)[-1].free == 11


def test_with_a_declared_prefetch_of_0_only_free_slots_are_offered() -> None:
    dialogue, broker = welcomed(slots=4, prefetch=0)
    run_steps(dialogue, broker, 500, 0.5)
    assert dialogue.take(Results)[-1].free == 4


def test_the_room_is_limited_in_steps_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_credit, "WAITING_MAX", 50)
    dialogue, broker = welcomed(slots=1)
    run_steps(dialogue, broker, 300, 0.1)
    assert dialogue.take(Results)[-1].free == 51
    monkeypatch.setattr(sdk_credit, "WAITING_BYTES_MAX", 100_000)
    for step_id in range(1_000, 1_020):
        broker.steps(step(step_id, task_context=Raw(b'"' + b"x" * 10_000 + b'"')))
        dialogue.finish(step_id)
    assert dialogue.take(Results)[-1].free <= 1 + 10


def test_free_slots_are_reported_apart_from_the_room() -> None:
    dialogue, broker = welcomed(slots=4, prefetch=10)
    broker.steps(step(1))
    (accept,) = dialogue.take(Accept)
    assert (accept.free, accept.slots_free) == (13, 3)
    broker.steps(*[step(i) for i in range(2, 7)])
    (accept,) = dialogue.take(Accept)
    assert (accept.free, accept.slots_free) == (8, 0)
    dialogue.pass_time(2_000)
    beat = dialogue.take(Heartbeat)[-1]
    assert (beat.free, beat.slots_free) == ({"b1": 8}, {"b1": 0})


def test_two_brokers_are_offered_no_more_free_slots_than_the_worker_has() -> None:
    dialogue, b1 = welcomed(slots=4, prefetch=6)
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    b1.beat()
    b2.beat()
    beat = dialogue.take(Heartbeat)[-1]
    assert beat.slots_free == {"b1": 2, "b2": 2}
    b1.steps(step(1))
    assert dialogue.take(Accept)[0].slots_free == 2  # the other broker is idle, and keeps one place


# -- returned steps ---------------------------------------------------------------------------------------------------


def test_steps_that_no_longer_fit_are_returned_newest_first_and_never_start() -> None:
    dialogue, broker = welcomed(slots=1)
    run_steps(dialogue, broker, 300, 0.5)
    dialogue.sent.clear()
    dialogue.begun.clear()
    batch = broker.steps(*[step(i) for i in range(1_000, 1_040)])
    dialogue.pass_time(1_000)  # the first one is long
    refusals = dialogue.take(Refuse)
    assert {(refuse.code, refuse.batch_id) for refuse in refusals} == {("busy", batch)}
    returned = [item for refuse in refusals for item in refuse.items]
    assert returned == [(i, 1) for i in range(1_039, 1_000, -1)]
    assert refusals[-1].free == 0
    dialogue.finish(1_000)
    dialogue.pass_time(1_000)
    assert dialogue.runs() == [(1_000, 1)]


def test_a_declared_prefetch_is_not_returned() -> None:
    dialogue, broker = welcomed(slots=1, prefetch=3)
    broker.steps(*[step(i) for i in range(1, 5)])
    dialogue.pass_time(5_000)
    assert not dialogue.take(Refuse)


def test_a_step_that_asks_for_permission_is_not_returned() -> None:
    dialogue, broker = welcomed(slots=1)
    broker.steps(once(1), step(2))
    dialogue.pass_time(1_000)
    assert [refuse.items for refuse in dialogue.take(Refuse)] == [[(2, 1)]]
    broker.go((1, 1))
    assert dialogue.runs() == [(1, 1)]


def test_steps_that_wait_for_their_handlers_concurrency_are_returned_only_if_they_exceed_the_slots() -> None:
    """Below that, credit is left, and the broker would send the returned steps again at once."""
    dialogue, broker = welcomed(offers=(Offer("narrow", concurrency=1), Offer("h")), slots=4)
    broker.steps(*[step(i, handler="narrow") for i in range(1, 8)])
    dialogue.pass_time(1_000)
    refusals = dialogue.take(Refuse)
    assert sum(len(refuse.items) for refuse in refusals) == 3
    assert refusals[-1].free == 0
    dialogue.finish(1)
    dialogue.pass_time(1_000)
    assert dialogue.take(Results)[-1].free == 1
    assert not dialogue.take(Refuse)


def test_a_broker_that_does_not_use_its_share_gets_no_step_back() -> None:
    dialogue, b1 = welcomed(slots=4)
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    b1.steps(*[step(i) for i in range(1, 14)])
    b2.steps(step(100))
    dialogue.pass_time(1_000)
    returned = {item for refuse in dialogue.take(Refuse) for item in refuse.items}
    assert returned
    assert (100, 1) not in returned


# -- ahead of free slots ----------------------------------------------------------------------------------------------


def test_a_step_handed_over_ahead_starts_when_a_slot_is_free_and_is_reported_as_queued_until_then() -> None:
    dialogue, broker = welcomed(slots=1, prefetch=5)
    broker.steps(step(1), step(2))
    assert set(dialogue.handed) == {(1, 1), (2, 1)}
    assert dialogue.states() == {(1, 1): "running", (2, 1): "queued"}
    dialogue.release((1, 1))  # the runner continues at once; the session is not informed yet
    assert dialogue.runs() == [(1, 1), (2, 1)]
    assert dialogue.states()[2, 1] == "running"


def test_a_step_handed_over_ahead_does_not_start_after_its_lease() -> None:
    dialogue, broker = welcomed(slots=1, prefetch=5)
    broker.steps(step(1), step(2))
    dialogue.freeze(20_000)
    dialogue.release((1, 1))
    assert dialogue.runs() == [(1, 1)]


def test_a_step_of_a_dropped_session_does_not_start_in_the_next_one() -> None:
    dialogue, broker = welcomed(slots=1, prefetch=5)
    broker.steps(step(1), step(2))
    broker.reset()
    dialogue.pass_time(300)
    broker.welcome()
    dialogue.release((1, 1))
    assert dialogue.runs() == [(1, 1)]


def test_a_cancel_ends_a_step_that_was_handed_over_and_has_not_begun() -> None:
    dialogue, broker = welcomed(slots=1, prefetch=5)
    broker.steps(step(1), step(2))
    broker.cancel((2, 1))
    assert [(refuse.code, refuse.items) for refuse in dialogue.take(Refuse)] == [("stale", [(2, 1)])]
    assert dialogue.cancels() == []
    dialogue.finish(1)
    assert dialogue.runs() == [(1, 1)]


def test_a_drain_returns_steps_that_were_handed_over_and_have_not_begun() -> None:
    dialogue, broker = welcomed(slots=1, prefetch=5)
    broker.steps(step(1), step(2), step(3))
    dialogue.session.drain(dialogue.now)
    dialogue.act()
    assert [(refuse.code, refuse.items) for refuse in dialogue.take(Refuse)] == [("draining", [(2, 1), (3, 1)])]
    dialogue.finish(1)
    assert dialogue.runs() == [(1, 1)]


def test_a_runner_that_begins_a_step_while_it_is_taken_back_decides_first_or_not_at_all() -> None:
    dialogue, broker = welcomed(slots=2, prefetch=0)
    broker.steps(step(1), step(2))
    begun, unbegun = dialogue.handed[1, 1], dialogue.handed[2, 1]
    assert not begun.take_back()
    unbegun.started_ms = None
    assert unbegun.take_back()
    assert not unbegun.begin(dialogue.now)
    assert unbegun.started_ms is None


def test_an_at_most_once_step_has_a_free_slot_before_it_asks_and_none_is_handed_over_ahead_meanwhile() -> None:
    dialogue, broker = welcomed(slots=2, prefetch=10)
    broker.steps(step(1), step(2), step(3), once(4), step(5))
    dialogue.finish(1)
    assert not dialogue.take(Start), "two steps use the slots"
    dialogue.finish(2)
    assert [start.items for start in dialogue.take(Start)] == [[(4, 1)]]
    assert dialogue.runs() == [(1, 1), (2, 1), (3, 1)]
    assert (5, 1) not in dialogue.handed
    broker.go((4, 1))
    assert dialogue.runs()[-1] == (4, 1)


# -- results ----------------------------------------------------------------------------------------------------------


def end(dialogue: Dialogue, *step_ids: int) -> None:
    """Report ends of runs without asking for actions after each."""
    for step_id in step_ids:
        dialogue.release((step_id, 1))
        result = Result(step_id=step_id, delivery=1, status="completed", output=Raw(b"null"))
        dialogue.session.finished((step_id, 1), result, dialogue.now)
    dialogue.act()


def fast_worker() -> tuple[Dialogue, Broker]:
    dialogue, broker = welcomed(slots=4)
    run_steps(dialogue, broker, 500, 0.2)
    dialogue.sent.clear()
    return dialogue, broker


def test_a_result_waits_at_most_a_millisecond_for_others_of_its_batch() -> None:
    dialogue, broker = fast_worker()
    broker.steps(*[step(i) for i in range(1_000, 1_010)])
    end(dialogue, 1_000, 1_001)
    assert not dialogue.take(Results)
    assert dialogue.session.awaits_results
    assert dialogue.session.wake_at() == dialogue.now + HOLD_MS
    dialogue.pass_time(HOLD_MS)
    assert [len(results.results) for results in dialogue.take(Results)] == [2]


def test_the_results_of_a_whole_batch_are_sent_at_once() -> None:
    dialogue, broker = fast_worker()
    broker.steps(step(1_000), step(1_001))
    broker.steps(step(1_002), step(1_003))
    end(dialogue, 1_000, 1_001, 1_002)
    assert [len(results.results) for results in dialogue.take(Results)] == [2]
    dialogue.pass_time(HOLD_MS)
    assert [len(results.results) for results in dialogue.take(Results)] == [1]


def test_the_result_of_the_only_step_is_sent_at_once() -> None:
    dialogue, broker = fast_worker()
    broker.steps(step(1_000))
    end(dialogue, 1_000)
    assert len(dialogue.take(Results)) == 1


def test_a_result_does_not_wait_for_steps_that_take_long() -> None:
    dialogue, broker = welcomed(slots=4)
    run_steps(dialogue, broker, 20, 50)
    dialogue.sent.clear()
    broker.steps(step(1_000), step(1_001))
    end(dialogue, 1_000)
    assert len(dialogue.take(Results)) == 1
    assert not dialogue.session.awaits_results


def test_results_that_answer_a_batch_in_parts_make_its_accept_superfluous() -> None:
    dialogue, broker = welcomed(slots=4, accept_delay_ms=5)
    broker.steps(step(1), step(2))
    end(dialogue, 1)
    dialogue.pass_time(2)
    end(dialogue, 2)
    dialogue.pass_time(20)
    assert not dialogue.take(Accept)
    assert len(dialogue.take(Results)) == 2
