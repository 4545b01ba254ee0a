"""Returns large blocks of memory to the system as soon as they are free."""

import ctypes
import sys
from typing import Final

BLOCK_BYTES: Final = 256 * 1024
_M_MMAP_THRESHOLD: Final = -3  # of mallopt in glibc


def return_when_free() -> None:
    """Let glibc map blocks of BLOCK_BYTES or more separately. By default it keeps such blocks for later use after the
    first one was freed, so a moment with many large payloads would occupy their memory for good. Other C libraries
    ignore or lack the setting."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES)
