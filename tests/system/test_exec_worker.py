"""`stepwire exec-worker`: programs run under another user than the broker, with a key, and survive what may happen."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepwire import Client
from stepwire_broker.process_state import is_alive
from stepwire_protocol import host

from tests.cli.a_place import STEPWIRE, Ended, Place, Serving, place, stop

from .harness import eventually

OTHER_UID = 65534
USAGE = 2

REPORT = (
    'printf \'{"uid": %s, "umask": "%s", "no_new_privs": %s, "keys": %s}\' "$(id -u)" "$(umask)"'
    ' "$(sed -n "s/^NoNewPrivs:[[:space:]]*//p" /proc/self/status)" "$(env | grep -c -e CURVE -e STEPWIRE_STEPS)"'
)
# Another user may be unable to read this Python: everything is imported before the user changes.
AS_ANOTHER_USER = """
import asyncio, concurrent.futures.thread, importlib, os, pkgutil, sys
import stepwire, stepwire.worker, stepwire_broker.cli, stepwire_broker.exec_runs, stepwire_broker.executors.exec
import encodings.idna, rich.console, rich.text
import stepwire_broker.cli.logs, stepwire_broker.cli.main, stepwire_broker.cli.exec_worker
import stepwire_broker.executors.remote_host, stepwire_broker.exec_runs.leftovers, stepwire_broker.open_files
import stepwire_broker.cli.hardening, stepwire_broker.cli.output, stepwire_broker.definition_files
for package in (stepwire, stepwire.worker, stepwire_broker.exec_runs, stepwire_broker.executors.exec):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
uid = int(sys.argv.pop(1))
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
stepwire_broker.cli.main.main()
"""
WAIT = "echo $$ >> starts; while [ ! -e go ]; do sleep 0.05; done; echo 7"
WORKFLOW = (
    "name: {name}\nsteps:\n  - {{name: only, handler_class: {handler}, delivery_mode: at_most_once, timeout: 5m}}\n"
)


class Site:
    """A broker with keys, and an exec-worker in a directory of its own."""

    def __init__(self, here: Place, home: Path, ports: list[int]) -> None:
        self.here = here
        self.home = home
        self.ports = ports
        self.uid = OTHER_UID if os.geteuid() == 0 else os.geteuid()
        self.brokers: list[Serving] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def broker(self) -> Serving:
        self.brokers.append(self.here.serve("-o", "json"))
        self.here.environ["STEPWIRE_URL"] = json.loads(self.brokers[-1].ready)["http"]
        return self.brokers[-1]

    def worker(self) -> "subprocess.Popen[bytes]":
        environ = {
            **{name: value for name, value in self.here.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")},
            "HOME": str(self.home),
            "STEPWIRE_STEPS": f"tcp://127.0.0.1:{self.ports[0]}",
            "STEPWIRE_RESULTS": f"tcp://127.0.0.1:{self.ports[1]}",
            "STEPWIRE_CURVE_FILE": str(self.home / "exec.key"),
        }
        command = [sys.executable, "-c", AS_ANOTHER_USER, str(self.uid)] if os.geteuid() == 0 else list(STEPWIRE)
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            command += ["exec-worker", "-c", "programs.yaml"]
            process = subprocess.Popen(command, cwd=self.home, env=environ, stdout=log, stderr=log)
        self.workers.append(process)
        return process

    def run(self, *words: str) -> Ended:
        done = self.here.stepwire(*words)
        assert done.code == 0, done
        return done

    def submit(self, name: str, handler: str) -> int:
        (self.here.directory / f"{name}.yaml").write_text(WORKFLOW.format(name=name, handler=handler))
        self.run("workflow", "apply", f"{name}.yaml")
        return int(self.run("task", "submit", name, "-o", "json").json["task_id"])

    def client(self) -> Client:
        """A poll by HTTP costs a hundredth of one by a command."""
        directory = self.here.directory
        return Client(self.here.environ["STEPWIRE_URL"], token_file=directory / ".stepwire/token")

    def task(self, task: int) -> dict[str, Any]:
        with self.client() as client:
            return client.task(task)

    def has_workers(self) -> bool:
        with self.client() as client:
            return bool(client.workers()["workers"])

    def until(self, task: int, member: str, value: str) -> dict[str, Any]:
        return eventually(
            lambda: shown if (shown := self.task(task)).get(member) == value else None, f"{member} {value}", 90
        )

    def started(self) -> list[int]:
        """The pids of the programs that have begun."""
        try:
            return [int(line) for line in (self.home / "starts").read_text().split()]
        except FileNotFoundError:
            return []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The worker's directory is not below the tests' own directory, which other users cannot enter."""
    tmp_path.chmod(0o700)
    here = place(tmp_path)
    home = Path(tempfile.mkdtemp(prefix="stepwire-exec-"))
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [first.getsockname()[1], second.getsockname()[1]]
    made = here.stepwire("keys", "init")
    assert made.code == 0, made
    steps, results = (f'"tcp://127.0.0.1:{port}"' for port in ports)
    bus = f"  steps: {steps}\n  results: {results}\n  lease: 4s\n  heartbeat: 500ms\n"
    (tmp_path / "stepwire.yaml").write_text(f"{made.out}{bus}")
    site = Site(here, home, ports)
    site.run("keys", "new", "exec", "--handlers", "program.*", "--out", "exec.key")
    shutil.copy(tmp_path / "exec.key", home / "exec.key")
    commands = {"program.report": ["sh", "-c", REPORT], "program.wait": ["sh", "-c", WAIT]}
    (home / "programs.yaml").write_text(json.dumps({"executors": {"exec": {"commands": commands, "slots": 2}}}))
    for path in (home, home / "exec.key", home / "programs.yaml"):
        path.chmod(0o700 if path == home else 0o600)
        os.chown(path, site.uid, -1)
    try:
        site.broker()
        yield site
    finally:
        for process in site.workers:
            process.kill()
            process.wait()
        for pid in site.started():
            if _lives(pid):
                os.kill(pid, signal.SIGKILL)
        for serving in site.brokers:
            stop(serving.process)
        shutil.rmtree(home, ignore_errors=True)


def test_a_program_runs_as_the_user_of_the_worker_with_a_clean_environment(site: Site) -> None:
    site.worker()
    shown = site.until(site.submit("report", "program.report"), "state", "completed")
    expected = {"uid": site.uid, "umask": "0077", "no_new_privs": 1, "keys": 0}
    assert shown["result"]["only"] == expected, "neither the key nor the addresses reach a program"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
def test_a_program_of_the_worker_cannot_read_the_state_of_the_broker(site: Site) -> None:
    secret = site.here.directory / ".stepwire/token"
    commands = {"program.read": ["sh", "-c", f"cat {secret}"]}
    (site.home / "programs.yaml").write_text(json.dumps({"executors": {"exec": {"commands": commands}}}))
    site.worker()
    task = site.submit("read", "program.read")
    site.until(task, "state", "failed")
    assert "Permission denied" in site.run("step", "show", f"{task}/only").out
    assert secret.read_text().strip() not in site.run("task", "show", str(task), "-o", "json").out


def test_a_killed_worker_leaves_its_at_most_once_step_held_and_the_next_one_ends_the_program_first(site: Site) -> None:
    worker = site.worker()
    task = site.submit("wait", "program.wait")
    (pid,) = eventually(lambda: site.started() or None, "the program", 60)
    worker.kill()
    worker.wait()
    assert _lives(pid), "nothing has ended the program"
    site.worker()
    eventually(lambda: not _lives(pid), "the end of the earlier program", 60)
    site.until(task, "attention", "held")
    assert site.started() == [pid], "an at_most_once step never starts twice"
    other = site.submit("report", "program.report")
    site.until(other, "state", "completed")


def test_a_program_goes_on_while_its_broker_is_killed_and_started_again(site: Site) -> None:
    site.worker()
    task = site.submit("wait", "program.wait")
    (pid,) = eventually(lambda: site.started() or None, "the program", 60)
    site.brokers[0].process.kill()
    site.brokers[0].process.communicate()
    site.broker()
    eventually(site.has_workers, "the worker to connect again", 60)
    assert _lives(pid)
    (site.home / "go").touch()
    assert site.until(task, "state", "completed")["result"] == {"only": 7}
    assert site.started() == [pid]


def test_term_lets_a_running_program_finish_and_reports_its_result(site: Site) -> None:
    worker = site.worker()
    task = site.submit("wait", "program.wait")
    eventually(lambda: site.started() or None, "the program", 60)
    worker.terminate()
    (site.home / "go").touch()
    assert site.until(task, "state", "completed")["result"] == {"only": 7}
    assert worker.wait(60) == 0


def test_a_revoked_worker_gets_no_step_and_is_admitted_again_without_a_restart(site: Site) -> None:
    site.worker()
    eventually(site.has_workers, "the worker to connect", 60)
    site.run("keys", "revoke", "exec")
    eventually(lambda: not site.has_workers(), "the end of the session", 60)
    task = site.submit("report", "program.report")
    site.run("keys", "allow", "exec")
    site.until(task, "state", "completed")


def test_an_exec_worker_without_programs_or_with_wrong_addresses_does_not_start(site: Site) -> None:
    here = site.here
    without = here.stepwire("exec-worker")
    assert (without.code, "executors.exec.commands names no program" in without.err) == (USAGE, True), without
    (here.directory / "programs.yaml").write_text('{"executors": {"exec": {"commands": {"a": ["true"]}}}}')
    wrong = here.stepwire("exec-worker", "-c", "programs.yaml", STEPWIRE_STEPS="tcp://0.0.0.0")
    assert (wrong.code, "the steps endpoint 'tcp://0.0.0.0' has no port" in wrong.err) == (USAGE, True), wrong


def _lives(pid: int) -> bool:
    process = host.process(pid)
    return process is not None and is_alive(pid, process)
