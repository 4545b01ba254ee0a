"""Canaries: a secret, a sealed payload and a token pass through every outcome, and appear nowhere in the broker.

A fourth one is the name of a person in open payloads, which is in the broker until the tasks are erased.
"""

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from stepwire import Client
from stepwire.sealing import NotUnsealed

from .harness import Program, Site, eventually

SECRET: Final = "canary-secret-6f1d2c"
SEALED: Final = "canary-sealed-9b3e7a"
PERSON: Final = "canary-person-3c5f81"
BOUND_S: Final = 90.0
ENDS: Final = ("complete", "fail", "retry", "hold")
RULES: Final = '[{"match": "default::**", "executor": "bus", "shadow": {"executor": "bus"}}]'


class Canary:
    """A site whose files of secrets and keys are outside of its directory, and a client with these keys."""

    def __init__(self, new_site: Callable[..., Site], private: Path) -> None:
        self.private = private
        (private / "secrets").mkdir(mode=0o700)
        self.keys = private / "seal.keys"
        self._write("secrets/value", SECRET)
        self._write("seal.keys", f"k1={base64.b64encode(os.urandom(32)).decode()}\n")
        self._write("token", "")
        settings = {"execution.rules": RULES, "log_level": "debug", "bus.lease_ms": 3000, "bus.heartbeat_ms": 500}
        self.site = new_site("ipc", settings, may_fork=False)  # /proc shows what they were started with
        self.steps = {"canary.open": "open", "canary.sealed": "sealed"}

    def start(self) -> None:
        self.broker = self.site.start_broker(bound_s=BOUND_S)
        token = self.site.token
        self.token = token
        self.client = Client(self.site.url, token=token, seal_keys_file=self.keys)
        self.site.at_close(self.client.close)
        self.worker = self.start_worker()

    def start_worker(self, module: str = "tests.system.canary_worker") -> Program:
        keys = {"STEPWIRE_SECRETS_DIR": str(self.private / "secrets"), "STEPWIRE_SEAL_KEYS_FILE": str(self.keys)}
        argv = [sys.executable, "-m", module, str(self.site.directory)]
        worker = self.site.start(f"canary-{len(self.site.programs)}", argv, keys)
        self.site.await_worker(worker, BOUND_S)
        return worker

    def submit(self, kind: str, end: str) -> int:
        name = f"{kind}-{end}"
        step: dict[str, Any] = {"name": f"{kind}_{end}", "handler_class": f"canary.{kind}", "retry_limit": 1}
        step |= {"backoff": {"base_ms": 1, "max_ms": 1}, "handler_config": {"end": end}}
        if kind == "open":
            step["handler_config"]["secret"] = {"$secret": "value"}
        if end == "hold":
            del step["retry_limit"], step["backoff"]
            step["delivery_mode"] = "at_most_once"
        after = {"name": "after", "handler_class": f"canary.{kind}", "depends_on": [step["name"]], "retry_limit": 0}
        after["handler_config"] = {**step["handler_config"], "end": "complete"}
        document = {"name": name, "steps": [step, after], "payloads": "sealed" if kind == "sealed" else "open"}
        self.client.apply_workflow(document)
        context = {"plaintext": SEALED} if kind == "sealed" else {"plaintext": {"$secret": "value"}, "person": PERSON}
        labels = {"of": PERSON}
        return self.client.submit(name, context, key=f"{name}-{PERSON}", labels=labels, seal=kind == "sealed").task_id

    def _write(self, name: str, text: str) -> None:
        path = self.private / name
        path.write_text(text)
        path.chmod(0o600)


@pytest.fixture
def canary(new_site: Callable[..., Site]) -> Iterator[Canary]:
    private = Path(tempfile.mkdtemp(prefix="sw-private-"))
    try:
        yield Canary(new_site, private)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def everything(canary: Canary, tasks: list[int]) -> dict[str, bytes]:
    """Collect all that the broker and its operators see: files, logs, answers of the API, metrics, arguments."""
    site, seen = canary.site, {}
    for path in site.directory.rglob("*"):
        if path.is_file() and path.name != "token":
            seen[str(path.relative_to(site.directory))] = path.read_bytes()
    paths = ["/metrics", "/v1/tasks", "/v1/steps", "/v1/workers", "/v1/executors", "/v1/workflows", "/v1/audit"]
    paths += [f"/v1/tasks/{task}{more}" for task in tasks for more in ("", "/why", "/events")]
    paths += [f"/v1/steps/{step['step_id']}" for task in tasks for step in site.task(task)["steps"]]
    for path in paths:
        answer = site.ask("GET", path)
        assert answer.status == 200, (path, answer)
        seen[path] = repr(answer.body).encode()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            seen[f"{directory}/cmdline"] = (directory / "cmdline").read_bytes()
        except OSError:
            pass
    return seen


def hits(canary: Canary, seen: dict[str, bytes]) -> list[tuple[str, str]]:
    values = {"secret": SECRET, "sealed": SEALED, "token": canary.token}
    return [(name, place) for name, value in values.items() for place, text in seen.items() if value.encode() in text]


def places_of_person(seen: dict[str, bytes]) -> set[str]:
    """The broker's places with the name of the person: not the worker's log, the tap's output or a backup."""
    elsewhere = ("backup.db", "logs/tap.", "logs/canary-")
    return {place for place, text in seen.items() if PERSON.encode() in text and not place.startswith(elsewhere)}


def erase(canary: Canary, tasks: list[int]) -> None:
    """Erase the tasks, as an operator does: held steps are resolved first."""
    client = canary.client
    for task in tasks:
        for step in client.task(task)["steps"]:
            if step["state"] == "held":
                client.resolve(step["step_id"], "failed", reason="looked it up", message=f"no mail to {PERSON}")
        client.wait(task, timeout=BOUND_S)
    command = [sys.executable, "-m", "stepwire", "task", "erase", *map(str, tasks), "--reason", "request 17", "--yes"]
    environ = {**canary.site.environ, "STEPWIRE_TOKEN": canary.token}
    done = subprocess.run(
        [*command, "--url", canary.site.url],
        cwd=canary.site.directory,
        env=environ,
        timeout=BOUND_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


def pass_through_everything(canary: Canary) -> list[int]:
    canary.start()
    site = canary.site
    environ = {"STEPWIRE_TOKEN": canary.token}
    site.start("tap", [sys.executable, "-m", "stepwire", "tap", "-o", "jsonl", "--url", site.url], environ)
    tasks = [canary.submit(kind, end) for kind in ("open", "sealed") for end in ENDS]
    for task, end in zip(tasks, ENDS * 2, strict=True):
        ended = canary.client.wait(task, timeout=BOUND_S)
        assert (ended["state"], ended["attention"]) == {
            "complete": ("completed", None),
            "retry": ("completed", None),
            "fail": ("failed", None),
            "hold": ("running", "held"),
        }[end], ended
    crashed = [canary.submit(kind, "gate") for kind in ("open", "sealed")]
    running = [site.directory / "gates" / f"{kind}_gate.running" for kind in ("open", "sealed")]
    eventually(lambda: running[0].exists() or None, "a run to begin", BOUND_S)
    canary.worker.kill9()
    canary.worker = canary.start_worker()
    canary.broker.kill9()
    canary.broker = site.start_broker(bound_s=BOUND_S)
    site.open_gate("open")
    for task in crashed:
        assert canary.client.wait(task, timeout=BOUND_S)["state"] == "completed"
    command = [sys.executable, "-m", "stepwire", "db", "backup", "backup.db"]
    subprocess.run(command, cwd=site.directory, env=site.environ, timeout=BOUND_S, check=True, capture_output=True)
    assert (site.directory / "backup.db").exists()
    return [*tasks, *crashed]


def test_no_canary_appears_outside_of_the_worker_and_the_client(canary: Canary) -> None:
    tasks = pass_through_everything(canary)
    seen = everything(canary, tasks)
    assert hits(canary, seen) == []
    assert any(place.endswith("state.db-wal") for place in seen)
    assert b"[secret value]" in b"".join(seen.values())
    assert not [place for place in seen if Path(place).name.startswith("core")]
    assert [core_limit(program) for program in (canary.broker, canary.worker)] == ["0", "0"]
    with_person = places_of_person(seen)
    assert {".stepwire/state.db-wal", f"/v1/tasks/{tasks[0]}"} <= with_person
    erase(canary, tasks)
    seen = everything(canary, tasks)
    assert hits(canary, seen) == []
    assert places_of_person(seen) == set()
    assert b"erased" in seen[f"/v1/tasks/{tasks[0]}"]


def core_limit(program: Program) -> str:
    lines = Path(f"/proc/{program.pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4]


def test_the_client_reads_what_the_broker_cannot(canary: Canary) -> None:
    canary.start()
    done, failed = (canary.submit("sealed", end) for end in ("complete", "fail"))
    task = canary.client.wait(done, timeout=BOUND_S)
    assert SEALED not in str(task)
    opened = canary.client.unsealed(task)
    assert opened["context"] == {"plaintext": SEALED}
    assert opened["steps"][0]["output"]["echo"] == SEALED
    assert task["steps"][0]["output"]["clear"] == {"end": "complete"}
    canary.client.wait(failed, timeout=BOUND_S)
    keys = {"STEPWIRE_SEAL_KEYS_FILE": str(canary.keys)}
    site = canary.site
    site_environ = {**site.environ, **keys}
    shown = subprocess.run(
        [sys.executable, "-m", "stepwire", "task", "show", str(failed), "--unseal", "--url", site.url],
        cwd=site.directory,
        env=site_environ,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    assert f"RuntimeError: outer {SEALED}" in shown.stdout
    key, labels = f"sealed-complete-{PERSON}", {"of": PERSON}
    again = canary.client.submit("sealed-complete", {"plaintext": SEALED}, key=key, labels=labels, seal=True)
    assert (again.task_id, again.created) == (done, False)
    (canary.private / "seal.keys").write_text(f"k1={base64.b64encode(os.urandom(32)).decode()}\n")
    other = Client(site.url, token=canary.token, seal_keys_file=canary.keys)
    with pytest.raises(NotUnsealed, match="changed after it was sealed"):
        other.unsealed(task)
    other.close()


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        ("redaction", {"secret"}),  # texts keep the values of secrets
        ("log", {"sealed"}),  # the worker logs the text of a sealed step's error
    ],
)
def test_the_canary_notices_a_broken_rule(canary: Canary, broken: str, names: set[str]) -> None:
    canary.start()
    canary.worker.ask_to_end()
    canary.worker.wait()
    (canary.site.directory / "broken").write_text(broken)
    canary.worker = canary.start_worker("tests.system.broken_canary_worker")
    tasks = [canary.submit(kind, "fail") for kind in ("open", "sealed")]
    for task in tasks:
        canary.client.wait(task, timeout=BOUND_S)
    assert {name for name, _ in hits(canary, everything(canary, tasks))} == names
