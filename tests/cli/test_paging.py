"""Lists of commands: as many pages as needed, also when the broker had no time to fill a page."""

from typing import Any

from stepwire_broker.cli.connection import pages_from

PAGES: dict[str | None, dict[str, Any]] = {
    None: {"tasks": [1, 2], "next_cursor": "a"},
    "a": {"tasks": [], "next_cursor": "b", "scanned_to": "2026-11-18T10:00:00Z"},
    "b": {"tasks": [3], "next_cursor": "c", "scanned_to": "2026-11-17T10:00:00Z"},
    "c": {"tasks": [], "next_cursor": "d", "scanned_to": "2026-11-16T10:00:00Z"},
    "d": {"tasks": [], "next_cursor": None},
}


def fetch_page(*, limit: int, cursor: str | None) -> dict[str, Any]:
    page = PAGES[cursor]
    return {**page, "tasks": page["tasks"][:limit]}


def test_a_list_goes_on_after_an_empty_page_until_it_is_full_or_complete() -> None:
    assert pages_from(fetch_page, "tasks", 10, {}, None) == ([1, 2, 3], None)
    assert pages_from(fetch_page, "tasks", 3, {}, "a") == ([3], None)


def test_a_full_list_has_a_cursor_only_if_an_item_follows() -> None:
    assert pages_from(fetch_page, "tasks", 2, {}, None) == ([1, 2], "a")
    assert pages_from(fetch_page, "tasks", 1, {}, "b") == ([3], None)
