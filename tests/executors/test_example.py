"""The executor of examples/executor: installed as a package, found by a broker, and run through all its outcomes."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.a_place import Place, place, stop
from tests.system.harness import eventually

from .installed import install

PACKAGE = Path(__file__).parents[2] / "examples" / "executor"
CONFIG = """
executors:
  options:
    http: {{url: "http://127.0.0.1:{port}/steps", headers: {{X-Team: shop}}}}
execution:
  default_execution_mode: distributed
  default_executor: http
"""
WORKFLOW = """
name: w
steps:
  - name: call
    handler_class: remote.call
    retry_limit: 2
    backoff: {base_ms: 1, max_ms: 1}
  - {name: once, handler_class: remote.call, delivery_mode: at_most_once, depends_on: [call]}
"""


class Endpoint(ThreadingHTTPServer):
    """Answers as the task's context prescribes, and records the requests."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Answering)
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.arrived = threading.Condition()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answering(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        step = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.arrived:
            self.server.requests.append((dict(self.headers), step))
            self.server.arrived.notify_all()
        answers = step["task_context"].get(step["step_name"], [200])
        status = answers[min(step["metadata"]["attempt"], len(answers) - 1)]
        if status == 0:
            self.close_connection = True  # received, and not answered: the outcome is unknown
            return
        body = json.dumps({"step": step["step_name"], "attempt": step["metadata"]["attempt"]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Endpoint]]:
    directory = tmp_path_factory.mktemp("http")
    directory.chmod(0o700)
    install(PACKAGE, directory / "installed")
    endpoint = Endpoint(0)
    here = place(directory)
    here.environ["PYTHONPATH"] = f"{directory / 'installed'}:{here.environ.get('PYTHONPATH', '')}"
    (directory / "stepwire.yaml").write_text(CONFIG.format(port=endpoint.server_address[1]))
    (directory / "stepwire.yaml").chmod(0o600)
    (directory / "w.yaml").write_text(WORKFLOW)
    broker = here.serve("-o", "json")
    try:
        here.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
        assert here.stepwire("workflow", "apply", "w.yaml").code == 0
        yield here, endpoint
    finally:
        stop(broker.process)
        endpoint.shutdown()


OK = {"step": "call", "attempt": 0}


@pytest.mark.parametrize(
    ("context", "exit_code", "states"),
    [
        ({}, 0, ["completed", "completed"]),
        ({"call": [503, 200]}, 0, ["completed", "completed"]),  # retried
        ({"call": [0, 200]}, 0, ["completed", "completed"]),  # no answer: retried, because it may be done twice
        ({"call": [404]}, 10, ["failed", "skipped"]),  # received and refused: not retried
        ({"call": [503]}, 10, ["failed", "skipped"]),  # until the attempts are used up
        ({"once": [0]}, 13, ["completed", "held"]),  # no answer: it may have happened and must not happen twice
    ],
    ids=["answered", "unavailable at first", "silent at first", "refused", "unavailable", "silent for good"],
)
def test_each_answer_of_the_endpoint_has_its_outcome(
    site: tuple[Place, Endpoint], context: dict[str, Any], exit_code: int, states: list[str]
) -> None:
    here, endpoint = site
    endpoint.requests.clear()
    done = here.stepwire("task", "submit", "w", "--context", json.dumps(context), "--wait", "--json")
    assert done.code == exit_code, done
    task_id = done.json["task_id"]
    shown = here.stepwire("task", "show", str(task_id), "--json").json
    assert [step["state"] for step in shown["steps"]] == states
    headers, step = endpoint.requests[0]
    assert (headers["X-Team"], headers["Stepwire-Step"], headers["Stepwire-Attempt"]) == (
        "shop",
        "default::w::call",
        "1",
    )
    assert headers["Idempotency-Key"] == step["metadata"]["idempotency_key"]
    assert all(
        other["Idempotency-Key"] == headers["Idempotency-Key"]
        for other, s in endpoint.requests
        if s["step_name"] == "call"
    )


def test_steps_wait_without_spending_attempts_while_the_endpoint_is_down(site: tuple[Place, Endpoint]) -> None:
    here, endpoint = site
    port = endpoint.server_address[1]
    endpoint.shutdown()
    endpoint.server_close()
    number = str(here.stepwire("task", "submit", "w", "--json").json["task_id"])

    def returned() -> dict[str, Any] | None:
        step: dict[str, Any] = here.stepwire("task", "show", number, "--json").json["steps"][0]
        return step if step["deliveries"] >= 2 else None

    assert eventually(returned, "the step to be returned", 30)["attempt"] == 0
    again = Endpoint(port)
    try:
        shown = here.stepwire("task", "watch", number, "--json")
        assert shown.code == 0, shown
        assert again.requests[0][1]["metadata"]["attempt"] == 0
    finally:
        again.shutdown()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("http: {}", "executor http of stepwire-executor-http 0.1.0 does not accept its options"),
        ("http: {url: 'ftp://x'}", "url is 'ftp://x'"),
        ("htpp: {}", "executors.options.htpp: no installed package provides an executor htpp"),
    ],
    ids=["no url", "a wrong url", "no such package"],
)
def test_a_broker_whose_executor_cannot_be_made_does_not_start_and_reports_why(
    tmp_path: Path, options: str, text: str
) -> None:
    install(PACKAGE, tmp_path / "installed")
    here = place(tmp_path)
    here.environ["PYTHONPATH"] = f"{tmp_path / 'installed'}:{here.environ.get('PYTHONPATH', '')}"
    (tmp_path / "stepwire.yaml").write_text(f"executors:\n  options:\n    {options}\n")
    (tmp_path / "stepwire.yaml").chmod(0o600)
    ended = here.stepwire("serve")
    assert ended.code == 2
    assert text in ended.err
    assert "Traceback" not in ended.err
