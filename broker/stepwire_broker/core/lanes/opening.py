"""Lanes that this broker begins to own: those of its start, and those that it takes while it runs."""

from stepwire_broker.core.intake import submission
from stepwire_broker.core.intake.workflows import ACTIVE, full_name
from stepwire_broker.core.model.events import LanesTaken, Now
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import PageDue


def on_taken(state: BrokerState, event: LanesTaken, now: Now) -> None:
    """Own these lanes. Their tasks are loaded as after a start, without a write."""
    for taken in event.lanes:
        state.open_lane(taken, now)
        begin(state, taken.lane)
        state.counters.count_lane("taken")
    note_controls(state)


def begin(state: BrokerState, lane: int) -> None:
    """Begin to use a lane that was opened: reserve ids in it, and load its tasks."""
    submission.reserve_numbers(state, lane, 0)
    if state.lanes[lane].unloaded:
        state.page_after_mono = 0
        state.timers.set(0, PageDue())


def note_controls(state: BrokerState) -> None:
    """Note where controls are written now that waited for a lane, or whose lane was lost: until they are stored, the
    rows of the database are older than this broker's memory."""
    if state.is_shared:
        lane = state.outbox.touch_any()
        names = [(change.kind, change.name) for change in lane.controls]
        names += [(ACTIVE, full_name(state.workflows[workflow_id])) for _, workflow_id in lane.activations]
        for name in names:
            state.catalogue.changed(name, lane.number, lane.handed + 1)
