"""Tables fit the terminal: nothing is cut, and what is left out is named."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from stepwire_broker.cli.output import Column
from stepwire_broker.cli.terminal_table import age, draw

from .a_place import Place

COLUMNS = [
    Column("task", "task_id"),
    Column("workflow", "workflow"),
    Column("key", "key", is_extra=True),
    Column("why", "why"),
    Column("worker", "worker", is_extra=True),
    Column("state", "state"),
]
ITEMS = [
    {
        "task_id": number,
        "workflow": "shop::order",
        "key": f"order-{number}",
        "why": "no worker offers `shop.pay`, and the last one that did ended 3 minutes ago",
        "worker": "worker-of-the-shop:host-17:4711",
        "state": state,
    }
    for number, state in [(7, "failed"), (4711, "running")]
]


def drawn(width: int, items: list[dict[str, Any]] = ITEMS, **settings: Any) -> tuple[list[str], list[str]]:
    """The lines of the table, and the titles of the columns that were left out."""
    out = io.StringIO()
    left_out = draw(COLUMNS, items, Console(file=out, width=width, highlight=False, **settings))
    return out.getvalue().splitlines(), [column.title for column in left_out]


@pytest.mark.parametrize("width", [48, 60, 80, 120, 200])
def test_a_table_is_never_wider_than_the_terminal_and_never_cut(width: int) -> None:
    lines, left_out = drawn(width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    text = " ".join(" ".join(lines).split())
    for column in COLUMNS:
        for item in ITEMS:
            for word in str(item[column.member]).split():
                assert (word in text) is (column.title not in left_out), (column.title, word)


def test_a_wide_terminal_shows_every_column_on_one_line_each() -> None:
    lines, left_out = drawn(200)
    assert (len(lines), left_out) == (3, [])
    assert lines[0].split() == ["TASK", "WORKFLOW", "KEY", "WHY", "WORKER", "STATE"]
    assert lines[1].startswith("   7  shop::order")  # numbers end in one column


def test_extra_columns_are_left_out_the_last_first() -> None:
    assert drawn(100)[1] == ["worker"]
    assert drawn(70)[1] == ["key", "worker"]


def test_a_terminal_that_is_too_narrow_for_any_table_gets_a_block_for_each_item() -> None:
    lines, left_out = drawn(30)
    assert left_out == []
    assert lines[:3] == ["TASK      7", "WORKFLOW  shop::order", "KEY       order-7"]
    assert lines.count("") == 1


def test_a_block_has_no_lines_for_missing_values() -> None:
    lines = drawn(30, [{**ITEMS[0], "key": None}])[0]
    assert not [line for line in lines if line.startswith("KEY")]
    assert lines[1:3] == ["WORKFLOW  shop::order", "WHY       no worker offers"]


def test_figures_are_aligned_right_and_yes_and_no_left() -> None:
    out = io.StringIO()
    columns = [Column("steps", "steps", is_figure=True), Column("active", "active"), Column("name", "name")]
    rows = [{"steps": "1,234", "active": True, "name": "a"}, {"steps": "0.5", "active": False, "name": "b"}]
    draw(columns, rows, Console(file=out, width=60, highlight=False))
    assert out.getvalue().splitlines() == ["STEPS  ACTIVE  NAME", "1,234  yes     a", "  0.5  no      b"]


def test_a_workflow_list_leaves_out_the_time_before_it_becomes_blocks(shop: Place) -> None:
    seen = shop.on_terminal("workflow", "list", columns=36, NO_COLOR="1").out
    titles = seen.splitlines()[0].replace("\x1b[1m", "").replace("\x1b[0m", "").split()
    assert titles == ["NAMESPACE", "NAME", "VERSION", "ACTIVE"]
    assert "too narrow for: created" in " ".join(seen.split())
    assert shop.stepwire("workflow", "list").out.splitlines()[0].endswith("\tACTIVE\tCREATED")


def test_a_state_has_a_colour_unless_the_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mfailed" in "\n".join(drawn(200, force_terminal=True)[0])
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in "\n".join(drawn(200, force_terminal=True)[0])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s ago"), (59, "59s ago"), (60, "1m ago"), (7_300, "2h ago"), (200_000, "2d ago"), (-90, "in 1m")],
)
def test_a_time_is_shown_as_its_age(seconds: int, text: str) -> None:
    now = datetime(2026, 11, 19, tzinfo=UTC)
    assert age(now - timedelta(seconds=seconds), now) == text


def test_headers_are_the_same_on_a_terminal_and_in_a_pipe_which_has_the_whole_time(shop: Place) -> None:
    task = shop.stepwire("task", "submit", "shop::slow", "-q").out.strip()
    piped = shop.stepwire("task", "list", "--limit", "1").out.splitlines()
    seen = shop.on_terminal("task", "list", "--limit", "1", "-q", NO_COLOR="1", COLUMNS="200").out.splitlines()
    assert piped[0].split("\t") == seen[0].replace("\x1b[1m", "").replace("\x1b[0m", "").split()
    assert piped[1].split("\t")[0] == seen[1].split()[0] == task
    assert "T" in piped[1].split("\t")[6]
    assert "s ago" in seen[1]
    shop.stepwire("task", "cancel", task)


def test_columns_are_chosen_by_the_names_of_the_json(shop: Place) -> None:
    done = shop.stepwire("workflow", "list", "--columns", "name,active")
    assert done.out.splitlines()[0] == "NAME\tACTIVE"
    assert shop.stepwire("workflow", "list", "--columns", "name", "--json").json[0].keys() == {"name"}
    wrong = shop.stepwire("workflow", "list", "--columns", "nam")
    assert wrong.code == 2
    assert "there is no nam" in wrong.err
    assert "version" in wrong.err
