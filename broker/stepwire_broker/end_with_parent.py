"""No process that we start outlives us, however we end: on Linux the kernel sees to it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """For `preexec_fn`: when this process ends, the child gets this signal. The thread that starts the child counts as
    its parent, so it has to live as long."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # before the fork: after it, as little as possible
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent was gone before the child was tied to it

    return in_child
