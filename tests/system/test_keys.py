"""Keys at work: workers over tcp with CURVE, and workers over ipc without keys, revoked and admitted again.

The programs of other SDKs run if they are built: `sh handlers_sdk/<language>/check.sh build`. The variable SDKS names
another folder with built SDKs.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stepwire import Client

from tests.cli import forked
from tests.cli.a_place import Place, place, stop

from .harness import REPOSITORY, eventually

SDKS = Path(os.environ.get("SDKS", REPOSITORY / "handlers_sdk"))
BUILT = {  # what `check.sh build` leaves, by language
    "go": ".build/stepwire-conform",
    "java": "target/classpath",
    "node": "node_modules",
    "ruby": "lib/stepwire.rb",
    "rust": "target/release/stepwire-conform",
}
Process = subprocess.Popen[str]

WORKER = """
import os
from stepwire import Worker

worker = Worker.from_env()

@worker.handler(os.environ["OFFERS"])
def handle(context):
    return {"by": os.environ["STEPWIRE_NAME"]}

worker.run()
"""
WORKFLOW = """
name: {name}
steps:
  - {{name: only, handler_class: {handler}, timeout_ms: 60000}}
"""


class Deployment(NamedTuple):
    """A broker with two listeners, and workers with and without keys."""

    place: Place
    broker: Process
    facts: dict[str, Any]
    processes: list[Process]

    def worker(self, name: str, offers: str, key_file: str | None, listener: int = 1, **environ: str) -> Process:
        """Start the Python worker. `listener`: 0 is ipc, 1 is tcp with keys."""
        return self.program([sys.executable, "worker.py"], name, key_file, listener, OFFERS=offers, **environ)

    def program(
        self, command: list[str], name: str, key_file: str | None, listener: int = 1, **environ: str
    ) -> Process:
        endpoints = self.facts["listeners"][listener]
        keys = {} if key_file is None else {"STEPWIRE_CURVE_FILE": str(self.place.directory / key_file)}
        log = self.place.directory / f"{name}.log"
        with log.open("w") as file:
            process = forked.start(
                command,
                self.place.directory,
                {
                    **self.place.environ,
                    "STEPWIRE_STEPS": endpoints["steps"],
                    "STEPWIRE_RESULTS": endpoints["results"],
                    "STEPWIRE_NAME": name,
                    **keys,
                    **environ,
                },
                stdout=file,
                stderr=file,
            )
        self.processes.append(process)
        return process

    def log_of(self, name: str) -> str:
        return (self.place.directory / f"{name}.log").read_text()

    def run(self, *words: str) -> str:
        done = self.place.stepwire(*words)
        assert done.code == 0, done
        return done.out

    def client(self) -> Client:
        """A poll by HTTP costs a hundredth of one by a command."""
        return Client(self.facts["http"], token_file=str(self.place.directory / self.facts["token_file"]))

    def workers(self) -> set[str]:
        with self.client() as client:
            return {one["worker"].partition(":")[0] for one in client.workers()["workers"]}

    def until_joined(self, *names: str) -> None:
        eventually(lambda: set(names) <= self.workers(), f"{names} to join", 30)

    def refusals(self) -> dict[str, int]:
        """The figures of stepwire_bus_refusals_total."""
        counts = {}
        for line in self.metrics().splitlines():
            if line.startswith("stepwire_bus_refusals_total{"):
                label, _, figure = line.rpartition(" ")
                counts[label.partition('code="')[2].removesuffix('"}')] = int(figure)
        return counts

    def metrics(self) -> str:
        with self.client() as client:
            text: str = client._transport.get_once("/metrics").body.decode()
            return text

    def submit(self, name: str, handler: str) -> int:
        (self.place.directory / f"{name}.yaml").write_text(WORKFLOW.format(name=name, handler=handler))
        self.run("workflow", "apply", f"{name}.yaml")
        return int(json.loads(self.run("task", "submit", name, "-o", "json"))["task_id"])

    def state_of(self, task: int) -> str:
        with self.client() as client:
            return str(client.task(task)["state"])


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    tmp_path.chmod(0o700)
    here = place(tmp_path)
    assert here.stepwire("keys", "init").code == 0
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = first.getsockname()[1], second.getsockname()[1]
    settings = here.stepwire("keys", "init").out
    settings += f'  steps: ["ipc://.stepwire/steps.sock", "tcp://127.0.0.1:{ports[0]}"]\n'
    settings += f'  results: ["ipc://.stepwire/results.sock", "tcp://127.0.0.1:{ports[1]}"]\n'
    (tmp_path / "stepwire.yaml").write_text(settings)
    (tmp_path / "worker.py").write_text(WORKER)
    serving = here.serve("-o", "json")
    facts = json.loads(serving.ready)
    made = Deployment(here, serving.process, facts, [])
    here.environ["STEPWIRE_URL"] = facts["http"]
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()
        stop(serving.process)


def test_a_revoked_worker_gets_no_step_and_is_admitted_again_without_a_restart(deployment: Deployment) -> None:
    deployment.run("keys", "new", "shop", "--handlers", "shop.*", "--workers", "shop,shop-*", "--out", "shop.key")
    deployment.worker("shop-1", "shop.pay", "shop.key")
    deployment.worker("local", "local.pay", None, 0)
    deployment.until_joined("shop-1", "local")
    assert deployment.facts["insecure"] == []
    first = deployment.submit("first", "shop.pay")
    eventually(lambda: deployment.state_of(first) == "completed", "the first task", 20)
    deployment.run("keys", "revoke", "shop")
    refusal = f"refuses this worker: unauthorized; this worker's public key is {_public_key(deployment, 'shop.key')};"
    eventually(lambda: refusal in deployment.log_of("shop-1"), "the reset of the revoked worker", 20)
    second = deployment.submit("second", "shop.pay")
    local = deployment.submit("local", "local.pay")
    eventually(lambda: deployment.state_of(local) == "completed", "a task of another principal", 20)
    assert deployment.state_of(second) != "completed"
    deployment.run("keys", "allow", "shop")
    eventually(lambda: deployment.state_of(second) == "completed", "the task of the admitted worker", 30)


def test_a_worker_with_another_key_no_key_or_a_foreign_name_does_not_join(deployment: Deployment) -> None:
    """Each of them fails for another reason, and an honest worker joins meanwhile."""
    run = deployment.run
    run("keys", "new", "honest", "--handlers", "shop.*", "--out", "honest.key")
    run("keys", "new", "late", "--handlers", "shop.*", "--expires", "1ms", "--out", "late.key")
    run("keys", "new", "gone", "--handlers", "shop.*", "--out", "gone.key")
    run("keys", "revoke", "gone")
    server = json.loads(run("-o", "json", "keys", "init"))["server_public"]
    run("keys", "pair", "--out", "stranger.key", "--server-key", server)
    honest = (deployment.place.directory / "honest.key").read_text()
    _write(deployment.place.directory / "wrong.key", honest.replace(server, _other_key(deployment)))
    for name, key_file in (
        ("no-key", None),
        ("stranger", "stranger.key"),
        ("late", "late.key"),
        ("gone", "gone.key"),
        ("wrong", "wrong.key"),
        ("impostor", "honest.key"),  # a name that the key does not allow
    ):
        deployment.worker(name, "shop.pay", key_file)
    deployment.worker("honest", "shop.pay", "honest.key")
    deployment.until_joined("honest")
    for code in ("unknown_key", "expired_key", "revoked_key", "unauthorized"):
        eventually(lambda code=code: deployment.refusals().get(code, 0) > 0, f"the refusal {code}", 20)  # type: ignore[misc]
    for name in ("no-key", "stranger", "late", "gone", "wrong"):
        eventually(lambda name=name: "no broker for" in deployment.log_of(name), f"the sentence of {name}", 30)  # type: ignore[misc]
    assert deployment.workers() == {"honest"}


def test_a_worker_gets_only_steps_of_its_handlers(deployment: Deployment) -> None:
    deployment.run("keys", "new", "shop", "--handlers", "shop.*", "--out", "shop.key")
    deployment.worker("shop", "mail.send", "shop.key")
    eventually(lambda: deployment.refusals().get("unauthorized", 0) > 0, "the refused hello", 20)
    key = _public_key(deployment, "shop.key")
    lines = [
        line for line in deployment.log_of("shop").splitlines() if "refused a message of this worker (hello)" in line
    ]
    assert "unauthorized: " in lines[0]
    assert f"this worker's public key is {key}; on the broker's host see `stepwire keys list`" in lines[0]
    assert deployment.workers() == set()


def test_hup_applies_the_valid_client_files_beside_an_invalid_one(deployment: Deployment) -> None:
    deployment.run("keys", "new", "shop", "--handlers", "shop.*", "--out", "shop.key")
    _write(deployment.place.directory / ".stepwire/keys/clients/oops", "public=oops\n")
    deployment.broker.send_signal(signal.SIGHUP)
    deployment.worker("shop", "shop.pay", "shop.key")
    deployment.until_joined("shop")
    eventually(lambda: 'stepwire_insecure{what="client_files"} 1' in deployment.metrics(), "the metric", 20)
    assert deployment.place.stepwire("doctor").code == 1


@pytest.mark.parametrize("language", BUILT)
def test_a_worker_of_each_sdk_joins_with_the_file_of_keys_new(language: str, deployment: Deployment) -> None:
    folder = SDKS / language
    if not (folder / BUILT[language]).exists() or not _can_run(language):
        pytest.skip(f"the SDK is not built: sh handlers_sdk/{language}/check.sh build")
    deployment.run("keys", "new", "conform", "--handlers", "conform.*", "--out", "conform.key")
    deployment.program([str(folder / "bin/conform")], "conform", "conform.key")
    deployment.until_joined("conform")
    task = deployment.submit("echo", "conform.echo")
    eventually(lambda: deployment.state_of(task) == "completed", "the task", 20)
    deployment.run("keys", "revoke", "conform")
    eventually(lambda: "unauthorized" in deployment.refusals(), "the refusal of the revoked worker", 20)


def _can_run(language: str) -> bool:
    """Ruby leaves nothing in its folder: its libraries are installed, or missing."""
    if language != "ruby":
        return True
    return shutil.which("ruby") is not None and not subprocess.run(["ruby", "-e", "require 'ffi-rzmq'"]).returncode


def _public_key(deployment: Deployment, key_file: str) -> str:
    """The public key of a file that `keys new` has written."""
    return (deployment.place.directory / key_file).read_text().splitlines()[1].partition("='")[2].removesuffix("'")


def _other_key(deployment: Deployment) -> str:
    public: str = json.loads(deployment.run("-o", "json", "keys", "pair", "--out", "other.key"))["public"]
    return public


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
