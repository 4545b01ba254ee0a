"""The control client with the addresses of several brokers."""

import socket

import pytest
from stepwire import Client, ClientError, ConfigurationError
from stepwire.client import Denied, Unreachable

from .test_client import Server

DRAINS = (503, {"code": "draining", "retry_after_ms": 3_600_000})


@pytest.fixture
def pair():
    servers = (Server(), Server())
    yield servers
    for each in servers:
        each.close()


@pytest.fixture
def client(pair):
    with Client([each.url for each in pair], token="t0", outage_s=20) as client:
        yield client


@pytest.fixture
def closed_url():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def paths(server):
    return [path for _, path, *_ in server.seen]


def test_a_client_stays_with_the_broker_that_answers(pair, client, closed_url):
    first, second = pair
    second.answers = [(200, {}), (200, {})]
    with Client(f"{closed_url}, {second.url}", token="t0", outage_s=0) as of_text:
        of_text.workers()
        of_text.workers()
    assert len(second.connections) == 1
    first.answers = [(200, {}), (200, {})]
    client.workers()
    client.workers()
    assert len(first.seen) == 2


@pytest.mark.parametrize("trouble", [None, DRAINS, (503, {"code": "broker_dark"}), (503, {"code": "commit_unknown"})])
def test_a_submission_that_fails_at_one_broker_is_sent_to_the_next_with_the_same_key(pair, client, trouble):
    """The pause that the first broker asks for is longer than the patience: another broker is asked without it."""
    first, second = pair
    first.answers = [trouble]
    second.answers = [(201, {"task_id": 1, "created": True}), (200, {"task_id": 1})]
    submitted = client.submit("a")
    (of_first,), (of_second,) = first.seen, second.seen
    assert of_first[2]["idempotency_key"] == of_second[2]["idempotency_key"] == submitted.key
    client.task(1)
    assert len(first.seen) == 1


def test_an_unsafe_call_whose_answer_is_lost_is_not_sent_to_another_broker(pair, client):
    first, second = pair
    first.answers = [None]
    with pytest.raises(ClientError) as caught:
        client.retry(7)
    assert caught.value.may_be_done
    assert second.seen == []


def test_an_unsafe_call_that_was_refused_is_sent_to_another_broker(pair, client):
    first, second = pair
    first.answers = [DRAINS]
    second.answers = [(200, {"task_id": 7})]
    assert client.retry(7) == {"task_id": 7}


def test_a_client_without_patience_tries_each_address_once(pair):
    first, second = pair
    first.answers, second.answers = [DRAINS], [(503, {"code": "overloaded"})]
    with Client([each.url for each in pair], token="t0", outage_s=0) as client, pytest.raises(ClientError):
        client.submit("a")
    assert (len(first.seen), len(second.seen)) == (1, 1)


def test_an_error_that_lasts_at_one_address_does_not_keep_a_client_from_the_others(pair, client):
    first, second = pair
    first.answers, second.answers = [(200, b"")], [(200, {"workers": []})]
    first.http.RequestHandlerClass.send_response = lambda self, status: self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
    assert client.workers() == {"workers": []}


def test_a_stream_continues_at_the_next_broker_after_the_last_event(pair, client):
    first, second = pair
    first.answers = [(200, b'id: 1.6.0.0\ndata: {"n":1}\n\n'), None, (403, {"detail": "no more"})]
    second.answers = [(200, b'id: 1.7.0.0\ndata: {"n":2}\n\n'), DRAINS]
    seen = []
    with pytest.raises(Denied, match="no more"):
        seen.extend(event["n"] for event in client.events())
    assert seen == [1, 2]
    asked = [[headers.get("Last-Event-ID") for *_, headers in each.seen] for each in pair]
    assert asked == [[None, "1.6.0.0", "1.7.0.0"], ["1.6.0.0", "1.7.0.0"]]


def test_a_broker_that_cannot_be_reached_is_not_asked_for_its_health(pair, closed_url):
    _, second = pair
    second.answers = [(200, {}), (503, {"ready": False, "reasons": ["no_lane"]})]
    with Client([closed_url, second.url], token="t0") as client:
        assert client.is_alive()
        assert client.readiness()["reasons"] == ["no_lane"]
    with Client([closed_url, closed_url], token="t0") as client:
        assert not client.is_alive()


def test_an_error_names_every_address(closed_url):
    with (
        Client(f"{closed_url},http://127.0.0.1:1", token="t0", outage_s=0) as client,
        pytest.raises(Unreachable, match=f"no answer from {closed_url}, http://127.0.0.1:1: connection refused"),
    ):
        client.workers()


@pytest.mark.parametrize(
    ("urls", "text"),
    [
        ("http://127.0.0.1:1,b2", "url 'b2': it needs a form"),
        ("http://127.0.0.1:1,", "url '': it needs a form"),
        ("http://127.0.0.1:1,http://b2.example:1", "the token is not sent to http://b2.example:1"),
        (["http://127.0.0.1:1", "unix:"], "url 'unix:': it needs a form"),
    ],
)
def test_each_address_of_a_list_is_checked(urls, text):
    with pytest.raises(ConfigurationError, match=text):
        Client(urls, token="t0")
