"""The identity of this process as a worker, and the clock that measures leases."""

import os
import secrets
import socket
import sys
import time
from typing import Final, NamedTuple

from stepwire_protocol import host

# The clock also counts sleep: after an hour of sleep, a laptop's lease is over.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_read_ns: Final = time.clock_gettime_ns


def now_ms() -> float:
    return _read_ns(_CLOCK) / 1e6


class ThisProcess(NamedTuple):
    """The facts with which a broker on the same host can prove the death of this process.

    `pid_started` is in clock ticks after boot, as in /proc; 0 where there is no /proc.
    """

    host: str
    pid: int
    pid_started: int
    is_provable: bool


def this_process() -> ThisProcess:
    known, started = host.identity(), host.started()
    return ThisProcess(known or f"{sys.platform}:{socket.gethostname()}", os.getpid(), started, bool(known and started))


def new_worker_id(name: str) -> str:
    """Returns a new id at every call, because a process that restarts or forks is another worker."""
    return f"{name}:{secrets.token_hex(8)}"
