"""Return free memory to the system."""

import ctypes
import sys


def return_free_memory() -> None:
    """Let glibc return the pages of its heaps that hold no block in use. Usually it returns only the end of a heap, so
    one small block keeps everything before it. Other C libraries have no such call."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
