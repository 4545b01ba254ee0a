"""Several brokers: which one has which places, and which stay connected. Repeated drops: the pause before the hello."""

import itertools

import pytest
from stepwire.actions import Connect, Disconnect, Link
from stepwire.session import promises
from stepwire_protocol.messages import Accept, Endpoints, Heartbeat, HeartbeatAck, Hello, Results

from .dialogue import Broker, Dialogue, step, welcomed

B1, B2 = Endpoints("b1", "tcp://h:1", "tcp://h:2"), Endpoints("b2", "tcp://i:1", "tcp://i:2")
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


def two(**config: object) -> tuple[Dialogue, Broker, Broker]:
    """A worker with sessions with two brokers, which have acknowledged all its heartbeats."""
    dialogue, b1 = welcomed(**config)
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    both_beat(dialogue, b1, b2)
    dialogue.sent.clear()
    return dialogue, b1, b2


def both_beat(dialogue: Dialogue, *brokers: Broker) -> None:
    """Ack every heartbeat until the worker sends no further one at once."""
    for _ in range(10):
        beats = dialogue.take(Heartbeat)
        if not beats:
            return
        for broker in brokers:
            broker.send(HeartbeatAck, session=broker.session, n=beats[-1].n)
    raise AssertionError("each ack causes another heartbeat")


def latest_free(dialogue: Dialogue) -> dict[str, int]:
    return [message for message in dialogue.sent if isinstance(message, Heartbeat)][-1].free


# -- promises ---------------------------------------------------------------------------------------------------------


def test_a_place_is_offered_to_another_broker_only_after_its_holder_has_acknowledged_a_smaller_number() -> None:
    dialogue, b1, b2 = two(slots=4, prefetch=6)
    b1.steps(step(1))
    assert dialogue.take(Accept)[0].free == 4  # 10 places: 1 in use, 5 still promised to b2
    (beat,) = dialogue.take(Heartbeat)  # sent at once: b1 was idle, and its share was lent
    assert beat.free == {"b1": 4, "b2": 1}
    b1.send(HeartbeatAck, session=b1.session, n=beat.n)
    assert not dialogue.take(Heartbeat)
    b2.send(HeartbeatAck, session=b2.session, n=beat.n)
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 8, "b2": 1}


def test_a_broker_that_never_acknowledges_keeps_its_places() -> None:
    dialogue, b1, _b2 = two(slots=4, prefetch=6)
    b1.steps(step(1))
    for _ in range(3):
        dialogue.pass_time(2_000)
        b1.beat()
    assert latest_free(dialogue) == {"b1": 4, "b2": 1}


def test_the_places_of_a_broker_without_a_session_are_free_at_once() -> None:
    dialogue, b1, b2 = two(slots=4, prefetch=6)
    b1.steps(step(1))
    b2.reset()
    dialogue.pass_time(100)
    dialogue.finish(1)
    assert dialogue.take(Results)[0].free == 10


def test_steps_that_arrive_use_up_what_was_promised() -> None:
    dialogue, b1, b2 = two(slots=4, prefetch=6)
    b2.steps(*[step(i) for i in range(1, 6)])  # all that was promised to b2
    dialogue.take(Accept)
    b1.steps(step(10))
    assert dialogue.take(Accept)[0].free == 4  # 10 places: 6 in use


def test_credit_never_exceeds_the_capacity_whatever_the_brokers_send() -> None:
    dialogue, b1, b2 = two(slots=6, prefetch=0)
    number = itertools.count(1)
    for turn in range(200):
        broker, other = (b1, b2) if turn % 3 else (b2, b1)
        promised = {b.id: dialogue.session.brokers.get(b.id).promises.promised for b in (b1, b2)}
        assert sum(promised.values()) + dialogue.session.holdings.load <= 6, turn
        for _ in range(min(promised[broker.id], turn % 4)):
            broker.steps(step(next(number)))
        for item in list(dialogue.handed)[: turn % 5]:
            dialogue.finish(*item)
        dialogue.pass_time(700)
        beats = [m for m in dialogue.sent if isinstance(m, Heartbeat)]
        if beats and turn % 2:
            broker.send(HeartbeatAck, session=broker.session, n=beats[-1].n)
            other.send(HeartbeatAck, session=other.session, n=beats[max(0, len(beats) - 2)].n)
    assert next(number) > 50


def test_with_less_capacity_than_brokers_each_broker_gets_its_turn() -> None:
    dialogue, b1, b2 = two(slots=1, prefetch=0)
    turns = []
    for _ in range(8):
        dialogue.pass_time(1_000)
        if beats := [m for m in dialogue.sent if isinstance(m, Heartbeat)]:
            for broker in (b1, b2):
                broker.send(HeartbeatAck, session=broker.session, n=beats[-1].n)
            turns.append(latest_free(dialogue))
            dialogue.sent.clear()
    assert {tuple(turn.values()) for turn in turns} >= {(1, 0), (0, 1)}
    assert all(sum(turn.values()) <= 1 for turn in turns)


def test_acks_move_credit_at_most_once_between_two_heartbeats() -> None:
    dialogue, b1, b2 = two(slots=6, prefetch=6)
    b3 = Broker(dialogue, "b3", 4)
    b3.here()
    dialogue.pass_time(300)
    b3.welcome()
    both_beat(dialogue, b1, b2, b3)
    b1.steps(step(1))
    (recall,) = dialogue.take(Heartbeat)
    b2.send(HeartbeatAck, session=b2.session, n=recall.n)
    (moved,) = dialogue.take(Heartbeat)
    b3.send(HeartbeatAck, session=b3.session, n=moved.n)
    assert not dialogue.take(Heartbeat)
    dialogue.pass_time(2_000)
    assert dialogue.take(Heartbeat)[-1].free["b1"] > moved.free["b1"]


def test_credit_in_results_is_a_promise_like_that_of_a_heartbeat() -> None:
    dialogue, b1, b2 = two(slots=1, prefetch=0)
    for _ in range(20):
        dialogue.pass_time(500)
        both_beat(dialogue, b1, b2)
        if dialogue.session.brokers.get("b1").promises.promised == 1:
            break
    b1.steps(step(1))
    both_beat(dialogue, b1, b2)
    dialogue.pass_time(10)
    dialogue.finish(1)
    assert dialogue.take(Results)[-1].free == 1
    dialogue.pass_time(2_300)  # it is the turn of b2, but b1 may still use the place
    assert latest_free(dialogue) == {"b1": 0, "b2": 0}


def test_the_credit_of_the_only_broker_needs_no_ack() -> None:
    dialogue, broker = welcomed(slots=4, prefetch=6)
    broker.steps(step(1))
    dialogue.pass_time(100)
    dialogue.finish(1)
    assert dialogue.take(Results)[0].free == 10


def test_unacknowledged_promises_are_limited_and_the_oldest_is_not_lost() -> None:
    promised = promises.Promises()
    promised.announce(1, 7)
    for n in range(2, 1_000):
        promised.announce(n, 1)
    assert promised.promised == 7
    promised.acknowledge(999)
    assert promised.promised == 1


# -- repeated drops ---------------------------------------------------------------------------------------------------


def hello_gaps(dialogue: Dialogue, broker: Broker, drops: int, code: str = "unknown_session") -> list[float]:
    """The pauses between the drop of a session that was just opened and the next hello."""
    gaps = []
    for _ in range(drops):
        dialogue.take(Hello)
        broker.reset(code)
        start = dialogue.now
        while not [m for m in dialogue.sent if isinstance(m, Hello)]:
            dialogue.pass_time(1)
            assert dialogue.now < start + 60_000
        gaps.append(dialogue.now - start)
        broker.welcome()
    return gaps


def test_a_broker_that_ends_each_session_at_once_is_answered_at_growing_intervals() -> None:
    dialogue, broker = welcomed()
    dialogue.pass_time(1_000)
    assert [round(gap) for gap in hello_gaps(dialogue, broker, 8)] == [0, 250, 500, 1000, 2000, 4000, 5000, 5000]


def test_a_session_that_lasted_half_a_lease_ends_the_pauses() -> None:
    dialogue, broker = welcomed()
    hello_gaps(dialogue, broker, 4)
    for _ in range(3):
        dialogue.pass_time(2_000)
        broker.beat()
    assert hello_gaps(dialogue, broker, 2)[0] <= 1


@pytest.mark.parametrize("code", ["version", "unauthorized"])
def test_a_broker_that_refuses_the_worker_is_asked_every_five_seconds(code: str) -> None:
    dialogue, broker = welcomed()
    assert [round(gap) for gap in hello_gaps(dialogue, broker, 3, code)] == [5000, 5000, 5000]


def test_a_refusal_of_the_first_hello_is_not_answered_at_the_pace_of_a_lost_hello() -> None:
    dialogue = Dialogue()
    dialogue.take(Hello)
    Broker(dialogue).reset("unauthorized")
    dialogue.pass_time(4_900)
    assert not dialogue.take(Hello)
    dialogue.pass_time(200)
    assert dialogue.take(Hello)


def test_a_broker_that_ends_its_sessions_does_not_delay_the_hello_to_another() -> None:
    dialogue, b1 = welcomed()
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    b1.reset("unauthorized")
    dialogue.take(Hello)
    dialogue.pass_time(1_000)
    assert dialogue.take(Hello)


def test_here_is_answered_at_once_even_after_repeated_drops() -> None:
    dialogue, broker = welcomed()
    hello_gaps(dialogue, broker, 6)
    broker.reset()
    dialogue.pass_time(1_000)
    dialogue.take(Hello)
    broker.epoch += 1
    broker.here()
    assert dialogue.take(Hello)


# -- lists of brokers -------------------------------------------------------------------------------------------------


def listed(*entries: Endpoints, **config: object) -> tuple[Dialogue, Broker]:
    """A worker that knows b1's endpoints, and has received this list from b1."""
    dialogue = Dialogue(**config)
    broker = Broker(dialogue)
    broker.brokers = list(entries)
    broker.welcome()
    return dialogue, broker


def test_a_broker_that_an_ack_lists_is_connected() -> None:
    dialogue, broker = listed(B1)
    broker.beat(brokers=[B1, B2])
    assert dialogue.of(Connect) == [Connect(Link("tcp://i:1", "tcp://i:2"))]


def test_an_entry_without_endpoints_is_ignored() -> None:
    dialogue, _ = listed(B1, Endpoints("b2", "", "tcp://i:2"), Endpoints("b3", "tcp://j:1", ""))
    assert not dialogue.of(Connect)


def test_a_server_key_is_passed_on_if_the_worker_has_keys_itself() -> None:
    entry = Endpoints("b2", "tcp://i:1", "tcp://i:2", KEY)
    dialogue, _ = listed(B1, entry, curve=True)
    assert dialogue.of(Connect) == [Connect(Link("tcp://i:1", "tcp://i:2"), KEY)]


def test_a_broker_with_a_server_key_is_ignored_without_keys_and_reported_once() -> None:
    entry = Endpoints("b2", "tcp://i:1", "tcp://i:2", KEY)
    dialogue, broker = listed(B1, entry)
    broker.beat(brokers=[B1, entry])
    assert not dialogue.of(Connect)
    assert dialogue.logs().count("broker_ignored") == 1


def keep_alive(dialogue: Dialogue, broker: Broker, ms: int) -> None:
    for _ in range(ms // 2_000):
        dialogue.pass_time(2_000)
        broker.beat()
        dialogue.sent = dialogue.sent[-5:]


def test_a_learned_broker_is_disconnected_when_no_list_has_named_it_for_ten_minutes() -> None:
    dialogue, b1 = listed(B1, B2)
    keep_alive(dialogue, b1, 4_000)
    b1.beat(brokers=[B1])
    keep_alive(dialogue, b1, 590_000)
    assert not dialogue.of(Disconnect)
    keep_alive(dialogue, b1, 20_000)
    assert dialogue.of(Disconnect) == [Disconnect(Link("tcp://i:1", "tcp://i:2"))]
    b1.beat(brokers=[B1, B2])
    assert len(dialogue.of(Connect)) == 2


def test_an_ack_without_a_list_leaves_the_list_unchanged() -> None:
    dialogue, b1 = listed(B1, B2)
    keep_alive(dialogue, b1, 700_000)
    assert not dialogue.of(Disconnect)


def test_a_broker_with_a_session_is_not_disconnected_and_one_that_lost_it_returns_with_the_next_number() -> None:
    dialogue, b1 = listed(B1, B2)
    b2 = Broker(dialogue, "b2", 3)
    b2.here()
    dialogue.pass_time(300)
    b2.welcome()
    b1.beat(brokers=[B1])
    for _ in range(310):
        keep_alive(dialogue, b1, 2_000)
        b2.beat()
    assert not dialogue.of(Disconnect)
    b2.reset("shutdown")
    keep_alive(dialogue, b1, 4_000)
    assert len(dialogue.of(Disconnect)) == 1
    assert latest_free(dialogue).keys() == {"b1"}
    b2.here()
    dialogue.pass_time(300)
    assert [m for m in dialogue.sent if isinstance(m, Hello)][-1].next == {"b1": 1, "b2": 2}


def test_the_list_of_a_broker_without_a_session_does_not_count() -> None:
    dialogue, _ = listed(B1, B2)
    dialogue.pass_time(630_000)
    assert len(dialogue.of(Disconnect)) == 1


def test_a_configured_broker_is_never_disconnected() -> None:
    dialogue, b1 = listed(B1, B2, links=(Link(B1.steps, B1.results), Link(B2.steps, B2.results)))
    b1.beat(brokers=[B1])
    keep_alive(dialogue, b1, 700_000)
    assert not dialogue.of(Disconnect)
