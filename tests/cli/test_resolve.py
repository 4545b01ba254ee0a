"""Resolving many held steps: the list first, then the question, then the change."""

import json

import pytest

from .a_place import Place

OK, FAILURE, USAGE, NOT_FOUND, WRONG_STATE = range(5)
CHOICE = ["--handler-class", "shop.charge", "--retry", "--new-key", "--reason", "the bank declined"]


@pytest.fixture
def held(shop: Place) -> list[int]:
    """Three tasks with a held step, and no other held step."""
    shop.stepwire("step", "resolve", "--all", "--failed", "over", "--reason", "another test's", "--yes")
    submitted = shop.stepwire(
        "task", "submit", "shop::order", "-n", "3", "--context", '{"card":"unknown"}', "--wait", "--json"
    )
    assert submitted.code == 13
    return list(submitted.json["task_ids"])


def held_count(shop: Place) -> int:
    return len(shop.stepwire("step", "list", "--json", "--limit", "1000").json)


def test_a_dry_run_lists_the_steps_and_changes_nothing(shop: Place, held: list[int]) -> None:
    done = shop.stepwire("step", "resolve", *CHOICE, "--dry-run", "-o", "jsonl")
    assert done.code == OK
    assert sorted(json.loads(line)["task_id"] for line in done.out.splitlines()) == sorted(held)
    assert done.err == "3 held steps would be resolved; nothing has changed\n"
    assert held_count(shop) == 3


@pytest.mark.parametrize("more", [[], ["--no-input"]])
def test_without_a_terminal_nothing_is_resolved(shop: Place, held: list[int], more: list[str]) -> None:
    done = shop.stepwire("step", "resolve", *CHOICE, *more)
    assert done.code == USAGE
    assert len(done.out.splitlines()) == 1 + 3
    assert "add --yes" in done.err
    assert held_count(shop) == 3


@pytest.mark.parametrize(("types", "code", "left"), [("n\n", FAILURE, 3), ("y\n", OK, 0)])
def test_a_terminal_asks_for_confirmation(shop: Place, held: list[int], types: str, code: int, left: int) -> None:
    done = shop.on_terminal("step", "resolve", *CHOICE[:2], "--failed", "lost", "--reason", "r", types=types)
    assert done.code == code
    assert "Resolve 3 held steps as failed? [y/N]" in done.out
    assert held_count(shop) == left


def test_with_yes_every_matching_step_is_resolved(shop: Place, held: list[int]) -> None:
    words = ["--completed", '{"total": 3}', "--reason", "r", "--yes", "--json"]
    assert shop.stepwire("step", "resolve", "--handler-class", "other.*", *words).json == []
    one = shop.stepwire("step", "resolve", "--task", str(held[0]), *words)
    assert [(r["task_id"], r["resolved"], r["state"]) for r in one.json] == [(held[0], True, "completed")]
    rest = shop.stepwire("step", "resolve", "--handler-class", "shop.*", *words)
    assert (rest.code, len(rest.json)) == (OK, 2)
    assert shop.stepwire("task", "result", str(held[2])).json == {"charge": {"total": 3}}


def test_a_step_that_is_resolved_already_does_not_stop_the_others(shop: Place, held: list[int]) -> None:
    first, second, _ = (f"{task_id}/charge" for task_id in held)
    outcome = ["--failed", "lost", "--reason", "r"]
    assert shop.stepwire("step", "resolve", first, *outcome).code == OK
    assert shop.stepwire("step", "resolve", first, *outcome).code == WRONG_STATE
    both = shop.stepwire("step", "resolve", first, second, *outcome)
    assert both.code == FAILURE
    assert f"step {second} is resolved" in both.out
    assert f"step {first}" in both.err


@pytest.mark.parametrize(
    "words",
    [
        ["--retry", "--reason", "r"],
        ["1", "--all", "--retry", "--reason", "r"],
        ["--all", "--reason", "r"],
        ["--all", "--retry"],
        ["--all", "--failed", "x", "--new-key", "--reason", "r"],
    ],
)
def test_an_ambiguous_resolution_is_refused(shop: Place, words: list[str]) -> None:
    assert shop.stepwire("step", "resolve", *words).code == USAGE
