"""Proof of death: whether a worker's process has certainly ended.

A worker whose subscription vanished may be dead or only disconnected. On the same host the operating system can tell
the two apart, and the steps of a dead worker can run again at once instead of a lease later. Callers first compare
`hello.host` with `host.identity()`: a pid of another machine means nothing here.
"""

import os

from stepwire_protocol import host

from stepwire_broker.process_state import is_alive


def is_gone(pid: int, pid_started: int) -> bool:
    """True only if no thread of the process can ever run again. In doubt the result is False.

    An unknown pid or start time proves nothing.
    """
    if pid <= 0 or pid_started <= 0:
        return False
    process = host.process(pid)
    if process is None:
        # A missing /proc entry proves nothing: with hidepid, /proc hides live processes of other users.
        return not _exists(pid)
    if process.started != pid_started:
        return True  # the pid belongs to another process now
    return not is_alive(pid, process)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # another user's process, or an invalid pid
    return True
