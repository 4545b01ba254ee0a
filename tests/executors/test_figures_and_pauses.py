"""Executors as operators see them: figures, reasons for waiting, and pauses, over HTTP and in commands."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.core import explain
from stepwire_broker.core.workers.executor_control import PauseExecutor, ResumeExecutor
from stepwire_broker.embedded import Broker
from stepwire_broker.executors.contract import ExecutionResult, StepReady, completed, failed

from tests.cli.a_place import Place, place, stop
from tests.system.harness import eventually as eventually_outside

from .installed import install
from .running import ScriptedExecutor, core_of, eventually, running, states, submit
from .test_killed import PYPROJECT


def why(broker: Broker) -> tuple[str, str]:
    core = core_of(broker)
    step = max(core.state.steps.values(), key=lambda step: step.id)  # the last in the queue
    reason = explain.step(core.state, step, core.now())
    return reason.code, reason.message


def shown(broker: Broker, key: str = "scripted") -> dict[str, Any]:
    (executor,) = [one for one in core_of(broker).executors() if one.executor == key]
    return msgspec.structs.asdict(executor)


# -- why --------------------------------------------------------------------------------------------------------------


def test_a_step_whose_executor_is_paused_or_full_reports_that_and_runs_afterwards(tmp_path: Path) -> None:
    async def tried() -> None:
        go_on = asyncio.Event()

        async def how(step: StepReady) -> ExecutionResult:
            await go_on.wait()
            return completed()

        class Variable(ScriptedExecutor):
            is_free = True

            def has_capacity(self) -> bool:
                return self.is_free

        executor = Variable(how, 2)
        async with running(tmp_path, executor) as broker:
            core = core_of(broker)
            tasks = await submit(broker, 3)
            await eventually(lambda: executor.active == 2, "two runs")
            code, text = why(broker)
            assert code == "executor_full"
            assert text.startswith("the executor `scripted` has 2 steps, and accepts at most 2 at a time")

            await core.ask(lambda request: PauseExecutor(request, "scripted"))
            code, text = why(broker)
            assert (code, text.startswith("the executor `scripted` is paused")) == ("executor_paused", True)
            go_on.set()
            for task in tasks[:2]:
                await task.wait(20)  # a pause does not affect steps that run
            assert states(broker) == ["ready"]
            assert (shown(broker)["has_capacity"], shown(broker)["paused_since_ms"] is None) == (False, False)

            executor.is_free = False
            await core.ask(lambda request: ResumeExecutor(request, "scripted"))
            await eventually(lambda: why(broker)[0] == "executor_full", "the reason to name the missing capacity")
            assert "reports that it has no capacity now" in why(broker)[1]
            executor.is_free = True
            await tasks[2].result(20)

    asyncio.run(tried())


def test_every_executor_has_figures_from_itself_or_from_the_core(tmp_path: Path) -> None:
    async def how(step: StepReady) -> ExecutionResult:
        return completed() if step.task_id % 2 else failed("even")

    async def tried() -> None:
        async with running(tmp_path, ScriptedExecutor(how)) as broker:
            tasks = await submit(broker, 6)
            ends = [(await task.wait(20)).state for task in tasks]
            view, core = shown(broker), core_of(broker)
            assert (view["total_executed"], view["total_failed"]) == (6, ends.count("failed"))
            assert (view["active"], view["max_concurrent"], view["is_hosted"]) == (0, 4, True)
            assert 0 <= view["mean_ms"] <= 20_000
            counted = core.state.executor("scripted").figures
            assert (counted.executed, counted.failed) == (6, ends.count("failed"))
            assert sum(counted.duration_s.counts) == 6
            assert shown(broker, "bus")["total_executed"] == 0

    asyncio.run(tried())


# -- over HTTP, in commands -------------------------------------------------------------------------------------------

MODULE = """
from stepwire import Context, Worker
from stepwire_broker.executors.contract import BaseExecutor, completed

worker = Worker()

@worker.handler("here")
def here(context: Context): ...

class Noting(BaseExecutor):
    handlers = ("there",)

    def __init__(self):
        super().__init__("noting", 3)

    async def run(self, step):
        return completed()
"""
CONFIG = """
executors:
  local: {modules: [noting]}
  options: {noting: {}}
execution:
  default_execution_mode: distributed
  rules:
    - {match: "**::there", executor: noting}
    - {match: "**", executor: local}
"""
WORKFLOW = "name: w\nsteps: [{name: here, handler_class: here}, {name: there, handler_class: there}]\n"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("standing")
    directory.chmod(0o700)
    package = directory / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(PYPROJECT)
    (package / "noting.py").write_text(MODULE)
    install(package, directory / "installed")
    here = place(directory)
    here.environ["PYTHONPATH"] = f"{directory / 'installed'}:{here.environ.get('PYTHONPATH', '')}"
    (directory / "stepwire.yaml").write_text(CONFIG)
    (directory / "stepwire.yaml").chmod(0o600)
    (directory / "w.yaml").write_text(WORKFLOW)
    broker = here.serve("-o", "json")
    try:
        here.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
        assert here.stepwire("workflow", "apply", "w.yaml").code == 0
        assert here.stepwire("task", "submit", "w", "--wait").code == 0
        yield here
    finally:
        stop(broker.process)


def test_executors_are_listed_with_their_figures(serving: Place) -> None:
    listed = {one["executor"]: one for one in serving.stepwire("executor", "list", "--json").json}
    assert listed.keys() == {"bus", "local", "noting", "poll"}
    did = {key: (one["total_executed"], one["total_failed"], one["max_concurrent"]) for key, one in listed.items()}
    assert did == {"bus": (0, 0, 0), "local": (1, 0, 8), "noting": (1, 0, 3), "poll": (0, 0, 0)}
    assert (listed["noting"]["handlers"], listed["local"]["handlers"]) == (["there"], ["here"])
    text = serving.stepwire("executor", "list").out
    assert "noting" in text
    assert "no workers" in text
    assert serving.stepwire("executor", "show", "noting", "--json").json["is_hosted"] is True
    missing = serving.stepwire("executor", "show", "nothing")
    assert (missing.code, "known executors: bus, local, noting, poll" in missing.err) == (3, True)


def test_a_pause_keeps_steps_ready_and_is_reported(serving: Place) -> None:
    paused = serving.stepwire("executor", "pause", "noting", "--json").json
    again = serving.stepwire("executor", "pause", "noting", "--json").json
    assert paused["paused_since"] == again["paused_since"]
    number = str(serving.stepwire("task", "submit", "w", "--json").json["task_id"])

    def paused_reason() -> dict[str, Any] | None:
        reason: dict[str, Any] = serving.stepwire("why", f"{number}/there", "--json").json
        return reason if reason["code"] == "executor_paused" else None

    reason = eventually_outside(paused_reason, "the reason", 20)
    assert "the executor `noting` is paused since" in reason["message"]
    assert "paused" in serving.stepwire("executor", "list").out
    assert serving.stepwire("executor", "resume", "noting", "--json").json["paused_since"] is None
    assert serving.stepwire("task", "watch", number).code == 0
