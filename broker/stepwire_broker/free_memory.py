"""Return free memory to the system: large blocks at once, and the pages between small ones on demand.

Both are settings and calls of glibc. Other C libraries have none of them, and nothing happens there.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final

LARGE_BYTES: Final = 256 * 1024
KEPT_BYTES: Final = 8 * 1024 * 1024  # free at the end of the heap

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of glibc
_M_MMAP_THRESHOLD: Final = -3


def return_large_blocks() -> None:
    """Map each large block by itself, so that it returns when it is freed. Call this once, when the process starts.

    By default glibc keeps blocks of up to 32 MiB in its heaps after the first one was freed. There one small block
    behind them prevents their return, so a moment with many large payloads would occupy their memory for good."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def return_free_memory() -> None:
    """Return the pages of the heaps that hold no block in use. Usually glibc returns only the end of a heap, so one
    small block keeps everything before it."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
