"""`stepwire top`: one update for a pipe, a live table for a terminal."""

import io
import json
from typing import Any

import pytest
from rich.console import Console
from stepwire_broker.cli import top

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


def snapshot(handlers: int, held: int = 0) -> dict[str, Any]:
    figures = {"slots": 1_000, "running": 999, "holding": 998, "completed_per_s": 12_345.6, "failed_per_s": 0.5}
    worker = {
        "worker": "worker-of-the-shop:0123456789abcdef",
        "handlers": [f"shop.handler_{number}" for number in range(handlers)],
        "stuck": False,
        "draining": True,
        "heard_ms_ago": 300,
        "progress": [],
        **figures,
    }
    return {"ready": True, "reasons": [], "tasks": {"running": 1}, "held_steps": held, "workers": [worker]}


def drawn(state: dict[str, Any], width: int, **settings: Any) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, **settings)
    console.print(top._table(state, width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("handlers", [0, 1, 40])
def test_a_narrow_terminal_shows_every_figure_whatever_the_number_of_handlers(width: int, handlers: int) -> None:
    lines = drawn(snapshot(handlers), width)
    titles, row = lines[-2:]
    assert max(map(len, lines)) <= width
    assert [title for title in titles.split() if title not in ("worker", "handlers", "holding", "last", "seen")] == [
        "slots",
        "running",
        "done/s",
        "failed/s",
        "state",
    ]
    for text in ("1000", "999", "12345.6", "0.5", "draining"):
        assert text in row.split()
    assert "characters" not in row
    assert " 1 worker " in " ".join(" ".join(lines).split())


def test_held_steps_have_a_colour_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[35mheld steps: 2" in "\n".join(drawn(snapshot(1, held=2), 120, force_terminal=True))
    assert "\x1b[35m" not in "\n".join(drawn(snapshot(1), 120, force_terminal=True))


def test_top_shows_what_is_open_to_others(shop: Place) -> None:
    line = top._headline({**snapshot(1), "insecure": ["bus_loopback", "client_files"]})
    assert line.endswith(" · insecure: bus_loopback, client_files")
    assert "insecure" not in shop.stepwire("top", "--interval", "50ms").out


def test_top_shows_why_the_stages_make_no_progress() -> None:
    health = {"status": "degraded", "reason": "no healthy member: task_claimer"}
    line = top._headline({**snapshot(1), "health": health})
    assert line.startswith("ready · degraded: no healthy member: task_claimer · tasks: ")
    for status, reason in (("healthy", None), ("starting", "no member has started")):
        line = top._headline({**snapshot(1), "health": {"status": status, "reason": reason}})
        assert line.startswith("ready · tasks: "), line
