"""`serve` gives the memory of large messages back to the system as soon as it is free."""

import ctypes
import sys
from typing import Final

LARGE_BYTES: Final = 256 * 1024
KEPT_BYTES: Final = 8 * 1024 * 1024  # free at the end of the heap

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of glibc
_M_MMAP_THRESHOLD: Final = -3


def keep_no_large_blocks() -> None:
    """Map each large block by itself. By default glibc keeps blocks of up to 32 MiB in its heaps, where one small block
    behind them prevents their return. Other C libraries have no such setting."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
