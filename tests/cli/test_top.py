"""`stepwire top`: one update for a pipe, a live table for a terminal."""

import json

from .a_place import Place

OK, FAILURE, USAGE, NOT_FOUND, WRONG_STATE, UNREACHABLE = range(6)


def test_a_pipe_gets_one_update(shop: Place) -> None:
    assert shop.stepwire("task", "submit", "shop::order", "--wait").code == OK  # so a worker is connected
    done = shop.stepwire("top", "--interval", "50ms")
    assert (done.code, done.err) == (OK, "")
    assert done.out.startswith("ready · tasks: ")
    assert "shop.charge" in done.out


def test_top_prints_json_lines_with_rates(shop: Place) -> None:
    done = shop.stepwire("top", "--interval", "50ms", "-n", "2", "-o", "jsonl")
    first, second = map(json.loads, done.out.splitlines())
    assert first["ready"] is True
    assert {"worker", "running", "completed_per_s", "failed_per_s"} <= set(second["workers"][0])
    assert set(second["tasks"]) == {"running", "paused"}


def test_a_terminal_gets_a_live_table(shop: Place) -> None:
    done = shop.on_terminal("top", "--interval", "50ms", "-n", "3")
    assert done.code == OK
    assert "done/s" in done.out
    assert "ready · tasks: " in done.out


def test_a_wrong_interval_and_an_unreachable_broker_are_refused(shop: Place) -> None:
    assert shop.stepwire("top", "--interval", "soon").code == USAGE
    assert shop.stepwire("top", "--url", "http://127.0.0.1:1").code == UNREACHABLE
