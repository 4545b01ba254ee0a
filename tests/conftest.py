"""What all rooms share: how they use the machine, and that a run of the suite is the same run again.

The tests of real processes wait for real time, one after the other, on one of the two test processes; everything else
runs on whichever is free.
"""

import os
import signal

import pytest
from hypothesis import settings

# The suite draws the same examples every time; whoever hunts sets HYPOTHESIS_PROFILE=hunt.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("hunt", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# A shell that runs this in the background has interrupts ignored, and whatever we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ONE_AFTER_THE_OTHER = ("tests/system/",)


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook, and what it does not see then is no group
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        room = next((room for room in ONE_AFTER_THE_OTHER if item.nodeid.startswith(room)), None)
        if room is not None:
            item.add_marker(pytest.mark.xdist_group(room))
