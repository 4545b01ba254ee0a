"""Settings of all rooms: reproducible runs, and the use of the machine.

The tests of real processes wait for real time, so they run one after the other on one test process. All other tests run
on any free test process.
"""

import gc
import os
import signal
from typing import Any

import pytest
from hypothesis import settings

# The suite draws the same examples every time. HYPOTHESIS_PROFILE=hunt draws new ones.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("hunt", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# A shell that runs the tests in the background ignores interrupts, and their subprocesses would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The rooms with the longest tests begin first, so that no test process runs them alone at the end.
LONGEST = ("tests/system/", "tests/simulation/", "tests/docs/", "tests/protocol/", "tests/cli/", "tests/sdk/")
ONE_AFTER_THE_OTHER = "tests/system/"
APART = "tests/system/test_demo.py"  # it has a site of its own, and no bounds in milliseconds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((at for at, room in enumerate(LONGEST) if item.nodeid.startswith(room)), 99))


def pytest_collection_finish() -> None:
    """Freeze the collected tests, which are many and stay to the end, so that the cyclic collector skips them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a module on one process, which makes shared fixtures once, and those of `system` together.

    Marks of groups do not work: xdist 3.8 passes them on by changing the tests' ids, which pytest 9.2 ignores.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False  # otherwise the modules with the most tests would begin
    return Rooms(config, log)


def scope_of(nodeid: str) -> str:
    """Return the scope of a test: tests of one scope run on one process."""
    if nodeid.startswith(ONE_AFTER_THE_OTHER) and not nodeid.startswith(APART):
        return ONE_AFTER_THE_OTHER
    return nodeid.partition("::")[0]
