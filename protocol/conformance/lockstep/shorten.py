"""Shortens a list of ops while it still shows a difference."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from conformance.driver_process import Op

SECONDS_MAX: Final = 20.0


def shorten(ops: Sequence[Op], differs: Callable[[Sequence[Op]], int | None], seconds: float = SECONDS_MAX) -> list[Op]:
    """A part of the ops, in their order, that still differs. `differs` returns the number of the first differing reply,
    or None. The first op, `start`, is kept."""
    end = time.monotonic() + seconds
    best = _until(list(ops), differs(ops))
    size = max(1, len(best) // 2)
    while time.monotonic() < end:
        at, changed = 1, False
        while at < len(best) and time.monotonic() < end:
            tried = best[:at] + best[at + size :]
            number = differs(tried) if len(tried) > 1 else None
            if number is None:
                at += size
            else:
                best, changed = _until(tried, number), True
        if size > 1:
            size //= 2
        elif not changed:
            break
    return best


def _until(ops: list[Op], number: int | None) -> list[Op]:
    return ops if number is None else ops[: number + 1]
