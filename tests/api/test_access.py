"""Access control: every route with every identity, Host and Origin; and requests that are too large or too slow."""

import asyncio
import http.client
import itertools
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from stepwire_broker.api import protocol
from stepwire_broker.api.app import Application
from stepwire_broker.api.operations import OPERATIONS
from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.core.answers.scopes import Scope, includes
from stepwire_broker.core.definitions.settings import SecuritySettings

from .running_api import Api, running, settings_in

ROUTES = [
    ("GET", "/readyz"),
    ("GET", "/health/orchestration"),
    ("GET", "/v1/steps"),
    ("GET", "/v1/steps/{step_id}"),
    ("GET", "/v1/tap"),
    ("GET", "/v1/tasks"),
    ("GET", "/v1/tasks/{task_id}"),
    ("GET", "/v1/breakers"),
    ("GET", "/v1/backlog"),
    ("GET", "/v1/brokers"),
    ("GET", "/v1/lanes"),
    ("POST", "/v1/lanes/{lane}/move"),
    ("GET", "/v1/route"),
    ("GET", "/v1/rules"),
    ("POST", "/v1/rules"),
    ("POST", "/v1/rules/remove"),
    ("GET", "/v1/shadows"),
    ("POST", "/v1/breakers/{handler_class}"),
    ("GET", "/v1/workers"),
    ("GET", "/v1/executors"),
    ("GET", "/v1/executors/{executor}"),
    ("POST", "/v1/executors/{executor}/pause"),
    ("POST", "/v1/executors/{executor}/resume"),
    ("GET", "/v1/workflows"),
    ("GET", "/v1/workflows/{name}"),
    ("POST", "/v1/steps/{step_id}/resolve"),
    ("POST", "/v1/tasks"),
    ("POST", "/v1/tasks/batch"),
    ("POST", "/v1/tasks/{task_id}/cancel"),
    ("POST", "/v1/tasks/{task_id}/erase"),
    ("POST", "/v1/tasks/{task_id}/pause"),
    ("POST", "/v1/tasks/{task_id}/resume"),
    ("POST", "/v1/tasks/{task_id}/retry"),
    ("POST", "/v1/workers/{worker}/drain"),
    *(("POST", f"/v1/worker/{call}") for call in ("lease", "heartbeat", "start", "results", "bye")),
    ("POST", "/v1/workflows"),
    ("POST", "/v1/workflows/{name}/activate"),
    ("GET", "/v1/tasks/{task_id}/why"),
    ("GET", "/v1/tasks/{task_id}/steps/{name}"),
    ("GET", "/v1/tasks/{task_id}/steps/{name}/why"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("POST", "/v1/database/prune"),
    ("POST", "/v1/database/finish-erasures"),
    ("POST", "/v1/database/backups"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/audit/head"),
    ("GET", "/v1/events"),
    ("GET", "/v1/tasks/{task_id}/events"),
    ("GET", "/nowhere"),
    ("DELETE", "/v1/tasks"),
]
BAD_TOKENS = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer " + "x" * 43,
    "Bearer " + "t" * 42,
    "Bearer " + "t" * 44,
    "Basic " + "t" * 43,
    "t" * 43,
]


def at(path: str) -> str:
    """A path of this form, with parameters of things that do not exist."""
    return (
        path.replace("{task_id}", "999999")
        .replace("{step_id}", "999999")
        .replace("{name}", "nothing")
        .replace("{worker}", "w:0")
        .replace("{executor}", "nothing")
        .replace("{lane}", "9")
    )


def test_the_matrix_covers_every_route(api: Api) -> None:
    assert set(Application(api.broker).paths) - {"/livez"} == {path for _, path in ROUTES[:-2]}


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("authorization", BAD_TOKENS)
def test_no_route_answers_without_a_valid_token(api: Api, method: str, path: str, authorization: str | None) -> None:
    answer = api.call(method, at(path), headers={"Authorization": authorization})
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_token_without_its_scheme_is_refused_with_the_form(api: Api) -> None:
    problem = api.call("GET", "/readyz", headers={"Authorization": api.token}).json
    assert problem["detail"] == "the request carries an Authorization header that does not begin with `Bearer `"
    assert problem["hint"].startswith("send `Authorization: Bearer <token>`")


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1] not in ("/v1/tap", "/v1/events")])
def test_every_route_answers_with_a_valid_token(api: Api, method: str, path: str) -> None:
    assert api.call(method, at(path)).status not in (401, 403, 500)


def test_the_word_bearer_may_be_written_in_any_case(api: Api) -> None:
    assert api.call("GET", "/readyz", headers={"Authorization": f"bEARER  {api.token}"}).status == 200


def test_livez_needs_no_token(api: Api) -> None:
    answer = api.call("GET", "/livez", headers={"Authorization": None, "Host": "10.0.0.7:7410"})
    assert (answer.status, answer.json) == (200, {"alive": True})


@pytest.mark.parametrize("path", ["/livez/", "/livez%0A", "//livez", "/LIVEZ", "/livez/../v1/tasks"])
def test_nothing_but_livez_is_livez(api: Api, path: str) -> None:
    assert api.call("GET", path, headers={"Authorization": None}).status == 401


GOOD_HOSTS = ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}", "localhost:8000", "stepwire.example"]
BAD_HOSTS = ["", "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:{port}",
             "[::2]", "0.0.0.0:{port}", "evil.example\t127.0.0.1"]  # fmt: skip


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_a_host_of_the_broker_is_accepted(api: Api, host: str) -> None:
    assert api.call("GET", "/readyz", headers={"Host": host.format(port=api.port)}).status == 200


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize("path", ["/readyz", "/v1/tasks", "/nowhere"])
def test_a_rebound_name_is_refused_even_with_the_token(api: Api, host: str, path: str) -> None:
    answer = api.call("GET", path, headers={"Host": host.format(port=api.port)})
    assert (answer.status, answer.code) == (403, "host_refused")


@pytest.mark.parametrize("hosts", [[], ["127.0.0.1", "evil.example"], ["127.0.0.1", "127.0.0.1"]])
def test_a_request_with_two_hosts_is_refused(api: Api, hosts: list[str]) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    answer = exchange(api, f"GET /readyz HTTP/1.1\r\n{lines}Authorization: Bearer {api.token}\r\n\r\n".encode())
    assert answer.partition(b"\r\n")[0].split()[1] in (b"400", b"403")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "stepwire.example"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_page_from_the_broker_may_send_requests(api: Api, scheme: str, host: str) -> None:
    host = host.format(port=api.port)
    assert api.call("GET", "/readyz", headers={"Host": host, "Origin": f"{scheme}://{host}"}).status == 200


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "http://localhost:{port}", "file://",
     "http://127.0.0.1:{port}.evil.example", "http://evil.example/127.0.0.1:{port}"],
)  # fmt: skip
def test_a_page_from_another_origin_may_not_send_requests(api: Api, origin: str) -> None:
    answer = api.call("GET", "/readyz", headers={"Origin": origin.format(port=api.port)})
    assert (answer.status, answer.code) == (403, "origin_refused")


def test_no_answer_permits_another_origin(api: Api) -> None:
    answer = api.call("OPTIONS", "/v1/tasks", headers={"Origin": f"http://127.0.0.1:{api.port}"})
    assert (answer.status, answer.code) == (405, "wrong_method")
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_an_unknown_path_is_404_and_a_wrong_method_is_405_with_the_allowed_methods(api: Api) -> None:
    assert api.call("GET", "/nowhere").code == "not_found"
    assert api.call("GET", "/v1/tasks/").code == "not_found"
    for method, path, allow in [("DELETE", "/v1/tasks", "GET, HEAD, POST"), ("GET", "/v1/tasks/batch", "POST")]:
        answer = api.call(method, path)
        assert (answer.status, answer.code, answer.headers["allow"]) == (405, "wrong_method", allow)


def test_a_head_is_a_get_without_its_body(api: Api) -> None:
    answer = api.call("HEAD", "/v1/tasks")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("kind", "status"),
    [("application/json", 400), ("application/json; charset=utf-8", 400), ("APPLICATION/JSON", 400),
     ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data", 415),
     ("application/yaml", 415), (None, 415)],
)  # fmt: skip
def test_only_json_bodies_are_accepted(api: Api, kind: str | None, status: int) -> None:
    assert api.call("POST", "/v1/tasks", b"{}", headers={"Content-Type": kind}).status == status


LIMIT = 100_000  # of the settings in conftest.py


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_it_is_read(api: Api, is_chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 1000000000000"
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    with api.raw() as connection:
        connection.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + api.token.encode() + b"\r\n" + length + b"\r\n\r\n"
        )
        if is_chunked:
            connection.sendall(chunk * (LIMIT // 0x4000 + 1))  # over the limit by less than a chunk, and no end
        answer = b""
        while b"limit of 100000 bytes" not in answer:
            received = connection.recv(65536)
            assert received, answer
            answer += received
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_its_whole_body_can_read_the_refusal(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/tasks", iter([b" " * 16_384] * 200), headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_client_that_keeps_sending_a_refused_body_is_disconnected(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "DROPPED_BYTES_MAX", 1_000_000)
    with api.raw() as connection:
        connection.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer " + api.token.encode() + b"\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
        megabyte = b" " * 1_000_000

        def go_on() -> None:
            for _ in range(1_000):
                connection.sendall(megabyte)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            go_on()


def test_a_body_at_the_limit_is_accepted(api: Api) -> None:
    text = b'{"workflow":"order"}'
    assert api.call("POST", "/v1/tasks", text + b" " * (LIMIT - len(text))).status == 201


def test_a_chunked_body_is_joined(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/tasks", iter([b'{"work', b'flow":', b'"order"}']), headers, encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()


def test_two_authorization_headers_are_refused_although_one_of_them_is_valid(api: Api) -> None:
    lines = "".join(f"Authorization: Bearer {token}\r\n" for token in ("x" * 43, api.token))
    answer = exchange(api, f"GET /readyz HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"code":"bad_authorization"' in answer


def exchange(api: Api, data: bytes) -> bytes:
    """Send these bytes, and read until the server answers or closes the connection."""
    with api.raw() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


@pytest.mark.parametrize(
    "head",
    [
        b"GET /readyz HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\n" + b"X: y\r\n" * 8_000,
    ],
    ids=["one header", "the path", "many headers"],
)
def test_a_client_that_sends_an_endless_head_is_disconnected(api: Api, head: bytes) -> None:
    assert exchange(api, head).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"\0" * 100, b"GET\r\n\r\n", b"GET /readyz HTTP/9.9\r\n\r\n",
     b"CONNECT a:1 HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_bytes_that_are_no_request_do_not_affect_other_clients(api: Api, data: bytes) -> None:
    assert not exchange(api, data).startswith(b"HTTP/1.1 2")
    assert api.call("GET", "/readyz").status == 200


def test_two_requests_on_one_connection_are_two_answers(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    for _, path in itertools.product(range(3), ["/readyz", "/nowhere", "/v1/tasks"]):
        connection.request("GET", path, headers={"Authorization": f"Bearer {api.token}"})
        answer = connection.getresponse()
        assert answer.read()
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Server") is None
    connection.close()


# -- what a token may -------------------------------------------------------------------------------------------------

ASKED = [(method, path) for (method, path), said in OPERATIONS.items() if said.scope is not None]


@pytest.fixture(scope="module")
def tokens_of(api: Api) -> dict[Scope, str]:
    """One token per scope, accepted by a running API."""
    values = {scope: add_token(api.tokens.file, Grant(scope, frozenset({scope}))) for scope in Scope}
    assert api.on_loop(api.tokens.reload) == 1 + len(Scope)
    return values


def test_answers_come_in_the_order_of_the_requests_with_a_body_or_without(api: Api) -> None:
    said = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n"
    with api.raw() as connection:
        connection.sendall(f"HEAD /v1/workers {said}GET /v1/workers {said}HEAD /livez {said}".encode())
        heard = b""
        while heard.count(b"\r\n\r\n") < 3:
            heard += connection.recv(65536)
    first, second, rest = heard.split(b"\r\n\r\n", 2)
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200")
    assert rest.startswith(b'{"broker":')
    assert rest.count(b"HTTP/1.1 200") == 1


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.writes.append(data)

    def close(self) -> None:
        self.writes.append(b"closed")


@pytest.mark.parametrize(
    ("method", "is_chunked", "body", "writes"),
    [
        ("GET", False, b"{}", [b"head{}"]),
        ("GET", False, b"", [b"head"]),
        ("GET", False, b"x" * 100_000, [b"head", b"x" * 100_000]),
        ("GET", False, None, [b"head"]),  # and then the application failed
        ("HEAD", False, None, [b"head"]),
        ("GET", True, b"2\r\n{}\r\n", [b"head", b"2\r\n{}\r\n"]),
        ("GET", True, None, [b"head"]),
    ],
)
def test_the_head_of_an_answer_is_sent_with_its_body_if_that_follows_at_once(
    method: str, is_chunked: bool, body: bytes | None, writes: list[bytes]
) -> None:
    transport = Written()
    cycle: Any = SimpleNamespace(response_started=False, chunked_encoding=None, scope={"method": method})
    together = protocol._HeadWithBody(transport, cycle, transport.close)
    together.write(b"continue")
    cycle.response_started, cycle.chunked_encoding = True, is_chunked
    together.write(b"head")
    if body is not None:
        together.write(body)
    together.close()
    assert transport.writes == [b"continue", *writes, b"closed"]


def test_every_route_except_livez_has_a_scope() -> None:
    assert {path for (_, path), said in OPERATIONS.items() if said.scope is None} == {"/livez"}


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize(("method", "path"), ASKED)
def test_a_token_permits_the_routes_of_its_scope_only(
    api: Api, tokens_of: dict[Scope, str], method: str, path: str, scope: Scope
) -> None:
    missing = [needed for needed in OPERATIONS[method, path].scopes if not includes({scope}, needed)]
    if path in ("/v1/tap", "/v1/events") and not missing:
        return  # it would answer without an end
    answer = api.call(method, at(path), headers={"Authorization": f"Bearer {tokens_of[scope]}"})
    if not missing:
        assert answer.status not in (401, 403, 500), answer
    else:
        assert (answer.status, answer.code) == (403, "scope_missing")
        assert f"`{missing[0]}`" in answer.json["detail"]
        assert f"stepwire token new --scope {missing[0]}" in answer.json["hint"]


def test_a_submission_with_a_wait_needs_the_scope_read(api: Api, tokens_of: dict[Scope, str]) -> None:
    body = {"workflow": "order", "idempotency_key": "for-its-reader"}
    answer = api.call("POST", "/v1/tasks?wait_ms=1", body, {"Authorization": f"Bearer {tokens_of[Scope.SUBMIT]}"})
    assert (answer.status, answer.code) == (403, "scope_missing")
    assert "stepwire token new --scope read" in answer.json["hint"]
    answer = api.call("POST", "/v1/tasks?wait_ms=1", body, {"Authorization": f"Bearer {tokens_of[Scope.ADMIN]}"})
    assert answer.status == 201  # what was refused has stored nothing


def test_a_token_has_the_routes_of_all_its_scopes_and_head_needs_the_scope_of_get(
    api: Api, tokens_of: dict[Scope, str]
) -> None:
    headers: dict[str, str | None] = {"Authorization": f"Bearer {tokens_of[Scope.SUBMIT]}"}
    assert api.call("HEAD", "/v1/tasks", headers=headers).status == 403
    assert api.call("POST", "/v1/tasks", {"workflow": "order"}, headers=headers).status == 201
    assert api.call("DELETE", "/v1/tasks", headers=headers).status == 405
    assert api.call("GET", "/nowhere", headers=headers).status == 404


def test_a_strict_broker_accepts_the_scope_admin_only_on_its_unix_socket(tmp_path: Path) -> None:
    settings = structs.replace(settings_in(tmp_path), security=SecuritySettings(strict=True))
    with running(tmp_path, settings) as api:
        answer = api.call("GET", "/v1/workers")
        assert (answer.status, answer.code) == (403, "admin_needs_socket")
        assert api.call("GET", "/livez").status == 200
