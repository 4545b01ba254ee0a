"""Connections before their first request: what the acceptor answers, passes on, refuses and closes."""

import contextlib
import gc
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepwire_broker.api.limits import DEFAULT

from .running_api import Api, running, settings_in
from .test_limits import answer_of, ends, head, refused, until, usage

FEW = DEFAULT._replace(strangers_per_s=1)  # and two at once
WRONG = "w" * 43


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    tmp_path.chmod(0o700)
    with running(tmp_path, settings_in(tmp_path), FEW) as found:
        yield found


def answer_to(api: Api, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with api.raw() as connection:
        connection.sendall(data)
        answer = answer_of(connection, "GET")
        assert ends(connection)
        return answer.status, answer.headers, answer.body


def exhaust(api: Api) -> None:
    """Send requests with a wrong token until one is refused for their number."""
    for _ in range(100):
        if answer_to(api, head(WRONG, "GET /readyz"))[0] == 429:
            return
    pytest.fail("no request was refused")


def test_surplus_connections_without_a_valid_token_are_refused_and_others_are_answered(api: Api) -> None:
    exhaust(api)
    for _ in range(20):
        assert api.call("GET", "/v1/tasks").status == 200
        status, headers, body = answer_to(api, b"GET /livez HTTP/1.1\r\nHost: any\r\n\r\n")
        assert (status, json.loads(body), headers["connection"]) == (200, {"alive": True}, "close")
    assert refused(api, "strangers_per_s") >= 1


def test_the_refusal_of_a_surplus_connection_names_the_limit_and_its_owner(api: Api) -> None:
    exhaust(api)
    for _ in range(100):
        status, headers, body = answer_to(api, head(WRONG, "GET /readyz"))
        if status == 429:
            break
    problem = json.loads(body)
    assert (problem["limit"], problem["owner"], headers["retry-after"]) == ("strangers_per_s", "the broker", "1")


def test_probes_that_the_acceptor_answers_are_counted_as_requests(api: Api) -> None:
    for _ in range(3):
        answer_to(api, b"GET /livez HTTP/1.1\r\nHost: any\r\n\r\n")
    count = 'stepwire_http_requests_total{route="/livez",method="GET",status="200"} 3'
    assert count in api.call("GET", "/metrics").body.decode()


@pytest.mark.parametrize("size", [1, 40, 90])
def test_a_request_that_arrives_in_pieces_is_answered(api: Api, size: int) -> None:
    data = head(api.token, "GET /v1/tasks")
    with api.raw() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        assert answer_of(connection, "GET").status == 200


def test_requests_that_arrive_together_are_all_answered(api: Api) -> None:
    with api.raw() as connection:
        connection.sendall(head(api.token, "GET /v1/tasks") * 2 + head(api.token, "GET /v1/tasks", "Connection: close"))
        with connection.makefile("rb") as received:
            assert received.read().count(b"HTTP/1.1 200 OK") == 3


def test_connections_that_close_again_leave_no_descriptor_and_no_count(api: Api) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        with api.raw() as connection:
            if number % 3:
                connection.sendall(b"GET /readyz HTTP/1.1\r\n"[: number % 23])
    until(lambda: usage(api, "connections") == [1])
    assert len(os.listdir("/proc/self/fd")) <= before + 20  # of readers of the database


def test_a_broker_that_stops_closes_connections_that_have_sent_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with contextlib.ExitStack() as stack:
        with running(tmp_path, settings_in(tmp_path), FEW) as found:
            silent = [stack.enter_context(found.raw()) for _ in range(5)]
            until(lambda: usage(found, "connections") == [6])
        assert all(ends(each) for each in silent)


def test_closed_connections_are_freed_without_a_garbage_collection(api: Api) -> None:
    gc.collect()
    gc.disable()
    try:
        for data in (b"", b"GET /readyz HTTP", head(WRONG, "GET /readyz"), head(api.token, "GET /v1/tasks")) * 20:
            with api.raw() as connection:
                connection.sendall(data)
        until(lambda: usage(api, "connections") == [1])
        kinds = [type(each).__name__ for each in gc.get_objects()]
    finally:
        gc.enable()
    assert kinds.count("BoundedProtocol") <= 5  # of about 60
    assert kinds.count("_SelectorSocketTransport") < 20  # of the broker's own pipes
