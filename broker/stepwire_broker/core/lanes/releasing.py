"""A lane that this broker gives up: it goes when another broker can take over everything that is in flight.

Nothing further of the lane is handed out. What its workers have not started comes back to this broker. What runs may
stay with its worker, if the worker is connected to every other broker: the next owner then asks the worker about it.
The run of any other worker is awaited, because acks of this broker would renew its lease while the next owner takes the
step back.
"""

from typing import Final

from stepwire_broker.core.commit.decision import LaneReleasable
from stepwire_broker.core.commit.own_lane import OwnLane, Release
from stepwire_broker.core.intake import submission
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.events import LaneReleased, Now, ReleaseLane
from stepwire_broker.core.model.live import Step, WorkerSession
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.timer_kinds import ReleaseDue
from stepwire_broker.core.workers.stopping import send_cancel

from .losing import forget

CANCEL_AFTER_MS: Final = 2_000  # until then, steps at workers may still start
LOOK_EVERY_MS: Final = 50


def on_release(state: BrokerState, event: ReleaseLane, now: Now) -> None:
    lane = state.lanes.get(event.lane)
    if lane is not None and lane.release is None:
        lane.release = Release(event.to, now.mono)
        submission.return_ids(state, lane)
        look(state, lane.number, lane.epoch, now)


def look(state: BrokerState, number: int, epoch: int, now: Now) -> None:
    """Say that the lane may go, or look again soon."""
    lane = state.lanes.get(number)
    if lane is None or lane.epoch != epoch or lane.release is None or lane.release.is_due:
        return
    if may_go(state, lane):
        lane.release.is_due = True
        state.decision.released.append(LaneReleasable(number, lane.epoch, lane.release.to))
        return
    if not lane.release.has_cancelled and now.mono >= lane.release.since_mono + CANCEL_AFTER_MS:
        lane.release.has_cancelled = True
        _cancel_unstarted(state, number)
    state.timers.set(now.mono + LOOK_EVERY_MS, ReleaseDue(number, epoch))


def may_go(state: BrokerState, lane: OwnLane) -> bool:
    """True if every group of the lane is durable, every message about it is sent, and the next owner can ask the
    workers about all its steps that are in flight."""
    number = lane.number
    if not state.outbox.is_settled(number) or any(each.lane == number for each in state.building.values()):
        return False
    if any(state.lane_of(task_id) == number for task_id in state.rejected):
        return False
    return all(
        _can_be_asked(state, session, step) for session, step in _deliveries(state, number)
    ) and not _is_at_level0(state, number)


def _deliveries(state: BrokerState, lane: int) -> list[tuple[WorkerSession, Step]]:
    return [
        (session, step)
        for session in state.sessions.values()
        for step in session.deliveries.values()
        if step.task.lane == lane
    ]


def _can_be_asked(state: BrokerState, session: WorkerSession, step: Step) -> bool:
    """True if the step runs, and its worker has a session with every other live broker."""
    if session.expired or step.seen != "running":
        return False
    return len(state.live_brokers) == 1 or state.live_brokers <= session.brokers


def _is_at_level0(state: BrokerState, lane: int) -> bool:
    return any(
        step_id in state.steps and state.steps[step_id].task.lane == lane
        for handout in state.level0.handouts.values()
        for step_id, _ in handout.items
    )


def _cancel_unstarted(state: BrokerState, lane: int) -> None:
    """Take back the steps that wait at workers, so that the next owner hands them out."""
    items: dict[str, list[tuple[int, int]]] = {}
    for session, step in _deliveries(state, lane):
        if step.seen not in ("running", "done") and not step.granted and step.cancel is None:
            step.cancel = "superseded"
            items.setdefault(session.worker, []).append((step.id, step.delivery))
    for worker, cancelled in items.items():
        send_cancel(state, state.sessions[worker], cancelled, "superseded")


def on_released(state: BrokerState, event: LaneReleased, now: Now) -> None:
    """Forget the lane. Workers keep their sessions: the next owner asks them about their runs."""
    state.decision.notifications.append(Notification(lanes=True))
    if event.lane in state.lanes:
        forget(state, event.lane, "released", f"lane {event.lane} was released to another broker", now)
