"""The scope `inspect`: without it, no answer contains a payload."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepwire import Context, Worker
from stepwire.client import Client, MissingPayload
from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.core.answers.scopes import Scope

from .running_api import Api, running, settings_in

CONTEXT, CONFIGURATION, OUTPUT, TRACE = "canary-context", "canary-config", "canary-output", "canary_in_trace"
CANARIES = (CONTEXT, CONFIGURATION, OUTPUT, TRACE)
WORKFLOW = {
    "name": "order",
    "version": "1",
    "steps": [
        {"name": "pay", "handler_class": "shop.pay", "handler_config": {"account": CONFIGURATION}},
        {"name": "pack", "handler_class": "shop.pack", "depends_on": ["pay"], "allow_failure": True, "retry_limit": 0},
    ],
}


class Shop:
    """A broker with a completed task whose context, output, configuration and backtrace contain canaries."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.tokens = {
            name: add_token(api.tokens.file, Grant(name, frozenset(scopes)))
            for name, scopes in {
                "reader": {Scope.READ, Scope.OPERATE, Scope.SUBMIT},
                "inspector": {Scope.READ, Scope.INSPECT},
                "blind": {Scope.INSPECT},
                "operator": {Scope.OPERATE},
                "prometheus": {Scope.METRICS},
            }.items()
        }
        body = {"workflow": "order", "context": {"card": CONTEXT}}
        self.task: dict[str, Any] = api.call("POST", "/v1/tasks?wait_ms=20000", body).json["task"]

    def get(self, name: str, path: str) -> Any:
        return self.api.call("GET", path, headers={"Authorization": f"Bearer {self.tokens[name]}"})

    @property
    def paths(self) -> list[str]:
        """Every path that describes the task, its steps or its workflow."""
        task_id = self.task["task_id"]
        steps = [f"/v1/steps/{step['step_id']}" for step in self.task["steps"]]
        named = [f"/v1/tasks/{task_id}/steps/{step['name']}" for step in self.task["steps"]]
        of_task = [f"/v1/tasks/{task_id}{rest}" for rest in ("", "?wait_ms=1", "/why", "/events")]
        lists = ["/v1/tasks", "/v1/steps", "/v1/workflows", "/v1/workflows/order", "/v1/workers", "/v1/executors"]
        return [*of_task, *steps, *named, *(f"{path}/why" for path in named), *lists, "/v1/breakers", "/v1/shadows"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("inspect", numbered=True)
    directory.chmod(0o700)
    settings = settings_in(directory)
    with running(directory, settings) as api:
        assert api.call("POST", "/v1/workflows", WORKFLOW).status == 201
        worker = Worker(steps=settings.bus.steps, results=settings.bus.results, name="w")

        @worker.handler("shop.pay")
        def pay(context: Context) -> dict[str, str]:
            return {"receipt": OUTPUT}

        @worker.handler("shop.pack")
        def canary_in_trace(context: Context) -> None:
            raise KeyError("box")

        worker.start()
        try:
            yield Shop(api)
        finally:
            worker.stop()


def test_an_inspector_sees_every_payload(shop: Shop) -> None:
    seen = b"".join(shop.get("inspector", path).body for path in shop.paths)
    assert [canary for canary in CANARIES if canary.encode() not in seen] == []


def test_a_reader_gets_no_payload_from_any_path(shop: Shop) -> None:
    for path in shop.paths:
        answer = shop.get("reader", path)
        assert answer.status == 200, path
        assert [canary for canary in CANARIES if canary.encode() in answer.body] == [], path


def test_without_inspect_the_members_are_absent_and_all_others_are_the_same(shop: Shop) -> None:
    path = f"/v1/tasks/{shop.task['task_id']}"
    whole, seen = shop.get("inspector", path).json, shop.get("reader", path).json
    assert set(whole) - set(seen) == {"context", "result"}
    assert set(whole["steps"][0]) - set(seen["steps"][0]) == {"output"}
    assert seen["steps"][1]["error"]["code"] == "KeyError"
    step = f"/v1/steps/{seen['steps'][1]['step_id']}"
    whole, seen = shop.get("inspector", step).json, shop.get("reader", step).json
    assert set(whole) - set(seen) == {"output", "stderr"}
    assert set(whole["error"]) - set(seen["error"]) == {"backtrace"}
    assert [each["outcome"] for each in seen["attempts"]] == ["failed"]


def test_a_submission_that_waits_returns_no_payloads_without_inspect(shop: Shop) -> None:
    headers: dict[str, str | None] = {"Authorization": f"Bearer {shop.tokens['reader']}"}
    answer = shop.api.call("POST", "/v1/tasks?wait_ms=20000", {"workflow": "order"}, headers)
    assert answer.json["task"]["state"] == "completed"
    assert OUTPUT.encode() not in answer.body
    assert "result" not in answer.json["task"]


def test_the_event_stream_holds_no_payload(shop: Shop) -> None:
    events = shop.get("inspector", f"/v1/tasks/{shop.task['task_id']}/events").body
    assert [canary for canary in CANARIES if canary.encode() in events] == []


@pytest.mark.parametrize(
    ("name", "path", "needed"),
    [
        ("blind", "/v1/tasks", "read"),
        ("blind", "/metrics", "metrics"),
        ("operator", "/v1/tap?topic=*****", "inspect"),
        ("inspector", "/v1/tap?topic=*****", "operate"),
        ("prometheus", "/v1/tasks", "read"),
        ("prometheus", "/readyz", "read"),
    ],
)
def test_no_scope_includes_another_one_except_admin_and_read(shop: Shop, name: str, path: str, needed: str) -> None:
    answer = shop.get(name, path)
    assert (answer.status, answer.code) == (403, "scope_missing")
    assert f"lacks the scope `{needed}`" in answer.json["detail"]


def test_the_scopes_metrics_and_read_allow_the_metrics(shop: Shop) -> None:
    assert [shop.get(name, "/metrics").status for name in ("prometheus", "reader")] == [200, 200]


def test_a_client_without_inspect_names_the_scope_when_a_payload_is_read(shop: Shop, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{shop.api.port}", token=shop.tokens["reader"]) as client:
        task = client.wait(shop.task["task_id"], timeout=20)
        assert task["state"] == "completed"
        for read in (lambda: task["result"], lambda: task["steps"][0]["output"],
                     lambda: client.step(task["steps"][0]["step_id"])["stderr"]):  # fmt: skip
            with pytest.raises(MissingPayload, match=r"lacks the scope `inspect`; .* --scope read,inspect$"):
                read()
        with pytest.raises(KeyError, match="nothing"):
            task["nothing"]
        json.dumps(task)
