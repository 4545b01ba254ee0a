"""Lists that no index serves: read in chunks, for a limited time.

A list that takes longer ends early, with a cursor. A client that continues from there misses nothing. Scans run on
readers of their own, one at a time for each token, so that all other reads and the core do not wait for them.
"""

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from stepwire_broker.core.model.states import StepState, TaskState
from stepwire_broker.store.rows import ListPoint, StepFilter, TaskFilter

TIME_MAX_S: Final = 0.08
CHUNK_IDS_MIN: Final = 2_000
CHUNK_IDS_MAX: Final = 20_000
CHUNK_TIME_S: Final = (0.005, 0.02)  # a chunk that takes less is followed by a larger one, and vice versa

Row = TypeVar("Row")


class Scanned(NamedTuple, Generic[Row]):
    """`stopped_at` is the newest row that was not read. None: all rows were read, or the page is full."""

    rows: list[Row]
    stopped_at: ListPoint | None


def needs_scan(wanted: TaskFilter | StepFilter) -> bool:
    """True if rows that do not match have to be read, and there may be any number of them."""
    match wanted:
        case TaskFilter(key=str()):
            return False
        case TaskFilter():
            is_indexed = wanted.state in (None, TaskState.FAILED)
            return wanted.label is not None or wanted.since_ms is not None or not is_indexed
        case StepFilter():
            is_filtered = wanted.handler_class is not None or wanted.namespaces is not None
            return is_filtered or wanted.state not in (None, StepState.HELD, StepState.FAILED)


def scan(
    read: Callable[[int, int, int], list[Row]],
    newest: Callable[[int | None], ListPoint | None],
    before: int | None,
    limit: int,
) -> Scanned[Row]:
    """Read at most `limit` rows, the newest first, in a reader's thread.

    `read(before, first, limit)` returns the matching rows with these ids. `newest(before)` is the newest row of all."""
    rows: list[Row] = []
    chunk_ids = CHUNK_IDS_MIN
    began_s = now_s = time.perf_counter()
    while (point := newest(before)) is not None:
        if now_s - began_s > TIME_MAX_S:
            return Scanned(rows, point)
        first = max(0, point.id + 1 - chunk_ids)
        rows += read(point.id + 1, first, limit - len(rows))
        if len(rows) == limit:
            break
        before = first
        chunk_began_s, now_s = now_s, time.perf_counter()
        chunk_ids = _next_chunk(chunk_ids, now_s - chunk_began_s)
    return Scanned(rows, None)


def _next_chunk(ids: int, took_s: float) -> int:
    least_s, most_s = CHUNK_TIME_S
    if took_s < least_s:
        return min(CHUNK_IDS_MAX, ids * 2)
    return max(CHUNK_IDS_MIN, ids // 2) if took_s > most_s else ids
