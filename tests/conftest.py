"""Settings of all rooms: reproducible runs, and the use of the machine."""

import gc
import os
import signal
from typing import Any

import pytest
from hypothesis import settings

from .schedule import Schedule, rank_of

# The suite draws the same examples every time. HYPOTHESIS_PROFILE=hunt draws new ones.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("hunt", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# A shell that runs the tests in the background ignores interrupts, and their subprocesses would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank_of(item.nodeid))


gc.disable()  # until the tests are collected: what is made until then stays to the end


def pytest_collection_finish() -> None:
    """Freeze the collected tests, which are many, so that the cyclic collector skips them."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Schedule(config, log)
