"""Proof of death: is that worker's process certainly gone? Wrong answers are allowed in one direction only.

A worker whose subscription vanished may be dead or only cut off. On the same host the operating system knows, and a
dead worker's steps can run again at once instead of a lease later. Whoever asks compares `hello.host` with
`host.identity()` first: a pid of another machine means nothing here.
"""

import os

from stepwire_protocol import host


def is_gone(pid: int, pid_started: int) -> bool:
    """True only if no thread of the process can ever run again. Unknown pid or start time: never proven."""
    if pid <= 0 or pid_started <= 0:
        return False
    found = host.process(pid)
    if found is None:
        # Not "no such file": a /proc mounted with hidepid hides live processes of other users.
        return not _exists(pid)
    if found.started != pid_started:
        return True  # the pid has been given to another process
    return found.state in "ZX" and not _has_other_threads(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it is another user's, or no pid at all
    return True


def _has_other_threads(pid: int) -> bool:
    """A zombie whose first thread ended may have others that still work."""
    try:
        return any(task != str(pid) for task in os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return False  # reaped between two looks
    except OSError:
        return True
