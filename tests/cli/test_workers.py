"""`stepwire worker`: the connected workers, and how to drain one without losing its steps."""

import json
import re
import threading

import pytest
from stepwire import Context, Worker

from .a_place import Place, stop

OK, FAILURE, USAGE, NOT_FOUND = range(4)
TASK_RUNS = 12

SLEEPY = 'name: sleepy\nnamespace: shop\nsteps:\n  - {name: s, handler_class: "%s"}\n'


def sleepy(shop: Place, handler_class: str) -> str:
    """A separate workflow for each test, so that no test uses the worker of another."""
    (shop.directory / "sleepy.yaml").write_text(SLEEPY.replace("sleepy", handler_class) % handler_class)
    assert shop.stepwire("workflow", "apply", "sleepy.yaml").code == OK
    return f"shop::{handler_class}"


def endpoints(shop: Place) -> dict[str, str]:
    state = shop.directory / ".stepwire"
    return {"steps": f"ipc://{state}/steps.sock", "results": f"ipc://{state}/results.sock"}


def test_a_worker_is_shown_by_its_name_or_id(shop: Place) -> None:
    assert shop.stepwire("task", "submit", "shop::order", "--wait").code == OK  # so one is connected
    listed = shop.stepwire("worker", "list").out.splitlines()
    assert listed[0].split("\t")[:3] == ["WORKER", "EXECUTOR", "HANDLERS"]
    (worker,) = [one for one in shop.stepwire("worker", "list", "--json").json if one["handlers"] == ["shop.charge"]]
    shown = shop.stepwire("worker", "show", worker["worker"], "--json").json
    assert shown["pid"] == worker["pid"]
    text = shop.stepwire("worker", "show", worker["worker"]).out
    assert "\nhandlers          shop.charge\nunknown handlers  -\n" in text
    assert re.search(r"^last seen +\d+\.\d s ago$", text, re.M)
    assert shop.stepwire("worker", "show", "missing").code == NOT_FOUND
    assert shop.stepwire("worker", "drain", "missing").code == NOT_FOUND
    assert shop.stepwire("worker", "drain").code == USAGE


def test_a_drained_worker_finishes_its_steps_and_gets_no_new_ones(shop: Place) -> None:
    started, finish = threading.Event(), threading.Event()
    worker = Worker(**endpoints(shop), name="drained")

    @worker.handler("drained")
    def work(context: Context) -> None:
        started.set()
        finish.wait(60)

    worker.start()
    try:
        workflow = sleepy(shop, "drained")
        first = shop.stepwire("task", "submit", workflow, "--json").json["task_id"]
        assert started.wait(20)
        quiet = shop.stepwire("worker", "drain", "drained", "--json")
        assert quiet.code == OK
        assert [(one["holding"], one["ended"]) for one in quiet.json] == [(1, False)]
        second = shop.stepwire("task", "submit", workflow, "--json").json["task_id"]
        late = shop.stepwire("worker", "drain", "drained", "--wait", "--timeout", "10ms")
        assert late.code == TASK_RUNS
        assert "it holds 1" in late.out
        finish.set()
        done = shop.stepwire("worker", "drain", "drained", "--wait", "--timeout", "30s")
        assert done.code in (OK, NOT_FOUND), done  # the worker may have ended already
        worker.stop(20)
        assert shop.stepwire("task", "result", str(first), "--wait").code == OK
        states = {s["state"] for s in shop.stepwire("task", "show", str(second), "--json").json["steps"]}
        assert states == {"ready"}
    finally:
        finish.set()
        worker.stop(0)


def test_the_process_of_a_drained_worker_ends(shop: Place) -> None:
    text = (shop.directory / "worker.py").read_text().replace("shop.charge", "shop.other")
    (shop.directory / "other.py").write_text(text)
    process = shop.work("other.py", STEPWIRE_NAME="other")
    try:
        done = shop.stepwire("worker", "drain", "other", "--wait", "--timeout", "30s", "-o", "jsonl")
        assert (done.code, json.loads(done.out)["ended"]) == (OK, True)
        process.communicate(timeout=20)
        assert process.returncode == OK
    finally:
        stop(process)


@pytest.mark.parametrize("words", [["worker", "drain", "x", "--wait", "--timeout", "soon"]])
def test_a_malformed_duration_is_refused(shop: Place, words: list[str]) -> None:
    assert shop.stepwire(*words).code == USAGE
