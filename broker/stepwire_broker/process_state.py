"""Read from /proc whether a process of this host still runs code."""

import os

from stepwire_protocol.host import ProcessIdentity


def is_alive(pid: int, process: ProcessIdentity) -> bool:
    """False only if no thread of the process can ever run again.

    A zombie whose first thread ended may have other threads that still work.
    """
    if process.state not in "ZX":
        return True
    try:
        return any(thread != str(pid) for thread in os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return False  # reaped after its state was read
    except OSError:
        return True
