"""Programs that are no good workers as processes get a sentence, and nothing of them is left."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stepwire_conform.case import CaseVerdict
from stepwire_conform.grading import Grade, grade
from stepwire_conform.program import GradedProgram

HERE = [sys.executable, "-m", "tests.conform.programs"]


def graded(kind: str, *only: str, patience: float = 0.2) -> Grade:
    """Grade the program, and check that no process of it is left."""
    marker = f"CONFORM_TEST_{os.getpid()}_{time.monotonic_ns()}"
    result = grade(
        [*HERE, kind], only=only or ("hello.versions",), environ={**os.environ, marker: "1"}, patience=patience
    )
    assert processes_with(marker) == []
    return result


def processes_with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{marker}=1".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_a_program_that_ends_at_once_is_reported_with_its_exit_code_and_its_last_line() -> None:
    result = graded("exits")
    assert "ended with exit code 3 before it connected" in result.problem
    assert "there is no configuration here" in result.problem
    assert result.has_failed


def test_a_silent_program_is_reported_after_a_limited_time() -> None:
    began_s = time.monotonic()
    assert "it did not connect" in graded("silent").problem
    assert time.monotonic() - began_s < 30


def test_a_program_that_connects_and_is_silent_is_reported_as_such() -> None:
    assert "connected, but was silent" in graded("connects_only").problem


def test_a_program_that_floods_its_output_is_reported() -> None:
    assert "floods its output" in graded("floods").problem


def test_a_program_that_forks_into_the_background_leaves_no_process() -> None:
    assert "ended with exit code 0 before it connected" in graded("forks").problem


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_a_run_does_not_stay_the_parent_of_orphans() -> None:
    graded("exits")
    is_subreaper = ctypes.c_int(7)
    ctypes.CDLL(None).prctl(37, ctypes.byref(is_subreaper), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert is_subreaper.value == 0


@pytest.mark.parametrize("word", ["there-is-no-such-program", "/"])
def test_a_command_that_cannot_be_started_is_a_usage_error(word: str) -> None:
    result = grade([word])
    assert result.is_usage
    assert word in result.problem


def test_a_worker_that_outlives_term_fails_a_case_and_leaves_no_process() -> None:
    result = graded("outlives_term", "drain.code")
    assert [o.verdict for o in result.outcomes] == [CaseVerdict.NON_STRICT]
    assert "no end of the program" in result.outcomes[0].what


def test_a_run_that_is_ended_by_term_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    marker = f"CONFORM_TEST_{os.getpid()}_{time.monotonic_ns()}"
    environ = {**os.environ, marker: "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "stepwire", "handler", "conform", "--", *HERE, "outlives_term"]
    run = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until_s = time.monotonic() + 30
    while len(processes_with(marker)) < 3 and time.monotonic() < until_s:
        time.sleep(0.05)
    run.terminate()
    assert run.wait(timeout=30) == 130
    assert processes_with(marker) == []
    assert list(tmp_path.iterdir()) == []


def test_the_output_of_an_ended_program_has_its_last_line() -> None:
    lines = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done; echo the last one; exit 3"
    for number in range(20):
        program = GradedProgram(["sh", "-c", lines], os.environ, f"last-words-{number}")
        try:
            while program.exit_code() is None:
                pass  # without a pause, so that the reading thread is behind
            assert "the last one" in program.output()
        finally:
            program.end()
