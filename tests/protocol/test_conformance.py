"""The conformance kit grades drivers: a right one passes, and every kind of wrong one fails with a reason."""

import json
import os
import sys
import time
from pathlib import Path

import conformance
import pytest
from conformance.__main__ import main
from conformance.dialogue import load
from conformance.driver_process import DriverProcess, Failed
from conformance.worker_stage import DriverUnderTest

PYTHON_DRIVER = [sys.executable, "-m", "stepwire.driver"]
WRONG_DRIVER = Path(__file__).with_name("wrong_driver.py")
DRIVER_PAGE = Path(conformance.__file__).with_name("DRIVER.md")
REPEATED_BATCH = "repeated steps are answered again, and run once"
FIRST = load()[0]


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def graded(command: list[str], timeout_s: float = 10) -> str:
    with DriverUnderTest(command, timeout_s) as driver:
        return str(driver.grade(FIRST))


def test_a_right_driver_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "reset", "--", *PYTHON_DRIVER]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines[:-1]] == ["pass  "] * (len(lines) - 1)
    assert lines[-1] == f"{len(lines) - 1} passed, 0 failed"


def test_the_example_of_the_drivers_page_is_what_pythons_driver_replies() -> None:
    lines = [line.strip() for line in DRIVER_PAGE.read_text().splitlines() if line.startswith(("    → ", "    ← "))]
    driver = DriverProcess(PYTHON_DRIVER)
    try:
        for op, expected in zip(lines[::2], lines[1::2], strict=True):
            reply = driver.exchange(json.loads(op[2:]))
            reply["actions"] = [action for action in reply["actions"] if action["action"] != "log"]
            assert reply == json.loads(expected[2:])
    finally:
        driver.close()


def test_a_driver_that_runs_a_delivery_twice_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", REPEATED_BATCH, "--", sys.executable, str(WRONG_DRIVER)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"FAIL  {REPEATED_BATCH}"
    assert "the step ran 4 times, not 1" in lines[1]
    assert lines[-1] == "0 passed, 1 failed"


def test_a_failed_recommendation_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    recommended = next(d for d in load() if "worker" in d.drives and d.strength == "should")
    silent = 'import sys\nfor _ in sys.stdin: print("{}", flush=True)'
    assert main(["--only", recommended.name, "--", *program(silent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"WARN  {recommended.name}"
    assert lines[-1] == "0 passed, 0 failed, 1 recommended only"


# One write for each op: the kit must not see half of a reply.
REPLY = "import sys\nfor _ in sys.stdin:\n    sys.stdout.write({!r} + chr(10))\n    sys.stdout.flush()"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "the driver ended before it replied to 'start' (exit status 3)"),
        ("import os\nos.abort()", "the driver ended before it replied to 'start' (signal SIGABRT)"),
        (
            "import os, time\nos.close(1)\ntime.sleep(60)",
            "the driver ended before it replied to 'start': it closed its stdout, but still runs",
        ),
        (REPLY.format("ready"), "the driver wrote a line that is not a JSON object: 'ready"),
        (REPLY.format("[]"), "the driver wrote a line that is not a JSON object: '[]"),
        (REPLY.format("{}\n{}"), "the driver wrote a line without an op: '{}'"),
        (
            "import sys\nsys.stdin.readline()\n"
            "sys.stdout.buffer.write(b'\\xff\\n')\nsys.stdout.flush()\nsys.stdin.read()",
            "the driver wrote a line that is not a JSON object: '\ufffd'",
        ),
        (REPLY.format('{"error": "no such op"}'), "the driver reports an error: no such op"),
        (REPLY.format('{"actions": [{"send": "x"}]}'), "the driver's reply cannot be used"),
        (REPLY.format('{"actions": 7}'), "the driver's reply cannot be used"),
        (REPLY.format('{"wake_at_ms": "soon"}'), "the driver's reply cannot be used"),
        (
            REPLY.format('{"actions": [{"action": "send", "frame": "workers {}"}]}'),
            "the driver sent a message that brokers refuse",
        ),
        (REPLY.format("{}"), "no such message in time"),
    ],
)
def test_a_driver_that_breaks_the_line_protocol_fails_with_the_reason(code: str, reason: str) -> None:
    assert reason in graded(program(code))


def test_a_silent_driver_fails_in_time() -> None:
    assert "the driver did not reply to 'start' within 0.5 s" in graded(program("import time\ntime.sleep(60)"), 0.5)


def test_a_driver_that_floods_its_output_fails_soon() -> None:
    lines = "import sys\nwhile True: sys.stdout.write('{}\\n' * 1000)"
    assert "the driver wrote a line without an op" in graded(program(lines))
    no_lines = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    assert "bytes without a line end: 'xxx" in graded(program(no_lines))


def test_a_driver_that_never_lets_time_pass_fails() -> None:
    heartbeat = '{"type":"heartbeat","v":"2.0","worker":"shop-1:0123456789abcdef","n":1,"sessions":{"b1":"7.1"}}'
    hello = (
        '{"type":"hello","v":"2.0","worker":"shop-1:0123456789abcdef","n":1,"versions":["2.0"],'
        '"next":{"b1":1},"handlers":["**"],"slots":4,"prefetch":10,"free":{"b1":14}}'
    )
    code = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    is_here = '\"here\"' in json.loads(line).get('frame', '')\n"
        f"    frame = 'workers ' + ({hello!r} if is_here else {heartbeat!r})\n"
        "    print(json.dumps({'actions': [{'action': 'send', 'frame': frame}]}), flush=True)\n"
    )
    assert "without letting time pass" in graded(program(code))


def test_a_driver_that_has_failed_is_started_again_for_the_next_dialogue() -> None:
    once = f"""
import os, sys
mark = {{!r}}
if not os.path.exists(mark):
    open(mark, "w").close()
    sys.exit(1)
os.execv(sys.executable, {[*PYTHON_DRIVER]!r})
"""
    mark = Path(os.environ.get("TMPDIR", "/tmp")) / f"stepwire-driver-{os.getpid()}"
    try:
        with DriverUnderTest(program(once.format(str(mark)))) as driver:
            assert "the driver ended" in str(driver.grade(FIRST))
            assert driver.grade(FIRST) is None
    finally:
        mark.unlink()


def test_a_process_that_the_driver_started_ends_with_the_driver(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "for _ in sys.stdin: print('{}', flush=True)"
    )
    with DriverProcess(program(code)) as process:
        process.exchange({"op": "tick", "now_ms": 0})
        child = int(pid_file.read_text())
        assert Path(f"/proc/{child}").exists()
    end = time.monotonic() + 5
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_replies_that_are_larger_than_the_pipes_do_not_block_the_kit() -> None:
    large = "x" * 200_000
    echo = "import sys, json\nfor line in sys.stdin: print(json.dumps({'echo': json.loads(line)['text']}), flush=True)"
    with DriverProcess(program(echo)) as process:
        replies = process.exchange_all([{"op": "tick", "now_ms": i, "text": large} for i in range(20)])
    assert replies == [{"echo": large}] * 20


def test_a_fault_of_the_python_session_is_a_reply_and_the_driver_goes_on() -> None:
    with DriverProcess(PYTHON_DRIVER) as process:
        with pytest.raises(Failed, match="the driver reports an error: AttributeError"):
            process.exchange({"op": "tick", "now_ms": 0})
        with pytest.raises(Failed, match="the driver reports an error: unknown op 'dance'"):
            process.exchange({"op": "dance", "now_ms": 0})
        start = {"op": "start", "now_ms": 0, "worker": "a:0123456789abcdef", "offers": [{"pattern": "**"}], "slots": 1}
        assert process.exchange(start)["holding"] == []


def test_the_command_reports_what_keeps_it_from_playing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no dialogue has this name", "--", "true"]) == 2
    assert main([]) == 2
    assert main(["--", "/no/such/program"]) == 2
    assert "cannot be started" in capsys.readouterr().err


def test_the_list_names_every_dialogue_of_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = [line[8:] for line in capsys.readouterr().out.splitlines()]
    assert names == [dialogue.name for dialogue in load() if "worker" in dialogue.drives]
