"""Every way to start a step, from outside: each step goes to the executor that `GET /v1/route` names at that moment.

A way first prepares its step under a rule that sends it to the bus. Then the rule changes, and the step starts. Its
handler names itself in the output.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stepwire import Worker
from stepwire_broker.embedded import Broker, CommandError

from .harness import Site, eventually, workflow

EXECUTORS = {"exec": {"commands": {"way.*": {"argv": ["sh", "-c", 'echo "{\\"by\\": \\"exec\\"}"']}}, "slots": 4}}
RULES = [{"match": "way::configured::*", "executor": "exec"}]
ONCE = {"delivery_mode": "at_most_once"}
SOON = {"kind": "constant", "base_ms": 1, "jitter": "none"}
Way = Callable[[Site, Callable[[], None]], int]  # calls `turn` in between, which changes the rule, and returns the task


@pytest.fixture(scope="module")
def shared(new_shared_site: Callable[..., Site]) -> Site:
    site: Site = new_shared_site()
    (site.directory / "stepwire.yaml").write_text(
        json.dumps({"execution": {"rules": RULES}, "executors": EXECUTORS})  # YAML as well
    )
    site.start_broker()
    site.start_worker("steady", slots=20, offers=["way.work"])
    return site


def apply(site: Site, name: str, *steps: dict[str, Any]) -> None:
    document = workflow(name, *({"handler_class": "way.work", **step} for step in steps), namespace="way")
    assert site.ask("POST", "/v1/workflows", document).status in (200, 201)


def submit(site: Site, name: str) -> int:
    answer = site.ask("POST", "/v1/tasks", {"workflow": name, "namespace": "way"})
    assert answer.status == 201, answer
    return int(answer.body["task_id"])


def order(site: Site, path: str, body: Any = None) -> Any:
    answer = site.ask("POST", path, body if body is not None else {})
    assert answer.status in (200, 202), answer
    return answer.body


def state(site: Site, task_id: int, is_: str, name: str = "s") -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        step: dict[str, Any] = next(each for each in site.task(task_id)["steps"] if each["name"] == name)
        return step if step["state"] == is_ else None

    return eventually(look, f"{name} of task {task_id} to be {is_}", 20)


# -- the ways ---------------------------------------------------------------------------------------------------------


def submitted(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "submitted", {"name": "s"})
    turn()
    return submit(site, "submitted")


def in_a_batch(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "in_a_batch", {"name": "s"})
    turn()
    tasks = [{"workflow": "in_a_batch", "namespace": "way"}] * 5
    return int(site.ask("POST", "/v1/tasks/batch", {"tasks": tasks}).body["task_ids"][-1])


def by_the_command_line(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "by_the_command_line", {"name": "s"})
    turn()
    done = site.stepwire("task", "submit", "way::by_the_command_line", "--json")
    return int(json.loads(done.stdout)["task_id"])


def after_another(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "after_another", _gated("a", "after"), {"name": "s", "depends_on": ["a"]})
    task_id = submit(site, "after_another")
    state(site, task_id, "dispatched", "a")
    turn()
    site.open_gate("after")
    return task_id


def tried_again_by_itself(site: Site, turn: Callable[[], None]) -> int:
    config = {"failures": 1, "gate": "again"}
    apply(site, "tried_again_by_itself", {"name": "s", "handler_config": config, "backoff": SOON})
    task_id = submit(site, "tried_again_by_itself")
    state(site, task_id, "dispatched")
    turn()
    site.open_gate("again")
    return task_id


def retried(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "retried", {"name": "s", "retry_limit": 0, "handler_config": {"failures": 9}})
    task_id = submit(site, "retried")
    state(site, task_id, "failed")
    turn()
    order(site, f"/v1/tasks/{task_id}/retry")
    return task_id


def retried_by_the_command_line(site: Site, turn: Callable[[], None]) -> int:
    name = "retried_by_the_command_line"
    apply(site, name, {"name": "s", "retry_limit": 0, "handler_config": {"failures": 9}})
    task_id = submit(site, name)
    state(site, task_id, "failed")
    turn()
    done = site.stepwire("task", "retry", str(task_id), "--yes")
    assert done.returncode == 0, done.stderr
    return task_id


def resumed(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "resumed", _gated("a", "resumed"), {"name": "s", "depends_on": ["a"]})
    task_id = submit(site, "resumed")
    state(site, task_id, "dispatched", "a")
    order(site, f"/v1/tasks/{task_id}/pause")
    site.open_gate("resumed")
    state(site, task_id, "ready")
    turn()
    state(site, task_id, "ready")
    order(site, f"/v1/tasks/{task_id}/resume")
    return task_id


def resolved(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "resolved", {"name": "s", "handler_config": {"outcome_unknown": True}, **ONCE})
    task_id = submit(site, "resolved")
    held = state(site, task_id, "held")
    turn()
    order(site, f"/v1/steps/{held['step_id']}/resolve", {"outcome": "retry", "reason": "it did not happen"})
    return task_id


def its_worker_died(site: Site, turn: Callable[[], None]) -> int:
    doomed = site.start_worker("doomed", offers=["way.doomed"])
    apply(site, "its_worker_died", {**_gated("s", "never"), "handler_class": "way.doomed"})
    task_id = submit(site, "its_worker_died")
    state(site, task_id, "dispatched")
    eventually(lambda: site.runs("started", pid=doomed.pid) or None, "it to run")
    turn()
    doomed.kill9()
    return task_id


def ready_and_moved(site: Site, turn: Callable[[], None]) -> int:
    apply(site, "ready_and_moved", {"name": "s", "handler_class": "way.nobody"})
    task_id = submit(site, "ready_and_moved")
    state(site, task_id, "ready")
    turn()
    return task_id


def restarted(site: Site, turn: Callable[[], None]) -> int:
    """The pause is kept over a restart, as the rule is."""
    apply(site, "restarted", {"name": "s"})
    order(site, "/v1/executors/exec/pause")
    turn()
    task_id = submit(site, "restarted")
    assert site.ask("GET", f"/v1/tasks/{task_id}/why").body["code"] == "executor_paused"
    assert site.broker is not None
    site.broker.kill9()
    site.start_broker()
    assert site.ask("GET", f"/v1/tasks/{task_id}/why").body["code"] == "executor_paused"
    order(site, "/v1/executors/exec/resume")
    return task_id


def _gated(name: str, gate: str) -> dict[str, Any]:
    return {"name": name, "handler_config": {"gate": gate}}


WAYS: list[Way] = [
    submitted,
    in_a_batch,
    by_the_command_line,
    after_another,
    tried_again_by_itself,
    retried,
    retried_by_the_command_line,
    resumed,
    resolved,
    its_worker_died,
    ready_and_moved,
    restarted,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_step_goes_to_the_executor_of_its_route_however_it_is_started(shared: Site, way: Way) -> None:
    path = f"way::{way.__name__}::s"
    order(shared, "/v1/rules", {"match": path, "executor": "bus"})
    assert shared.client().route(path)["executor"] == "bus"
    task_id = way(shared, lambda: order(shared, "/v1/rules", {"match": path, "executor": "exec"}))
    route = shared.client().route(path)
    assert (route["executor"], route["rule"]["match"], route["rule"]["origin"]) == ("exec", path, "runtime")
    assert state(shared, task_id, "completed")["output"] == {"by": route["executor"]}


# -- an embedded broker -----------------------------------------------------------------------------------------------


def test_an_embedded_broker_follows_the_same_rules(shared: Site, tmp_path: Path) -> None:
    executors = {name: shared.client().route(f"way::{name}::s")["executor"] for name in ("configured", "other")}
    assert executors == {"configured": "exec", "other": "bus"}
    worker = Worker()
    worker.handler("way.work")(lambda ctx: {"by": "bus"})
    settings = {"execution": {"default_execution_mode": "distributed", "rules": RULES}, "executors": EXECUTORS}

    async def run() -> dict[str, str]:
        ran = {}
        async with Broker.open(
            tmp_path / "state.db", handlers=worker, settings={**settings, "bus": _ipc(tmp_path)}
        ) as broker:
            for name in executors:
                await broker.apply(workflow(name, {"name": "s", "handler_class": "way.work"}, namespace="way"))
                task = await broker.submit(name, namespace="way")
                ran[name] = (await task.result(timeout_s=20))["s"]["by"]
        return ran

    assert asyncio.run(run()) == executors


def _ipc(directory: Path) -> dict[str, str]:
    return {name: f"ipc://{directory}/{name}.sock" for name in ("steps", "results")}


# -- no distribution --------------------------------------------------------------------------------------------------


def test_a_bus_that_distributes_nothing_refuses_every_way_and_runs_nothing_in_the_broker(
    new_site: Callable[..., Site], tmp_path: Path
) -> None:
    """Only this process can reach the bus, so the bus distributes nothing."""
    settings = {
        "bus.steps": "inproc://steps",
        "bus.results": "inproc://results",
        "executors.poll.enabled": "false",
        "executors.local.modules": "inside",
        "execution.default_execution_mode": "distributed",
    }
    site = new_site(settings={**settings, "execution.on_missing": "local"})
    (site.directory / "inside.py").write_text(INSIDE)
    broker = site.start_broker()
    apply(site, "w", {"name": "s", "retry_limit": 0})
    assert site.client().route("way::w::s")["executor"] == "local"
    task_id = submit(site, "w")  # `local` is configured
    state(site, task_id, "failed")
    broker.ask_to_end()
    assert broker.wait() == 0
    (site.directory / "ran").unlink()

    site.settings["execution.on_missing"] = "error"
    site.start_broker()
    route = site.client().route("way::w::s")
    assert (route["decided"], route["executor"]) == ("no_executor", None)
    task = {"workflow": "w", "namespace": "way"}
    for path, body in [("/v1/tasks", task), ("/v1/tasks/batch", {"tasks": [task]}), (f"/v1/tasks/{task_id}/retry", {})]:
        answer = site.ask("POST", path, body)
        assert (answer.status, answer.code) == (503, "no_executor"), path
    done = site.stepwire("task", "submit", "way::w")
    assert done.returncode != 0
    assert "the step must run on a distributed executor and none is configured" in done.stderr
    assert not (site.directory / "ran").exists()

    async def embedded() -> str:
        execution = {"default_execution_mode": "distributed"}
        own = {"execution": execution, "executors": {"poll": {"enabled": False}}}
        async with Broker.open(tmp_path / "state.db", settings=own) as inside:
            await inside.apply(workflow("w", {"name": "s"}))
            with pytest.raises(CommandError) as refused:
                await inside.submit("w")
        return refused.value.code

    assert asyncio.run(embedded()) == "no_executor"


INSIDE = """
from stepwire import Context, Permanent, Worker

worker = Worker()

@worker.handler("way.work")
def work(context: Context) -> None:
    open("ran", "w").close()
    raise Permanent("configured to fail")
"""
