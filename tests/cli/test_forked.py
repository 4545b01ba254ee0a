"""Commands that are forked for the tests behave as those that users start."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import forked
from .a_place import Place, place


@pytest.mark.parametrize(
    "words",
    [["version"], ["--version"], ["task", "list"], ["task", "retr"], ["config", "validate"], ["config", "show"]],
    ids=" ".join,
)
def test_a_forked_command_ends_as_one_that_a_user_starts(empty: Place, words: list[str]) -> None:
    started = empty.stepwire(*words, TZ="UTC")
    assert not forked.can_fork(words, {"TZ": "UTC"})
    assert empty.stepwire(*words) == started


def test_a_forked_command_reads_its_input_and_its_own_environment(empty: Place) -> None:
    done = empty.stepwire("config", "show", "-o", "json", stdin="ignored", STEPWIRE_BUS__LEASE="7s")
    assert {row["key"]: row["value"] for row in done.json}["bus.lease_ms"] == 7_000
    assert empty.stepwire("workflow", "apply", "-", stdin="name: [").err.startswith("stepwire: ")


def test_commands_are_forked_at_the_same_time_and_leave_no_process(tmp_path: Path) -> None:
    places = [place(directory) for directory in (tmp_path / "a", tmp_path / "b", tmp_path / "c")]
    for here in places:
        here.directory.mkdir(mode=0o700)
    with ThreadPoolExecutor(len(places)) as threads:
        done = list(threads.map(lambda here: here.stepwire("keys", "init"), places))
    assert [each.code for each in done] == [0, 0, 0]
    assert len({each.out for each in done}) == 3, "each has keys of its own"
    assert all((here.directory / ".stepwire").is_dir() for here in places)
