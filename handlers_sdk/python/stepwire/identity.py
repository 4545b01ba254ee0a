"""Who this process is, so that a broker on the same host can prove its death; and the clock leases are measured by."""

import os
import secrets
import socket
import sys
import time
from typing import Final, NamedTuple

from stepwire_protocol import host

# Counts the time asleep: a laptop that was closed for an hour has no lease any more.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_read_ns: Final = time.clock_gettime_ns


def now_ms() -> float:
    return _read_ns(_CLOCK) / 1e6


class Process(NamedTuple):
    """`pid_started` in clock ticks after boot, as in /proc; 0 where there is none."""

    host: str
    pid: int
    pid_started: int
    is_provable: bool


def this_process() -> Process:
    known, started = host.identity(), host.started()
    return Process(known or f"{sys.platform}:{socket.gethostname()}", os.getpid(), started, bool(known and started))


def new_worker_id(name: str) -> str:
    """Never the same twice: a process that starts again, or forks, is another worker."""
    return f"{name}:{secrets.token_hex(8)}"
