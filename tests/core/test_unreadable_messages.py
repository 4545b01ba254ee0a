"""Messages and frames that cannot be read: the core counts them, answers a known sender, and complains of level 0."""

from typing import Any

import msgspec
import pytest
from stepwire_broker.core.commit.decision import Complaint
from stepwire_broker.core.model import events
from stepwire_broker.core.model.principal import PROCESS, full_grant, with_built_in
from stepwire_broker.stages import results
from stepwire_protocol import codec, limits, topics
from stepwire_protocol import messages as wire

from .world import BROKER, ONE, W, World


def arrives(world: World, topic: bytes, body: bytes) -> Any:
    """One frame of the bus, through the results stage into the core."""
    event = results.read(topic, body, limits.MESSAGE_BYTES_MAX)
    world.handle(event)
    return event


def test_a_worker_is_answered_when_its_message_cannot_be_decoded() -> None:
    world = World()
    event = arrives(world, topics.RESULTS, b'{"type":"results","v":"2.0","worker":"%s","rid":7}' % W.encode())
    assert (event.worker, event.kind, event.rid) == (W, "results", 7)
    refused = world.last(wire.Refused, W)
    assert (refused.code, refused.refused, refused.rid) == (event.code, "results", 7)
    assert world.state.counters.refused == {event.code: 1}
    assert [(c.code, c.worker, c.kind) for c in world.complaints] == [(event.code, W, "results")]


@pytest.mark.parametrize(("topic", "sender"), [(topics.RESULTS, None), (topics.WORKERS, "")])
def test_an_unreadable_message_without_a_sender_is_reported_as_of_level_0_or_of_an_unknown_worker(
    topic: bytes, sender: str | None
) -> None:
    world = World()
    event = arrives(world, topic, b"no json")
    assert (event.code, event.worker) == ("not_json", None)
    assert world.complaints == [Complaint("not_json", event.message, sender)]
    assert world.state.counters.refused == {"not_json": 1}
    assert world.sent == []


def test_a_message_of_a_later_type_is_counted_and_answered_by_nothing() -> None:
    world = World()
    arrives(world, topics.RESULTS, b'{"type":"sing","v":"2.0","worker":"%s"}' % W.encode())
    assert world.state.counters.ignored == 1
    assert world.state.counters.refused == {}
    assert world.sent == []


def test_a_frame_that_cannot_be_read_is_counted_by_its_code() -> None:
    world = World()
    world.handle(events.FrameRefused("no_topic"))
    world.handle(events.FrameRefused("no_topic"))
    assert world.state.counters.refused == {"no_topic": 2}


def test_a_welcome_carries_the_addresses_the_bus_is_bound_to() -> None:
    world = World()
    world.handle(events.EndpointsBound("tcp://h:1", "tcp://h:2"))
    world.hello()
    assert world.last(wire.Welcome).brokers == [wire.Endpoints(BROKER, "tcp://h:1", "tcp://h:2")]


def test_a_session_keeps_the_principal_that_opened_it() -> None:
    world = World()
    world.handle(events.GrantsChanged(with_built_in([full_grant("shop")])))
    hello = wire.Hello(v="2.0", worker=W, n=1, handlers=["**"], slots=1, prefetch=0, next={BROKER: 1}, versions=["2.0"])
    world.handle(codec.decode_worker(codec.encode(hello)), "shop")
    world.handle(events.Tick())
    assert world.state.sessions[W].principal == "shop"
    assert world.state.principal == PROCESS


def answer(batch_id: str, step_id: int) -> wire.ResultsLevel0:
    done = wire.Result(step_id=step_id, status="completed", output=msgspec.Raw(b"{}"))
    return wire.ResultsLevel0(batch_id=batch_id, protocol_version="1.0", results=[done, done])


def test_one_answer_of_level_0_with_a_wrong_batch_is_one_complaint() -> None:
    world = World()
    world.peer()
    task_id = world.task(ONE)
    world.handle(answer("batch_x", task_id + 1))
    assert [(c.code, c.text.partition(":")[0]) for c in world.complaints] == [("wrong_batch", "batch batch_x")]
    assert world.state.counters.refused == {"wrong_batch": 2}


def test_a_complaint_about_a_step_that_was_not_in_memory_comes_after_its_lookup() -> None:
    world = World()
    task_id = world.task(ONE)
    world.answers_reads = False
    world.restart()
    world.reads.clear()  # the page that would bring the task
    world.handle(answer("batch_x", task_id + 1))
    assert world.complaints == []
    world.read()
    assert [c.code for c in world.complaints] == ["wrong_batch"]
