"""Lists that no index serves: read in chunks, for a limited time.

A list that takes longer ends early, with a cursor. A client that continues from there misses nothing. Scans run on
readers of their own, one at a time for each token, so that all other reads and the core do not wait for them.
"""

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from stepwire_broker.store.rows import ATTENTION_STATES, ListPoint, StepFilter, TaskFilter

TIME_MAX_S: Final = 0.08
CHUNK_ROWS_MIN: Final = 32
CHUNK_ROWS_MAX: Final = 20_000
CHUNK_TIME_S: Final = (0.005, 0.02)  # a chunk that takes less is followed by a larger one, and vice versa

Row = TypeVar("Row")


class Scanned(NamedTuple, Generic[Row]):
    """`stopped_at` is the last point that was read. None: all rows were read, or the page is full."""

    rows: list[Row]
    stopped_at: ListPoint | None


def needs_scan(wanted: TaskFilter | StepFilter) -> bool:
    """True if rows that do not match have to be read, and there may be any number of them."""
    match wanted:
        case TaskFilter(key=str()):
            return False
        case TaskFilter():
            return wanted.label is not None
        case StepFilter():
            is_filtered = wanted.handler_class is not None or wanted.namespaces is not None
            return is_filtered or wanted.state not in (None, *ATTENTION_STATES)


def scan(
    read: Callable[[ListPoint | None, ListPoint, int], list[Row]],
    end: Callable[[ListPoint | None, int], ListPoint | None],
    before: ListPoint | None,
    limit: int,
) -> Scanned[Row]:
    """Read at most `limit` rows, the newest first, in a reader's thread.

    `read(before, first, limit)` returns the matching rows between these points. `end(before, rows)` is the point of the
    last row of a part with this number of rows; None: there is no row before `before`."""
    rows: list[Row] = []
    chunk_rows = CHUNK_ROWS_MIN
    began_s = now_s = time.perf_counter()
    while (first := end(before, chunk_rows)) is not None:
        if now_s - began_s > TIME_MAX_S:
            return Scanned(rows, before)
        rows += read(before, first, limit - len(rows))
        if len(rows) == limit:
            break
        before = first
        chunk_began_s, now_s = now_s, time.perf_counter()
        chunk_rows = _next_chunk(chunk_rows, now_s - chunk_began_s)
    return Scanned(rows, None)


def _next_chunk(rows: int, took_s: float) -> int:
    least_s, most_s = CHUNK_TIME_S
    if took_s < least_s:
        return min(CHUNK_ROWS_MAX, rows * 2)
    return max(CHUNK_ROWS_MIN, rows // 2) if took_s > most_s else rows
