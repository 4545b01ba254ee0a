"""Lanes change their owner, in every order of takes, beats and groups."""

import threading
from collections.abc import Callable

import pytest
from stepwire_broker.core.membership.cluster_rows import ObservedBroker
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.connecting import connect
from stepwire_broker.store.postgres.failures import StatementFailed
from stepwire_broker.store.postgres.fence import Fence, Position
from stepwire_broker.store.postgres.ownership import Ownership, TakenEnd
from stepwire_broker.store.postgres.pipeline import BEGIN, COMMIT, Pipeline, Statement, StatementCall
from stepwire_broker.store.postgres.schema import create_tables

from tests.postgres.pooler import Pooler
from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]

B1 = ObservedBroker("b1", 1, 7)


@pytest.fixture
def dead(server: PostgresServer, schema: str) -> ObservedBroker:
    """A broker that owns both lanes, at its seventh beat."""
    server.sql(f"INSERT INTO {schema}.brokers (id, epoch, beat, lease_ms, worker_lease_ms) VALUES ('b1', 1, 7, 1, 1)")
    server.sql(f"UPDATE {schema}.lanes SET owner = 'b1', owner_epoch = 1, epoch = 1")
    return B1


def beat(schema: str) -> StatementCall:
    return StatementCall(
        Statement("beat", f"UPDATE {schema}.brokers SET beat = beat + 1 WHERE id = 'b1' AND epoch = 1")
    )


def test_free_lanes_are_taken_up_to_the_wanted_number_and_with_a_new_epoch(schema: str, open_pipeline: Open) -> None:
    ownership, pipeline = Ownership(schema, "b1", 5), open_pipeline()
    assert ownership.take(pipeline, 1) == [TakenEnd(lane=0, epoch=1, end=0)]
    assert ownership.take(pipeline, 8, served=[0]) == [TakenEnd(lane=1, epoch=1, end=0)]
    assert ownership.take(pipeline, 8, served=[0, 1]) == []


def test_own_lanes_that_are_not_served_are_taken_before_free_ones(schema: str, open_pipeline: Open) -> None:
    ownership, pipeline = Ownership(schema, "b1", 5), open_pipeline()
    (first,) = ownership.take(pipeline, 1)
    assert ownership.take(pipeline, 1) == [TakenEnd(first.lane, epoch=2, end=0, former="b1")]


def test_lanes_of_a_run_that_was_replaced_are_taken_as_those_of_a_dead_one(
    server: PostgresServer, schema: str, dead: ObservedBroker, open_pipeline: Open
) -> None:
    server.sql(f"UPDATE {schema}.brokers SET epoch = 3, beat = 9")
    taken = Ownership(schema, "b2", 4).take(open_pipeline(), 8, [ObservedBroker("b1", 1, 0)])
    assert [lane.former for lane in taken] == ["b1", "b1"]


def test_lanes_of_a_former_run_of_the_same_broker_are_taken_again(schema: str, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    Ownership(schema, "b1", 5).take(pipeline, 8)
    assert Ownership(schema, "b2", 6).take(pipeline, 8) == []
    assert Ownership(schema, "b1", 7).take(pipeline, 8) == [TakenEnd(0, 2, 0, "b1"), TakenEnd(1, 2, 0, "b1")]


def test_a_dead_brokers_lanes_are_taken_with_their_ends_and_its_groups_are_refused(
    schema: str, dead: ObservedBroker, open_pipeline: Open
) -> None:
    old, new = open_pipeline(), open_pipeline()
    fence = Fence(schema)
    old.run([BEGIN, fence.call(Position(0, 1, 1)), COMMIT])
    assert Ownership(schema, "b2", 2).take(new, 8, [dead]) == [TakenEnd(0, 2, 1, "b1"), TakenEnd(1, 2, 0, "b1")]
    with pytest.raises(StatementFailed) as failed:
        old.run([BEGIN, fence.call(Position(0, 1, 2)), COMMIT])
    assert old.roll_back()
    assert fence.judge(old, Position(0, 1, 2), failed.value) == "lane_lost"


def test_a_beat_before_the_take_voids_it(
    server: PostgresServer, schema: str, dead: ObservedBroker, open_pipeline: Open
) -> None:
    living, taker = open_pipeline(), open_pipeline()
    taken: list[list[TakenEnd]] = []
    living.run([BEGIN, beat(schema)])
    take = threading.Thread(target=lambda: taken.append(Ownership(schema, "b2", 2).take(taker, 8, [dead])))
    take.start()
    server.wait_for("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    living.run([COMMIT])
    take.join(30)
    assert taken == [[]]


def test_a_lane_whose_owner_has_a_group_open_is_passed_over(
    schema: str, dead: ObservedBroker, open_pipeline: Open
) -> None:
    old, new = open_pipeline(), open_pipeline()
    old.run([BEGIN, Fence(schema).call(Position(0, 1, 1))])
    assert Ownership(schema, "b2", 2).take(new, 8, [dead]) == [TakenEnd(1, 2, 0, "b1")]
    old.run([COMMIT])
    assert Ownership(schema, "b2", 2).take(new, 8, [dead], [1]) == [TakenEnd(0, 2, 1, "b1")]


def test_two_brokers_that_take_at_the_same_instant_get_different_lanes(schema: str, open_pipeline: Open) -> None:
    pipelines = [open_pipeline() for _ in range(2)]
    taken: list[TakenEnd] = []
    threads = [
        threading.Thread(target=lambda at=at: taken.extend(Ownership(schema, f"b{at}", at).take(pipelines[at], 1)))  # type: ignore[misc]
        for at in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(lane.lane for lane in taken) in ([0, 1], [0], [1])  # a locked lane is left for the next beat
    left = Ownership(schema, "b9", 9).take(pipelines[0], 8)
    assert sorted(lane.lane for lane in [*taken, *left]) == [0, 1]


def test_a_released_lane_has_a_new_epoch_and_only_its_owner_can_release_it(schema: str, open_pipeline: Open) -> None:
    pipeline = open_pipeline()
    one, other = Ownership(schema, "b1", 1), Ownership(schema, "b2", 2)
    (lane, _) = one.take(pipeline, 2)
    assert one.release(pipeline, lane.lane, lane.epoch)
    assert not one.release(pipeline, lane.lane, lane.epoch)
    assert other.take(pipeline, 8) == [TakenEnd(0, 3, 0)]


def test_the_tables_are_made_once_when_several_brokers_start_at_the_same_instant(server: PostgresServer) -> None:
    errors: list[Exception] = []

    def create() -> None:
        try:
            with server.connect() as connection:
                create_tables(connection, "together", 3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert server.sql("SELECT id, epoch FROM together.lanes ORDER BY id") == [(1, 0), (2, 0), (3, 0)]
    assert server.sql("SELECT count(*) FROM together.commits") == [(3,)]
    server.sql("DROP SCHEMA together CASCADE")


def test_the_tables_are_made_and_lanes_are_taken_through_a_pooler(server: PostgresServer, open_pipeline: Open) -> None:
    with Pooler(server) as pooler:
        pipeline = open_pipeline(pooler.url(), is_prepared=False)
        with connect(read_address(pooler.url()), "stepwire test") as connection:
            create_tables(connection, "pooled", 2)
        assert len(Ownership("pooled", "b1", 1).take(pipeline, 8)) == 2
        pipeline.close()
    server.sql("DROP SCHEMA pooled CASCADE")
