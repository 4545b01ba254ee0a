"""What all rooms share: how they use the machine, and that a run of the suite is the same run again.

The tests of real processes wait for real time, one after the other, on one of the test processes; everything else runs
on whichever is free.
"""

import gc
import os
import signal
from typing import Any

import pytest
from hypothesis import settings

# The suite draws the same examples every time; whoever hunts sets HYPOTHESIS_PROFILE=hunt.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("hunt", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# A shell that runs this in the background has interrupts ignored, and whatever we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The rooms whose tests take the longest begin first, so that no process is left alone with them at the end.
LONGEST = ("tests/system/", "tests/simulation/", "tests/docs/", "tests/protocol/", "tests/cli/", "tests/sdk/")
ONE_AFTER_THE_OTHER = "tests/system/"
APART = "tests/system/test_demo.py"  # a site of its own, and nothing of it is counted in milliseconds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((at for at, room in enumerate(LONGEST) if item.nodeid.startswith(room)), 99))


def pytest_collection_finish() -> None:
    """What was collected stays to the end, and is large: the cyclic collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A module's tests stay on one process, so what they share is made once; and a room's do altogether.

    Not by marks of groups: xdist 3.8 hands those on by changing the tests' ids, which pytest 9.2 ignores.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    config.option.loadscopereorder = False  # else the modules with the most tests would begin
    return Rooms(config, log)


def together(nodeid: str) -> str:
    """What the tests that stay on one process have in common."""
    if nodeid.startswith(ONE_AFTER_THE_OTHER) and not nodeid.startswith(APART):
        return ONE_AFTER_THE_OTHER
    return nodeid.partition("::")[0]
