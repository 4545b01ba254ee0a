"""The control client against a small server with scripted answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import stepwire.client.transport
from stepwire import Client, ClientError, ConfigurationError
from stepwire.client import Denied, NotFound, Overloaded, Unreachable, WaitTimeout, WrongState


class Server:
    """Answers each request with the next of `answers`: (status, document[, headers]), or None to hang up."""

    def __init__(self):
        self.answers = []
        self.seen = []
        self.connections = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.connections.add(self.client_address)
                outer.seen.append((self.command, self.path, json.loads(body) if body else None, dict(self.headers)))
                answer = outer.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, document, *headers = answer
                text = json.dumps(document).encode()
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(stepwire.client.transport, "BACKOFF_BASE_S", 0.001)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def client(server):
    with Client(server.url, token="t0") as client:
        yield client


def test_a_submission_without_a_key_gets_one_from_the_client(server, client):
    server.answers = [
        (201, {"task_id": 5, "state": "pending", "created": True}),
        (200, {"task_id": 5, "created": False}),
    ]
    first = client.submit("order", {"a": 1}, namespace="shop", priority=3)
    second = client.submit("order", {"a": 1}, key=first.key)
    assert (first.task_id, first.created, second.created) == (5, True, False)
    (method, path, body, headers), (_, _, again, _) = server.seen
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/tasks", "Bearer t0")
    assert body == {
        "workflow": "order",
        "namespace": "shop",
        "context": {"a": 1},
        "priority": 3,
        "idempotency_key": first.key,
    }
    assert again["idempotency_key"] == first.key


def test_one_connection_serves_many_calls(server, client):
    server.answers = [(200, {"task_id": i, "state": "running"}) for i in range(5)]
    for i in range(5):
        client.task(i)
    assert len(server.connections) == 1


def test_many_submissions_go_in_one_request_with_a_key_each(server, client):
    server.answers = [(201, {"task_ids": [1, 2]})]
    assert client.submit_many([{"workflow": "a", "context": {}}, {"workflow": "b", "key": "k"}]) == [1, 2]
    first, second = server.seen[0][2]["tasks"]
    assert first["idempotency_key"]
    assert second["idempotency_key"] == "k"
    with pytest.raises(ConfigurationError, match="colour"):
        client.submit_many([{"workflow": "a", "colour": "red"}])


@pytest.mark.parametrize("trouble", [None, (503, {"code": "overloaded"}), (429, {}, {"Retry-After": "0"})])
def test_a_submission_is_tried_three_times_with_the_same_key(server, client, trouble):
    server.answers = [trouble, trouble, (201, {"task_id": 1})]
    assert client.submit("a").task_id == 1
    assert len({seen[2]["idempotency_key"] for seen in server.seen}) == 1
    server.answers = [trouble] * 3
    with pytest.raises((Unreachable, Overloaded)):
        client.submit("a")
    assert server.answers == []


def test_an_unsafe_call_is_not_repeated_when_its_answer_is_lost(server, client):
    server.answers = [None, (200, {})]
    with pytest.raises(Unreachable):
        client.retry(7)
    assert len(server.seen) == 1
    server.answers = [(503, {"code": "overloaded"}), (200, {"task_id": 7})]
    assert client.retry(7, from_step="pay") == {"task_id": 7}  # a refusal has done nothing


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ClientError), (401, Denied), (403, Denied), (404, NotFound), (409, WrongState), (500, ClientError)],
)
def test_a_refusal_carries_the_brokers_code_and_hint(server, client, status, kind):
    server.answers = [(status, {"code": "some_code", "detail": "It is wrong.", "hint": "Do it right."})]
    with pytest.raises(kind, match=r"It is wrong\. Do it right\.") as caught:
        client.cancel(1)
    assert (caught.value.status, caught.value.code, caught.value.hint) == (status, "some_code", "Do it right.")


def test_wait_polls_until_the_task_has_ended_or_is_held(server, client):
    server.answers = [(200, {"state": "running"}), (200, {"state": "completed", "result": 1})]
    assert client.wait(3)["result"] == 1
    assert [path for _, path, _, _ in server.seen] == ["/v1/tasks/3?wait_ms=15000"] * 2
    server.answers = [(200, {"state": "running", "attention": "held"})]
    assert client.wait(3)["attention"] == "held"
    server.answers = [(200, {"state": "running"})]
    with pytest.raises(WaitTimeout, match="task 3 is still running") as caught:
        client.wait(3, timeout=0)
    assert caught.value.task_id == 3


def test_run_submits_and_waits_in_one_request_and_polls_only_for_a_long_task(server, client):
    done = {"task_id": 5, "state": "completed", "result": 1}
    server.answers = [(201, {"task_id": 5, "state": "completed", "created": True, "task": done})]
    assert client.run("order", {"a": 1}, key="k") == done
    assert server.seen.pop()[:3] == (
        "POST",
        "/v1/tasks?wait_ms=15000",
        {"workflow": "order", "context": {"a": 1}, "idempotency_key": "k"},
    )
    runs = {"task_id": 5, "state": "running"}
    begun = (201, {"task_id": 5, "state": "running", "created": True, "task": runs})
    server.answers = [None, begun, (200, done)]
    assert client.run("order") == done
    (_, lost, first, _), (_, again, second, _), (*look, _, _) = server.seen
    assert lost == again
    assert first["idempotency_key"] == second["idempotency_key"]  # a lost answer makes no second task
    assert look == ["GET", "/v1/tasks/5?wait_ms=15000"]
    server.answers = [begun]
    with pytest.raises(WaitTimeout) as caught:
        client.run("order", timeout=0)
    assert caught.value.task_id == 5


@pytest.mark.parametrize(
    ("call", "method", "path", "body"),
    [
        (lambda c: c.apply_workflow({"name": "a"}), "POST", "/v1/workflows", {"name": "a"}),
        (lambda c: c.pause(1), "POST", "/v1/tasks/1/pause", {}),
        (lambda c: c.resume(1), "POST", "/v1/tasks/1/resume", {}),
        (lambda c: c.cancel(1, "why"), "POST", "/v1/tasks/1/cancel", {"reason": "why"}),
        (lambda c: c.retry(1, again=True), "POST", "/v1/tasks/1/retry", {"again": True}),
        (lambda c: c.steps(state="held"), "GET", "/v1/steps?state=held", None),
        (lambda c: c.step(4), "GET", "/v1/steps/4", None),
        (
            lambda c: c.resolve(4, "completed", reason="seen", output={"x": 1}),
            "POST",
            "/v1/steps/4/resolve",
            {"outcome": "completed", "reason": "seen", "output": {"x": 1}},
        ),
        (lambda c: c.tasks(state="failed", limit=2), "GET", "/v1/tasks?state=failed&limit=2", None),
        (lambda c: c.workers(), "GET", "/v1/workers", None),
    ],
)
def test_each_call_sends_its_method_path_and_body(server, client, call, method, path, body):
    server.answers = [(200, {})]
    call(client)
    assert server.seen[0][:3] == (method, path, body)


def test_the_token_is_found_where_the_broker_left_it(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPWIRE_TOKEN", raising=False)
    (tmp_path / ".stepwire").mkdir()
    (tmp_path / ".stepwire" / "token").write_text("from_file\n")
    server.answers = [(200, {})] * 2
    Client(server.url).workers()
    monkeypatch.setenv("STEPWIRE_TOKEN", "from_env")
    Client(server.url).workers()
    assert [s[3]["Authorization"] for s in server.seen] == ["Bearer from_file", "Bearer from_env"]
    with pytest.raises(ConfigurationError, match="nowhere"):
        Client(server.url, token_file="nowhere")


def test_a_missing_broker_raises_unreachable_with_a_hint():
    with pytest.raises(Unreachable, match="stepwire serve"):
        Client("http://127.0.0.1:1", token="t").cancel(1)


@pytest.mark.parametrize("url", ["127.0.0.1:7410", "ftp://h", "http://"])
def test_a_malformed_url_is_refused(url):
    with pytest.raises(ConfigurationError, match="needs a form"):
        Client(url)
