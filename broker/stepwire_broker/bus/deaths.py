"""Proof of death: whether a worker's process has certainly ended.

A worker whose subscription vanished may be dead or only disconnected. On the same host the operating system can
distinguish the two cases. The steps of a dead worker then run again at once instead of a lease later. Callers first
compare `hello.host` with `host.identity()`: a pid of another machine means nothing here.
"""

import os
import time
from typing import Final, Literal, TypeAlias

from stepwire_protocol import host

from stepwire_broker.process_state import is_alive

# `unknown`: nothing is proven now. `refuted`: nothing can ever be proven, because the claimed start time is wrong.
Finding: TypeAlias = Literal["gone", "unknown", "refuted"]

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# /proc/<pid>/stat counts from boot, sleep included.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def ticks_ago(ms: int) -> int:
    """The time `ms` milliseconds ago in the unit of start times: clock ticks after boot."""
    return int((time.clock_gettime(_CLOCK) - ms / 1000) * _TICKS_PER_S)


def examine(pid: int, pid_started: int, heard_ticks: int) -> Finding:
    """`gone` only if no thread of the process can ever run again.

    `heard_ticks`: the worker was alive at this time. Another process that has its pid started later. If the process
    with the pid is older than that, it is the worker itself, and the worker has stated a wrong start time.
    """
    if pid <= 0 or pid_started <= 0:
        return "unknown"
    process = host.process(pid)
    if process is None:
        # A missing /proc entry proves nothing: with hidepid, /proc hides live processes of other users.
        return "unknown" if _exists(pid) else "gone"
    if process.started != pid_started:
        return "gone" if process.started > heard_ticks else "refuted"
    return "unknown" if is_alive(pid, process) else "gone"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # another user's process, or an invalid pid
    return True
