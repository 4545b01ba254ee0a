"""`task list` finds tasks by key, time and cursor; `task retry` and `task cancel` change all that match."""

import json

import pytest

from .a_place import Place

OK, FAILURE, USAGE = 0, 1, 2


def submitted(shop: Place, count: int, label: str, *words: str) -> list[int]:
    done = shop.stepwire("task", "submit", "shop::slow", "-n", str(count), "--label", f"of={label}", "-q", *words)
    return [int(line) for line in done.out.split()]


def listed(shop: Place, *words: str) -> list[int]:
    return [
        json.loads(line)["task_id"] for line in shop.stepwire("task", "list", *words, "-o", "jsonl").out.splitlines()
    ]


def states(shop: Place, label: str) -> dict[int, str]:
    rows = shop.stepwire("task", "list", "--label", f"of={label}", "--json", "--limit", "500").json
    return {row["task_id"]: row["state"] for row in rows}


# -- find -------------------------------------------------------------------------------------------------------------


def test_quiet_submission_prints_only_the_id(shop: Place) -> None:
    done = shop.stepwire("task", "submit", "shop::slow", "-q")
    assert (done.code, done.err) == (OK, "")
    assert done.out == f"{int(done.out)}\n"
    assert shop.stepwire("task", "cancel", done.out.strip()).code == OK


def test_a_task_is_found_by_its_key(shop: Place) -> None:
    (task,) = submitted(shop, 1, "key", "--key", "order-17")
    assert listed(shop, "--key", "order-17") == [task]
    assert listed(shop, "--key", "order-17", "--workflow", "shop::slow") == [task]
    assert listed(shop, "--key", "order-17", "--namespace", "elsewhere") == []
    row = shop.stepwire("task", "list", "--key", "order-17").out.splitlines()[1].split("\t")
    assert row[:2] == [str(task), "shop::slow"]
    assert "order-17" in row


def test_a_list_continues_at_the_cursor_that_its_last_line_names(shop: Place) -> None:
    tasks = sorted(submitted(shop, 5, "cursor"), reverse=True)
    first = shop.stepwire("task", "list", "--label", "of=cursor", "--limit", "3", "-o", "jsonl")
    cursor = first.err.split()[-1]
    assert first.err == f"there are more than 3: raise --limit, or continue with --cursor {cursor}\n"
    assert [json.loads(line)["task_id"] for line in first.out.splitlines()] == tasks[:3]
    rest = shop.stepwire("task", "list", "--label", "of=cursor", "--limit", "3", "--cursor", cursor, "-o", "jsonl")
    assert [json.loads(line)["task_id"] for line in rest.out.splitlines()] == tasks[3:]
    assert rest.err == ""


@pytest.mark.parametrize("since", ["1h", "90s", "2020-01-01T00:00:00Z", "2020-01-01"])
def test_since_accepts_a_duration_and_a_time(shop: Place, since: str) -> None:
    tasks = submitted(shop, 1, f"since-{since}")
    assert listed(shop, "--since", since, "--label", f"of=since-{since}") == tasks


def test_since_excludes_earlier_tasks_and_names_its_forms(shop: Place) -> None:
    submitted(shop, 1, "early")
    assert listed(shop, "--since", "2099-01-01T00:00:00Z", "--label", "of=early") == []
    wrong = shop.stepwire("task", "list", "--since", "yesterday")
    assert wrong.code == USAGE
    assert "use a duration like 90s, 1h or 7d, or a time like 2026-11-18T10:00:00Z" in wrong.err


# -- change -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_count_and_20_samples_and_changes_nothing(shop: Place) -> None:
    submitted(shop, 25, "dry")
    done = shop.stepwire("task", "cancel", "--label", "of=dry", "--dry-run")
    assert (done.code, len(done.out.splitlines())) == (OK, 1 + 20)
    assert done.err == "25 tasks would be cancelled, 20 of them above; nothing has changed\n"
    document = shop.stepwire("task", "cancel", "--label", "of=dry", "--dry-run", "--json").json
    assert (document["count"], len(document["samples"])) == (25, 20)
    assert set(states(shop, "dry").values()) == {"running"}


def test_all_tasks_of_a_filter_are_cancelled_and_retried(shop: Place) -> None:
    tasks = submitted(shop, 30, "bulk")
    unsure = shop.stepwire("task", "cancel", "--label", "of=bulk")
    assert unsure.code == USAGE
    assert "Cancel 30 tasks? Nothing has changed" in unsure.err
    done = shop.stepwire("task", "cancel", "--label", "of=bulk", "--yes", "--reason", "wrong price")
    assert (done.code, done.out, done.err) == (OK, "30 of 30 tasks are cancelled\n", "")
    assert set(states(shop, "bulk").values()) == {"cancelled"}
    assert "wrong price" in shop.stepwire("task", "events", str(tasks[0])).out
    # without --state only failed tasks are retried, and these are cancelled
    none = shop.stepwire("task", "retry", "--label", "of=bulk", "--yes")
    assert (none.code, none.err) == (OK, "no matching task can be retried\n")
    done = shop.stepwire("task", "retry", "--label", "of=bulk", "--state", "cancelled", "--limit", "10", "--yes")
    assert (done.code, done.out) == (OK, "10 of 10 tasks are retried\n")
    assert sorted(states(shop, "bulk").values()) == ["cancelled"] * 20 + ["running"] * 10


def test_a_person_confirms_at_the_terminal(shop: Place) -> None:
    submitted(shop, 2, "asked")
    declined = shop.on_terminal("task", "cancel", "--label", "of=asked", types="n\n")
    assert declined.code == FAILURE
    assert "Cancel 2 tasks? [y/N]" in declined.out
    assert set(states(shop, "asked").values()) == {"running"}
    assert shop.on_terminal("task", "cancel", "--label", "of=asked", types="y\n").code == OK
    assert set(states(shop, "asked").values()) == {"cancelled"}


def test_a_refusal_does_not_stop_the_others_and_the_exit_code_is_1(shop: Place) -> None:
    tasks = submitted(shop, 3, "refused")
    shop.stepwire("task", "cancel", str(tasks[1]))
    done = shop.stepwire("task", "cancel", *map(str, tasks), "999999999")
    assert (done.code, done.out) == (FAILURE, "2 of 4 tasks are cancelled\n")
    assert sorted(done.err.splitlines()) == sorted(
        [f"task {tasks[1]} is already cancelled", "there is no task 999999999"]
    )
    assert set(states(shop, "refused").values()) == {"cancelled"}
    results = shop.stepwire("task", "cancel", *map(str, tasks), "--json")
    assert results.code == FAILURE
    assert {one["error"]["code"] for one in results.json} == {"wrong_state"}


@pytest.mark.parametrize("words", [["task", "cancel"], ["task", "retry"], ["task", "cancel", "7", "--state", "failed"]])
def test_tasks_are_either_named_or_selected(shop: Place, words: list[str]) -> None:
    done = shop.stepwire(*words)
    assert done.code == USAGE
    assert "name the tasks by their ids, or select them by a filter" in done.err


def test_a_broker_that_does_not_answer_ends_the_loop_with_exit_code_5(shop: Place) -> None:
    done = shop.stepwire("--outage", "0s", "task", "cancel", "1", "2", "--url", "http://127.0.0.1:9")
    assert done.code == 5
    assert "0 of 2 tasks are cancelled: no answer from http://127.0.0.1:9" in done.err
