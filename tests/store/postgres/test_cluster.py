"""Beats, takes and releases of brokers on one server, and the rule for a start under a known id."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.membership.cluster_rows import BrokerRow, ObservedBroker, Presence, TakeLanes
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.store.errors import InUse
from stepwire_broker.store.postgres.address import read_address
from stepwire_broker.store.postgres.cluster import FormerRun, PostgresCluster
from stepwire_broker.store.postgres.connecting import PostgresConnection, connect
from stepwire_broker.store.postgres.failures import ConnectionLost, StatementFailed
from stepwire_broker.store.postgres.fence import Fence, Position
from stepwire_broker.store.postgres.namesake import wait_until_silent
from stepwire_broker.store.postgres.pipeline import BEGIN, Pipeline, Statement, StatementCall
from stepwire_protocol import host

from tests.postgres.server import PostgresServer

Open = Callable[..., Pipeline]
Join = Callable[..., PostgresCluster]

LEASE_MS = 400


@pytest.fixture
def join(server: PostgresServer, schema: str) -> Iterator[Join]:
    """Adds the row of a broker, and returns its cluster."""
    clusters: list[PostgresCluster] = []

    def make(broker: str, epoch: int, **columns: object) -> PostgresCluster:
        values = {"id": broker, "epoch": epoch, "beat": 0, "lease_ms": LEASE_MS, "worker_lease_ms": 700} | columns
        names = ", ".join(values)
        marks = ", ".join(["%s"] * len(values))
        server.sql(f"INSERT INTO {schema}.brokers ({names}) VALUES ({marks})", *values.values())

        def open_connection(name: str, answer_s: float = 30.0) -> Pipeline:
            connection = connect(read_address(server.socket_url()), f"{broker} {name}")
            return Pipeline(connection, is_prepared=True, answer_s=answer_s)

        def listen(name: str) -> PostgresConnection:
            return connect(read_address(server.socket_url()), f"{broker} {name}")

        former = FormerRun(700, 55)
        clusters.append(PostgresCluster(open_connection, schema, broker, epoch, LEASE_MS, former, listen=listen))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


def rows_of(cluster: PostgresCluster) -> dict[str, BrokerRow]:
    return {row.id: row for row in cluster.beat(Presence()).brokers}


def test_a_beat_describes_the_broker_and_reads_all_rows_in_one_trip(
    server: PostgresServer, schema: str, join: Join
) -> None:
    one, two = join("b1", 1), join("b2", 2, version="1.2")
    told = Presence(
        listeners='{"host":"h"}',
        http="127.0.0.1:1",
        config_digest="d",
        open_steps={"é": 7},
        workers=3,
        controls_revision=9,
    )
    one.beat(told)
    server.sql(f"INSERT INTO {schema}.blocks (lane) VALUES (1)")
    server.sql(f"INSERT INTO {schema}.controls VALUES ('rule', 'a', 'v', 1, 12)")
    one.take(TakeLanes(1))
    server.sql(f"INSERT INTO {schema}.orders (lane, asked_ms, request) VALUES (0, 1, 'x'), (0, 1, 'x'), (1, 1, 'x')")
    beaten = one.beat(told)
    assert beaten.sent_mono <= beaten.received_mono
    assert abs(beaten.offset_ms) < 60_000
    assert [(row.id, row.epoch, row.beat) for row in beaten.brokers] == [("b1", 1, 2), ("b2", 2, 0)]
    row = beaten.brokers[0]
    assert (row.listeners, row.http, row.config_digest, row.open_steps) == (
        '{"host":"h"}',
        "127.0.0.1:1",
        "d",
        {"é": 7},
    )
    assert (row.workers, row.controls_revision, row.lease_ms, row.worker_lease_ms) == (3, 9, LEASE_MS, 700)
    assert [(lane.lane, lane.owner, lane.owner_epoch, lane.epoch) for lane in beaten.lanes] == [
        (0, "b1", 1, 1),
        (1, None, None, 0),
    ]
    assert (beaten.orders, beaten.controls_revision, beaten.blocks) == ((0,), 12, ((0, 1), (1, 0)))
    assert one.beat(told).blocks == ()
    assert two.beat(Presence()).brokers[1].version == "1.2"


def test_a_beat_of_a_replaced_run_changes_nothing_and_reads_the_new_row(
    server: PostgresServer, schema: str, join: Join
) -> None:
    one = join("b1", 1)
    server.sql(f"UPDATE {schema}.brokers SET epoch = 2, beat = 0")
    assert [(row.epoch, row.beat) for row in one.beat(Presence()).brokers] == [(2, 0)]


def test_a_beat_after_a_lost_connection_opens_another_one(server: PostgresServer, join: Join) -> None:
    one = join("b1", 1)
    one.beat(Presence())
    server.terminate_backends("b1 beat")
    with pytest.raises(ConnectionLost):
        one.beat(Presence())
    assert rows_of(one)["b1"].beat == 2


def test_a_taken_lane_comes_with_its_work_its_ids_and_the_lease_of_its_former_owner(
    server: PostgresServer, schema: str, join: Join
) -> None:
    join("b1", 1, worker_lease_ms=900)
    two = join("b2", 2)
    server.sql(f"UPDATE {schema}.lanes SET owner = 'b1', owner_epoch = 1, epoch = 1 WHERE id = 0")
    task = (
        f"INSERT INTO {schema}.tasks (id, uid, workflow_id, lane, namespace, state, cancelling, priority, "
        "context_bytes, created_ms, finished_ms, rank_ms, stored, wake_ms, wants, context)"
        " VALUES (%s, repeat('0', 32), 1, %s, %s, %s, false, 0, 2, 1, %s, 1, %s, %s, %s, '{}')"
    )
    server.sql(task, 1, 0, "default", "running", None, False, None, None)
    server.sql(task, 3, 0, "shop", "running", None, True, 5, None)
    server.sql(task, 5, 0, "shop", "running", None, True, 5, "h")
    server.sql(task, 7, 0, "shop", "completed", 9, False, None, None)
    server.sql(task, 9, 1, "shop", "running", None, False, None, None)
    for task_id in (1, 3, 5, 7, 9):
        server.sql(
            f"INSERT INTO {schema}.steps (id, task_id, position, name, handler_class, state, finished_ms, output)"
            " VALUES (%s, %s, 0, 's', 'h', %s, %s, '1')",
            task_id + 1,
            task_id,
            "completed" if task_id == 7 else "waiting",
            9 if task_id == 7 else None,
        )
    server.sql(f"INSERT INTO {schema}.blocks (number, lane, reserved) VALUES (4, 0, 100)")
    (taken,) = two.take(TakeLanes(1, (ObservedBroker("b1", 1, 0),)))
    assert (taken.lane, taken.epoch, taken.end, taken.lease_ms, taken.unproven_ms) == (0, 2, 0, 900, 0)
    assert (taken.open_tasks, taken.open_steps) == (3, {"default": 1, "shop": 2})
    assert (taken.ids[0], taken.blocks) == (4 * IDS_PER_BLOCK + 101, (4,))


def test_a_lane_of_a_former_run_waits_for_the_rest_of_its_lease(
    server: PostgresServer, schema: str, join: Join
) -> None:
    one = join("b1", 2)
    server.sql(f"UPDATE {schema}.lanes SET owner = 'b1', owner_epoch = 1 WHERE id = 0")
    first, second = one.take(TakeLanes(2))
    assert [(each.lane, each.unproven_ms) for each in (first, second)] == [(0, 55), (1, 0)]


def test_a_released_lane_is_free_and_a_stale_release_changes_nothing(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    (lane,) = one.take(TakeLanes(1))
    assert one.release(lane.lane, lane.epoch)
    assert [each.lane for each in two.take(TakeLanes(1))] == [lane.lane]
    assert not one.release(lane.lane, lane.epoch)


def test_a_broker_that_leaves_gives_all_its_lanes_up_and_marks_its_row(join: Join) -> None:
    one, two = join("b1", 1), join("b2", 2)
    one.take(TakeLanes(2))
    one.leave()
    assert rows_of(two)["b1"].is_draining
    assert len(two.take(TakeLanes(2))) == 2


def test_a_stuck_lane_is_taken_after_the_connection_that_holds_it_was_ended(
    server: PostgresServer, schema: str, join: Join, open_pipeline: Open
) -> None:
    join("b1", 1)
    two = join("b2", 2)
    server.sql(f"UPDATE {schema}.lanes SET owner = 'b1', owner_epoch = 1, epoch = 1")
    suspended = open_pipeline()
    suspended.run([BEGIN, Fence(schema).call(Position(0, 1, 1))])
    dead = (ObservedBroker("b1", 1, 0),)
    assert [lane.lane for lane in two.take(TakeLanes(2, dead))] == [1]
    assert [lane.lane for lane in two.take(TakeLanes(1, dead, served=(1,), stuck=(0,)))] == [0]
    with pytest.raises(ConnectionLost):
        suspended.run([BEGIN])


def hold_row(pipeline: Pipeline, schema: str, broker: str) -> None:
    """Leave a transaction open as a client does that is gone between the statements and the COMMIT of its beat."""
    lock = f"SELECT 1 FROM {schema}.brokers WHERE id = '{broker}' FOR NO KEY UPDATE"
    pipeline.run([BEGIN, StatementCall(Statement("hold_row", lock))])


def test_a_transaction_that_stays_open_on_a_brokers_row_is_ended_and_the_next_beat_succeeds(
    schema: str, join: Join, open_pipeline: Open
) -> None:
    one = join("b1", 1)
    hold_row(open_pipeline(), schema, "b1")
    with pytest.raises(StatementFailed, match="55P03"):
        one.beat(Presence())
    assert rows_of(one)["b1"].beat == 1


def test_a_transaction_that_stays_open_on_a_dead_brokers_row_is_ended_and_the_next_take_succeeds(
    server: PostgresServer, schema: str, join: Join, open_pipeline: Open
) -> None:
    join("b1", 1)
    two = join("b2", 2)
    server.sql(f"UPDATE {schema}.lanes SET owner = 'b1', owner_epoch = 1, epoch = 1")
    hold_row(open_pipeline(), schema, "b1")
    takes = TakeLanes(2, (ObservedBroker("b1", 1, 0),))
    with pytest.raises(StatementFailed, match="55P03"):
        two.take(takes)
    assert len(two.take(takes)) == 2


def test_a_process_of_this_host_that_has_ended_is_reported_as_gone(join: Join) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    own = host.process(os.getpid())
    assert own is not None
    one = join("b1", 1, host=host.identity(), pid=os.getpid(), pid_started=own.started)
    join("b2", 2, host=host.identity(), pid=ended.pid, pid_started=1)
    join("b3", 3, host="elsewhere", pid=ended.pid, pid_started=1)
    assert {id: row.is_gone for id, row in rows_of(one).items()} == {"b1": False, "b2": True, "b3": False}


# -- a start under a known id ------------------------------------------------------------------------------------------


def test_a_start_under_the_id_of_a_living_broker_is_refused(server: PostgresServer, schema: str, join: Join) -> None:
    one = join("b1", 1, host="elsewhere", pid=77, lease_ms=60_000)
    ended = threading.Event()

    def live() -> None:
        while not ended.is_set():
            one.beat(Presence())

    beats = threading.Thread(target=live)
    beats.start()
    try:
        with server.connect() as connection, pytest.raises(InUse, match="process 77 on the host elsewhere"):
            wait_until_silent(connection, schema, "b1")
    finally:
        ended.set()
        beats.join()


def test_a_silent_namesake_is_replaced_and_the_rest_of_its_lease_is_returned(
    server: PostgresServer, schema: str, join: Join
) -> None:
    join("b1", 1, host="elsewhere", pid=77, lease_ms=1_000)
    with server.connect() as connection:
        begun = time.monotonic()
        assert wait_until_silent(connection, schema, "b1") == 700
        assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("how", ["no row", "it has ended", "its process is gone"])
def test_a_start_does_not_wait_for_a_namesake_that_has_certainly_ended(
    server: PostgresServer, schema: str, join: Join, how: str
) -> None:
    if how == "it has ended":
        join("b1", 1, host="elsewhere", pid=77, lease_ms=3_600_000, is_draining=True)
    elif how == "its process is gone":
        ended = subprocess.Popen(["/bin/true"])
        ended.wait()
        join("b1", 1, host=host.identity(), pid=ended.pid, pid_started=1, lease_ms=3_600_000)
    with server.connect() as connection:
        assert wait_until_silent(connection, schema, "b1") == 0


def test_a_notification_reaches_the_other_brokers_of_the_schema_and_no_others(
    server: PostgresServer, schema: str, join: Join
) -> None:
    one, two = join("b1", 1), join("b2", 2)
    opened = Notification(controls=True, lanes=True)  # for everything that was missed
    assert one.receive() == opened
    assert two.receive() == opened
    one.beat(Presence())
    server.sql("SELECT pg_notify('stepwire', 'no JSON')")
    server.sql('SELECT pg_notify(\'stepwire\', \'{"schema":"another","broker":"b1","orders":[9]}\')')
    one.notify(Notification(orders=(3,), answers=(70, 80)))
    one.leave()
    assert two.receive() == Notification(orders=(3,), answers=(70, 80))
    assert two.receive() == Notification(lanes=True)
    notify = f"SELECT pg_notify('stepwire', json_build_object('schema', '{schema}', 'broker', 'b2', 'later', 1)::text)"
    server.sql(notify)
    assert one.receive() == Notification()  # of a newer version; and none of its own


def test_a_lost_connection_for_notifications_is_opened_again(server: PostgresServer, schema: str, join: Join) -> None:
    one = join("b1", 1)
    one.receive()
    server.terminate_backends("b1 listen")
    with pytest.raises(ConnectionLost):
        one.receive()
    assert one.receive() == Notification(controls=True, lanes=True)


def test_a_wait_for_notifications_ends_when_its_broker_does(server: PostgresServer, schema: str, join: Join) -> None:
    one = join("b1", 1)
    one.receive()
    threading.Timer(0.05, one.stop_receiving).start()
    assert one.receive() is None
    server.wait_for("SELECT (NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'b1 listen'))::int")
