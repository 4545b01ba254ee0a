"""`serve` denies other processes its files, its memory and its environment."""

import ctypes
import os
import resource
import sys
from typing import Final

FILE_CREATION_MASK: Final = 0o077  # only the owner may read the files of this process
_PR_SET_DUMPABLE: Final = 4


def harden() -> None:
    """Keep tokens and payloads in this process. Programs of the same user can then read neither its memory nor its
    environment in /proc, and a crash writes no core dump. Programs that it starts are not affected."""
    os.umask(FILE_CREATION_MASK)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
