"""The walk over the tasks that former owners of lanes had in memory, page by page, the same for every database."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stepwire_broker.core.definitions.stored_rows import LeftBehind


class RankedTask(NamedTuple):
    rank_ms: int
    id: int


class LeftPage(NamedTuple):
    """`left`: where to go on in each lane that was read; None where no such task is left."""

    task_ids: list[int]
    left: dict[int, LeftBehind | None]


def left_page(
    lanes: Mapping[int, LeftBehind | None], limit: int, read: Callable[[LeftBehind, int], Sequence[RankedTask]]
) -> LeftPage:
    """Read up to `limit` ids, lane by lane. `read` returns the next tasks of a lane after a point, in their order."""
    page = LeftPage([], {})
    for lane, after in lanes.items():
        if after is not None and len(page.task_ids) < limit:
            rows = read(after, limit - len(page.task_ids))
            page.task_ids.extend(row.id for row in rows)
            is_full = len(page.task_ids) == limit
            page.left[lane] = after._replace(rank_ms=rows[-1].rank_ms, id=rows[-1].id) if is_full else None
    return page
