"""A lane that this broker owns, apart from its groups: its ids, its tasks in the database, and how it was taken."""

from msgspec import Struct

from stepwire_broker.core.definitions.stored_rows import LeftBehind

from .id_blocks import LaneIds


class Release(Struct):
    """The broker gives the lane up as soon as it may go."""

    to: str | None  # the broker that is to own it; None: any
    since_mono: int
    has_cancelled: bool = False  # what had not started by then was taken back from the workers
    is_due: bool = False  # the lane may go now


class OwnLane(Struct, kw_only=True):
    number: int
    epoch: int  # of the lane, not of this broker's start
    taken_mono: int
    safe_at_mono: int  # from this time on no worker holds a lease from a former owner of this lane
    ids: LaneIds
    open_by_namespace: dict[str, int]  # open steps, in memory or not; no namespace without open steps is here
    unloaded: int  # open tasks that are only in the database
    left_behind: LeftBehind | None  # tasks that the former owner had in memory; None: all were read
    stored_may_run: bool  # a task in the database may be able to run now: new tasks wait behind it
    stored_since_page: bool = False  # such a task was stored after the page that is being read was asked for
    is_loading: bool = False  # a page of its tasks is being read
    release: Release | None = None  # while the lane is being given up: none of its steps is handed out


def count(counts: dict[str, int], name: str, more: int) -> None:
    """Add to a count. A negative number subtracts. A count of 0 is removed."""
    counted = counts.get(name, 0) + more
    if counted:
        counts[name] = counted
    else:
        counts.pop(name, None)
