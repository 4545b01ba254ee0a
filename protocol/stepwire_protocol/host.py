"""Which machine is this, and which process is that? What `hello` says of its sender, and what a broker on the same
machine can then check of it.

Only /proc is asked. Where it cannot answer truly (another system, a foreign /proc), the answer is "" or None, and
nobody's death is ever proven there: the lease decides.
"""

import os
from typing import NamedTuple

_STATE, _GROUP, _SESSION, _STARTED = (
    0,
    2,
    3,
    19,
)  # fields of /proc/<pid>/stat after the name, which may itself hold anything


class ProcessIdentity(NamedTuple):
    """One look at /proc/<pid>/stat."""

    state: str  # R, S, D, T, … or Z for a zombie, X for a dead one
    group: int  # the process group and the session that it is in, each named by the pid of who made it
    session: int
    started: int  # clock ticks since boot: with the pid it names one process, and no later one


def identity() -> str:
    """`hello.host`: equal at two processes exactly when the same pid and start time mean the same process to both.

    Boot id, pid namespace, time namespace (start times are told in the reader's own time).
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
    """None: there is no such process, or this process may not know."""
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
    """`hello.pid_started`: when this process (or that one) began; 0 when unknown."""
    found = process(os.getpid() if pid is None else pid)
    return found.started if found else 0


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0  # a kernel without time namespaces
