"""One run of a program: its input, its output, and that no process of it is left."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepwire_broker.core.definitions.settings import CommandLimits, ProgramLimits
from stepwire_broker.exec_runs.records import Records
from stepwire_broker.executors.exec import program as module
from stepwire_broker.executors.exec import starting
from stepwire_broker.executors.exec.program import NotStarted

from .programs import each_dead, lives, pids, program, run, wait_for, written


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    records = Records(str(tmp_path / "runs"))
    yield records
    assert [path.name for path in records.directory.iterdir()] == ["lock"]  # no record is left after any test
    records.close()


def test_a_program_gets_the_request_on_stdin_to_its_end(records: Records) -> None:
    request = b'{"a":"' + b"x" * 300_000 + b'\\n"}'
    ended = asyncio.run(run(records, "cat; echo; echo done >&2", request=request))
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, request + b"\n", b"done\n")


def test_arguments_are_passed_as_they_are_and_not_to_a_shell(records: Records) -> None:
    words = ["$HOME", "a b", "", "*", "'\"\\", "-n"]
    ended = asyncio.run(run(records, "printf", "%s|", *words))
    assert ended.stdout.decode() == "".join(f"{word}|" for word in words)


@pytest.mark.parametrize(
    ("script", "exit_code", "killed_by"),
    [("exit 0", 0, None), ("exit 75", 75, None), ("kill -9 $$", None, 9), ("kill -TERM $$", None, 15)],
)
def test_a_program_ends_with_an_exit_code_or_a_signal(
    records: Records, script: str, exit_code: int | None, killed_by: int | None
) -> None:
    ended = asyncio.run(run(records, script))
    assert (ended.exit_code, ended.killed_by) == (exit_code, killed_by)


def test_a_program_is_alone_in_its_session_and_group_and_has_no_other_files(records: Records) -> None:
    script = "read -r pid comm state ppid pgrp session rest < /proc/$$/stat; echo $$ $pgrp $session; ls /proc/$$/fd"
    ended = asyncio.run(run(records, script))
    first, *descriptors = ended.stdout.decode().splitlines()
    pid, group, session = first.split()
    assert pid == group == session != str(os.getpid())
    assert descriptors == ["0", "1", "2"]


def test_a_program_is_recorded_before_it_begins(records: Records) -> None:
    ended = asyncio.run(run(records, f"cat {records.directory}/$$-*.run"))
    assert b'"step_id":2' in ended.stdout


def test_a_program_that_cannot_be_recorded_never_begins(records: Records, tmp_path: Path) -> None:
    started: list[int] = []

    def full(pid: int) -> None:
        started.append(pid)
        raise OSError(28, "No space left on device")

    with pytest.raises(NotStarted, match="No space left on device"):
        asyncio.run(run(records, f"touch {tmp_path}/begun", register=full))
    assert each_dead(started)
    assert not (tmp_path / "begun").exists()


def test_a_program_whose_directory_is_gone_does_not_start(records: Records, tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="No such file"):
        asyncio.run(run(records, "exit 0", cwd=str(tmp_path / "gone")))


def test_a_program_runs_in_its_directory(records: Records, tmp_path: Path) -> None:
    assert asyncio.run(run(records, "pwd", cwd=str(tmp_path))).stdout.decode().strip() == str(tmp_path)


# -- rights -----------------------------------------------------------------------------------------------------------


def test_a_program_can_gain_no_privileges_and_its_files_are_private(records: Records) -> None:
    before = os.umask(0o022)
    try:
        ended = asyncio.run(run(records, "grep NoNewPrivs: /proc/self/status; umask"))
    finally:
        os.umask(before)
    assert ended.stdout.decode().split() == ["NoNewPrivs:", "1", "0077"]
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()  # this process keeps its own


def test_a_program_has_the_limits_of_the_configuration(records: Records) -> None:
    limits = ProgramLimits(memory_bytes=1 << 30, cpu_s=7, open_files=99, core_bytes=0, file_bytes=1 << 20)
    script = "cat /proc/self/limits; head -c 2000000 /dev/zero > big; ls -l big | awk '{print $5}'; rm big"
    ended = asyncio.run(run(records, script, limits=limits, cwd=str(records.directory.parent)))
    text = ended.stdout.decode()
    for name, value in [
        ("Max address space", 1 << 30),
        ("Max cpu time", 7),
        ("Max open files", 99),
        ("Max core file size", 0),
        ("Max file size", 1 << 20),
    ]:
        assert re.search(rf"^{name} +{value} +{value} ", text, re.MULTILINE), text
    assert text.splitlines()[-1] == str(1 << 20)


def test_a_program_without_configured_limits_makes_no_core_dump_and_opens_1024_files(records: Records) -> None:
    text = asyncio.run(run(records, "cat /proc/self/limits")).stdout.decode()
    assert re.search(r"^Max core file size +0 +0 ", text, re.MULTILINE), text
    assert re.search(r"^Max open files +1024 +1024 ", text, re.MULTILINE), text


def test_the_limits_of_a_command_replace_those_of_all_programs() -> None:
    general = ProgramLimits(cpu_s=5, open_files=50)
    assert starting.narrowed(general, None) == general
    assert starting.narrowed(general, CommandLimits(cpu_s=9)) == ProgramLimits(cpu_s=9, open_files=50)


# -- output -----------------------------------------------------------------------------------------------------------


def test_a_program_that_never_reads_its_input_is_not_waited_for(records: Records) -> None:
    ended = asyncio.run(run(records, "echo 1", request=b"x" * 8_000_000))
    assert (ended.exit_code, ended.stdout) == (0, b"1\n")


def test_a_program_that_closes_its_input_goes_on(records: Records) -> None:
    ended = asyncio.run(run(records, "exec <&-; echo 1", request=b"x" * 8_000_000))
    assert (ended.exit_code, ended.stdout) == (0, b"1\n")


def test_a_flood_on_stderr_neither_stops_a_program_nor_stays_in_memory(records: Records) -> None:
    ended = asyncio.run(run(records, "head -c 20000000 /dev/zero | tr '\\0' x >&2; echo last >&2; echo 1"))
    assert (ended.exit_code, ended.stdout, ended.stderr_cut) == (0, b"1\n", True)
    assert ended.stderr.endswith(b"xlast\n")
    assert len(ended.stderr) == module.STDERR_BYTES_MAX


def test_output_without_end_is_cut_and_its_program_killed(records: Records) -> None:
    ended = asyncio.run(run(records, "yes | tee /dev/null", bytes_max=100_000))
    assert ended.too_much
    assert ended.killed_by == signal.SIGKILL
    assert len(ended.stdout) == module.KEPT_BYTES_MAX


def test_output_may_be_as_large_as_the_limit(records: Records) -> None:
    ended = asyncio.run(run(records, "head -c 100000 /dev/zero", bytes_max=100_000))
    assert (ended.too_much, len(ended.stdout)) == (False, 100_000)


def test_a_program_that_closes_its_output_may_go_on(records: Records, tmp_path: Path) -> None:
    ended = asyncio.run(run(records, f"echo 1; exec >&- 2>&-; sleep 0.1; touch {tmp_path}/later; exit 3"))
    assert (ended.exit_code, ended.stdout) == (3, b"1\n")
    assert (tmp_path / "later").exists()


# -- end --------------------------------------------------------------------------------------------------------------


def test_output_completed_after_the_programs_end_is_read(records: Records) -> None:
    ended = asyncio.run(run(records, "(sleep 0.1; echo 1) & exit 0"))
    assert (ended.exit_code, ended.stdout) == (0, b"1\n")


def test_a_process_that_holds_the_output_open_is_killed_and_not_waited_for(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FINISH_S", 0.05)
    ended = asyncio.run(run(records, f"echo 1; sleep 1000 & echo $! > {tmp_path}/pid; exit 0"))
    assert (ended.exit_code, ended.stdout) == (0, b"1\n")
    assert each_dead(wait_for(pids(tmp_path / "pid", 1), "the pid"))


@pytest.mark.parametrize("then", ["exit 0", "sleep 1000"])
def test_a_process_that_has_left_the_session_twice_is_gone_when_the_run_is_over(
    records: Records, tmp_path: Path, then: str
) -> None:
    daemon = f"setsid sh -c 'setsid sleep 1000 <&- >&- 2>&- & echo $! > {tmp_path}/pid'"
    script = f"{daemon}; until [ -s {tmp_path}/pid ]; do sleep 0.01; done; echo 1; {then}"

    async def it() -> int:
        left = program(records, script)
        running = asyncio.ensure_future(left.run())
        (pid,) = await asyncio.to_thread(wait_for, pids(tmp_path / "pid", 1), "the pid")
        if then != "exit 0":
            left.end("timeout")
        await running
        return pid

    assert not lives(asyncio.run(it()))


def test_the_sweep_after_a_run_kills_no_process_of_another_run(records: Records, tmp_path: Path) -> None:
    async def it() -> bytes:
        other = asyncio.ensure_future(run(records, f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; echo alive"))
        await run(records, "exit 0")
        (tmp_path / "go").touch()
        return (await other).stdout

    assert asyncio.run(it()) == b"alive\n"


def test_a_silent_process_that_the_program_left_is_killed(records: Records, tmp_path: Path) -> None:
    ended = asyncio.run(run(records, f"sleep 1000 <&- >&- 2>&- & echo $! > {tmp_path}/pid"))
    assert ended.exit_code == 0
    assert each_dead(wait_for(pids(tmp_path / "pid", 1), "the pid"))


STUBBORN = "trap '' TERM; sleep 1000 & echo $$ $! > {file}; wait; wait; sleep 1000"
IN_ANOTHER_GROUP = "timeout 1000 sleep 1000 & echo $$ $! > {file}; wait"


@pytest.mark.parametrize("script", ["sleep 1000 & echo $$ $! > {file}; wait", STUBBORN, IN_ANOTHER_GROUP])
def test_a_cancelled_program_ends_with_all_it_started(
    records: Records, tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.1)

    async def cancel() -> tuple[list[int], module.ProgramEnded]:
        it = program(records, script.format(file=tmp_path / "pids"))
        running = asyncio.ensure_future(it.run())
        found = await asyncio.to_thread(wait_for, pids(tmp_path / "pids", 2), "both")
        it.end("timeout")
        it.end("shutdown")  # the first reason counts
        return found, await running

    found, ended = asyncio.run(cancel())
    assert ended.cancelled_for == "timeout"
    assert each_dead(found)


def test_a_cancelled_program_may_clean_up_first(records: Records, tmp_path: Path) -> None:
    async def cancel() -> module.ProgramEnded:
        it = program(records, f"trap 'touch {tmp_path}/clean; exit 0' TERM; echo > {tmp_path}/begun; sleep 1000 & wait")
        running = asyncio.ensure_future(it.run())
        await asyncio.to_thread(wait_for, written(tmp_path / "begun"), "its begin")
        it.end("timeout")
        return await running

    assert asyncio.run(cancel()).exit_code == 0
    assert (tmp_path / "clean").exists()


def test_a_process_of_a_cancelled_program_may_clean_up_first(records: Records, tmp_path: Path) -> None:
    """A shell ends at once on SIGTERM; the process that it started takes longer."""
    child = (
        f"trap 'sleep 0.1; touch {tmp_path}/clean; exit' TERM; echo > {tmp_path}/begun; while :; do sleep 0.01; done"
    )

    async def cancel() -> module.ProgramEnded:
        it = program(records, f"({child}) & wait")
        running = asyncio.ensure_future(it.run())
        await asyncio.to_thread(wait_for, written(tmp_path / "begun"), "its begin")
        it.end("timeout")
        return await running

    assert asyncio.run(cancel()).killed_by == signal.SIGTERM
    assert (tmp_path / "clean").exists()


def test_a_cancelled_run_is_over_when_its_program_has_ended(records: Records, tmp_path: Path) -> None:
    async def cancel() -> list[int]:
        running = asyncio.ensure_future(run(records, f"sleep 1000 & echo $$ $! > {tmp_path}/pids; wait"))
        found = await asyncio.to_thread(wait_for, pids(tmp_path / "pids", 2), "both")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return found

    assert each_dead(asyncio.run(cancel()))


def test_a_program_that_ended_by_itself_was_not_cancelled(records: Records, tmp_path: Path) -> None:
    async def late() -> module.ProgramEnded:
        it = program(records, f"echo $$ > {tmp_path}/pid; (sleep 0.2; echo 1) & exit 0")
        running = asyncio.ensure_future(it.run())
        (pid,) = await asyncio.to_thread(wait_for, pids(tmp_path / "pid", 1), "its begin")
        await asyncio.to_thread(wait_for, lambda: not lives(pid), "its end")
        await asyncio.sleep(0)
        it.end("timeout")
        return await running

    ended = asyncio.run(late())
    assert (ended.exit_code, ended.stdout, ended.cancelled_for) == (0, b"1\n", None)


def test_a_program_that_ended_while_the_loop_was_blocked_was_not_cancelled(records: Records, tmp_path: Path) -> None:
    async def late() -> module.ProgramEnded:
        it = program(records, f"echo $$ > {tmp_path}/pid; exit 65")
        running = asyncio.ensure_future(it.run())
        while not (found := pids(tmp_path / "pid", 1)()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        wait_for(lambda: not lives(found[0]), "its end")  # the loop is blocked meanwhile
        it.end("timeout")
        return await running

    ended = asyncio.run(late())
    assert (ended.exit_code, ended.cancelled_for) == (65, None)


def test_the_end_of_a_program_reaped_by_other_code_is_unknown(records: Records) -> None:
    """With SIGCHLD ignored by the application, the system reaps all children, also the broker's."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        ended = asyncio.run(run(records, "exit 3"))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (ended.exit_code, ended.killed_by) == (None, None)


def test_concurrent_programs_leave_no_descriptor_and_no_process(records: Records) -> None:
    async def many() -> tuple[int, int]:
        await run(records, "exit 0")
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*(run(records, "exit 0") for _ in range(20)))
        return before, len(os.listdir("/proc/self/fd"))

    others = children()
    before, after = asyncio.run(many())
    assert before == after
    assert children() <= others


def children() -> set[str]:
    """The children of this process, also those that ended and were not reaped."""
    return {pid for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}
