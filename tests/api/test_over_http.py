"""protocol/vectors/over_http.json against a real broker: the answer to each call of a worker over HTTP."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance import vectors
from conformance.values import Bindings, match, render

from .running_api import Api, running
from .test_polling import eventually, polled

DIALOGUES: list[dict[str, Any]] = vectors.load("over_http")["dialogues"]
NUMBERS = itertools.count(1)


class Broker:
    """A broker that can be restarted. The dialogues share it, and each has a handler of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.restart()

    def restart(self) -> None:
        self.stop()
        self._running = running(self._directory, polled(self._directory))
        self.api: Api = self._running.__enter__()

    def stop(self) -> None:
        if hasattr(self, "_running"):
            self._running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("over_http")
    directory.chmod(0o700)
    broker = Broker(directory)
    yield broker
    broker.stop()


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=[dialogue["name"] for dialogue in DIALOGUES])
def test_each_call_is_answered_as_in_the_vector(broker: Broker, dialogue: dict[str, Any]) -> None:
    number = next(NUMBERS)
    bindings: Bindings = {"handler": f"vector{number}", "digits": f"{number:016x}"}  # nobody else's
    task_ids: list[int] = []
    for line in dialogue["lines"]:
        if "call" in line:
            body = render(line["body"], bindings)
            answer = broker.api.call("POST", f"/v1/worker/{line['call']}", body)
            assert answer.status == line["status"], (line, answer)
            if "code" in line:
                assert answer.code == line["code"]
            assert list(match(line.get("answer", {}), answer.json, bindings)) == [], (line, answer)
        elif "when" in line:
            happen(broker, line["when"], render(line["facts"], bindings), task_ids, number)
        else:
            assert line["then"] == "task"
            facts = render(line["facts"], bindings)
            task_id = task_ids[facts.pop("number", len(task_ids)) - 1]
            assert eventually(lambda task_id=task_id, facts=facts: is_so(broker.api, task_id, facts))  # type: ignore[misc]


def happen(broker: Broker, what: str, facts: dict[str, Any], task_ids: list[int], number: int) -> None:
    match what:
        case "submit":
            context = facts.pop("context")
            name = f"w{number}-{len(task_ids)}"
            workflow = {"name": name, "steps": [{"name": "work", **facts}]}
            assert broker.api.call("POST", "/v1/workflows", workflow).status == 201
            answer = broker.api.call("POST", "/v1/tasks", {"workflow": name, "context": context})
            task_ids.append(answer.json["task_id"])
        case "cancel_task":
            assert broker.api.call("POST", f"/v1/tasks/{task_ids[-1]}/cancel").status == 200
        case "restart":
            broker.restart()
        case _:
            raise AssertionError(what)


def is_so(api: Api, task_id: int, facts: dict[str, Any]) -> bool:
    task = api.call("GET", f"/v1/tasks/{task_id}").json
    if "output" in facts and task["steps"][-1]["output"] != facts["output"]:
        return False
    return all(task[name] == facts[name] for name in ("state", "attention") if name in facts)


def test_every_example_is_a_valid_call() -> None:
    """The author of a client can build a test broker from the examples alone."""
    for dialogue in DIALOGUES:
        bindings: Bindings = {"handler": "shipping.ship", "digits": "0123456789abcdef"}
        for line in dialogue["lines"]:
            if "call" in line:
                render(line["body"], bindings)
                said = render(line.get("answer", {}), bindings)
                assert list(match(line.get("answer", {}), said, bindings)) == [], line
