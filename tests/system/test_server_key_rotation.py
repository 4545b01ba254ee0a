"""The rotation of the brokers' own key: workers stay at work, and each step runs once.

The second worker is the conformance worker of an SDK in another language, if one is built.
"""

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.a_place import place, stop

from .harness import eventually
from .test_keys import BUILT, SDKS, WORKFLOW, Deployment, _can_run, _write

WORKER = """
import os
from stepwire import Worker

worker = Worker.from_env()

@worker.handler("shop.pay")
def pay(context):
    with open("runs", "a") as file:
        file.write(f"{context.step_id}\\n")

worker.run()
"""
FOLLOWED = "has a new CURVE key"


class Load:
    """A client that submits tasks without a pause, until it is stopped."""

    def __init__(self, deployment: Deployment, workflows: list[str]) -> None:
        self.tasks: list[int] = []
        self._stopped = threading.Event()
        self._client = deployment.client()
        self._workflows = workflows
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(0.02):
                return
            workflow = self._workflows[number % len(self._workflows)]
            try:
                self.tasks.append(self._client.submit(workflow, key=f"{workflow}-{number}").task_id)
            except Exception:  # the broker is being restarted; the next task is a new one
                self._stopped.wait(0.2)

    def stop(self) -> list[int]:
        self._stopped.set()
        self._thread.join()
        return self.tasks


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    tmp_path.chmod(0o700)
    with _Ports(5) as ports:
        here = place(tmp_path, ports[4])
        settings = here.stepwire("keys", "init").out
    settings += f'  steps: ["ipc://.stepwire/steps.sock", "tcp://127.0.0.1:{ports[0]}"]\n'
    settings += f'  results: ["ipc://.stepwire/results.sock", "tcp://127.0.0.1:{ports[1]}"]\n'
    settings += f"  next: {{steps: 'tcp://127.0.0.1:{ports[2]}', results: 'tcp://127.0.0.1:{ports[3]}'}}\n"
    (tmp_path / "stepwire.yaml").write_text(settings)
    (tmp_path / "worker.py").write_text(WORKER)
    serving = here.serve("-o", "json")
    facts = json.loads(serving.ready)
    facts["listeners"].append({"steps": f"tcp://127.0.0.1:{ports[2]}", "results": f"tcp://127.0.0.1:{ports[3]}"})
    made = Deployment(here, serving.process, facts, [])
    here.environ["STEPWIRE_URL"] = facts["http"]
    brokers = [serving.process]
    made.facts["brokers"] = brokers
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()
        for broker in brokers:
            stop(broker)


def test_workers_stay_at_work_while_the_brokers_key_is_rotated_and_each_step_runs_once(deployment: Deployment) -> None:
    run, directory = deployment.run, deployment.place.directory
    run("keys", "new", "shop", "--handlers", "shop.*", "--workers", "shop,shop-*", "--out", "shop.key")
    run("keys", "new", "conform", "--handlers", "conform.*", "--out", "conform.key")
    workers = {"shop": deployment.worker("shop", "shop.pay", "shop.key")}
    workflows = {"pay": "shop.pay"}
    language = next((name for name in BUILT if (SDKS / name / BUILT[name]).exists() and _can_run(name)), None)
    if language is not None:
        program = [str(SDKS / language / "bin/conform")]
        workers["conform"] = deployment.program(program, "conform", "conform.key")
        workflows["echo"] = "conform.echo"
    deployment.until_joined(*workers)
    for name, handler in workflows.items():
        (directory / f"{name}.yaml").write_text(WORKFLOW.format(name=name, handler=handler))
        run("workflow", "apply", f"{name}.yaml")
    load = Load(deployment, list(workflows))
    try:
        begun = json.loads(run("-o", "json", "keys", "rotate", "--server"))
        _until_audited(deployment, "server_key_added")

        text = (directory / "shop.key").read_text()
        _write(directory / "new.key", text.replace(begun["server_public"], begun["next_public"]))
        deployment.worker("shop-old", "shop.pay", "shop.key")
        deployment.worker("shop-new", "shop.pay", "new.key", 2)
        deployment.until_joined("shop-old", "shop-new")

        _kill_and_restart(deployment)  # the rotation has begun, and goes on
        deployment.until_joined(*workers, "shop-old", "shop-new")
        run("keys", "rotate", "--server", "--finish")
        for name in (*workers, "shop-old", "shop-new"):
            eventually(lambda name=name: FOLLOWED in deployment.log_of(name), f"{name} to follow", 30)  # type: ignore[misc]
        _until_audited(deployment, "server_key_replaced")

        deployment.worker("shop-late", "shop.pay", "shop.key")
        deployment.worker("shop-next", "shop.pay", "new.key")
        deployment.until_joined("shop-next")
        eventually(lambda: "no broker for" in deployment.log_of("shop-late"), "the refusal of the old key", 30)
        before = len(load.tasks)
        eventually(lambda: len(load.tasks) >= before + 20, "work after the rotation", 30)
    finally:
        tasks = load.stop()
    _all_ran_once(deployment, tasks)
    assert [process.poll() for process in workers.values()] == [None] * len(workers)
    assert "shop-late" not in deployment.workers()


def test_workers_follow_a_key_that_replaced_the_old_one_while_no_broker_ran(deployment: Deployment) -> None:
    """Their broker is killed between the command and its effect, so it can tell them nothing."""
    run = deployment.run
    run("keys", "new", "shop", "--handlers", "shop.*", "--out", "shop.key")
    deployment.worker("shop", "shop.pay", "shop.key")
    deployment.until_joined("shop")
    run("keys", "rotate", "--server")
    _until_audited(deployment, "server_key_added")
    first = deployment.submit("first", "shop.pay")
    eventually(lambda: deployment.state_of(first) == "completed", "the first task", 20)  # it follows the next key
    _kill(deployment)
    run("keys", "rotate", "--server", "--finish")
    _start(deployment)
    second = deployment.submit("second", "shop.pay")
    eventually(lambda: deployment.state_of(second) == "completed", "the second task", 30)
    _all_ran_once(deployment, [first, second])


def test_a_cancelled_rotation_leaves_the_old_key_and_disturbs_no_worker(deployment: Deployment) -> None:
    run = deployment.run
    run("keys", "new", "shop", "--handlers", "shop.*", "--out", "shop.key")
    deployment.worker("shop", "shop.pay", "shop.key")
    deployment.until_joined("shop")
    run("keys", "rotate", "--server")
    _until_audited(deployment, "server_key_added")
    run("keys", "rotate", "--server", "--cancel")
    _until_audited(deployment, "server_key_dropped")
    task = deployment.submit("task", "shop.pay")
    eventually(lambda: deployment.state_of(task) == "completed", "the task", 20)
    assert FOLLOWED not in deployment.log_of("shop")


class _Ports:
    """Free ports, held until the end of the `with` block."""

    def __init__(self, count: int) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]

    def __enter__(self) -> list[int]:
        return [each.getsockname()[1] for each in self._sockets]

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()


def _until_audited(deployment: Deployment, action: str) -> None:
    def rows() -> Any:
        with deployment.client() as client:
            return client.audit(target="server key")["rows"]

    eventually(lambda: action in [row["action"] for row in rows()], f"the row {action}", 20)


def _kill(deployment: Deployment) -> None:
    broker = deployment.facts["brokers"][-1]
    broker.kill()
    broker.wait()


def _start(deployment: Deployment) -> None:
    deployment.facts["brokers"].append(deployment.place.serve("-o", "json").process)


def _kill_and_restart(deployment: Deployment) -> None:
    _kill(deployment)
    _start(deployment)


def _all_ran_once(deployment: Deployment, tasks: list[int]) -> None:
    assert tasks
    with deployment.client() as client:
        for task in tasks:
            eventually(lambda task=task: client.task(task)["state"] == "completed", f"task {task}", 30)  # type: ignore[misc]
    runs = (deployment.place.directory / "runs").read_text().split()
    assert len(runs) == len(set(runs)), "a step ran twice"
