"""The conformance kit grades subjects: a right one passes, and every kind of wrong one fails with a reason."""

import sys
from pathlib import Path

import pytest
from conformance.__main__ import main
from conformance.dialogue import load
from conformance.subject import grade

from .test_worker_dialogues import SUBJECT

WRONG_SUBJECT = Path(__file__).with_name("wrong_subject.py")
REPEATED_BATCH = "repeated steps are answered again, and run once"
FIRST = load()[0]


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_right_subject_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "reset", "--", sys.executable, str(SUBJECT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines[:-1]] == ["pass  "] * (len(lines) - 1)
    assert lines[-1] == f"{len(lines) - 1} passed, 0 failed"


def test_a_subject_that_runs_a_delivery_twice_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", REPEATED_BATCH, "--", sys.executable, str(WRONG_SUBJECT)]) == 1
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


REPLY = "import sys\nfor _ in sys.stdin: print({!r}, flush=True)"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "the subject ended before it replied to 'start'"),
        ("import time\ntime.sleep(60)", "the subject did not reply to 'start' within 0.5 s"),
        (REPLY.format("ready"), "the subject wrote a line that is not a JSON object: 'ready"),
        (REPLY.format('{"error": "no such op"}'), "the subject reports an error: no such op"),
        (REPLY.format('{"actions": [{"send": "x"}]}'), "the subject's reply cannot be used"),
        (REPLY.format('{"actions": 7}'), "the subject's reply cannot be used"),
        (REPLY.format('{"wake_at_ms": "soon"}'), "the subject's reply cannot be used"),
        (
            REPLY.format('{"actions": [{"action": "send", "frame": "workers {}"}]}'),
            "the subject sent a message that brokers refuse",
        ),
        (REPLY.format("{}"), "no such message in time"),
    ],
)
def test_a_subject_that_breaks_the_line_protocol_fails_with_the_reason(code: str, reason: str) -> None:
    assert reason in str(grade(FIRST, program(code), timeout_s=0.5))


def test_a_subject_that_never_lets_time_pass_fails() -> None:
    heartbeat = '{"type":"heartbeat","v":"2.0","worker":"shop-1:0123456789abcdef","n":1}'
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
    assert "without letting time pass" in str(grade(FIRST, program(code), timeout_s=5))


def test_the_command_reports_what_keeps_it_from_playing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no dialogue has this name", "--", "true"]) == 2
    assert main([]) == 2
    assert main(["--", "/no/such/program"]) == 2
    assert "cannot be started" in capsys.readouterr().err


def test_the_list_names_every_dialogue_of_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = [line[8:] for line in capsys.readouterr().out.splitlines()]
    assert names == [dialogue.name for dialogue in load() if "worker" in dialogue.drives]
