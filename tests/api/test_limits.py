"""Limits for one client, for one token and for all together. The limits here are small; the attacks of
`python -m tests.attacks` exceed the real ones."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from stepwire_broker.api.limits import DEFAULT, HttpLimits
from stepwire_broker.api.token import Grant, TokenError, add_token, revoke_token
from stepwire_broker.core.answers.scopes import Scope

from .poller import Poller
from .running_api import WORKFLOW, Answer, Api, running, settings_in

MIB = 1024 * 1024
LIMITS = HttpLimits(
    requests=12,
    requests_for_operators=2,
    requests_for_workers=3,
    requests_each=4,
    waits=8,
    waits_each=5,
    streams_each=2,
    bodies_bytes=200_000,
    small_body_bytes=1_000,
    connections=60,
    strangers=30,
    pipelined=4,
)
IMPATIENT = LIMITS._replace(body_first_byte_s=0.2, body_s=0.5, head_s=0.2, unread_s=0.3, pipelined=100_000)


@contextmanager
def limited(tmp_path_factory: pytest.TempPathFactory, limits: HttpLimits) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("limits")
    directory.chmod(0o700)
    with running(directory, settings_in(directory), limits) as found:
        assert found.call("POST", "/v1/workflows", WORKFLOW).status == 201
        yield found


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with limited(tmp_path_factory, LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with limited(tmp_path_factory, IMPATIENT) as found:
        yield found


@pytest.fixture(scope="module")
def task(api: Api) -> int:
    """A task that does not end: there is no worker."""
    task_id: int = api.call("POST", "/v1/tasks", {"workflow": "order"}).json["task_id"]
    return task_id


@pytest.fixture(scope="module")
def tokens(api: Api) -> dict[str, str]:
    grants = [Grant(f"{scope}-{n}", frozenset({scope})) for scope in (Scope.SUBMIT, Scope.READ, Scope.WORK)
              for n in range(3)]  # fmt: skip
    values = {grant.name: add_token(api.tokens.file, grant) for grant in grants}
    api.on_loop(api.tokens.reload)
    return values


# -- helpers ----------------------------------------------------------------------------------------------------------


def head(token: str, first: str, *lines: str) -> bytes:
    headers = (f"{first} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *lines)
    return "\r\n".join(headers).encode() + b"\r\n\r\n"


def submission(token: str, length: int) -> bytes:
    return head(token, "POST /v1/tasks/batch", "Content-Type: application/json", f"Content-Length: {length}")


class Clients:
    """Open connections, each with one request that stays open."""

    def __init__(self, api: Api, stack: ExitStack) -> None:
        self.api = api
        self._stack = stack

    def send(self, data: bytes, count: int = 1) -> list[socket.socket]:
        connections = [self._stack.enter_context(self.api.raw()) for _ in range(count)]
        for connection in connections:
            connection.sendall(data)
        return connections


@contextmanager
def clients(api: Api) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(api, stack)
    until(lambda: usage(api, "requests", "waits") == [1, 0])  # 1: the request for the metrics


def usage(api: Api, *names: str) -> list[int]:
    metrics = api.call("GET", "/metrics").body.decode()
    return [int(_value(metrics, f'stepwire_http_open{{what="{name}"}}')) for name in names]


def refused(api: Api, limit: str) -> int:
    return int(_value(api.call("GET", "/metrics").body.decode(), f'stepwire_http_refusals_total{{limit="{limit}"}}'))


def _value(metrics: str, name: str) -> str:
    return next((line.rpartition(" ")[2] for line in metrics.splitlines() if line.startswith(name)), "0")


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def answer_of(connection: socket.socket, method: str = "POST") -> Answer:
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def with_token(token: str) -> dict[str, str | None]:
    return {"Authorization": f"Bearer {token}"}


def is_refused(answer: Answer, limit: str, owner: str) -> bool:
    document = answer.json
    assert (answer.status, answer.code) == (429, "overloaded"), answer
    assert int(answer.headers["retry-after"]) >= 1
    return (document["limit"], document["owner"]) == (limit, owner)


def ends(connection: socket.socket) -> bool:
    """True if the broker closes the connection. Everything that it sends before is ignored."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


# -- request slots ----------------------------------------------------------------------------------------------------


def test_a_token_with_too_many_requests_is_refused_and_other_tokens_are_answered(
    api: Api, tokens: dict[str, str]
) -> None:
    with clients(api) as unfinished:
        unfinished.send(submission(tokens["submit-0"], 100), LIMITS.requests_each)
        until(lambda: usage(api, "requests") == [LIMITS.requests_each + 1])
        answer = api.call("POST", "/v1/tasks", {"workflow": "order"}, with_token(tokens["submit-0"]))
        assert is_refused(answer, "requests_of_token", "submit-0")
        assert "'submit-0'" in answer.json["detail"]
        assert api.call("POST", "/v1/tasks", {"workflow": "order"}, with_token(tokens["submit-1"])).status == 201
        assert refused(api, "requests_of_token") == 1


def test_slots_remain_for_operators_and_workers_when_other_tokens_have_taken_all_that_they_can(
    api: Api, tokens: dict[str, str]
) -> None:
    with clients(api) as unfinished:
        unfinished.send(submission(tokens["submit-0"], 100), LIMITS.requests_each)
        unfinished.send(submission(tokens["submit-1"], 100), 3)
        until(lambda: usage(api, "requests") == [8])
        answer = api.call("POST", "/v1/tasks", {"workflow": "order"}, with_token(tokens["submit-2"]))
        assert is_refused(answer, "requests", "the broker")
        assert api.call("GET", "/v1/tasks", headers=with_token(tokens["read-0"])).status == 429
        assert api.call("GET", "/v1/tasks").status == 200  # with the scope `admin`
        Poller(api._replace(token=tokens["work-0"])).open()
        assert api.call("GET", "/livez", headers={"Authorization": None}).status == 200


def test_a_body_that_does_not_begin_is_answered_408_and_its_slot_becomes_free(impatient: Api) -> None:
    with clients(impatient) as unfinished:
        silent = unfinished.send(submission(impatient.token, 100), LIMITS.requests_each)
        for connection in silent:
            answer = answer_of(connection)
            assert (answer.status, answer.code) == (408, "too_slow")
            assert ends(connection)
        assert impatient.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201


def test_a_body_that_arrives_byte_by_byte_ends_with_the_time_for_the_whole_body(impatient: Api) -> None:
    with clients(impatient) as unfinished:
        (slow,) = unfinished.send(submission(impatient.token, 10_000))
        slow.settimeout(0.02)
        received = b""
        while not received:
            try:
                slow.sendall(b" ")
                received = slow.recv(65536)
            except TimeoutError:
                continue
        assert received.startswith(b"HTTP/1.1 408 ")


def test_a_head_that_is_sent_too_slowly_ends_the_connection(impatient: Api) -> None:
    for beginning in (b"", b"GET /readyz HTTP/1.1\r\n"):
        with impatient.raw() as connection:
            connection.sendall(beginning)
            assert connection.recv(1) == b""


def test_a_client_that_sends_many_requests_before_it_reads_an_answer_is_disconnected(
    api: Api, tokens: dict[str, str], task: int
) -> None:
    with clients(api) as waiting:
        wait = head(tokens["read-0"], f"GET /v1/tasks/{task}?wait_ms=60000")
        (connection,) = waiting.send(wait + head(tokens["read-0"], "GET /v1/tasks") * (LIMITS.pipelined + 1))
        assert ends(connection)
        assert refused(api, "pipelined") == 1


def test_a_request_ends_with_its_connection_also_when_another_request_has_followed(
    api: Api, tokens: dict[str, str], task: int
) -> None:
    wait = head(tokens["read-0"], f"GET /v1/tasks/{task}?wait_ms=300000")
    with clients(api) as waiting:
        waiting.send(wait + wait)
        until(lambda: usage(api, "waits") == [1])


# -- waits ------------------------------------------------------------------------------------------------------------


def test_requests_that_wait_leave_their_slots_and_count_as_waits(api: Api, tokens: dict[str, str], task: int) -> None:
    path = f"/v1/tasks/{task}?wait_ms=60000"
    with clients(api) as waiting:
        waiting.send(head(tokens["read-0"], f"GET {path}"), LIMITS.waits_each)
        until(lambda: usage(api, "requests", "waits") == [1, LIMITS.waits_each])
        assert api.call("GET", "/v1/tasks", headers=with_token(tokens["read-0"])).status == 200
        answer = api.call("GET", path, headers=with_token(tokens["read-0"]))
        assert is_refused(answer, "waits_of_token", "read-0")
        waiting.send(head(tokens["read-1"], f"GET {path}"), LIMITS.waits - LIMITS.waits_each)
        until(lambda: usage(api, "waits") == [LIMITS.waits])
        assert is_refused(api.call("GET", path), "waits", "the broker")
        assert api.call("POST", f"/v1/tasks/{task}/pause").status == 200
        assert api.call("POST", f"/v1/tasks/{task}/resume").status == 200


def test_a_submission_that_may_not_wait_is_not_stored(api: Api, tokens: dict[str, str], task: int) -> None:
    submit = {"workflow": "order", "idempotency_key": "waits-not"}
    with clients(api) as waiting:
        waiting.send(head(api.token, f"GET /v1/tasks/{task}?wait_ms=60000"), LIMITS.waits_each)
        until(lambda: usage(api, "waits") == [LIMITS.waits_each])
        assert is_refused(api.call("POST", "/v1/tasks?wait_ms=1000", submit), "waits_of_token", "line 1")
    assert api.call("POST", "/v1/tasks", submit).status == 201


def test_a_lease_that_waits_leaves_its_slot(api: Api, tokens: dict[str, str]) -> None:
    worker = Poller(api._replace(token=tokens["work-0"]), "nothing.offered")
    worker.open()
    call = {"worker": worker.id, "n": 9, "session": worker.session, "handlers": ["nothing.offered"], "slots": 1}
    body = json.dumps({**call, "wait_ms": 20_000}).encode()
    with clients(api) as waiting:
        data = head(worker.api.token, "POST /v1/worker/lease", "Content-Type: application/json",
                    f"Content-Length: {len(body)}")  # fmt: skip
        waiting.send(data + body)
        until(lambda: usage(api, "requests", "waits") == [1, 1])


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_token_with_too_many_streams_is_refused_another_one(api: Api, tokens: dict[str, str]) -> None:
    with clients(api) as streaming:
        streaming.send(head(tokens["read-0"], "GET /v1/events"), LIMITS.streams_each)
        until(lambda: usage(api, "streams") == [LIMITS.streams_each])
        answer = api.call("GET", "/v1/events", headers=with_token(tokens["read-0"]))
        assert is_refused(answer, "streams_of_token", "read-0")
        (other,) = streaming.send(head(tokens["read-1"], "GET /v1/events"))
        assert other.recv(65536).startswith(b"HTTP/1.1 200 ")


# -- bodies -----------------------------------------------------------------------------------------------------------

LARGE = 60_000  # half of what large bodies may occupy is 94,000 bytes


def test_large_bodies_are_refused_before_they_are_read_when_their_sum_is_too_large(
    api: Api, tokens: dict[str, str]
) -> None:
    def refusal(token: str) -> Answer:
        (connection,) = unfinished.send(submission(tokens[token], LARGE))
        return answer_of(connection)

    with clients(api) as unfinished:
        unfinished.send(submission(tokens["submit-0"], LARGE) + b" ")
        until(lambda: usage(api, "requests") == [2])
        assert is_refused(refusal("submit-0"), "bodies_of_token", "submit-0")
        unfinished.send(submission(tokens["submit-1"], LARGE) + b" " * 30_000, 1)
        unfinished.send(submission(tokens["submit-2"], LARGE) + b" " * 30_000, 1)
        until(lambda: usage(api, "requests") == [4])
        assert is_refused(refusal("submit-1"), "bodies_of_token", "submit-1")
        assert is_refused(answer_of(unfinished.send(submission(api.token, LARGE))[0]), "bodies", "the broker")
        assert api.call("POST", "/v1/tasks", {"workflow": "order"}).status == 201  # a small body always has room


def test_a_body_without_a_length_is_refused_when_it_has_grown_too_large(api: Api, tokens: dict[str, str]) -> None:
    chunked = head(tokens["submit-0"], "POST /v1/tasks/batch", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    with clients(api) as unfinished:
        unfinished.send(chunked + b"EA60\r\n" + b" " * LARGE + b"\r\n")
        until(lambda: 'stepwire_http_bytes{what="bodies"} 60000' in api.call("GET", "/metrics").body.decode())
        (second,) = unfinished.send(chunked + b"EA60\r\n" + b" " * LARGE + b"\r\n")
        assert is_refused(answer_of(second), "bodies_of_token", "submit-0")


def test_fewer_connections_leave_room_for_an_idle_one_beside_all_requests_and_waits() -> None:
    for connections in (64, 200, 1_000, 6_144, 20_000):
        limits = DEFAULT.for_connections(connections)
        assert limits.requests + limits.waits < limits.connections == connections
        assert limits.requests_for_operators + limits.requests_for_workers < limits.requests


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beginning", [b"", b"GET /readyz HTTP/1.1\r\nHost: local"])
def test_idle_and_half_sent_connections_give_way_to_new_ones(api: Api, beginning: bytes) -> None:
    with clients(api) as idle:
        first = idle.send(beginning)[0]
        idle.send(beginning, LIMITS.strangers - 1)
        for _ in range(20):
            idle.send(beginning, 5)
            assert api.call("GET", "/livez", headers={"Authorization": None}).status == 200
            assert api.call("GET", "/v1/tasks").status == 200
        assert ends(first)
        assert refused(api, "strangers") > 100 - LIMITS.strangers


def test_older_half_sent_connections_give_way_before_a_new_one_that_was_accepted_with_them(api: Api) -> None:
    """While the broker is busy, connections wait to be accepted. The order in which they came decides."""
    is_open = threading.Event()
    busy = threading.Thread(target=api.on_loop, args=(lambda: is_open.wait(20),))
    busy.start()
    with clients(api) as waiting:
        half_sent = waiting.send(b"GET /readyz HTTP/1.1\r\nHost: local", LIMITS.strangers + 5)
        (new,) = waiting.send(b"")
        is_open.set()
        busy.join()
        assert ends(half_sent[0])
        new.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer_of(new, "GET").status == 200


def test_a_request_in_progress_survives_a_flood_of_connections(api: Api, tokens: dict[str, str], task: int) -> None:
    with clients(api) as waiting:
        (wait,) = waiting.send(head(tokens["read-0"], f"GET /v1/tasks/{task}?wait_ms=1000"))
        until(lambda: usage(api, "waits") == [1])
        for _ in range(20):
            waiting.send(b"", 10)
        assert answer_of(wait, "GET").status == 200


def test_idle_connections_of_a_valid_token_give_way_to_new_ones(api: Api) -> None:
    with clients(api) as idle:
        known = []
        for _ in range(LIMITS.connections + 5):
            (connection,) = idle.send(head(api.token, "GET /readyz"))
            assert answer_of(connection, "GET").status == 200
            known.append(connection)
        assert all(ends(connection) for connection in known[:5])
        known[-1].sendall(head(api.token, "GET /readyz"))
        assert answer_of(known[-1], "GET").status == 200
        assert refused(api, "connections") >= 5


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/nowhere"])
def test_a_connection_without_a_valid_token_is_closed_after_its_answer(api: Api, path: str) -> None:
    with api.raw() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = answer_of(connection, "GET")
        assert answer.headers["connection"] == "close"
        assert answer.status == (200 if path == "/livez" else 401)
        assert ends(connection)


def test_a_client_without_a_valid_token_receives_the_refusal_while_it_sends_its_body(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    headers: dict[str, Any] = {"Authorization": "Bearer " + "x" * 43, "Content-Type": "application/json"}
    connection.request("POST", "/v1/tasks", b" " * 3_000_000, headers)
    assert connection.getresponse().status == 401
    connection.close()


# -- answers that are not read ----------------------------------------------------------------------------------------


def test_a_client_that_accepts_no_byte_of_its_answers_is_disconnected(impatient: Api) -> None:
    task_id = large_task(impatient)
    with ExitStack() as stack:
        connection = unreading(impatient, stack)

        def send_requests() -> None:
            while True:  # until the buffers of the kernel are full, and the broker cannot send the next answer
                connection.sendall(head(impatient.token, f"GET /v1/tasks/{task_id}"))
                time.sleep(0.005)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_requests()
        assert refused(impatient, "stalled_answer") == 1


def test_a_broker_begins_a_request_when_the_client_has_accepted_the_answer_before(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    count = 300  # answers of 95 KB: more than the kernel buffers
    with limited(tmp_path_factory, LIMITS._replace(pipelined=count, head_bytes=10**6)) as api, ExitStack() as stack:
        path = f"/v1/tasks/{large_task(api)}"
        connection = unreading(api, stack)
        connection.sendall(
            head(api.token, f"GET {path}") * (count - 1) + head(api.token, f"GET {path}", "Connection: close")
        )
        until(lambda: unread_bytes(api) > 0)
        answered = requests_to(api, "/v1/tasks/{task_id}")
        for _ in range(5):
            assert requests_to(api, "/v1/tasks/{task_id}") == answered < count
            assert usage(api, "requests") == [1]  # the one for the metrics
        with connection.makefile("rb") as received:
            assert received.read().count(b"HTTP/1.1 200 OK") == count


def test_a_token_whose_clients_accept_no_answers_loses_connections_and_other_tokens_lose_none(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limits = LIMITS._replace(pipelined=1_000, head_bytes=10**6, unread_bytes_each=250_000, unread_bytes=10_000_000)
    with limited(tmp_path_factory, limits) as api, ExitStack() as stack:
        value = add_token(api.tokens.file, Grant("other", frozenset({Scope.READ, Scope.INSPECT})))
        path = f"/v1/tasks/{large_task(api)}"
        (other, *greedy) = (unreading(api, stack) for _ in range(4))
        other.sendall(head(value, f"GET {path}") * 299 + head(value, f"GET {path}", "Connection: close"))
        until(lambda: unread_bytes(api) > 0)
        for connection in greedy:
            connection.sendall(head(api.token, f"GET {path}") * 300)
        until(lambda: refused(api, "unread_answers") > 0)
        with other.makefile("rb") as received:
            assert received.read().count(b"HTTP/1.1 200 OK") == 300


def large_task(api: Api) -> int:
    task_id: int = api.call("POST", "/v1/tasks", {"workflow": "order", "context": {"x": "x" * 95_000}}).json["task_id"]
    return task_id


def unread_bytes(api: Api) -> int:
    return int(_value(api.call("GET", "/metrics").body.decode(), 'stepwire_http_bytes{what="unread"}'))


def requests_to(api: Api, route: str) -> int:
    name = f'stepwire_http_requests_total{{route="{route}",method="GET",status="200"}}'
    return int(_value(api.call("GET", "/metrics").body.decode(), name))


def unreading(api: Api, stack: ExitStack) -> socket.socket:
    """A connection whose client accepts few bytes."""
    connection = stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", api.port))
    return connection


# -- tokens that are revoked ------------------------------------------------------------------------------------------


def test_a_revoked_token_loses_its_open_waits_and_streams_without_a_signal(api: Api, task: int) -> None:
    value = add_token(api.tokens.file, Grant("leaver", frozenset({Scope.READ})))
    with clients(api) as open_requests:
        (wait,) = open_requests.send(head(value, f"GET /v1/tasks/{task}?wait_ms=300000"))
        (stream,) = open_requests.send(head(value, "GET /v1/events"))
        (stays,) = open_requests.send(head(api.token, "GET /v1/events"))
        until(lambda: usage(api, "waits", "streams") == [3, 2])
        revoke_token(api.tokens.file, "leaver")
        answer = answer_of(wait, "GET")
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert ends(stream)
        assert api.call("GET", "/readyz", headers=with_token(value)).status == 401
        assert usage(api, "waits", "streams") == [1, 1]
        assert stays.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_expired_token_loses_its_open_waits(api: Api, task: int) -> None:
    expires_ms = (time.time_ns() // 1_000_000_000 + 2) * 1_000  # tokens expire at full seconds
    value = add_token(api.tokens.file, Grant("guest", frozenset({Scope.READ}), expires_ms))
    api.on_loop(api.tokens.reload)
    with clients(api) as waiting:
        (wait,) = waiting.send(head(value, f"GET /v1/tasks/{task}?wait_ms=300000"))
        assert answer_of(wait, "GET").status == 401


def test_a_new_token_with_the_name_of_a_revoked_one_does_not_keep_its_streams(api: Api) -> None:
    grant = Grant("renewed", frozenset({Scope.READ}))
    value = add_token(api.tokens.file, grant)
    api.on_loop(api.tokens.reload)
    with clients(api) as streaming:
        (stream,) = streaming.send(head(value, "GET /v1/events"))
        until(lambda: usage(api, "streams") == [1])
        revoke_token(api.tokens.file, "renewed")
        add_token(api.tokens.file, grant)
        assert ends(stream)


def test_an_unreadable_token_file_changes_nothing(api: Api) -> None:
    good = api.tokens.file.read_bytes()
    api.tokens.file.write_bytes(good + b"sha256:nonsense\n")
    with pytest.raises(TokenError):
        api.on_loop(api.tokens.refresh)
    assert api.on_loop(api.tokens.refresh) is False
    assert api.call("GET", "/readyz").status == 200
    api.tokens.file.write_bytes(good)
