"""The database is slow, full, locked or failing: only stored data is acknowledged, and service resumes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.checker import assert_kept

from .harness import Answer, Site, eventually, workflow

TROUBLE_S = 5.0
LEASE_MS = 2_000  # the trouble outlasts every lease twice
SETTINGS = {"bus.lease_ms": LEASE_MS, "bus.heartbeat_ms": 400}
BACK_BOUND_S = 10.0
STEPS = 10

GATED = workflow("gated", {"name": "a", "handler_config": {"gate": "go"}}, {"name": "b", "depends_on": ["a"]})
GATED_ONCE = workflow(
    "gated_once",
    {"name": "a", "handler_config": {"gate": "go"}, "delivery_mode": "at_most_once"},
    {"name": "b", "depends_on": ["a"], "delivery_mode": "at_most_once"},
)

SMALL_DISK_MB = 24

HOLD_THE_LOCK = """
import sqlite3, sys, pathlib
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    options = f"size={SMALL_DISK_MB}m,mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "stepwire-test", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_writer_that_stalls_acknowledges_nothing_and_loses_no_worker(
    new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings=SETTINGS)
    site.start_broker(with_faults=True)
    stall = site.faults / "stall"
    figure(_endure(site, stall.touch, stall.unlink, "database_unavailable"))


def test_a_broker_waits_for_a_database_that_another_process_locks(
    new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings=SETTINGS)
    site.start_broker()
    holders: list[subprocess.Popen[str]] = []

    def lock() -> None:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD_THE_LOCK, str(site.database)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        site.at_close(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"

    def unlock() -> None:
        holders[0].communicate(timeout=10)

    figure(_endure(site, lock, unlock, "database_locked"))


def test_a_broker_waits_for_a_full_disk(
    small_disk: Path, new_site: Callable[..., Site], figure: Callable[[str], None]
) -> None:
    site = new_site(settings=SETTINGS, state_directory=small_disk)
    site.start_broker()
    filler = small_disk / "filler"
    figure(_endure(site, lambda: _fill(filler), filler.unlink, "disk_full"))


@pytest.mark.parametrize("how", ["fault port", "preload"])
def test_a_disk_that_fails_to_sync_stops_the_broker_and_all_acknowledgements(
    site: Site, tmp_path: Path, how: str
) -> None:
    fail = site.faults / "fsync"
    if how == "fault port":
        broker = site.start_broker(with_faults=True)
    else:
        site.faults.mkdir()
        broker = site.start_broker(environ={"LD_PRELOAD": _failing_fsync(tmp_path), "FAIL_FSYNC_WHEN": str(fail)})
    site.apply(GATED)
    client = site.recorded_client()
    task_id = client.submit_until_acknowledged("gated", "before")
    fail.touch()
    answer = client.submit("gated", "while")
    assert answer.status in (0, 503), answer
    assert broker.wait() not in (0, -9)
    assert "nothing more can be acknowledged" in broker.stderr
    fail.unlink()
    # An answered submission is stored. One without an answer may be stored or not; resent, it is the same task.
    site.start_broker()
    site.start_worker("one")
    site.open_gate("go")
    again = [client.submit_until_acknowledged("gated", key) for key in ("before", "while")]
    assert again[0] == task_id
    for each in again:
        assert site.client().wait(each, timeout=20)["state"] == "completed"
    assert_kept(site.database, site.ledgers)


def _endure(site: Site, begin: Callable[[], object], end: Callable[[], object], code: str) -> str:
    """Start the trouble while steps run and others wait; results and new submissions arrive during it."""
    site.apply(GATED)
    site.apply(GATED_ONCE)
    worker = site.start_worker("steady", slots=2 * STEPS, prefetch=4)
    client = site.recorded_client()
    tasks = [
        client.submit_until_acknowledged(name, f"{name}-{i}") for i in range(STEPS) for name in ("gated", "gated_once")
    ]
    eventually(lambda: len(site.runs("started")) == 2 * STEPS or None, "all first steps started")
    session = site.await_worker(worker)["session"]
    begin()
    began = time.monotonic()
    site.open_gate("go")  # results arrive while the database cannot be written
    with ThreadPoolExecutor(1) as threads:
        caught_in_it = threads.submit(client.submit, "gated", "during", timeout_s=TROUBLE_S + 30)
        not_ready = eventually(lambda: _not_ready(site, code), f"/readyz to say {code}", TROUBLE_S)
        reported_s = time.monotonic() - began
        refused = eventually(lambda: _refused(site, code), "a submission to be refused", TROUBLE_S)
        while time.monotonic() - began < TROUBLE_S:
            assert not caught_in_it.done() or caught_in_it.result().status == 503
            assert site.ask("GET", "/livez").status == 200
            time.sleep(0.05)
        assert len(site.runs("started")) == 2 * STEPS  # without commits nothing was dispatched
        end()
        ended = time.monotonic()
        eventually(lambda: site.ask("GET", "/readyz").status == 200 or None, "/readyz to say 200", BACK_BOUND_S)
        back_s = time.monotonic() - ended
        first = caught_in_it.result(BACK_BOUND_S)
    assert first.status in (201, 503), first
    assert site.broker is not None
    log = site.broker.stderr
    assert 0 <= log.rfind('"event":"database_stalled"') < log.rfind('"event":"database_recovered"')
    tasks.append(client.submit_until_acknowledged("gated", "during"))
    for task_id in tasks:
        assert site.client().wait(task_id, timeout=20)["state"] == "completed"
    assert site.await_worker(worker)["session"] == session  # no lease expired
    verdict = assert_kept(site.database, site.ledgers, lease_ms=LEASE_MS)
    assert not verdict.figures["started again"]
    return (
        f"reported {not_ready.body['reasons']} after {reported_s:.2f} s, refused with {refused.status} {refused.code}, "
        f"answered what came during it with {first.status}, was back {back_s:.2f} s after {TROUBLE_S:g} s of trouble"
    )


def _not_ready(site: Site, code: str) -> Answer | None:
    answer = site.ask("GET", "/readyz")
    return answer if answer.status == 503 and code in answer.body["reasons"] else None


def _refused(site: Site, code: str) -> Answer | None:
    answer = site.ask("POST", "/v1/tasks", {"workflow": "gated", "idempotency_key": "refused"}, timeout_s=0.5)
    assert answer.status in (0, 503), answer
    assert answer.status == 0 or answer.code == code, answer
    return answer if answer.status == 503 else None


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                pass


def _failing_fsync(directory: Path) -> str:
    """Compile the library that makes every sync fail while the file named by FAIL_FSYNC_WHEN exists."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    library = directory / "failing_fsync.so"
    source = Path(__file__).with_name("failing_fsync.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return str(library)
