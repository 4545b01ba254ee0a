"""The hostile broker: Python's session keeps every rule, and a session that breaks one is reported."""

import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.__main__ import main
from conformance.driver_process import Failed
from conformance.hostile.command import play
from conformance.hostile.witness import Witness
from stepwire.driver import Driver

PYTHON_DRIVER = [sys.executable, "-m", "stepwire.driver"]
WRONG_DRIVER = Path(__file__).with_name("wrong_driver.py")


def test_the_python_session_keeps_every_rule() -> None:
    broken = [report for seed in range(150) if (report := play(seed, Driver().handle)[1])]
    assert broken == []


def test_the_python_driver_keeps_every_rule_in_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hostile", "--seeds", "10", "--jobs", "2", "--", *PYTHON_DRIVER]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("10 seeds, ")
    assert last.endswith(" ops, 0 broken")


def test_a_session_that_runs_a_delivery_twice_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hostile", "--seeds", "20", "--stop-after", "1", "--", sys.executable, str(WRONG_DRIVER)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert " began " in lines[0]
    assert lines[-1].endswith(" 1 broken")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "the driver ended before it replied to 'start' (exit status 3)"),
        ("import time\ntime.sleep(60)", "the driver did not reply to 'start' within 4 s"),
        ("import sys\nfor _ in sys.stdin: print('{}', flush=True)", "the reply has not the form of DRIVER.md"),
        ("import sys\nfor _ in sys.stdin: print('7', flush=True)", "a line that is not a JSON object"),
    ],
)
def test_a_broken_driver_is_reported(code: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hostile", "--seeds", "1", "--timeout-s", "4", "--", sys.executable, "-c", code]) == 1
    assert reason in capsys.readouterr().out


def test_the_command_reports_what_keeps_it_from_playing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hostile"]) == 2
    assert main(["hostile", "--", "/no/such/program"]) == 2
    assert "cannot be started" in capsys.readouterr().err


WORKER = "shop-1:0123456789abcdef"
START: dict[str, Any] = {
    "op": "start", "now_ms": 0, "worker": WORKER, "offers": [{"pattern": "**"}], "slots": 1,
    "heartbeat_ms": 2000, "max_message_bytes": 4_194_304, "accept_delay_ms": 0,
}  # fmt: skip


def sent(now_ms: float, *frames: str, holding: Any = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tick, and the frames of the reply."""
    actions = [{"action": "send", "frame": frame} for frame in frames]
    return {"op": "tick", "now_ms": now_ms}, {"actions": actions, "wake_at_ms": None, "holding": list(holding)}


def hello(n: int, **members: Any) -> str:
    more = "".join(f',"{name}":{value}' for name, value in members.items())
    head = f'"type":"hello","v":"2.0","worker":"{WORKER}","n":{n},"versions":["2.0"],"handlers":["**"],"slots":1'
    return f"workers {{{head}{more}}}"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ([sent(0, hello(1)), sent(300, hello(1))], "n is 1 after 1"),
        ([sent(0, hello(1)), sent(100, hello(2))], "two hellos within 100 ms"),
        ([sent(0, hello(1, next='{"b1":2}')), sent(300, hello(2, next='{"b1":1}'))], "`next` of b1 fell from 2 to 1"),
        ([sent(0, "workers {}")], "a broker refuses the frame"),
        ([sent(0, hello(1).replace("workers", "results"))], "has the topic 'results', not 'workers'"),
        ([sent(0, hello(1).replace("shop-1", "shop-2"))], "the worker calls itself shop-2"),
    ],
)
def test_a_wrong_frame_breaks_a_rule(replies: list[Any], reason: str) -> None:
    witness = Witness(START)
    for op, reply in replies[:-1]:
        witness.observe(op, reply)
    with pytest.raises(Failed, match=reason):
        witness.observe(*replies[-1])


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ({"action": "run", "step_id": 1, "delivery": 1}, "began, but was in no steps message of an open session"),
        ({"action": "request_stop", "step_id": 1, "delivery": 1, "reason": "timeout"}, "but does not run"),
        ({"action": "quit"}, "the worker quit without an order"),
    ],
)
def test_an_action_without_a_cause_breaks_a_rule(action: dict[str, Any], reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        Witness(START).observe({"op": "tick", "now_ms": 0}, {"actions": [action], "wake_at_ms": None, "holding": []})
