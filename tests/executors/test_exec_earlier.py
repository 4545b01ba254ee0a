"""Programs of a killed broker process: the next broker process ends them before it dispatches a step."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.exec_runs import leftovers
from stepwire_broker.exec_runs.leftovers import end_earlier_runs
from stepwire_broker.exec_runs.records import Record, Records, RunsInUse, RunsRefused
from stepwire_protocol import host

from .programs import MARK, each_dead, elsewhere, lives, pids, run, wait_for


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Pids of processes that are killed after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def left_running(runs: Path, script: str, file: Path, many: int) -> list[int]:
    """The processes of a program whose broker was killed."""
    broker = elsewhere(lambda: asyncio.run(run(Records(str(runs)), script)) and None)
    processes = wait_for(pids(file, many), "the program")
    os.kill(broker, signal.SIGKILL)
    end_of(broker)
    assert all(lives(pid) for pid in processes)
    return processes


def on_record(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir() if path.name != "lock")


# -- the gate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_on_record", [False, True])
def test_a_broker_that_is_killed_before_it_opens_the_gate_has_started_nothing(
    runs: Path, tmp_path: Path, is_on_record: bool
) -> None:
    def killed_at_the_gate() -> None:
        records = Records(str(runs))

        def register(pid: int) -> None:
            if is_on_record:
                records.add(records.record(pid, mark=MARK, handler_class="h", ids=(1, 2, 3), program="p"))
            (tmp_path / "gate").write_text(f"{pid}\n")
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(run(records, f"touch {tmp_path}/begun", register=register))

    assert end_of(elsewhere(killed_at_the_gate)) == -signal.SIGKILL
    (pid,) = wait_for(pids(tmp_path / "gate", 1), "the process at the gate")
    wait_for(lambda: not lives(pid), "its end")
    assert not (tmp_path / "begun").exists()
    assert len(on_record(runs)) == is_on_record
    end_earlier_runs(str(runs), is_used=True)
    assert on_record(runs) == []


# -- ending them ------------------------------------------------------------------------------------------------------

WITH_A_CHILD = "sleep 1000 & echo $$ $! > {file}; wait"
STUBBORN = "trap '' TERM; sleep 1000 & echo $$ $! > {file}; wait; sleep 1000"
IN_ANOTHER_GROUP = "timeout 1000 sleep 1000 & echo $$ $! > {file}; wait"
IN_ANOTHER_SESSION = "setsid sleep 1000 & echo $$ $! > {file}; wait"


@pytest.mark.parametrize(
    ("script", "is_used"),
    [
        (WITH_A_CHILD, True),
        (WITH_A_CHILD, False),
        (STUBBORN, True),
        (IN_ANOTHER_GROUP, True),
        (IN_ANOTHER_SESSION, True),
    ],
)
def test_a_program_and_all_it_started_are_gone_before_the_start_goes_on(
    runs: Path, tmp_path: Path, started: list[int], script: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "GRACE_S", 0.1)
    started += left_running(runs, script.format(file=tmp_path / "pids"), tmp_path / "pids", 2)
    end_earlier_runs(str(runs), is_used=is_used)
    assert each_dead(started)
    assert on_record(runs) == []


def test_a_process_that_outlives_its_program_is_found_by_its_mark(
    runs: Path, tmp_path: Path, started: list[int]
) -> None:
    started += left_running(runs, WITH_A_CHILD.format(file=tmp_path / "pids"), tmp_path / "pids", 2)
    first, second = started
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: host.process(first) is None or not lives(first), "its end")
    assert lives(second)
    end_earlier_runs(str(runs), is_used=True)
    assert each_dead(started)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in its own session that does not belong to the broker."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def recorded(runs: Path, pid: int, **changes: Any) -> Path:
    records = Records(str(runs))
    record = records.record(pid, mark=MARK, handler_class="h", ids=(1, 2, 3), program="p")
    path = records.add(msgspec.structs.replace(record, **changes))
    records.close()
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"started": 1},  # the pid belongs to another process now
        {"host": "another-boot:1:1"},
        {"host": "of another namespace"},
    ],
)
def test_a_process_that_only_has_the_same_pid_is_not_signalled(
    runs: Path, stranger: "subprocess.Popen[bytes]", changes: dict[str, Any]
) -> None:
    if "namespace" in changes.get("host", ""):
        changes = {"host": f"{host.identity().partition(':')[0]}:1:1"}
    recorded(runs, stranger.pid, **changes)
    end_earlier_runs(str(runs), is_used=True)
    assert stranger.poll() is None
    assert on_record(runs) == []


def test_the_record_of_an_ended_program_is_removed(runs: Path) -> None:
    recorded(runs, 2**22 + 1, started=5)
    end_earlier_runs(str(runs), is_used=True)
    assert on_record(runs) == []


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b'{"pid": 1}', b"\xff" * 100, b"x" * 100_000])
def test_an_unreadable_record_is_renamed_and_does_not_stop_the_start(
    runs: Path, stranger: "subprocess.Popen[bytes]", text: bytes
) -> None:
    recorded(runs, stranger.pid)
    (runs / "1-1.run").write_bytes(text)
    end_earlier_runs(str(runs), is_used=True)
    assert on_record(runs) == ["1-1.unreadable"]
    assert wait_for(stranger.poll, "the end of the readable one") == -signal.SIGTERM


def test_a_record_of_process_1_is_unreadable(runs: Path) -> None:
    Records(str(runs)).close()
    record = Record(
        pid=1,
        started=1,
        host=host.identity(),
        mark="m",
        handler_class="h",
        task_id=1,
        step_id=1,
        delivery=1,
        program="p",
    )
    (runs / "1-1.run").write_bytes(msgspec.json.encode(record))
    end_earlier_runs(str(runs), is_used=True)
    assert on_record(runs) == ["1-1.unreadable"]


def test_a_program_that_cannot_be_ended_stops_the_start_and_is_named(
    runs: Path, stranger: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE_S", -1.0)
    path = recorded(runs, stranger.pid)
    with pytest.raises(RunsRefused) as refused:
        end_earlier_runs(str(runs), is_used=True)
    for text in (f"process {stranger.pid} of an earlier run (p, step 2) cannot be ended", f"remove {path}"):
        assert text in str(refused.value)
    assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_process_of_another_user_stops_the_start(stranger: "subprocess.Popen[bytes]") -> None:
    """`stranger` belongs to root, and the broker to another user."""

    def as_another_user() -> None:
        os.setresuid(65534, 65534, 65534)
        runs = Path(directory, "runs")
        recorded(runs, stranger.pid)
        with pytest.raises(RunsRefused, match="it now belongs to another user"):
            end_earlier_runs(str(runs), is_used=True)

    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, 65534, 65534)
        assert end_of(elsewhere(as_another_user)) == 0
    assert stranger.poll() is None


# -- the directory ----------------------------------------------------------------------------------------------------


def test_no_directory_is_made_where_no_program_is_configured(runs: Path) -> None:
    end_earlier_runs(str(runs), is_used=False)
    assert not runs.exists()
    end_earlier_runs(str(runs), is_used=True)
    assert runs.stat().st_mode & 0o777 == 0o700


def test_a_live_brokers_records_are_its_own(runs: Path, stranger: "subprocess.Popen[bytes]") -> None:
    path = recorded(runs, stranger.pid)
    other = Records(str(runs))
    try:
        with pytest.raises(RunsInUse, match=f"another broker \\(process {os.getpid()}\\) keeps its records"):
            end_earlier_runs(str(runs), is_used=True)
        end_earlier_runs(str(runs), is_used=False)
    finally:
        other.close()
    assert path.exists()
    assert stranger.poll() is None


def test_a_directory_that_others_may_write_is_refused(runs: Path) -> None:
    runs.mkdir()
    runs.chmod(0o777)
    with pytest.raises(RunsRefused, match="chmod 700"):
        end_earlier_runs(str(runs), is_used=True)


def test_an_unfinished_record_is_removed_because_no_program_began(runs: Path) -> None:
    Records(str(runs)).close()
    (runs / "77-5.new").write_bytes(b'{"pid"')
    end_earlier_runs(str(runs), is_used=True)
    assert on_record(runs) == []
