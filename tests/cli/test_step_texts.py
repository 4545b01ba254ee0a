"""Texts about steps: attempts, durations, errors, tracebacks, and what `task show`, `step show` and `top` print."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.cli import step_texts, top

from tests.system.harness import eventually

from .a_place import Place, place, stop

HANDLER = ['  File "/home/ann/shop.py", line 3, in charge', "    return prices[item]", "           ~~~~~~^^^^^^"]
RUNNER = ['  File "/venv/lib/stepwire/runners/plain.py", line 40, in call', "    return function(context)"]
HOST = ['  File "/venv/lib/stepwire_broker/executors/host.py", line 9, in _execute', "    await it"]
LOOP = ['  File "/usr/lib/python3.11/asyncio/runners.py", line 118, in run', "    return self._loop.run()"]
BEGIN, END = "Traceback (most recent call last):", "KeyError: 'nope'"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ([BEGIN, *RUNNER, *HANDLER, END], [BEGIN, *HANDLER, END]),
        ([BEGIN, *LOOP, *RUNNER, *LOOP, *HANDLER, END], [BEGIN, *LOOP, *HANDLER, END]),
        ([BEGIN, *HOST, *HANDLER, *RUNNER, END], [BEGIN, *HANDLER, *RUNNER, END]),
        ([BEGIN, *HANDLER, END], [BEGIN, *HANDLER, END]),
        ([BEGIN, *RUNNER, END], [BEGIN, *RUNNER, END]),
        ([BEGIN, *LOOP, *HANDLER, END], [BEGIN, *LOOP, *HANDLER, END]),
        (
            [BEGIN, *RUNNER, *HANDLER, END, "", "During handling:", "", BEGIN, *RUNNER, *HANDLER, "E"],
            [BEGIN, *HANDLER, END, "", "During handling:", "", BEGIN, *HANDLER, "E"],
        ),
        (["charge.rb:12:in `charge'", "charge.rb:3:in `call'"], ["charge.rb:12:in `charge'", "charge.rb:3:in `call'"]),
        ([], []),
    ],
)
def test_a_traceback_begins_at_the_handlers_code(written: list[str], shown: list[str]) -> None:
    assert step_texts.traceback({"backtrace": written}) == shown
    assert step_texts.traceback({"backtrace": "\n".join(written)}) == shown
    assert step_texts.traceback({"backtrace": written}, is_whole=True) == written


def test_a_handler_in_a_directory_called_stepwire_is_shown() -> None:
    frame = ['  File "/home/ann/stepwire/shop.py", line 3, in charge', "    pay()"]
    assert step_texts.traceback({"backtrace": [BEGIN, *RUNNER, *frame, END]}) == [BEGIN, *frame, END]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, None),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_900, "59.9 s"),
        (245_000, "4 min 5 s"),
        (7_800_000, "2 h 10 min"),
        (10 * 86_400_000, "10 d"),
    ],
)
def test_a_duration_has_a_readable_unit(ms: float | None, text: str | None) -> None:
    assert step_texts.duration(ms) == text


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        ({"code": "KeyError", "message": "'nope'"}, "KeyError: 'nope'"),
        ({"code": "KeyError", "message": "KeyError: 'nope'"}, "KeyError: 'nope'"),
        ({"code": "failed", "message": "the card is broken"}, "the card is broken"),
        ({"code": "timeout", "message": ""}, "timeout"),
        ({"message": "two\nlines"}, "two lines"),
        ({}, "failed"),
        ({"code": 7, "message": ["x"]}, "failed"),
        ("text", "text"),
    ],
)
def test_an_error_has_its_type_and_its_message(detail: Any, text: str) -> None:
    assert step_texts.error(detail) == text


@pytest.mark.parametrize(
    ("attempt", "deliveries", "limit", "text"),
    [(0, 0, 3, None), (0, 1, 3, "1 of 4"), (3, 5, 3, "4 of 4"), (1, 2, None, "2")],
)
def test_people_count_attempts_from_one(attempt: int, deliveries: int, limit: int | None, text: str | None) -> None:
    assert step_texts.attempt({"attempt": attempt, "deliveries": deliveries, "retry_limit": limit}) == text


def test_two_workers_with_the_same_session_number_have_rates_of_their_own() -> None:
    """Sessions are numbered for each worker, so two workers can both have the session 4.1."""
    before = [
        {"worker": "exec.b1:0", "session": "4.1", "completed": 2, "failed": 0},
        {"worker": "w:1", "session": "4.1", "completed": 6, "failed": 1},
    ]
    assert [one["completed_per_s"] for one in top._with_rates(before, before, 1.0)] == [0.0, 0.0]
    now = [before[0], {**before[1], "completed": 16, "failed": 2}]
    rates = [(one["completed_per_s"], one["failed_per_s"]) for one in top._with_rates(before, now, 2.0)]
    assert rates == [(0.0, 0.0), (5.0, 0.5)]


# -- real output ------------------------------------------------------------------------------------------------------

WORKER = """
from stepwire import Context, Worker

worker = Worker.from_env()


def lookup(prices, item):
    return prices[item]


@worker.handler("price")
def price(ctx: Context) -> int:
    return lookup({}, "tea")


@worker.handler("pack")
def pack(ctx: Context) -> None:
    ctx.progress(3, 10, "wrapping")
    ctx.cancelled.wait()


worker.run()
"""
SCRIPT = "#!/bin/sh\necho 'reading \\033[31mred' >&2\nif [ $STEPWIRE_ATTEMPT = 0 ]; then exit 75; fi\necho 7\n"
CONFIGURATION = """
executors: {exec: {commands: {words: [./words.sh]}}}
execution: {rules: [{match: "**::words", executor: exec}]}
"""
SHOP = """
name: shop
steps:
  - {name: price, handler_class: price, retry_limit: 1, backoff: {kind: constant, base_ms: 1}, allow_failure: true}
  - {name: words, handler_class: words, backoff: {kind: constant, base_ms: 1}}
"""
PACKING = "name: packing\nsteps:\n  - {name: pack, handler_class: pack}\n"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with a worker and a program, and task 1: a step that failed twice, and a program that ran twice."""
    directory = tmp_path_factory.mktemp("texts", numbered=True)
    directory.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    here = place(directory, port)
    files = {"worker.py": WORKER, "words.sh": SCRIPT, "stepwire.yaml": CONFIGURATION, "s.yaml": SHOP, "p.yaml": PACKING}
    for name, text in files.items():
        Path(directory, name).write_text(text)
        Path(directory, name).chmod(0o744 if name.endswith(".sh") else 0o644)
    broker, worker = here.serve(), None
    try:
        assert here.stepwire("workflow", "apply", "s.yaml", "p.yaml").code == 0
        worker = here.work()
        assert here.stepwire("task", "submit", "shop", "--wait").code == 0
        yield here
    finally:
        if worker is not None:
            stop(worker)
        stop(broker.process)


def test_task_show_has_durations_ages_attempts_and_typed_errors(here: Place) -> None:
    shown = here.stepwire("task", "show", "1").out
    assert re.search(r"^created  \S+Z  \(\S+ (ms|s|min \d+ s) ago\)$", shown, re.M)
    assert re.search(r"^finished \S+Z  \(after .+ m?s\)$", shown, re.M)
    rows = {line.split("\t")[0]: line.split("\t") for line in shown.splitlines() if "\t" in line}
    assert rows["STEP"] == ["STEP", "ID", "STATE", "ATTEMPT", "RAN", "QUEUED", "WORKER", "WHY"]
    assert (rows["price"][2:4], rows["price"][-1]) == (["failed", "2 of 2"], "KeyError: 'tea'")
    assert rows["words"][2:4] == ["completed", "2 of 4"]
    for row in (rows["price"], rows["words"]):
        assert re.fullmatch(r"\d+ ms", row[4])
        assert re.fullmatch(r"\d+ ms", row[5])


def test_task_show_has_the_reason_of_a_cancel(here: Place) -> None:
    task_id = here.stepwire("task", "submit", "shop", "--json").json["task_id"]
    here.stepwire("task", "pause", str(task_id))
    here.stepwire("task", "cancel", str(task_id), "--reason", "wrong order")
    document = here.stepwire("task", "show", str(task_id), "--json").json
    if document["cancelling"]:  # unless the task had ended before
        assert re.search(
            r"^cancel   asked at \S+Z: wrong order$", here.stepwire("task", "show", str(task_id)).out, re.M
        )


def test_task_show_fits_a_terminal_of_60_columns_and_colours_states(here: Place) -> None:
    shown = here.on_terminal("task", "show", "1", columns=60).out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    table = plain[plain.index("STEP") :].splitlines()[:3]
    assert max(map(len, table)) <= 60
    assert "KeyError: 'tea'" in plain
    assert "\x1b[31mfailed" in shown
    assert "\x1b[3" not in here.on_terminal("task", "show", "1", NO_COLOR="1").out


def test_step_show_has_the_error_the_traceback_and_the_attempts(here: Place) -> None:
    lines = here.stepwire("step", "show", "1/price").out.splitlines()
    assert lines[0] == "step 2  price of task 1"
    assert lines[1] == "state    failed, attempt 2 of 2"
    at = lines.index("error    KeyError: 'tea'")
    assert lines[at + 1] == "  Traceback (most recent call last):"
    assert re.fullmatch(r'    File ".*/worker.py", line 13, in price', lines[at + 2])
    assert "  KeyError: 'tea'" in lines
    rows = [line.split("\t") for line in lines if "\t" in line]
    assert rows[0] == ["ATTEMPT", "DELIVERY", "OUTCOME", "AT", "RAN", "WORKER", "ERROR"]
    assert [(row[0], row[1], row[2], row[-1]) for row in rows[1:]] == [
        ("1", "1", "retried", "KeyError: 'tea'"),
        ("2", "2", "failed", "KeyError: 'tea'"),
    ]


def test_step_show_has_the_standard_error_of_a_program_without_control_characters(here: Place) -> None:
    shown = here.stepwire("step", "show", "1/words").out
    assert "standard error of delivery 2:\n  reading \N{REPLACEMENT CHARACTER}[31mred\n" in shown
    assert "exit_75: reading" in shown
    document = here.stepwire("step", "show", "1/words", "--json").json
    assert document["stderr"] == {"delivery": 2, "text": "reading \x1b[31mred\n"}


def test_task_events_have_the_duration_and_the_message_of_every_attempt(here: Place) -> None:
    lines = here.stepwire("task", "events", "1").out.splitlines()
    ends = [line for line in lines if "  price  backed_off  " in line or "  price  failed  " in line]
    assert len(ends) == 2
    for line in ends:
        assert re.search(r"  took \d+ ms  message KeyError: 'tea'$", line)


def test_progress_is_shown_by_task_show_step_show_top_and_why(here: Place) -> None:
    task_id = str(here.stepwire("task", "submit", "packing", "--json").json["task_id"])

    def is_reported() -> bool:
        return here.stepwire("task", "show", task_id, "--json").json["steps"][0]["progress"] is not None

    eventually(is_reported, "progress", 30)
    assert "3 of 10 (30%): wrapping" in here.stepwire("task", "show", task_id).out
    assert re.search(
        r"^progress 3 of 10 \(30%\): wrapping  \(.+ ago\)$", here.stepwire("step", "show", f"{task_id}/pack").out, re.M
    )
    assert f"{task_id}/pack  3 of 10 (30%): wrapping  on worker" in here.stepwire("top", "--interval", "50ms").out
    assert f"{task_id}/pack  3 of 10" in here.on_terminal("top", "--interval", "50ms", "-n", "1", columns=80).out
    assert "progress 3 of 10 (30%): wrapping" in here.stepwire("why", task_id).out
    snapshot = json.loads(here.stepwire("top", "--interval", "50ms", "-o", "jsonl").out.splitlines()[0])
    assert [one["note"] for worker in snapshot["workers"] for one in worker["progress"]] == ["wrapping"]
    here.stepwire("task", "cancel", task_id)
