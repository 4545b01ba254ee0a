"""Lanes that this broker begins to own: those of its start, and those that it takes while it runs."""

from stepwire_broker.core.intake import submission
from stepwire_broker.core.model.events import LanesTaken, Now
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import PageDue


def on_taken(state: BrokerState, event: LanesTaken, now: Now) -> None:
    """Own these lanes. Their tasks are loaded as after a start, without a write."""
    for taken in event.lanes:
        state.open_lane(taken, now)
        begin(state, taken.lane)


def begin(state: BrokerState, lane: int) -> None:
    """Begin to use a lane that was opened: reserve ids in it, and load its tasks."""
    submission.reserve_numbers(state, lane, 0)
    if state.lanes[lane].unloaded:
        state.page_after_mono = 0
        state.timers.set(0, PageDue())
