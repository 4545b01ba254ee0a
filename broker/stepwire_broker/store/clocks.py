"""Both clocks of this host, as the core and the beats read them."""

import time

from stepwire_broker.core.model.events import Now


def read_clocks() -> Now:
    return Now(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000, time.time_ns() // 1_000_000)
