"""End child processes when their parent ends for any reason. The Linux kernel does this."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """Return a `preexec_fn` that sends the child this signal when this process ends. None on systems other than Linux.

    The kernel regards the thread that starts the child as its parent, so that thread must live as long as the child.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(
        None, use_errno=True
    ).prctl  # loaded before the fork: after it, a child should do as little as possible
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before prctl took effect

    return in_child
