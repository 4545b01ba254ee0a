"""Proof of death, on real processes: certain, or not claimed."""

import os
import signal
import subprocess
import sys
import time

import pytest
from stepwire_broker.bus.deaths import examine, ticks_ago
from stepwire_protocol import host

pytestmark = pytest.mark.skipif(not host.identity(), reason="needs a /proc of this system")

_ZOMBIE_WITH_A_THREAD = """
import ctypes, threading, time
def work():
    print("up", flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def is_gone(pid: int, started: int) -> bool:
    """Whether the process of a worker that sent a message just now has ended."""
    return examine(pid, started, ticks_ago(0)) == "gone"


@pytest.fixture
def sleeper() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def _wait_for_state(pid: int, state: str) -> None:
    until = time.monotonic() + 10
    while (process := host.process(pid)) is None or process.state != state:
        assert time.monotonic() < until, process
        os.sched_yield()


def test_a_running_process_is_not_gone(sleeper: "subprocess.Popen[bytes]") -> None:
    assert not is_gone(sleeper.pid, host.started(sleeper.pid))
    assert not is_gone(os.getpid(), host.started())


def test_a_stopped_process_is_not_gone(sleeper: "subprocess.Popen[bytes]") -> None:
    sleeper.send_signal(signal.SIGSTOP)
    _wait_for_state(sleeper.pid, "T")
    assert not is_gone(sleeper.pid, host.started(sleeper.pid))


def test_a_killed_process_is_gone_before_it_is_reaped_and_after(sleeper: "subprocess.Popen[bytes]") -> None:
    started = host.started(sleeper.pid)
    sleeper.kill()
    _wait_for_state(sleeper.pid, "Z")
    assert is_gone(sleeper.pid, started)
    sleeper.wait()
    assert is_gone(sleeper.pid, started)


def test_a_process_that_started_after_the_last_message_of_the_worker_is_a_successor_with_its_pid(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    started = host.started(sleeper.pid)
    assert examine(sleeper.pid, started - 1, heard_ticks=started - 1) == "gone"


@pytest.mark.parametrize("claimed", [1, int(time.time()), 2**53 - 1], ids=["too early", "Unix seconds", "far future"])
def test_a_start_time_that_the_live_process_never_had_proves_nothing(
    claimed: int, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """The process with the pid ran already when the worker sent its last message, so it is the worker."""
    assert examine(sleeper.pid, claimed, ticks_ago(0)) == "refuted"


def test_start_times_are_in_the_unit_of_the_clock_that_they_are_compared_with() -> None:
    before = ticks_ago(20)
    with subprocess.Popen(["sleep", "60"]) as process:
        started = host.started(process.pid)
        process.kill()
    assert before <= started <= ticks_ago(0)
    assert ticks_ago(0) - ticks_ago(10_000) in range(900, 1_101)


def test_a_zombie_whose_other_thread_still_works_is_not_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", _ZOMBIE_WITH_A_THREAD], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        started = host.started(process.pid)
        _wait_for_state(process.pid, "Z")
        assert not is_gone(process.pid, started)
        process.kill()
        _wait_for_state_gone(process.pid, started)
    finally:
        process.kill()
        process.communicate()


def _wait_for_state_gone(pid: int, started: int) -> None:
    until = time.monotonic() + 10
    while not is_gone(pid, started):
        assert time.monotonic() < until
        os.sched_yield()


@pytest.mark.parametrize(("pid", "started"), [(0, 1), (-1, 1), (1, 0), (2**53 - 1, 1)])
def test_an_unknown_process_is_not_claimed_gone(pid: int, started: int) -> None:
    assert not is_gone(pid, started)


def test_a_host_has_the_same_name_for_all_its_processes() -> None:
    script = "from stepwire_protocol import host; print(host.identity(), host.started())"
    other = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert other[0] == host.identity()
    assert int(other[1]) > 0
    boot, pid_namespace, time_namespace = host.identity().split(":")
    assert len(boot) == 36
    assert pid_namespace.isdigit()
    assert time_namespace.isdigit()


def test_a_process_that_never_existed_has_no_start_time() -> None:
    assert host.process(2**22 + 1) is None
    assert host.started(2**22 + 1) == 0
