"""Sessions: hello, welcome, the echo lease, drops, resets, endpoints."""

import itertools

import pytest
from stepwire.actions import Connect, Link, Rebuild
from stepwire.session import Config, Offer, Session
from stepwire_protocol.messages import Accept, Endpoints, Heartbeat, HeartbeatAck, Hello, Results

from .dialogue import Broker, Dialogue, once, step, welcomed


def test_hello_is_sent_at_once_and_again_after_250_ms_doubling_to_a_second():
    dialogue = Dialogue()
    times = [dialogue.now]
    dialogue.take(Hello)
    while len(times) < 6:
        dialogue.pass_time(1)
        times += [dialogue.now] * len(dialogue.take(Hello))
    gaps = [round(b - a, -1) for a, b in itertools.pairwise(times)]
    assert gaps == [250, 500, 1000, 1000, 1000]


@pytest.mark.parametrize(("drawn", "wait_ms"), [(0.0, 200), (0.5, 250), (0.999999, 300)])
def test_the_hello_retry_varies_by_twenty_percent(drawn, wait_ms):
    session = Session(Config(worker="w:0123456789abcdef", offers=(Offer("**"),), slots=1), lambda: drawn)
    session.start(0)
    session.actions(0)
    assert session.wake_at() == pytest.approx(wait_ms, abs=1)


def test_a_hello_carries_everything_a_broker_needs_to_place_work():
    offers = (Offer("a"), Offer("b::*", shadow_safe=True))
    dialogue = Dialogue(offers=offers, slots=3, labels={"gpu": "true"}, handler_version="2.1")
    (hello,) = dialogue.take(Hello)
    assert hello.handlers == ["a", "b::*"]
    assert hello.shadow_safe == ["b::*"]
    assert hello.handler_version == "2.1"
    assert (hello.slots, hello.prefetch, hello.labels, hello.versions) == (3, 10, {"gpu": "true"}, ["2.0"])
    assert dialogue.topics == [b"workers "]


def test_a_welcome_is_followed_at_once_by_a_heartbeat_with_credit():
    dialogue = Dialogue(slots=4, prefetch=6)
    broker = Broker(dialogue).welcome()
    (heartbeat,) = dialogue.take(Heartbeat)
    assert heartbeat.free == {"b1": 10}
    assert heartbeat.sessions == {"b1": broker.session}
    dialogue.take(Hello)
    dialogue.pass_time(1500)
    assert not dialogue.take(Hello)


def test_a_welcome_counts_only_for_a_hello_sent_since_the_last_drop():
    dialogue, broker = welcomed()
    dialogue.pass_time(9_800)
    (hello, *_) = dialogue.take(Hello)
    assert hello.next == {"b1": 2}
    broker.k = 1
    broker.welcome(n=hello.n)  # an answer for the previous session
    broker.k = 2
    dialogue.take(Heartbeat)
    broker.welcome(n=1)  # the right session, but an echo of an old hello
    assert not dialogue.take(Heartbeat)
    broker.welcome(n=hello.n)
    assert dialogue.take(Heartbeat)[-1].sessions == {"b1": "7.2"}


def test_a_welcome_for_a_hello_sent_before_the_latest_here_is_ignored():
    dialogue = Dialogue()
    broker = Broker(dialogue)
    broker.here()
    broker.welcome(n=1)
    assert not dialogue.take(Heartbeat)
    dialogue.pass_time(300)
    broker.welcome()
    assert dialogue.take(Heartbeat)[-1].sessions == {"b1": "7.1"}


def test_the_lease_runs_from_the_send_time_of_the_echoed_heartbeat():
    dialogue, broker = welcomed(slots=1)
    dialogue.pass_time(2_000)
    (_heartbeat,) = [m for m in dialogue.sent if isinstance(m, Heartbeat)]
    sent = dialogue.now
    dialogue.freeze(1_500)
    broker.beat()
    broker.steps(step(1), step(2))
    dialogue.now = sent + 9_699
    dialogue.finish(1)
    assert dialogue.runs() == [(1, 1), (2, 1)]
    dialogue.now = sent + 9_701
    dialogue.act()
    assert dialogue.cancels() == [((2, 1), "lease_lost")]


def test_a_late_and_older_echo_does_not_shorten_the_lease():
    dialogue, broker = welcomed()
    dialogue.pass_time(2_000)
    first = dialogue.take(Heartbeat)[-1]
    dialogue.pass_time(2_000)
    broker.beat()
    broker.send(HeartbeatAck, session=broker.session, n=first.n)
    broker.steps(step(1))
    dialogue.now += 9_600
    dialogue.act()
    assert dialogue.cancels() == []


def test_nothing_starts_after_the_lease_even_when_the_process_was_frozen():
    dialogue, broker = welcomed(slots=1)
    broker.steps(step(1), step(2), step(3))
    dialogue.freeze(10_000)
    dialogue.finish(1)  # frees the slot, too late for the next
    assert dialogue.runs() == [(1, 1)]
    assert dialogue.states() == {(1, 1): "done"}


def test_no_message_counts_after_the_lease():
    dialogue, broker = welcomed()
    broker.steps(once(1))
    dialogue.freeze(10_000)
    broker.go((1, 1))
    broker.steps(step(2))
    assert dialogue.runs() == []


def test_a_drop_takes_the_next_number_and_forgets_what_has_not_started():
    dialogue, broker = welcomed(slots=2)
    broker.steps(step(1), once(2), step(3))
    assert dialogue.states() == {(1, 1): "running", (2, 1): "asking", (3, 1): "queued"}
    dialogue.pass_time(9_701)
    assert dialogue.states() == {(1, 1): "running"}
    assert dialogue.cancels() == [((1, 1), "lease_lost")]
    assert dialogue.take(Hello)[0].next == {"b1": 2}
    assert "session_dropped" in dialogue.logs()


def test_a_run_outlives_its_session_and_is_reported_in_the_next():
    dialogue, broker = welcomed()
    batch = broker.steps(step(1))
    dialogue.pass_time(9_800)
    broker.welcome()
    dialogue.finish(1)
    (results,) = dialogue.take(Results)
    assert (results.session, results.batch_id) == ("7.2", batch)


def test_a_dropped_delivery_never_starts_when_it_is_sent_again():
    dialogue, broker = welcomed(slots=1)
    broker.steps(step(1), step(2))
    dialogue.pass_time(9_800)
    broker.welcome()
    broker.steps(step(2))
    dialogue.finish(1)
    assert dialogue.runs() == [(1, 1)]


def test_a_welcome_after_its_own_lease_opens_no_session():
    dialogue = Dialogue()
    (hello,) = dialogue.take(Hello)
    dialogue.pass_time(10_000)
    Broker(dialogue).welcome(n=hello.n)
    assert not [m for m in dialogue.take(Heartbeat) if m.sessions]


@pytest.mark.parametrize("code", ["unknown_session", "expired", "version", "unauthorized", "shutdown"])
def test_a_reset_of_the_current_number_ends_the_session(code):
    dialogue, broker = welcomed()
    broker.steps(step(1), *[step(i) for i in range(2, 7)])
    broker.reset(code)
    assert len(dialogue.states()) == 4
    dialogue.pass_time(5_000)
    assert dialogue.take(Hello)[0].next == {"b1": 2}


def test_a_reset_of_another_number_changes_nothing():
    dialogue, broker = welcomed()
    broker.reset(next=2)
    broker.steps(step(1))
    assert dialogue.runs() == [(1, 1)]


def test_a_broker_that_keeps_resetting_is_not_answered_faster_than_the_hello_retry():
    dialogue = Dialogue()
    broker = Broker(dialogue)
    for k in range(1, 50):
        broker.reset("unauthorized", next=k)
    assert len(dialogue.take(Hello)) == 1
    dialogue.pass_time(1_000)
    assert len(dialogue.take(Hello)) <= 3


def test_here_with_a_new_epoch_keeps_the_work_under_the_current_lease():
    dialogue, broker = welcomed(slots=1)
    broker.steps(step(1), step(2))
    broker.epoch = 8
    broker.here()
    dialogue.finish(1)
    assert dialogue.runs() == [(1, 1), (2, 1)]
    dialogue.pass_time(300)
    hello = dialogue.take(Hello)[-1]
    assert hello.next == {"b1": 1}
    assert hello.sessions == {}


def test_here_with_the_known_epoch_keeps_the_session():
    dialogue, broker = welcomed()
    dialogue.pass_time(1000)
    broker.here()
    assert dialogue.take(Hello)[-1].sessions == {"b1": "7.1"}
    broker.steps(step(1))
    assert dialogue.runs() == [(1, 1)]


def test_messages_of_another_session_are_ignored():
    dialogue, broker = welcomed()
    for epoch, k in [(6, 1), (8, 1), (7, 2)]:
        broker.epoch, broker.k = epoch, k
        broker.steps(step(1))
        broker.adopt((1, 1))
    assert dialogue.runs() == []
    assert not dialogue.take(Accept)


def test_another_deployment_of_the_same_broker_ends_everything_of_the_old_one():
    dialogue, broker = welcomed(slots=2)
    broker.steps(step(1), step(2), step(3))
    dialogue.finish(1)
    assert set(dialogue.states()) == {(1, 1), (2, 1), (3, 1)}
    restored = Broker(dialogue, epoch=3, deployment="other")
    restored.here()
    assert dialogue.states() == {}
    assert "deployment_replaced" in dialogue.logs()
    assert ((2, 1), "superseded") in dialogue.cancels()
    dialogue.pass_time(300)
    restored.welcome()
    dialogue.take(Results)
    dialogue.finish(2)
    dialogue.pass_time(5_000)
    assert not dialogue.take(Results)  # the database of its owner was replaced
    restored.steps(step(1))  # the same numbers mean other steps now
    assert dialogue.runs()[-1] == (1, 1)


def test_heartbeats_go_to_all_brokers_every_two_seconds_with_what_is_held():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    dialogue.pass_time(2_000)
    (heartbeat,) = dialogue.take(Heartbeat)
    assert heartbeat.holding == [(1, 1, "running", 2000)]


def test_heartbeats_are_never_sent_more_often_than_every_hundred_milliseconds():
    dialogue, _ = welcomed(heartbeat_ms=20)
    dialogue.pass_time(1_000)
    assert len(dialogue.take(Heartbeat)) == 10


def test_quiet_in_a_heartbeat_ack_stops_credit_until_it_is_absent_again():
    dialogue, broker = welcomed()
    dialogue.pass_time(2_000)
    broker.beat(quiet=True)
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 0}
    dialogue.pass_time(2_000)
    broker.beat()
    assert dialogue.take(Heartbeat)[-1].free == {"b1": 14}


def test_a_link_is_rebuilt_after_fifteen_silent_seconds_and_every_fifteen_after():
    dialogue = Dialogue()
    dialogue.pass_time(14_900)
    assert not dialogue.of(Rebuild)
    dialogue.pass_time(40_000)
    assert [a.link for a in dialogue.of(Rebuild)] == [Link("tcp://h:1", "tcp://h:2")] * 3


def test_a_link_with_a_living_broker_is_not_rebuilt():
    dialogue, broker = welcomed()
    for _ in range(12):
        dialogue.pass_time(2_000)
        broker.beat()
    assert not dialogue.of(Rebuild)


def test_a_broker_learned_from_a_welcome_is_connected_once():
    dialogue = Dialogue()
    broker = Broker(dialogue)
    broker.brokers = [Endpoints("b1", "tcp://h:1", "tcp://h:2"), Endpoints("b2", "tcp://i:1", "tcp://i:2")]
    broker.welcome()
    broker.welcome()
    assert dialogue.of(Connect) == [Connect(Link("tcp://i:1", "tcp://i:2"))]


def test_a_broker_under_another_name_of_a_configured_endpoint_is_not_connected_twice():
    dialogue = Dialogue(links=(Link("tcp://h:1", "tcp://h:2"), Link("tcp://i:1", "tcp://i:2")))
    broker = Broker(dialogue)
    broker.brokers = [
        Endpoints("b1", "tcp://h:1", "tcp://h:2"),
        Endpoints("b2", "tcp://10.0.0.9:1", "tcp://10.0.0.9:2"),
    ]
    broker.welcome()
    assert not dialogue.of(Connect)
