"""The broker's process is killed while executors inside it run steps: the next start treats these runs as dead."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.a_place import Place, Serving, place, stop
from tests.system.harness import eventually

from .installed import install

PYPROJECT = """
[project]
name = "noting"
version = "1"
entry-points."stepwire.executors".noting = "noting:Noting"
"""

# Notes each run in a file; the first run of a step waits for a gate. Threads, processes and the executor do the same.
MODULE = """
import asyncio, json, os, pathlib, time
from stepwire import Context, Worker
from stepwire_broker.executors.contract import BaseExecutor, completed

NOTES = pathlib.Path("notes")
GATE = pathlib.Path("gate")
worker = Worker()

def note(step, delivery):
    with NOTES.open("a") as notes:
        notes.write(json.dumps({"step": step, "delivery": delivery, "pid": os.getpid()}) + "\\n")
    return delivery == 1

@worker.handler("in.thread")
def in_thread(context: Context):
    if note(context.step_name, context.delivery):
        while not GATE.exists():
            time.sleep(0.01)

@worker.handler("in.process", process=True)
def in_process(context: Context):
    in_thread(context)

class Noting(BaseExecutor):
    handlers = ("in.executor",)

    async def run(self, step):
        if note(step.path.rpartition("::")[2], step.delivery):
            while not GATE.exists():
                await asyncio.sleep(0.01)
        return completed()

    def __init__(self):
        super().__init__("noting")
"""
CONFIG = """
bus: {lease: 60s}
executors:
  local: {modules: [noting]}
  options: {noting: {}}
execution:
  default_execution_mode: distributed
  rules:
    - {match: "**::e_*", executor: noting}
    - {match: "**", executor: local}
"""
KINDS = {"e": "in.executor", "p": "in.process", "t": "in.thread"}
MODES = ("at_least_once", "at_most_once")
STEPS = {f"{kind}_{mode}": {"handler_class": of, "delivery_mode": mode} for kind, of in KINDS.items() for mode in MODES}


@pytest.fixture
def here(tmp_path: Path) -> Place:
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(PYPROJECT)
    (package / "noting.py").write_text(MODULE)
    install(package, tmp_path / "installed")
    here = place(tmp_path)
    here.environ["PYTHONPATH"] = f"{tmp_path / 'installed'}:{here.environ.get('PYTHONPATH', '')}"
    (tmp_path / "stepwire.yaml").write_text(CONFIG)
    (tmp_path / "stepwire.yaml").chmod(0o600)
    steps = [{"name": name, **step} for name, step in STEPS.items()]
    (tmp_path / "w.yaml").write_text(json.dumps({"name": "w", "steps": steps}))
    return here


def serve(here: Place) -> Serving:
    broker = here.serve("-o", "json")
    here.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
    return broker


def notes(here: Place) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (here.directory / "notes").read_text().splitlines()]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("waits", [True, False], ids=["to its end", "no longer than the drain"])
def test_a_stopping_broker_lets_its_executors_finish(here: Place, waits: bool) -> None:
    """A run past the drain timeout ends with the process: the next start runs the step again or holds it."""
    here.environ["STEPWIRE_BROKER__DRAIN_TIMEOUT_MS"] = "30000" if waits else "100"
    broker = serve(here)
    try:
        assert here.stepwire("workflow", "apply", "w.yaml").code == 0
        number = str(here.stepwire("task", "submit", "w", "--json").json["task_id"])
        eventually(lambda: len(notes(here)) == len(STEPS) or None, "all to run", 30)
        broker.process.send_signal(signal.SIGTERM)
        if waits:
            (here.directory / "gate").touch()
        ended = broker.end()
        assert ended.code == 0, ended
    finally:
        stop(broker.process)
    broker = serve(here)
    try:
        done = here.stepwire("task", "watch", number, "--json")
        assert done.code == (0 if waits else 13), done
        assert len(notes(here)) == len(STEPS) + (0 if waits else len(KINDS))
    finally:
        stop(broker.process)


def test_after_a_kill_at_least_once_runs_again_at_once_and_at_most_once_is_held(here: Place) -> None:
    """The lease is a minute, and the test does not wait that long."""
    broker = serve(here)
    try:
        assert here.stepwire("workflow", "apply", "w.yaml").code == 0
        number = str(here.stepwire("task", "submit", "w", "--json").json["task_id"])
        eventually(lambda: len(notes(here)) == len(STEPS) or None, "all to run", 30)
        ran = {note["step"]: note["pid"] for note in notes(here)}
        broker.process.send_signal(signal.SIGKILL)
        broker.process.communicate()
        eventually(lambda: not Path(f"/proc/{ran['p_at_most_once']}").exists() or None, "its process to die with it")
    finally:
        stop(broker.process)

    broker = serve(here)
    try:
        done = here.stepwire("task", "watch", number, "--json")
        assert done.code == 13, done  # waits on held steps
        eventually(lambda: len(notes(here)) == len(STEPS) + len(KINDS) or None, "the others to run again", 30)

        def settled() -> dict[str, str] | None:
            steps = here.stepwire("task", "show", number, "--json").json["steps"]
            states = {step["name"]: step["state"] for step in steps}
            return None if set(states.values()) & {"ready", "dispatched"} else states

        held = {"at_least_once": "completed", "at_most_once": "held"}
        assert eventually(settled, "all to be over or held", 30) == {
            n: held[s["delivery_mode"]] for n, s in STEPS.items()
        }
        again = notes(here)[len(STEPS) :]
        assert sorted(note["step"] for note in again) == [f"{kind}_at_least_once" for kind in KINDS]
        assert {note["delivery"] for note in again} == {2}
    finally:
        stop(broker.process)
