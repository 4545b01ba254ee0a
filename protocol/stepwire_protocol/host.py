"""Identifies this machine and its processes: a worker names itself in `hello`, and a broker on the same machine can
check whether that process is alive.

The only source is /proc. If /proc is missing or belongs to another pid namespace, the functions return "" or None. The
death of a worker cannot be proven then, and its lease decides.
"""

import os
from typing import NamedTuple

# Fields of /proc/<pid>/stat, counted after the name, which may contain any character.
_STATE, _GROUP, _SESSION, _STARTED = 0, 2, 3, 19


class ProcessIdentity(NamedTuple):
    """A process as /proc/<pid>/stat describes it at one moment."""

    state: str  # R, S, D, T, …, Z (zombie) or X (dead)
    group: int  # process group
    session: int
    started: int  # clock ticks since boot; together with the pid, identifies a process even if the pid is reused


def identity() -> str:
    """`hello.host`: boot id, pid namespace and time namespace. Returns "" if /proc cannot be trusted.

    For two processes with equal values, a pid with a start time names the same process. The time namespace is included
    because the kernel reports start times in the time of the reader.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""  # this /proc belongs to another pid namespace
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}:{_inode('/proc/self/ns/time')}"
    except OSError:
        return ""


def process(pid: int) -> ProcessIdentity | None:
    """The process with this pid; None if it does not exist or is not visible from here."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        fields = stat[stat.rindex(b")") + 2 :].split()
        return ProcessIdentity(
            fields[_STATE].decode(), int(fields[_GROUP]), int(fields[_SESSION]), int(fields[_STARTED])
        )
    except (OSError, ValueError, IndexError):
        return None


def started(pid: int | None = None) -> int:
    """`hello.pid_started`: the start time of this process, or of `pid`; 0 when unknown."""
    seen = process(os.getpid() if pid is None else pid)
    return seen.started if seen else 0


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0  # a kernel without time namespaces
