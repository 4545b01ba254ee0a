"""The order of the tests: no name in it is stale, and tests of real processes do not take every test process."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedule import APART, FIRST, SYSTEM, SYSTEM_PROCESSES, WAIT_FOR_HUNT, Schedule, rank_of, scope_of

from .source import ROOT


@pytest.mark.parametrize("name", FIRST)
def test_each_name_in_the_order_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert f"def {test}" in (ROOT / path).read_text() if test else True


@pytest.mark.parametrize("name", APART)
def test_a_module_whose_tests_run_apart_has_no_fixture_for_all_of_them_in_its_process(name: str) -> None:
    text = (ROOT / name).read_text()
    assert 'scope="module"' not in text or "fcntl.flock" in text, "each test process would make the fixture"


def test_a_test_is_ranked_by_the_first_name_that_it_begins_with() -> None:
    assert rank_of(f"{SYSTEM}test_why.py::test_a") == 0
    assert rank_of("tests/cli/test_bench.py::test_a") < rank_of("tests/cli/test_db.py::test_a") < len(FIRST)
    assert rank_of("tests/core/test_timers.py::test_a") == len(FIRST)
    assert scope_of("tests/core/test_timers.py::test_a[b::c]") == "tests/core/test_timers.py"
    assert scope_of(f"{APART[0]}::test_a[b]") == f"{APART[0]}::test_a[b]"


@pytest.mark.parametrize("name", WAIT_FOR_HUNT)
def test_the_tests_that_wait_for_one_search_occupy_one_process(name: str) -> None:
    path, _, test = name.partition("::")
    assert f"def {test}(" in (ROOT / path).read_text()
    assert scope_of(f"{name}[a bug]") == scope_of(WAIT_FOR_HUNT[0])
    assert scope_of(f"{path}::test_another[a]") == f"{path}::test_another[a]"


class Configuration:
    """The options that the scheduler of xdist reads."""

    option = SimpleNamespace()

    def getvalue(self, name: str) -> list[str]:
        return {"tx": ["4*popen"]}[name]


class Process:
    """A test process, as the scheduler of xdist sees it."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.queue: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_at_most_two_processes_run_tests_of_system_and_every_test_runs_once() -> None:
    rooms = [SYSTEM] * 6 + ["tests/cli/"] * 9
    tests = [f"{room}test_{i}.py::test_{n}" for i, room in enumerate(rooms) for n in range(4)]
    processes = [Process(f"gw{i}") for i in range(4)]
    schedule = Schedule(Configuration())
    for process in processes:
        schedule.add_node(process)
    for process in processes:
        schedule.add_node_collection(process, tests)
    schedule.schedule()
    ran: list[str] = []
    at_once: list[int] = []
    while any(process.queue for process in processes):
        at_once.append(sum(bool(p.queue) and tests[p.queue[0]].startswith(SYSTEM) for p in processes))
        for process in processes:
            ran += _run_one(schedule, process, tests)
    assert sorted(ran) == sorted(tests)
    assert (max(at_once), at_once[0]) == (SYSTEM_PROCESSES, SYSTEM_PROCESSES)


def _run_one(schedule: Any, process: Process, tests: list[str]) -> list[str]:
    if not process.queue:
        return []
    index = process.queue.pop(0)
    schedule.mark_test_complete(process, index)
    return [tests[index]]
