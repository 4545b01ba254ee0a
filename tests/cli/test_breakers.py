"""A handler whose gateway is down, with a real broker and worker: its breaker opens, probes it, and closes again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import eventually

from .a_place import Place, stop

OK, FAILURE, USAGE, NOT_FOUND = range(4)

WORKER = """
import pathlib
from stepwire import Context, StepError, Worker

worker = Worker.from_env()

@worker.handler("shop.charge")
def charge(context: Context) -> dict:
    with open("tried", "a") as tried:
        tried.write(f"{context.step_id}\\n")
    if not pathlib.Path("gateway").exists():
        raise StepError("no route to the gateway", code="gateway", category="unavailable")
    return {"paid": True}

worker.run()
"""
WORKFLOW = """
name: w
steps:
  - {name: charge, handler_class: shop.charge, retry_limit: 20, backoff: {kind: constant, base: 50ms, jitter: none}}
"""
SETTINGS = """
dispatch:
  breaker: {failure_threshold: 3, open: 400ms, open_max: 400ms}
"""


@pytest.fixture
def down(empty: Place) -> Any:
    """A broker and a worker, with the gateway down."""
    (empty.directory / "worker.py").write_text(WORKER)
    (empty.directory / "w.yaml").write_text(WORKFLOW)
    (empty.directory / "stepwire.yaml").write_text(SETTINGS)
    broker = empty.serve("-o", "json")
    empty.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
    worker = empty.work()
    try:
        assert empty.stepwire("workflow", "apply", "w.yaml").code == OK
        yield empty
    finally:
        stop(worker)
        broker.end(15)


def breaker(place: Place) -> dict[str, Any]:
    breakers = [
        one for one in place.stepwire("breaker", "list", "--json").json if one["handler_class"] == "shop.charge"
    ]
    return breakers[0] if breakers else {"state": "none"}


def test_a_failing_handler_gets_no_steps_until_a_probe_succeeds(down: Place) -> None:
    for _ in range(5):
        task = down.stepwire("task", "submit", "w", "--json").json["task_id"]
    eventually(lambda: breaker(down)["state"] in ("open", "half_open"), "its breaker to open", 30)
    seen = set()

    def look() -> bool:
        seen.add(down.stepwire("why", str(task), "--json").json["code"])
        return "breaker_open" in seen

    eventually(look, "`why` to name the breaker", 30)
    (down.directory / "gateway").touch()
    assert down.stepwire("task", "result", str(task), "--wait", "--timeout", "30s").code == OK
    eventually(lambda: breaker(down)["state"] == "closed", "its breaker to close", 30)
    assert breaker(down)["opened"] >= 1
    listed = down.stepwire("breaker", "list").out.splitlines()
    assert listed[0].split("\t")[:2] == ["HANDLER", "STATE"]
    assert listed[1].split("\t")[:2] == ["shop.charge", "closed"]


def test_an_operator_opens_and_closes_a_breaker(down: Place) -> None:
    (down.directory / "gateway").touch()
    done = down.stepwire("breaker", "open", "shop.charge", "--reason", "the bank is being moved")
    assert done.out == "the breaker for shop.charge is open, until an operator changes it\n"
    task = down.stepwire("task", "submit", "w", "--json").json["task_id"]
    why = down.stepwire("why", str(task))
    assert "the breaker for `shop.charge` is held open by an operator since " in why.out
    assert "the bank is being moved; return it to automatic control: stepwire breaker auto shop.charge" in why.out
    assert "shop.charge\topen (forced)\t" in down.stepwire("breaker", "list").out
    assert not (down.directory / "tried").exists()
    done = down.stepwire("breaker", "auto", "shop.charge")
    assert done.out == "the breaker for shop.charge is closed, under automatic control\n"
    assert down.stepwire("task", "result", str(task), "--wait", "--timeout", "30s").code == OK
    (down.directory / "gateway").unlink()
    assert down.stepwire("breaker", "close", "shop.charge").code == OK
    for _ in range(4):
        down.stepwire("task", "submit", "w", "--json")
    tried = Path(down.directory / "tried")
    eventually(lambda: len(tried.read_text().splitlines()) > 10, "a closed breaker to let every step through", 30)
    found = breaker(down)  # read once: the last of the steps may still be tried again
    assert found | {"since": ""} == {
        "handler_class": "shop.charge",
        "state": "closed",
        "forced": True,
        "since": "",
        "next_probe": None,
        "cause": "",
        "reason": "",
        "failures_in_row": 0,
        "outcomes": 0,
        "failures": 0,
        "opened": 0,
        "probes": 0,
        "retry_budget": found["retry_budget"],
    }
    assert down.stepwire("breaker", "open", "shop.typo").code == NOT_FOUND
    assert down.stepwire("breaker", "open").code == USAGE
