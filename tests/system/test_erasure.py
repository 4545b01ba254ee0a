"""Erasure with real processes: a thousand erased tasks leave nothing in the file, also after kill -9 and a restore."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .harness import Program, Site, eventually

TASKS = 1_000
KILLED_TASKS = 300
BATCH = 250
BOUND_S = 240.0
ERASE = ("task", "erase", "--label", "customer=4711", "--reason", "request 17", "--yes")
OPEN = ("pending", "running", "paused")

WORKER = """
from stepwire import StepError, Worker

worker = Worker(name="eraser")

@worker.handler("erasure.echo")
def echo(ctx, task):
    return {"sent_to": task["email"], "letter": task["email"] + " " * 3000 + task["email"]}

@worker.handler("erasure.fail")
def fail(ctx, task):
    raise StepError(f"no account for {task['email']}", code="code-" + task["email"])

worker.run()
"""
FLOWS = (
    {"name": "letter", "steps": [
        {"name": "write", "handler_class": "erasure.echo"},
        {"name": "send", "handler_class": "erasure.echo", "depends_on": ["write"]},
    ]},
    {"name": "account", "steps": [{
        "name": "close", "handler_class": "erasure.fail", "retry_limit": 0
    }]},
)  # fmt: skip


def email(number: int) -> str:
    return f"person-{number:05d}-of-a-test@example.com"


def tasks(count: int, label: str) -> list[dict[str, Any]]:
    return [
        {
            "workflow": FLOWS[number % 2]["name"],
            "context": {"email": email(number)},
            "labels": {"customer": label, "contact": email(number)},
            "key": f"key-of-{email(number)}",
        }
        for number in range(count)
    ]


def started(site: Site, count: int) -> Program:
    """A broker with this number of ended tasks, and one task that is not to be erased."""
    broker = site.start_broker()
    for flow in FLOWS:
        site.apply(flow)
    client = site.client()
    script = site.directory / "worker.py"
    script.write_text(WORKER)
    worker = site.start("eraser", [sys.executable, str(script)])
    new = tasks(count, "4711")
    for start in range(0, count, BATCH):
        client.submit_many(new[start : start + BATCH])
    client.submit("letter", {"email": "other@example.com"}, labels={"customer": "4712"})

    def is_over() -> bool | None:
        assert worker.is_running, worker.stderr
        return not any(client.tasks(state=state, limit=1)["tasks"] for state in OPEN) or None

    eventually(is_over, "all tasks to end", BOUND_S)
    return broker


def command(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stepwire", *words],
        cwd=site.directory, env=site.environ, capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip


def erase(site: Site) -> subprocess.CompletedProcess[str]:
    return command(site, *ERASE, "--url", site.url)


def left(directory: Path, suffixes: tuple[str, ...] = ("", "-wal")) -> int:
    """The number of places in the database file and its log that hold the address of an erased task."""
    files = [directory / f"state.db{suffix}" for suffix in suffixes]
    pattern = re.compile(rb"person-\d{5}-of-a-test")
    return sum(len(pattern.findall(file.read_bytes())) for file in files if file.exists())


def test_nothing_of_a_thousand_erased_tasks_is_left_and_a_restore_erases_them_again(site: Site, figure: Any) -> None:
    broker = started(site, TASKS)
    state = site.directory / ".stepwire"
    assert command(site, "db", "backup", "before.db").returncode == 0
    assert left(state) > TASKS
    began_s = time.monotonic()
    done = erase(site)
    assert done.returncode == 0, done.stderr
    assert f"{TASKS} of {TASKS} tasks are erased" in done.stdout
    figure(f"{TASKS} tasks erased in {time.monotonic() - began_s:.1f} s: {done.stderr.strip()}")
    assert left(state) == 0
    checked = command(site, "db", "check", "-o", "json")
    assert checked.returncode == 0, checked.stdout
    assert json.loads(checked.stdout)["tasks_replayed"] == TASKS + 1
    other = site.client().tasks(label="customer=4712")["tasks"]
    assert len(other) == 1
    assert site.client().task(other[0]["task_id"])["context"] == {"email": "other@example.com"}

    broker.ask_to_end()
    broker.wait()
    assert email(3).encode() in (site.directory / "before.db").read_bytes()
    restored = command(site, "db", "restore", "before.db", "--yes", "-o", "json")
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout)["erased_tasks"] == TASKS
    assert left(state) == 0
    assert command(site, "db", "check").returncode == 0


def test_an_erasure_cut_off_by_kill_9_is_completed_when_the_command_is_repeated(site: Site) -> None:
    broker = started(site, KILLED_TASKS)
    state = site.directory / ".stepwire"
    assert command(site, "db", "backup", "before.db").returncode == 0
    running = subprocess.Popen(
        [sys.executable, "-m", "stepwire", *ERASE],
        cwd=site.directory, env=site.environ | {"STEPWIRE_URL": site.url, "STEPWIRE_OUTAGE_S": "0"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: _lines(state / "erasures") > 10 or None, "a few erasures", BOUND_S)
    broker.kill9()
    assert running.wait(BOUND_S) != 0
    assert 10 < _lines(state / "erasures") < KILLED_TASKS, "the broker was killed in the middle"
    broker = site.start_broker()
    done = erase(site)
    assert done.returncode == 0, done.stderr
    assert left(state) == 0
    assert _lines(state / "erasures") == KILLED_TASKS, "also those whose answer was lost are recorded"
    assert command(site, "db", "check").returncode == 0
    broker.ask_to_end()
    broker.wait()
    assert command(site, "db", "restore", "before.db", "--yes").returncode == 0
    assert left(state) == 0


def _lines(path: Path) -> int:
    return max(0, path.read_text().count("\n") - 1) if path.exists() else 0
