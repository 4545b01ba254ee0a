"""Both clocks of this host, as the core and the beats read them."""

import time
from typing import Final

from stepwire_broker.core.model.events import Now

TOGETHER_NS: Final = 500_000
READINGS_MAX: Final = 5  # a host that suspends this thread between all of them gets the last one


def read_clocks() -> Now:
    """Read both clocks at one moment. A thread that was suspended between the two reads them again.

    A timer runs by one clock, and the history shows the other: no retry may seem to begin before its back-off ended.
    """
    for _ in range(READINGS_MAX):
        mono_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        wall_ns = time.time_ns()
        if time.clock_gettime_ns(time.CLOCK_BOOTTIME) - mono_ns < TOGETHER_NS:
            break
    return Now(mono_ns // 1_000_000, wall_ns // 1_000_000)
