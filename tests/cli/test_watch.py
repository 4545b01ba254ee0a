"""Watching a task: lines for a pipe, a tree for a terminal, an exit code for a script."""

import json
import re
from typing import Any

import pytest
from stepwire_broker.cli.task import watch

from .a_place import Place

OK, FAILURE, USAGE, NOT_FOUND = range(4)
TASK_FAILED, TASK_CANCELLED, TASK_RUNS, TASK_HELD = range(10, 14)

ENDS = [
    ("{}", OK, "completed"),
    ('{"card":"broken"}', TASK_FAILED, "failed"),
    ('{"card":"unknown"}', TASK_HELD, "held"),
]


def submit(shop: Place, workflow: str, context: str = "{}") -> str:
    return str(shop.stepwire("task", "submit", workflow, "--context", context, "--json").json["task_id"])


@pytest.mark.parametrize(("context", "code", "state"), ENDS)
def test_a_task_is_followed_line_by_line_to_its_end(shop: Place, context: str, code: int, state: str) -> None:
    done = shop.stepwire("task", "submit", "shop::order", "--context", context, "--follow")
    assert done.code == code
    assert re.fullmatch(r"task \d+\n", done.err)
    assert any(f" charge is {state}" in line for line in done.out.splitlines()), done.out
    assert done.out.splitlines()[-1].split(" ", 1)[1].startswith("task ")


def test_each_change_is_a_line_of_json(shop: Place) -> None:
    done = shop.stepwire("task", "submit", "shop::order", "--follow", "-o", "jsonl")
    changes = [json.loads(line) for line in done.out.splitlines()]
    assert [c["state"] for c in changes if "name" in c][-1] == "completed"
    assert (changes[-1]["state"], changes[-1]["attention"]) == ("completed", None)
    task = shop.stepwire("task", "watch", str(changes[-1]["task_id"]), "--json")
    assert (task.code, task.json["state"], len(task.json["steps"])) == (OK, "completed", 1)


@pytest.mark.parametrize(("context", "code", "state"), ENDS)
def test_a_terminal_shows_a_tree(shop: Place, context: str, code: int, state: str) -> None:
    number = submit(shop, "shop::order", context)
    done = shop.on_terminal("task", "watch", number, NO_COLOR="1")
    assert done.code == code
    assert f"task {number}  shop::order 1" in done.out
    assert "charge" in done.out
    assert state in done.out
    assert ("stepwire step resolve" in done.out) is (state == "held")
    assert "\x1b[3" not in done.out, "NO_COLOR was set"
    assert "\x1b[3" in shop.on_terminal("task", "watch", number).out


def test_watching_ends_at_its_timeout(shop: Place) -> None:
    number = submit(shop, "shop::slow")
    done = shop.stepwire("task", "watch", number, "--timeout", "10ms")
    assert (done.code, done.err) == (TASK_RUNS, "")
    assert f"task {number} is running" in done.out
    assert shop.stepwire("task", "watch", "999999").code == NOT_FOUND


def test_the_tree_names_a_handler_that_no_worker_offers(shop: Place) -> None:
    seen = shop.on_terminal("task", "watch", submit(shop, "shop::slow"), "--timeout", "10ms", NO_COLOR="1").out
    assert "dream\x1b[2m  ready\x1b[0m  no worker offers `nobody.offers`" in seen.replace("\x1b[0m\x1b[2m", "\x1b[2m")


def with_progress(*notes: dict[str, object] | None) -> list[dict[str, Any]]:
    """States of a task whose only step reports this progress."""
    step = {
        "task_id": 1,
        "step_id": 2,
        "name": "upload",
        "state": "dispatched",
        "attempt": 0,
        "worker": "w:1",
        "started_at": None,
        "error": None,
    }
    task = {"task_id": 1, "namespace": "shop", "workflow": "order", "version": "1", "state": "running"}
    return [{**task, "attention": None, "steps": [{**step, "progress": note}]} for note in notes]


def progress_lines(tasks: list[dict[str, Any]]) -> list[Any]:
    return [change["progress"] for change in watch._changes(tasks) if change is not None and "name" in change]


def test_a_step_has_at_most_one_line_of_progress_a_second() -> None:
    notes = [{"done": n, "total": None, "note": None} for n in range(4)]
    assert progress_lines(with_progress(None, *notes)) == [None, notes[0]]


def test_the_progress_of_a_handler_is_part_of_the_line_and_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PROGRESS_EVERY_S", 0.0)
    notes = [None, {"done": 3.0, "total": 10.0, "note": "files", "at": ""}, {"done": 0.5, "total": None, "note": None}]
    tasks = with_progress(*notes, notes[-1])
    assert progress_lines(tasks) == notes
    drawn = [watch.tree(each, {}, "no worker offers `h`").children for each in tasks]
    assert [str(children[0].label) for children in drawn[:3]] == [
        "▸ upload  dispatched  by w",
        "▸ upload  dispatched  by w  3 of 10 (30%): files",
        "▸ upload  dispatched  by w  0.5",
    ]
    assert str(drawn[0][1].label) == "why: no worker offers `h`"


def test_only_the_result_is_printed(shop: Place) -> None:
    number = submit(shop, "shop::order")
    done = shop.stepwire("task", "result", number, "--wait")
    assert (done.code, done.json, done.err) == (OK, {"charge": {"total": 1.5}}, "")


@pytest.mark.parametrize(
    ("workflow", "context", "code", "message"),
    [
        ("order", '{"card":"broken"}', TASK_FAILED, "it is failed"),
        ("order", '{"card":"unknown"}', TASK_HELD, "it is running, held"),
        ("slow", "{}", TASK_RUNS, "it is running"),
    ],
)
def test_without_a_result_the_exit_code_tells_why(
    shop: Place, workflow: str, context: str, code: int, message: str
) -> None:
    number = submit(shop, f"shop::{workflow}", context)
    wait = ["--wait"] if workflow == "order" else ["--wait", "--timeout", "10ms"]
    done = shop.stepwire("task", "result", number, *wait)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert f"stepwire task show {number}" in done.err


def test_the_exit_code_for_many_tasks_is_the_worst(shop: Place) -> None:
    assert shop.stepwire("task", "submit", "shop::order", "-n", "20", "--wait").code == OK
    seen = shop.on_terminal("task", "submit", "shop::order", "-n", "20", "--wait", "--context", '{"card":"broken"}')
    assert seen.code == TASK_FAILED
    assert "submitted" in seen.out
    assert "finished" in seen.out
    assert shop.stepwire("task", "submit", "shop::order", "-n", "2", "--follow").code == USAGE


def test_a_list_reads_as_many_pages_as_needed(shop: Place) -> None:
    assert shop.stepwire("task", "submit", "shop::slow", "-n", "600", "--label", "of=pages").code == OK
    done = shop.stepwire("task", "list", "--label", "of=pages", "--limit", "1000", "-o", "jsonl")
    assert len(done.out.splitlines()) == 600
    assert done.err == ""
    done = shop.stepwire("task", "list", "--label", "of=pages", "--limit", "501", "-o", "jsonl")
    assert len(done.out.splitlines()) == 501
    assert "there are more" in done.err
