"""Lockstep finds what differs between two sessions, and nothing else."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conformance.__main__ import main
from conformance.lockstep.compare import difference
from conformance.lockstep.reference import generate, replay
from conformance.lockstep.shorten import shorten

PYTHON_DRIVER = [sys.executable, "-m", "stepwire.driver"]
WRONG_DRIVER = Path(__file__).with_name("wrong_driver.py")


def test_the_python_session_in_another_process_does_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lockstep", "--seeds", "30", "--jobs", "2", "--", *PYTHON_DRIVER]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("30 seeds, ")
    assert last.endswith(" ops, 0 differ")


def test_a_course_is_a_function_of_its_seed() -> None:
    ops, replies = generate(7)
    assert (ops, replies) == generate(7)
    assert replay(ops) == replies


def test_a_difference_is_shortened_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lockstep", "--seeds", "9", "--stop-after", "1", "--", sys.executable, str(WRONG_DRIVER)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "differs: " in lines[0]
    assert lines[1].startswith('  op       {"op":"start"')
    assert 3 <= sum(line.startswith("  op  ") for line in lines) <= 8
    assert lines[-3].startswith('  python   {"actions":')
    assert lines[-1].endswith(" 1 differ")


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("raise SystemExit(3)", "one driver reports an error"),
        ("import sys\nfor _ in sys.stdin: print('{}', flush=True)", "action 1 is missing"),
        ("import sys\nfor _ in sys.stdin: print('nonsense', flush=True)", "one driver reports an error"),
        ("import sys\nfor _ in sys.stdin: sys.stdout.write('{\"actions\": 7}' + chr(10))", "has not the form"),
    ],
)
def test_a_broken_driver_differs(code: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lockstep", "--seeds", "1", "--timeout-s", "20", "--", sys.executable, "-c", code]) == 1
    out = capsys.readouterr().out
    assert shown in out
    assert out.splitlines()[-1].endswith(" 1 differ")


def test_lockstep_reports_what_keeps_it_from_comparing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lockstep"]) == 2
    assert main(["lockstep", "--", "/no/such/program"]) == 2
    assert "cannot be started" in capsys.readouterr().err


def reply(*actions: dict[str, Any], wake: float | None = 5.0, holding: list[Any] | None = None) -> dict[str, Any]:
    return {"actions": list(actions), "wake_at_ms": wake, "holding": holding or []}


def send(body: str, topic: str = "workers") -> dict[str, Any]:
    return {"action": "send", "frame": f"{topic} {body}"}


RUN = {"action": "run", "step_id": 1, "delivery": 1}
BYE = '{"type":"bye","v":"2.0","worker":"shop-1:0123456789abcdef","n":4}'
OTHER_BYE = '{"n": 4, "type":"bye","worker":"shop-1:0123456789abcdef","v":"2.0","drain":true}'
FIRST, SECOND = [1, 1, "queued", 3], [2, 1, "queued", 3]
RESULT = (
    '{{"type":"results","v":"2.0","worker":"shop-1:0123456789abcdef","session":"7.1","deployment":"d","batch_id":"b",'
    '"protocol_version":"2.0","rid":1,"results":[{{"step_id":1,"delivery":1,"status":"completed","output":{}}}]}}'
)


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (reply(RUN), reply({"action": "log", "level": "info", "event": "x"}, RUN)),
        (reply(RUN), reply({"action": "dance"}, RUN)),
        (reply(wake=5.0), reply(wake=5.9)),
        (reply(wake=10.0), reply(wake=-3)),
        (reply(send(BYE)), reply(send(OTHER_BYE))),
        (reply(send(RESULT.format("1.5"))), reply(send(RESULT.format("1.50000000001")))),
        (reply(send(RESULT.format('"ä"'))), reply(send(RESULT.format(r'"\u00e4"')))),
        (reply(holding=[(1, 1, "queued", 3)]), reply(holding=[[1, 1, "queued", 3]])),
        ({"error": "KeyError"}, {"error": "other words"}),
    ],
)  # fmt: skip
def test_equal_replies_may_be_written_differently(expected: dict[str, Any], seen: dict[str, Any]) -> None:
    assert difference(expected, seen, now_ms=10.0) is None


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (reply(RUN), reply()),
        (reply(), reply(RUN)),
        (reply(RUN, send(BYE)), reply(send(BYE), RUN)),
        (reply(RUN), reply({**RUN, "delivery": 2})),
        (reply(wake=50.0), reply(wake=52.0)),
        (reply(wake=None), reply(wake=50.0)),
        (reply(wake=50.0), reply(wake=None)),
        (reply(send(BYE)), reply(send(BYE, "results"))),
        (reply(send(BYE)), reply(send(BYE.replace("4", "5")))),
        (reply(send(BYE)), reply(send('{"type":"bye"}'))),
        (reply(send(RESULT.format("1"))), reply(send(RESULT.format("true")))),
        (reply(send(RESULT.format("null"))), reply(send(RESULT.format("[]")))),
        (reply(holding=[(1, 1, "queued", 3)]), reply(holding=[[1, 1, "running", 3]])),
        (reply(holding=[FIRST, SECOND]), reply(holding=[SECOND, FIRST])),
        (reply(), {"error": "KeyError"}),
        (reply(), {"actions": [7]}),
    ],
)  # fmt: skip
def test_replies_that_mean_something_else_differ(expected: dict[str, Any], seen: dict[str, Any]) -> None:
    assert difference(expected, seen, now_ms=10.0) is not None


def test_a_list_is_shortened_to_the_ops_that_matter() -> None:
    ops = [{"op": str(i), "now_ms": i} for i in range(200)]

    def differs(some: Any) -> int | None:
        names = [op["op"] for op in some]
        return names.index("170") if {"40", "170"} <= set(names) else None

    assert [op["op"] for op in shorten(ops, differs)] == ["0", "40", "170"]


def test_the_courses_reach_every_kind_of_op_and_action() -> None:
    """A generator that never opens a session would find no difference."""
    counted: Counter[str] = Counter()
    for seed in range(150):
        ops, replies = generate(seed)
        counted.update(op["op"] for op in ops)
        for one in replies:
            for action in one["actions"]:
                kind = action["action"]
                counted[kind] += 1
                if kind == "send":
                    counted[action["frame"].split('"type":"', 1)[1].split('"', 1)[0]] += 1
                elif kind == "request_stop":
                    counted[action["reason"]] += 1
    often = {"run", "accept", "refuse", "results", "start", "adopted", "hello", "heartbeat", "complete", "fail"}
    assert {kind for kind in often if counted[kind] < 100} == set()
    seldom = {
        "bye", "progress", "quit", "rebuild", "connect", "quiet", "full", "drain",
        "lease_lost", "timeout", "task_cancelled", "superseded",
    }  # fmt: skip
    assert {kind for kind in seldom if not counted[kind]} == set()
