"""The control client against a small server with scripted answers."""

import json
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from stepwire import Client, ClientError, ConfigurationError
from stepwire.client import Denied, NotFound, Overloaded, Unreachable, WaitTimeout, WrongState


class Server:
    """Answers each request with the next of `answers`: (status, document[, headers]), or None to hang up."""

    def __init__(self, port=0):
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
                text = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def client(server):
    with Client(server.url, token="t0", outage_s=20) as client:
        yield client


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


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


def test_generated_keys_are_marked_and_ordered_by_time(server, client):
    server.answers = [(201, {"task_id": n, "created": True}) for n in range(3)]
    keys = [client.submit("order").key for _ in range(3)]
    assert len(set(keys)) == 3
    assert all(key.startswith("auto-") for key in keys)
    assert [key[5:17] for key in keys] == sorted(key[5:17] for key in keys)


TROUBLES = [
    None,
    (503, {"code": "overloaded"}),
    (503, {"code": "draining", "retry_after_ms": 1}),
    (503, {"code": "disk_full"}),
    (503, {"code": "commit_unknown"}),
    (429, {}, {"Retry-After": "0"}),
    (502, b"<html>Bad Gateway</html>"),
]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_submission_is_sent_again_with_the_same_key_until_it_is_acknowledged(server, client, trouble):
    server.answers = [trouble] * 4 + [(200, {"task_id": 1, "created": False})]
    submitted = client.submit("a")
    assert submitted[:2] == (1, True)  # the key is new, so an earlier try of this call created the task
    assert [seen[2]["idempotency_key"] for seen in server.seen] == [submitted.key] * 5


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_client_without_patience_raises_at_the_first_failure(server, trouble):
    server.answers = [trouble]
    with Client(server.url, token="t0", outage_s=0) as client, pytest.raises(ClientError):
        client.submit("a")
    assert len(server.seen) == 1


def test_a_pause_that_is_longer_than_the_patience_is_not_begun(server):
    server.answers = [(429, {"code": "overloaded", "retry_after_ms": 3_600_000})]
    with Client(server.url, token="t0") as client, pytest.raises(Overloaded) as caught:
        client.submit("a")
    assert (caught.value.retry_after_ms, caught.value.may_be_done) == (3_600_000, False)


def test_a_lack_of_configuration_is_not_waited_for(server, client):
    server.answers = [(503, {"code": "no_executor", "detail": "executor `k8s` is not configured"})]
    with pytest.raises(Overloaded, match="k8s"):
        client.submit("a")
    assert len(server.seen) == 1


@pytest.mark.parametrize("trouble", [None, (503, {"code": "commit_unknown"}), (502, b"")])
def test_an_unsafe_call_is_not_repeated_when_its_answer_is_lost(server, client, trouble):
    server.answers = [trouble, (200, {})]
    with pytest.raises(ClientError) as caught:
        client.retry(7)
    assert len(server.seen) == 1
    assert caught.value.may_be_done


def test_an_unsafe_call_is_repeated_after_a_refusal_because_nothing_was_done(server, client):
    server.answers = [(503, {"code": "overloaded"}), (200, {"task_id": 7})]
    assert client.retry(7, from_step="pay") == {"task_id": 7}


def test_an_unsafe_call_is_sent_when_the_broker_listens_again(free_port):
    """The connection was refused until then, so the call was not sent."""
    started = []

    def start(text, is_over):
        if not is_over:
            started.append(Server(free_port))
            started[0].answers = [(200, {"task_id": 7})]

    with Client(f"http://127.0.0.1:{free_port}", token="t0", on_outage=start) as client:
        assert client.retry(7) == {"task_id": 7}
    started[0].close()


def test_an_outage_is_reported_once_and_its_end_too(free_port):
    reports = []
    servers = []

    def report(text, is_over):
        reports.append((text, is_over))
        if not is_over:
            servers.append(Server(free_port))
            servers[0].answers = [(503, {"code": "draining", "retry_after_ms": 400}), (200, {}), (200, {})]

    with Client(f"http://127.0.0.1:{free_port}", token="t0", outage_s=25, on_outage=report) as client:
        client.workers()
        client.workers()
    servers[0].close()
    begun = f"no answer from http://127.0.0.1:{free_port}: connection refused; trying again for up to 25 s"
    assert reports == [(begun, False), ("the broker answers again", True)]


def test_an_outage_is_logged_when_the_program_does_not_ask_for_reports(free_port, caplog):
    caplog.set_level(logging.INFO, "stepwire.client")
    with Client(f"http://127.0.0.1:{free_port}", token="t0", outage_s=0.5) as client, pytest.raises(Unreachable):
        client.workers()
    assert [(each.name, each.levelname) for each in caplog.records] == [("stepwire.client", "WARNING")]
    assert "trying again for up to 0.5 s" in caplog.text


def test_a_client_may_be_patient_only_with_a_broker_that_it_has_reached(free_port):
    with Client(f"http://127.0.0.1:{free_port}", token="t0", outage_s=20, first_contact_s=0) as client:
        with pytest.raises(Unreachable):
            client.workers()
        server = Server(free_port)
        server.answers = [None, None, (200, {"workers": []})]
        assert client.workers() == {"workers": []}
        server.close()


def test_a_closed_idle_connection_costs_no_patience(server):
    with Client(server.url, token="t0", outage_s=0) as client:
        server.answers = [(200, {}), None, (200, {"workers": []})]
        client.workers()
        assert client.workers() == {"workers": []}
        server.answers = [None, (200, {})]
        assert client.is_alive()


@pytest.mark.parametrize(
    ("call", "state"),
    [
        (lambda c: c.cancel(3), "cancelled"),
        (lambda c: c.resume(3), "completed"),
        (lambda c: c.resume(3), "failed"),
    ],
)
def test_a_repeated_command_that_was_done_at_the_first_try_succeeds(server, client, call, state):
    refused = (409, {"code": "wrong_state", "detail": f"task 3 is {state}"})
    task = {"task_id": 3, "state": state, "attention": None}
    server.answers = [None, refused, (200, {**task, "steps": []})]
    assert call(client) == task
    server.answers = [refused]  # at the first try: not done by this call
    with pytest.raises(WrongState):
        call(client)
    server.answers = [None, refused, (200, {**task, "state": "paused"})]
    with pytest.raises(WrongState):
        call(client)


def test_a_repeated_removal_of_a_rule_that_was_done_at_the_first_try_succeeds(server, client):
    gone = (404, {"code": "not_found", "detail": "no rule"})
    server.answers = [None, gone]
    assert client.remove_rule("a::**") == {"match": "a::**", "is_set": False}
    server.answers = [gone]
    with pytest.raises(NotFound):
        client.remove_rule("a::**")


def test_a_wait_ends_at_its_timeout_also_without_a_broker(free_port):
    with Client(f"http://127.0.0.1:{free_port}", token="t0") as client, pytest.raises(Unreachable):
        client.wait(3, timeout=0.05)


def test_an_answer_that_is_not_http_is_not_waited_for(free_port):
    with socket.create_server(("127.0.0.1", free_port)) as listener:

        def greet():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")
                connection.recv(65536)

        thread = threading.Thread(target=greet)
        thread.start()
        with (
            Client(f"http://127.0.0.1:{free_port}", token="t0") as client,
            pytest.raises(Unreachable, match=r"the answer is not HTTP/1\.1"),
        ):
            client.workers()
        thread.join()


def test_the_tap_continues_after_a_lost_connection(server, client):
    def stream(number):
        return (200, f'data: {{"n":{number}}}\n\ndata: {{"cut'.encode(), {"Content-Type": "text/event-stream"})

    server.answers = [stream(1), None, stream(2), (403, {"detail": "no more"})]
    seen = []
    with pytest.raises(Denied, match="no more"):
        seen.extend(message["n"] for message in client.tap())
    assert seen == [1, 2]


def test_the_events_continue_after_the_last_one_received_whole(server, client):
    server.answers = [
        (200, b': the events\nid: 1.5.0.0\n\nid: 1.6.0.0\ndata: {"n":1}\n\nid: 1.7.0.0\ndata: {"cut'),
        None,
        (503, {"code": "draining", "retry_after_ms": 1}),
        (200, b'id: 1.7.0.0\ndata: {"n":2}\n\n'),
        (410, {"detail": "another database"}),
    ]
    seen = []
    with pytest.raises(ClientError, match="another database"):
        seen.extend(event["n"] for event in client.events())
    assert seen == [1, 2]
    assert [headers.get("Last-Event-ID") for *_, headers in server.seen] == [None, *["1.6.0.0"] * 3, "1.7.0.0"]


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_malformed_patience_in_the_environment_is_refused(server, monkeypatch, text):
    monkeypatch.setenv("STEPWIRE_OUTAGE_S", text)
    with pytest.raises(ConfigurationError, match="STEPWIRE_OUTAGE_S"):
        Client(server.url)


def test_the_environment_sets_the_patience(server, monkeypatch):
    monkeypatch.setenv("STEPWIRE_OUTAGE_S", "0")
    server.answers = [None]
    with Client(server.url, token="t0") as client, pytest.raises(Unreachable):
        client.workers()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ClientError), (401, Denied), (403, Denied), (404, NotFound), (409, WrongState), (500, ClientError)],
)
def test_a_refusal_carries_the_brokers_code_and_hint(server, client, status, kind):
    server.answers = [(status, {"code": "some_code", "detail": "It is wrong.", "hint": "Do it right."})]
    with pytest.raises(kind, match=r"It is wrong; Do it right\.") as caught:
        client.cancel(1)
    assert (caught.value.status, caught.value.code, caught.value.hint) == (status, "some_code", "Do it right.")


@pytest.mark.parametrize(
    ("workflow", "namespace", "sent"),
    [
        ("shop::order", None, ("shop", "order")),
        ("shop::eu::order", None, ("shop::eu", "order")),
        ("order", "shop", ("shop", "order")),
        ("order", None, (None, "order")),
    ],
)
def test_a_workflow_may_be_named_with_its_namespace(server, client, workflow, namespace, sent):
    server.answers = [(201, {"task_id": 1, "created": True})]
    client.submit(workflow, namespace=namespace)
    body = server.seen[-1][2]
    assert (body.get("namespace"), body["workflow"]) == sent


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


def test_watch_yields_the_task_now_and_at_intervals_until_it_has_ended(server, client):
    states = ("running", "running", "completed")
    server.answers = [(200, {"state": state}) for state in states]
    assert [task["state"] for task in client.watch(3, every_s=0.25)] == list(states)
    assert [path for _, path, _, _ in server.seen] == [
        "/v1/tasks/3?wait_ms=0",
        "/v1/tasks/3?wait_ms=250",
        "/v1/tasks/3?wait_ms=250",
    ]
    server.answers = [(200, {"state": "running"})]
    assert len(list(client.watch(3, timeout=0))) == 1


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
        (lambda c: c.erase(1, "why"), "POST", "/v1/tasks/1/erase", {"reason": "why"}),
        (lambda c: c.finish_erasures(), "POST", "/v1/database/finish-erasures", None),
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
    with pytest.raises(Unreachable, match="stepwire serve") as caught:
        Client("http://127.0.0.1:1", token="t", outage_s=0).cancel(1)
    assert not caught.value.may_be_done


@pytest.mark.parametrize("url", ["127.0.0.1:7410", "ftp://h", "http://"])
def test_a_malformed_url_is_refused(url):
    with pytest.raises(ConfigurationError, match="needs a form"):
        Client(url)
