"""The outbox: results are kept and resent until a broker has committed them."""

import itertools

import msgspec
import pytest
from msgspec import Raw
from stepwire.actions import ResultTooLarge
from stepwire_protocol.messages import Result, ResultMetadata, Results

from .dialogue import once, step, welcomed


def test_results_that_are_ready_together_leave_in_one_message_per_batch():
    dialogue, broker = welcomed()
    one = broker.steps(step(1), step(2))
    two = broker.steps(step(3))
    dialogue.finish_with(_completed(3), _completed(1), _completed(2))
    sent = dialogue.take(Results)
    assert [(m.batch_id, [r.step_id for r in m.results]) for m in sent] == [(two, [3]), (one, [1, 2])]
    assert [m.rid for m in sent] == [1, 2]
    assert [(m.deployment, m.session) for m in sent] == [("dep", "7.1")] * 2


def test_results_are_resent_until_they_are_acked_and_from_the_third_try_to_every_broker():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    dialogue.topics.clear()
    dialogue.finish(1)
    tries = [(dialogue.now, t) for t in dialogue.topics if t.startswith(b"results")]
    dialogue.topics.clear()
    dialogue.session.announcements.heartbeat_at_ms = dialogue.session.leases.check_at_ms = float("inf")
    end = dialogue.now + 20_000
    while dialogue.now < end:
        dialogue.pass_time(50)
        tries += [(dialogue.now, t) for t in dialogue.topics if t.startswith(b"results")]
        dialogue.topics.clear()
    own = [at for at, topic in tries if topic == b"results@b1 "]
    gaps = [round(b - a, -2) for a, b in itertools.pairwise(own)]
    assert gaps == [500, 1000, 2000, 4000, 5000, 5000]
    everybody = [at for at, topic in tries if topic == b"results "]
    assert everybody == own[2:]
    assert len({m.rid for m in dialogue.take(Results)}) == 1
    broker.ack(1)
    assert dialogue.session.is_idle


def test_an_ack_removes_exactly_the_messages_it_names():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    broker.steps(step(2))
    dialogue.finish(1)
    dialogue.finish(2)
    broker.ack(2, 17)
    assert dialogue.states() == {(1, 1): "done"}


def test_an_outcome_reported_twice_is_sent_once():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    dialogue.finish(1)
    dialogue.fail(1)
    assert [m.results[0].status for m in dialogue.take(Results)] == ["completed"]


def test_results_above_the_brokers_limit_are_split():
    dialogue, broker = welcomed(slots=8)
    broker.bytes_max = 2_000
    dialogue.pass_time(2_000)
    broker.here()
    dialogue.pass_time(300)
    broker.welcome()
    broker.steps(*[step(i) for i in range(1, 9)])
    dialogue.finish_with(*[_completed(i, b'"' + b"x" * 400 + b'"') for i in range(1, 9)])
    sent = dialogue.take(Results)
    assert sorted(r.step_id for m in sent for r in m.results) == list(range(1, 9))
    assert all(len(msgspec.json.encode(m)) <= 2_000 for m in sent)
    assert [m.rid for m in sent] == list(range(1, len(sent) + 1))


@pytest.mark.parametrize(("request_", "code"), [(step(1), "too_large"), (once(1), "outcome_unknown")])
def test_one_result_above_the_brokers_limit_becomes_an_error(request_, code):
    dialogue, broker = welcomed()
    broker.bytes_max = 2_000
    dialogue.pass_time(2_000)
    broker.here()
    dialogue.pass_time(300)
    broker.welcome()
    broker.steps(request_)
    broker.go((1, 1))
    dialogue.finish(1, output=b'"' + b"x" * 3_000 + b'"')
    (results,) = dialogue.take(Results)
    (result,) = results.results
    assert (result.status, result.error.code) == ("error", code)
    assert "bytes; the limit is 2000 bytes: store it elsewhere and return a reference" in result.error.message
    assert dialogue.of(ResultTooLarge) == [(request_, result)]


def test_the_size_of_an_output_never_reads_as_the_limit():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    dialogue.finish(1, output=b'"' + b"x" * (4 * 1024 * 1024 - 2) + b'"')
    (results,) = dialogue.take(Results)
    assert results.results[0].error.message == (
        "the output has 4.1 MiB; the limit is 4 MiB: store it elsewhere and return a reference"
    )


def test_one_result_above_the_brokers_limit_is_sent_without_its_standard_error():
    dialogue, broker = welcomed()
    broker.bytes_max = 2_000
    dialogue.pass_time(2_000)
    broker.here()
    dialogue.pass_time(300)
    broker.welcome()
    broker.steps(step(1))
    result = _completed(1, b"7")
    metadata = ResultMetadata(execution_time_ms=3, stderr="x" * 3_000)
    dialogue.finish_with(msgspec.structs.replace(result, metadata=metadata))
    (results,) = dialogue.take(Results)
    (sent,) = results.results
    assert (sent.status, bytes(sent.output), sent.metadata) == ("completed", b"7", ResultMetadata(execution_time_ms=3))


@pytest.mark.parametrize(("request_", "code"), [(step(1), "result_refused"), (once(1), "outcome_unknown")])
def test_results_refused_for_their_content_are_replaced_by_an_error_once(request_, code):
    dialogue, broker = welcomed()
    broker.steps(request_)
    broker.go((1, 1))
    dialogue.finish(1, output=b'{"a":1}')
    broker.refused(dialogue.take(Results)[0].rid, "duplicate_key")
    (again,) = dialogue.take(Results)
    assert (again.rid, again.results[0].status, again.results[0].error.code) == (2, "error", code)
    broker.refused(2, "duplicate_key")
    assert dialogue.session.is_idle
    assert "message_refused" in dialogue.logs()


@pytest.mark.parametrize("code", ["wrong_batch", "wrong_sender", "unknown_delivery"])
def test_results_refused_for_their_owner_are_dropped_and_logged(code):
    dialogue, broker = welcomed()
    broker.steps(step(1))
    dialogue.finish(1)
    broker.refused(1, code)
    assert dialogue.session.is_idle
    assert "message_refused" in dialogue.logs()


def test_a_new_session_gets_unacked_results_at_once():
    dialogue, broker = welcomed()
    broker.steps(step(1))
    dialogue.finish(1)
    dialogue.pass_time(9_800)
    dialogue.take(Results)
    broker.welcome()
    assert {(m.session, m.rid) for m in dialogue.take(Results)} == {("7.2", 1)}


def test_rids_rise_over_all_brokers_and_sessions():
    dialogue, broker = welcomed()
    for i in range(1, 4):
        broker.steps(step(i))
        dialogue.finish(i)
    broker.reset()
    dialogue.pass_time(300)
    broker.welcome()
    dialogue.take(Results)
    broker.steps(step(4))
    dialogue.finish(4)
    assert dialogue.take(Results)[-1].rid == 4


def _completed(step_id, output=b"null"):
    return Result(step_id=step_id, delivery=1, status="completed", output=Raw(output))
