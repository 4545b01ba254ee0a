"""The pause before a retry. Randomness is an argument, so that the same history gives the same pause."""

import zlib
from typing import Final

from .step_definition import BackoffPolicy

PAUSE_MIN_MS: Final = 50  # jitter may draw 0; a step that fails at once must not spin
_DOUBLINGS_MAX: Final = 62


def delay_ms(backoff: BackoffPolicy, attempt: int, unit: float) -> int:
    """Return the pause after this attempt (0 for the first) failed. `unit` is a number in [0, 1)."""
    pause_ms = backoff.base_ms
    if backoff.kind == "exponential":
        pause_ms <<= min(attempt, _DOUBLINGS_MAX)
    pause_ms = min(pause_ms, backoff.max_ms)
    if backoff.jitter == "full":
        pause_ms = int(pause_ms * unit)
    return max(pause_ms, PAUSE_MIN_MS)


def unit_of(task_uid: str, step_name: str, attempt: int) -> float:
    """Return a number in [0, 1) for this attempt of this step: evenly spread, and the same at every replay."""
    return zlib.crc32(f"{task_uid}/{step_name}/{attempt}".encode()) / 2**32
