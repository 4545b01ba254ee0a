"""Beats, takes and releases of several brokers, on each store that several brokers can use at a time."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from stepwire_broker.core.membership.cluster_rows import (
    BrokerRow,
    LaneOwner,
    ObservedBroker,
    Presence,
    RouteLoad,
    TakeLanes,
)
from stepwire_broker.store.clocks import read_clocks
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.cluster import PostgresCluster
from stepwire_broker.store.postgres.connecting import connect
from stepwire_broker.store.postgres.pipeline import Pipeline
from stepwire_broker.store.postgres.schema import create_tables

from tests.memory_store.cluster import MemoryCluster
from tests.memory_store.tables import Tables
from tests.postgres.server import PostgresServer

LEASE_MS, WORKER_LEASE_MS = 400, 700
FIRST, SECOND = LANE, LANE + 1
_NUMBERS = itertools.count(1)


class AnyCluster(Protocol):
    """The port `Cluster`, as both stores implement it."""

    beat: Callable[[Presence], Any]
    take: Callable[[TakeLanes], Any]
    release: Callable[..., bool]
    leave: Callable[[], None]


Join = Callable[[str, int], AnyCluster]


@pytest.fixture(params=["memory", "postgresql"])
def join(request: pytest.FixtureRequest) -> Iterator[Join]:
    """Adds the row of a broker to a database with two lanes, and returns the broker's cluster."""
    yield from _in_memory() if request.param == "memory" else _on_a_server(request.getfixturevalue("server"))


def _in_memory() -> Iterator[Join]:
    tables = Tables(lanes=2)

    def make(broker: str, epoch: int) -> AnyCluster:
        cluster = MemoryCluster(tables, broker, epoch, LEASE_MS, read_clocks)
        cluster.start("1", WORKER_LEASE_MS)
        return cluster

    yield make


def _on_a_server(server: PostgresServer) -> Iterator[Join]:
    schema = f"cluster_{next(_NUMBERS)}"
    clusters: list[PostgresCluster] = []
    with server.connect() as connection:
        create_tables(connection, schema, lanes=2)

    def open_connection(name: str, answer_s: float = 30.0) -> Pipeline:
        return Pipeline(connect(read_address(server.socket_url()), name), is_prepared=True, answer_s=answer_s)

    def make(broker: str, epoch: int) -> AnyCluster:
        server.sql(
            f"INSERT INTO {schema}.brokers (id, epoch, beat, lease_ms, worker_lease_ms) VALUES (%s, %s, 0, %s, %s) "  # noqa: S608
            "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, beat = 0, is_draining = false",
            *(broker, epoch, LEASE_MS, WORKER_LEASE_MS),
        )
        clusters.append(PostgresCluster(open_connection, schema, broker, epoch, LEASE_MS))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
    server.sql(f"DROP SCHEMA {schema} CASCADE")


def row_of(cluster: AnyCluster, broker: str) -> BrokerRow:
    return next(row for row in cluster.beat(Presence()).brokers if row.id == broker)


def owners(cluster: AnyCluster) -> list[LaneOwner]:
    return list(cluster.beat(Presence()).lanes)


def taken(cluster: AnyCluster, most: int, *dead: ObservedBroker, served: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    return [(lane.lane, lane.epoch) for lane in cluster.take(TakeLanes(most, dead, served))]


def test_a_beat_changes_the_own_row_and_reads_those_of_all_brokers_and_lanes(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    load = RouteLoad("shop::H", "bus", (("gpu", "true"),), (), 4, 1, 99)
    presence = Presence(workers=3, open_steps={"shop": 4}, listeners="{}", http="h", config_digest="d", backlog=(load,))
    two.beat(presence)
    beaten = one.beat(Presence())
    assert [(row.id, row.epoch, row.beat) for row in beaten.brokers] == [("b1", 1, 1), ("b2", 2, 1)]
    other = beaten.brokers[1]
    assert (other.workers, dict(other.open_steps), other.listeners, other.http) == (3, {"shop": 4}, "{}", "h")
    assert (other.backlog, beaten.brokers[0].backlog) == ((load,), ())
    assert [(lane.lane, lane.owner, lane.epoch) for lane in beaten.lanes] == [(FIRST, None, 0), (SECOND, None, 0)]
    assert beaten.sent_mono <= beaten.received_mono


def test_a_run_that_was_replaced_changes_no_row(join: Join) -> None:
    one = join("b1", 1)
    join("b1", 2)
    assert (row_of(one, "b1").epoch, row_of(one, "b1").beat) == (2, 0)


def test_free_lanes_are_taken_up_to_the_wanted_number_and_not_from_a_living_broker(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    assert taken(one, 1) == [(FIRST, 1)]
    assert taken(two, 2) == [(SECOND, 1)]
    assert [(lane.owner, lane.owner_epoch) for lane in owners(one)] == [("b1", 1), ("b2", 2)]


def test_lanes_of_a_dead_broker_are_taken_unless_it_has_beaten_meanwhile(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    taken(one, 2)
    seen = ObservedBroker("b1", 1, row_of(two, "b1").beat)
    one.beat(Presence())
    assert taken(two, 2, seen) == []
    seen = ObservedBroker("b1", 1, row_of(two, "b1").beat)
    (first, second) = two.take(TakeLanes(2, (seen,)))
    assert (first.epoch, second.epoch, first.lease_ms) == (2, 2, WORKER_LEASE_MS)


def test_own_lanes_that_are_not_served_are_taken_again_before_free_ones(join: Join) -> None:
    one = join("b1", 1)
    taken(one, 1)
    assert taken(one, 1) == [(FIRST, 2)]
    assert taken(one, 2, served=(FIRST,)) == [(SECOND, 1)]
    again = join("b1", 3)
    assert taken(again, 2) == [(FIRST, 3), (SECOND, 2)]


def test_lanes_of_a_replaced_run_are_taken_by_others(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    taken(one, 2)
    join("b1", 3)
    assert taken(two, 1, ObservedBroker("b1", 1, 0)) == [(FIRST, 2)]


@pytest.mark.parametrize("to", [None, "b2"])
def test_a_released_lane_is_taken_by_another_broker_and_a_stale_release_changes_nothing(
    join: Join, to: str | None
) -> None:
    one, two = join("b1", 1), join("b2", 2)
    taken(one, 2)
    assert one.release(FIRST, 1, to)
    assert owners(one)[0] == (LaneOwner(FIRST, None, None, 2) if to is None else LaneOwner(FIRST, "b2", 2, 2))
    assert taken(two, 2) == [(FIRST, 3)]
    assert not one.release(FIRST, 1, to)


def test_a_lane_that_is_released_to_a_broker_which_has_ended_is_free(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    taken(one, 2)
    two.leave()
    assert one.release(FIRST, 1, "b2")
    assert one.release(SECOND, 1, "b9")
    assert [lane.owner for lane in owners(one)] == [None, None]


def test_a_broker_that_leaves_gives_all_its_lanes_up_and_marks_its_row(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    taken(one, 2)
    one.leave()
    assert row_of(two, "b1").is_draining
    assert len(taken(two, 2)) == 2
