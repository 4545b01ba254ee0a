"""The order of the tests, and which of them run on one test process one after the other.

The tests of a module run on one process, which makes its shared fixtures once. Some modules share nothing, so each of
their tests is a scope of its own. The longest scopes begin first: one that begins late runs alone at the end, while a
processor is idle. Tests of `system` start many processes and wait for real time, so at most two test processes run
them.
"""

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

# From the longest on; the rest follows in the order of their names.
FIRST: Final = (
    "tests/system/",
    "tests/simulation/test_simulation.py::test_no_seed_breaks_a_promise",
    "tests/docs/test_pages.py",
    "tests/strangers/",
    "tests/simulation/",
    "tests/cli/test_bench.py",
    "tests/cli/test_dev.py",
    "tests/examples/",
    "tests/executors/test_killed.py",
    "tests/core/test_properties.py",
    "tests/protocol/test_broker_dialogues.py",
    "tests/protocol/test_codec.py",
    "tests/api/test_schemathesis.py",
    "tests/api/test_openapi.py",
    "tests/cli/",
    "tests/fuzz/",
    "tests/postgres/",
    "tests/attacks/",
    "tests/protocol/",
    "tests/conform/",
    "tests/checker/",
    "tests/sdk/",
    "tests/executors/",
    "tests/docs/",
)
APART: Final = (  # modules without fixtures for all their tests
    "tests/docs/test_pages.py",
    "tests/simulation/test_simulation.py",
    "tests/strangers/test_strangers.py",
)
HUNT: Final = "tests/simulation/test_simulation.py::test_a_planted_bug_is_found"
# These wait for one search: on one process, while the others go on.
WAIT_FOR_HUNT: Final = (HUNT, "tests/simulation/test_simulation.py::test_most_noted_seeds_find_their_bug")
SYSTEM: Final = "tests/system/"
SYSTEM_PROCESSES: Final = 2


def rank_of(nodeid: str) -> int:
    """The place of a test in the order."""
    return next((at for at, name in enumerate(FIRST) if nodeid.startswith(name)), len(FIRST))


def scope_of(nodeid: str) -> str:
    """Tests of one scope run on one process."""
    if nodeid.startswith(WAIT_FOR_HUNT):
        return HUNT
    module = nodeid.partition("::")[0]
    return nodeid if module in APART else module


class Schedule(LoadScopeScheduling):
    """Marks of groups do not work: xdist 3.8 passes them on by changing the tests' ids, which pytest 9.2 ignores."""

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False  # otherwise the modules with the most tests would begin
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(self._next_for(node), last=False)
        super()._assign_work_unit(node)

    def _next_for(self, node: Any) -> str:
        """The first scope that this process may begin now."""
        others = [each for each in self.nodes if each is not node and self._has_system_tests(each)]
        if len(others) >= SYSTEM_PROCESSES:
            return next((scope for scope in self.workqueue if not scope.startswith(SYSTEM)), next(iter(self.workqueue)))
        return next(iter(self.workqueue))

    def _has_system_tests(self, node: Any) -> bool:
        return any(
            scope.startswith(SYSTEM) and not all(tests.values()) for scope, tests in self.assigned_work[node].items()
        )
