"""`stepwire task events`: the events of a task, and following them to its end."""

import json

from .a_place import Place

OK, NOT_FOUND = 0, 3


def test_the_events_of_a_task_are_printed_in_order(shop: Place) -> None:
    task_id = shop.stepwire("task", "submit", "shop::order", "--wait", "--json").json["task_id"]
    printed = shop.stepwire("task", "events", str(task_id))
    assert (printed.code, printed.err) == (OK, "")
    kinds = [line.split("  ")[2] for line in printed.out.splitlines()]
    assert (kinds[0], kinds[-1]) == ("submitted", "ended")
    assert "  charge  dispatched  delivery 1  worker " in printed.out
    listed = shop.stepwire("task", "events", str(task_id), "--json").json
    assert [event["kind"] for event in listed] == kinds
    followed = shop.stepwire("task", "events", str(task_id), "--follow", "-o", "jsonl")
    assert followed.code == OK
    assert [json.loads(line) for line in followed.out.splitlines()] == listed


def test_an_unknown_task_is_not_found(shop: Place) -> None:
    for more in ([], ["--follow"]):
        done = shop.stepwire("task", "events", "999999", *more)
        assert (done.code, done.out) == (NOT_FOUND, "")
        assert "there is no task 999999" in done.err
