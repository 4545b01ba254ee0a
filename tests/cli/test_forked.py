"""Commands that are forked for the tests behave as those that users start."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import forked
from .a_place import Place, place


@pytest.mark.parametrize(
    "words",
    [["version"], ["--version"], ["task", "list"], ["task", "retr"], ["config", "validate"], ["config", "show"]],
    ids=" ".join,
)
def test_a_forked_command_ends_as_one_that_a_user_starts(empty: Place, words: list[str]) -> None:
    started = empty.stepwire(*words, TZ="UTC")
    argv = [sys.executable, "-m", "stepwire", *words]
    assert not forked.can_fork(argv, {**empty.environ, "TZ": "UTC"})
    assert forked.can_fork(argv, empty.environ)
    assert empty.stepwire(*words) == started


def test_a_forked_command_reads_its_input_and_its_own_environment(empty: Place) -> None:
    done = empty.stepwire("config", "show", "-o", "json", stdin="ignored", STEPWIRE_BUS__LEASE="7s")
    assert {row["key"]: row["value"] for row in done.json}["bus.lease_ms"] == 7_000
    assert empty.stepwire("workflow", "apply", "-", stdin="name: [").err.startswith("stepwire: ")


def test_a_forked_broker_is_stopped_by_a_signal_and_killed_by_another_as_one_that_a_user_starts(empty: Place) -> None:
    ended = {}
    for may_fork in (True, False):
        for number in (signal.SIGTERM, signal.SIGKILL):
            broker = forked.start(
                [sys.executable, "-m", "stepwire", "serve"],
                empty.directory,
                empty.environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                may_fork=may_fork,
            )
            assert broker.stdout is not None
            assert "is ready" in broker.stdout.readline()
            assert broker.poll() is None
            assert os.getsid(broker.pid) == broker.pid
            broker.send_signal(number)
            broker.communicate(timeout=40)
            ended[may_fork, number] = broker.returncode
    assert ended == {(may_fork, number): -number if number == signal.SIGKILL else 0 for may_fork, number in ended}


def test_a_wait_for_a_forked_program_ends_after_its_limit_and_later_with_its_exit_code(empty: Place) -> None:
    argv = [sys.executable, "-m", "stepwire", "serve"]
    pipe = subprocess.PIPE
    with forked.start(argv, empty.directory, empty.environ, stdout=pipe, stderr=subprocess.DEVNULL) as broker:
        with pytest.raises(subprocess.TimeoutExpired):
            broker.wait(0.01)
        broker.kill()
        assert broker.wait() == -signal.SIGKILL


def test_commands_are_forked_at_the_same_time_and_leave_no_process(tmp_path: Path) -> None:
    places = [place(directory) for directory in (tmp_path / "a", tmp_path / "b", tmp_path / "c")]
    for here in places:
        here.directory.mkdir(mode=0o700)
    with ThreadPoolExecutor(len(places)) as threads:
        done = list(threads.map(lambda here: here.stepwire("keys", "init"), places))
    assert [each.code for each in done] == [0, 0, 0]
    assert len({each.out for each in done}) == 3, "each has keys of its own"
    assert all((here.directory / ".stepwire").is_dir() for here in places)
