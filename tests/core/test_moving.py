"""An operator moves a lane: its owner releases it for the named broker. Other brokers pass the command on."""

from typing import Any

import pytest
from stepwire_broker.core.membership.cluster_rows import Beaten, BrokerRow, LaneOwner
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.sharing.moving import LaneMoves, MoveLane
from stepwire_broker.store.ports import LANE

from .world import BROKER, World

FOREIGN = LANE + 1
FREE = LANE + 2


def three() -> World:
    """A broker that owns the first lane. `b2` owns the second one, no broker the third, and `b3` is stopping."""
    world = World(lanes=3, own=[LANE])
    world.state.members = Members(BROKER, 7, "1", 10_000, world.mono)
    world.handle(
        Beaten(
            sent_mono=world.mono,
            received_mono=world.mono,
            brokers=(
                BrokerRow(id=BROKER, epoch=7, beat=1, lease_ms=10_000, version="1"),
                BrokerRow(id="b2", epoch=8, beat=5, lease_ms=10_000, version="1"),
                BrokerRow(id="b3", epoch=9, beat=5, lease_ms=10_000, version="1", is_draining=True),
            ),
            lanes=(
                LaneOwner(LANE, BROKER, 7, world.state.lanes[LANE].epoch),
                LaneOwner(FOREIGN, "b2", 8, 1),
                LaneOwner(FREE, None, None, 1),
            ),
        )
    )
    return world


def test_the_owner_releases_the_lane_for_the_named_broker() -> None:
    world = three()
    assert world.ask(MoveLane, lane=LANE, to="b2", by="ann") == LaneMoves(LANE, BROKER, "b2")
    release = world.state.lanes[LANE].release
    assert release is not None
    assert release.to == "b2"
    row = world.rows.tables.audit[-1]
    assert (row.principal, row.action, row.target, row.detail) == ("ann", "move_lane", f"lane {LANE}", '{"to":"b2"}')


def test_a_lane_that_stays_with_its_owner_is_not_released() -> None:
    world = three()
    assert world.ask(MoveLane, lane=LANE, to=BROKER) == LaneMoves(LANE, BROKER, BROKER)
    assert world.state.lanes[LANE].release is None
    assert world.rows.tables.audit[-1].outcome == "unchanged"


def test_a_move_of_another_brokers_lane_becomes_an_order_for_that_broker() -> None:
    world = three()
    assert world.ask(MoveLane, lane=FOREIGN, to=BROKER, by="ann") is None
    (order,) = world.orders
    assert order.lane == FOREIGN
    assert order.command == MoveLane(1, FOREIGN, BROKER, by="ann", request_id="7.1")


def test_an_order_to_move_a_lane_is_carried_out_by_its_owner() -> None:
    world = three()
    order = world.order(MoveLane, lane_of_order=LANE, lane=LANE, to="b2", by="ann")
    world.look()
    assert world.order_answer(order) == LaneMoves(LANE, BROKER, "b2")


@pytest.mark.parametrize(
    ("lane", "to", "code", "text"),
    [
        (LANE, "b9", "not_found", "no broker b9 is alive; alive are b1, b2, b3"),
        (LANE, "b3", "wrong_state", "the broker b3 is stopping"),
        (99, "b2", "not_found", f"there is no lane 99; the lanes are {LANE} to {FREE}"),
        (FREE, "b2", "wrong_state", "has no owner at this moment"),
    ],
)
def test_a_move_that_cannot_be_made_is_refused_with_the_reason(lane: int, to: str, code: str, text: str) -> None:
    world = three()
    refused: Any = world.ask(MoveLane, lane=lane, to=to)
    assert refused.code == code
    assert text in refused.message
    assert world.state.lanes[LANE].release is None


def test_a_broker_with_a_database_of_its_own_moves_nothing() -> None:
    refused: Any = World().ask(MoveLane, lane=LANE, to="b2")
    assert refused.code == "wrong_state"
