"""The effects of a beat on the core: lanes that were lost, lanes to take or to release, and the other brokers."""

from collections.abc import Iterable

from stepwire_broker.core.brokers import addresses, listeners
from stepwire_broker.core.commit.own_lane import OwnLane, count
from stepwire_broker.core.membership.cluster_rows import ALL, Beaten, BrokerRow, Presence, RouteLoad
from stepwire_broker.core.membership.members import OwnLanes
from stepwire_broker.core.model.commit_group import LaneLost
from stepwire_broker.core.model.events import LaneReleased, LanesTaken, Now, ReleaseLane
from stepwire_broker.core.sharing import orders
from stepwire_broker.core.state import BrokerState

from . import losing, opening, releasing


def on_beaten(state: BrokerState, event: Beaten, now: Now) -> None:
    members = state.members
    assert members is not None
    own = OwnLanes(
        served={number: lane.epoch for number, lane in sorted(state.lanes.items(), key=_open_steps)},
        leaving=frozenset(number for number, lane in state.lanes.items() if lane.release is not None),
        is_draining=state.draining,
        workers=workers(state),
    )
    conclusion = members.beaten(event, own)
    state.decision.conclusions.append(conclusion)
    if conclusion.replaced is not None:
        return
    state.blocks.update(event.blocks)
    for lane in conclusion.lost:
        losing.on_lost(state, LaneLost(lane), now)
    others = [listeners.of_row(row.id, row.listeners) for row in members.live]
    addresses.on_others(state, others, now)
    state.open_elsewhere = _described(members.live)
    if event.orders or event.controls_revision > state.catalogue.revision:
        orders.look_now(state)
    for lane in conclusion.releases:
        releasing.on_release(state, ReleaseLane(lane), now)


def _open_steps(lane: tuple[int, OwnLane]) -> int:
    """The lane with the fewest open steps is released first."""
    return sum(lane[1].open_by_namespace.values())


def on_taken(state: BrokerState, event: LanesTaken, now: Now) -> None:
    if state.members is not None:
        state.members.taken()
    opening.on_taken(state, event, now)


def on_released(state: BrokerState, event: LaneReleased, now: Now) -> None:
    lane = state.lanes.get(event.lane)
    if lane is not None and state.members is not None:
        state.members.released(event.lane, lane.epoch)
    releasing.on_released(state, event, now)


def _described(brokers: Iterable[BrokerRow]) -> dict[str, int]:
    """Add up the open steps that the brokers described at their last beats."""
    counts: dict[str, int] = {}
    for broker in brokers:
        for namespace, steps in broker.open_steps.items():
            count(counts, namespace, steps)
    return counts


def workers(state: BrokerState) -> int:
    """Return the number of workers that are connected to this broker, level-0 handlers included."""
    return sum(not session.dead for session in state.sessions.values()) + len(state.level0.peers)


def presence(state: BrokerState, http: str | None, config_digest: str, backlog: tuple[RouteLoad, ...] = ()) -> Presence:
    """Describe this broker for the others."""
    return Presence(
        listeners=addresses.row_of(state),
        http=http,
        is_draining=state.draining,
        config_digest=config_digest,
        open_steps={
            ALL: state.open_steps,
            **{name: steps for name in state.quotas if (steps := state.open_by_namespace.get(name))},
        },
        workers=workers(state),
        controls_revision=state.catalogue.revision,
        backlog=backlog,
    )
