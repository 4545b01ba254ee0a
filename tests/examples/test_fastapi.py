"""The example of a web application with several processes and one embedded broker."""

import http.client
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import REPOSITORY, Program, Site, eventually

EXAMPLES = REPOSITORY / "examples" / "embedded"


class WebSite:
    """The application with two processes, and its HTTP interface."""

    def __init__(self, site: Site) -> None:
        self.database = site.directory / "orders.db"
        self.port, broker_port = _free_ports()
        argv = [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--workers", "2", "--port", str(self.port)]
        environ = {"PYTHONPATH": str(EXAMPLES), "ORDERS_BROKER": f"127.0.0.1:{broker_port}"}
        self.program: Program = site.start("web", argv, {**os.environ, **environ})

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request on a new connection, so that any of the processes may answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def order(self, name: str, cents: int = 100) -> dict[str, Any]:
        """Submit an order, again until a broker has stored it."""

        def submit() -> dict[str, Any] | None:
            try:
                status, answer = self.ask("POST", "/orders", {"id": name, "cents": cents})
            except OSError:
                return None
            return answer if status == 202 else None

        return eventually(submit, f"order {name} is accepted", 30)

    def outcome(self, task_id: int) -> dict[str, Any]:
        def read() -> dict[str, Any] | None:
            try:
                status, answer = self.ask("GET", f"/orders/{task_id}")
            except OSError:
                return None
            return answer if status == 200 and answer["state"] != "running" else None

        return eventually(read, f"the end of task {task_id}", 30)

    def host(self) -> int:
        """The process that hosts the broker."""
        return int(Path(f"{self.database}.lock").read_text())


@pytest.fixture
def web() -> Iterator[WebSite]:
    with Site() as site:
        yield WebSite(site)


def test_every_web_process_submits_and_reads_and_another_one_continues_after_a_kill_of_the_host(web: WebSite) -> None:
    first = web.order("a")
    assert web.outcome(first["task_id"])["result"] == {"charge": {"receipt": f"r-{first['task_id']}"}}
    assert web.order("a") == {"task_id": first["task_id"], "created": False}
    assert web.outcome(web.order("b", 200_000)["task_id"])["state"] == "failed"
    assert web.ask("GET", "/orders/999999")[0] == 404
    answered_by = set()
    eventually(
        lambda: answered_by.add(web.outcome(first["task_id"])["process"]) or len(answered_by) == 2,
        "both processes have answered",
        30,
    )
    host = web.host()
    assert host in answered_by
    # The embedded broker's own server leaves the application's log alone.
    started = re.findall(r"Started server process|Application startup complete|Uvicorn running", web.program.stderr)
    assert sorted(set(started)) == ["Application startup complete", "Started server process", "Uvicorn running"]
    assert started.count("Application startup complete") == started.count("Started server process") == 2
    assert "POST /orders" in web.program.stdout + web.program.stderr
    os.kill(host, signal.SIGKILL)
    later = web.order("c")
    assert web.outcome(later["task_id"])["state"] == "completed"
    assert web.host() != host
    assert web.order("a") == {"task_id": first["task_id"], "created": False}
    web.program.ask_to_end()
    assert web.program.wait(40) == 0
    assert not re.search("Traceback|Event loop is closed", web.program.stderr), web.program.stderr


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]
