"""A group on a real server, while its connection, its COMMIT or the server is lost: written once, and reported once."""

import contextlib
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from msgspec import structs
from stepwire_broker.core.definitions.settings import DatabaseSettings
from stepwire_broker.core.membership.cluster_rows import Presence
from stepwire_broker.core.model.commit_group import Committed, LaneLost, LostCommits, Outcome, Stalled, StepStderr
from stepwire_broker.store.errors import InUse, StoreRefused
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.postgres.database import open_database
from stepwire_broker.store.postgres.failures import NotYet
from stepwire_broker.store.postgres.fence import Fence
from stepwire_broker.store.postgres.pipeline import Pipeline
from stepwire_broker.store.retention import Retention

from tests.postgres.proxy import Plan, Proxy
from tests.postgres.server import PostgresServer
from tests.store.conformance.test_retention import DAY_MS, WEEK_AND_MONTH, end
from tests.store.running import PostgresPlace, Running, open_at
from tests.store.stored_rows import NOW, completed, dispatched, fact, submission, task_changed


@pytest.fixture
def place(server: PostgresServer) -> Iterator[PostgresPlace]:
    name = f"writer_{time.monotonic_ns()}"
    yield PostgresPlace(server, name)
    server.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def final(run: Running) -> Outcome:
    """The group's outcome, after any number of stalls."""
    while isinstance(outcome := run.outcome(), Stalled):
        pass
    return outcome


@pytest.mark.parametrize("plan", ["lose_answer", "lose_commit"])
def test_a_group_whose_commit_was_cut_is_written_once_and_reported_with_its_first_outcome(
    server: PostgresServer, place: PostgresPlace, plan: Plan
) -> None:
    with Proxy(server.port) as proxy, Running(place._replace(port=proxy.port)) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("a", b"x")})])
        proxy.plan(plan)
        batch = submission(2, 20, 30, keys={20: ("a", b"x"), 30: ("b", b"x")})
        run.put(submissions=[batch], steps_dispatched=[dispatched(11)], history=[fact(10)], reserve_ids=5)
        outcome = final(run)
        assert isinstance(outcome, Committed)
        assert outcome.submissions == [(2, {20: 10}, None, None)]
        assert outcome.ids is not None
        assert run.task_ids() == [10, 30]
        assert [row.facts for row in run.queries.task_events(10)] == ['[["submitted"]]', "[]"]
        assert run.write(reserve_ids=1).ids == (outcome.ids[1] + 1,) * 2
        assert run.outcomes.empty()


def test_a_commit_that_arrives_after_its_repetition_began_is_the_only_one(
    server: PostgresServer, place: PostgresPlace
) -> None:
    with Proxy(server.port) as proxy, Running(place._replace(port=proxy.port)) as run:
        run.workflow()
        proxy.plan("hold")
        run.put(submissions=[submission(1, 10)])
        server.wait_for("SELECT count(*) FROM pg_locks WHERE NOT granted")  # the repetition waits for the lane's row
        proxy.release()
        assert isinstance(final(run), Committed)
        assert run.task_ids() == [10]
        assert len(run.history()) == 1


def test_a_first_try_that_stays_open_on_the_server_does_not_stop_the_lane(
    server: PostgresServer, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Fence.__init__.__kwdefaults__, "lock_ms", 500)
    with Proxy(server.port) as proxy, Running(place._replace(port=proxy.port)) as run:
        run.workflow()
        proxy.plan("hold")  # for ever
        run.put(submissions=[submission(1, 10)])
        assert isinstance(final(run), Committed)
        assert run.task_ids() == [10]


def test_a_crash_of_the_server_loses_no_reported_group_and_doubles_none(
    server: PostgresServer, place: PostgresPlace
) -> None:
    with Running(place) as run:
        run.workflow()
        reported = 0
        for task_id in range(10, 610, 10):
            run.put(submissions=[submission(task_id, task_id)])
            if task_id % 200 == 0:
                server.restart("immediate")
        for _ in range(60):
            outcome = final(run)
            assert isinstance(outcome, Committed), outcome
            reported += 1
        assert reported == 60
        assert run.task_ids() == list(range(10, 610, 10))
        assert len(run.history()) == 60


def test_a_server_that_is_away_stalls_the_lane_which_then_goes_on_by_itself(
    server: PostgresServer, place: PostgresPlace
) -> None:
    with Running(place) as run:
        run.workflow()
        server.stop()
        try:
            run.put(submissions=[submission(1, 10)])
            stalled = run.outcome()
        finally:
            server.start()
        assert isinstance(stalled, Stalled)
        assert stalled.code == "database_unavailable"
        assert isinstance(final(run), Committed)
        assert run.task_ids() == [10]


def test_a_group_is_one_trip_and_two_if_it_claims_keys(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        trips: list[int] = []
        send = Pipeline.run
        monkeypatch.setattr(Pipeline, "run", lambda self, calls: trips.append(len(calls)) or send(self, calls))
        run.write(
            submissions=[submission(2, 20)],
            steps_dispatched=[dispatched(11)],
            tasks_changed=[task_changed(10, deadline_ms=1)],
            history=[fact(10)],
        )
        assert len(trips) == 1
        run.write(submissions=[submission(3, 30, keys={30: ("k", b"d")})])
        assert len(trips) == 3


def test_a_broker_whose_lane_was_taken_writes_nothing_more(server: PostgresServer, place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        server.sql(f"UPDATE {place.schema}.lanes SET owner = 'b2', owner_epoch = 99, epoch = epoch + 1")
        run.put(submissions=[submission(1, 10)])
        assert run.outcome() == LaneLost(LANE)
        assert run.task_ids() == []


def test_retention_removes_nothing_of_a_lane_that_was_taken(server: PostgresServer, place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        end(run, 10, "completed", NOW - 8 * DAY_MS)
        server.sql(f"UPDATE {place.schema}.lanes SET owner = 'b2', owner_epoch = 99, epoch = epoch + 1")
        retention = Retention(run.store._database.pruning[LANE], WEEK_AND_MONTH, wall_ms=lambda: NOW)
        with pytest.raises(NotYet, match="another broker"):
            retention.work()
        assert run.task_ids() == [10]


def test_a_lane_that_is_taken_again_is_written_by_a_new_writer(server: PostgresServer, place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        taken = run.taken
        run.store.close_lane(LANE)
        server.sql(f"UPDATE {place.schema}.lanes SET epoch = epoch + 2")
        run.store.open_lane(structs.replace(taken, epoch=taken.epoch + 2, end=run.seq))
        run.write(submissions=[submission(1, 10)])
        assert run.task_ids() == [10]


def test_a_closed_lane_reports_nothing_more(server: PostgresServer, place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        with server.connect() as other, other.transaction():
            other.execute(f"SELECT 1 FROM {place.schema}.lanes FOR UPDATE".encode())
            run.put(submissions=[submission(1, 10)])
            run.store.close_lane(LANE)
        assert run.store.close(10.0)
        assert run.outcomes.empty()


def test_lost_commits_stop_the_lane(server: PostgresServer, place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        server.sql(f"DELETE FROM {place.schema}.commits WHERE seq > 1")
        run.put(history=[fact(10)])
        outcome = run.outcome()
        assert isinstance(outcome, LostCommits)
        assert "commits were lost" in outcome.error


def wait_until_commits_wait(server: PostgresServer) -> None:
    """The server's checkpointer puts the reload in force. A commit that waits ends with its connection."""

    def commit() -> None:
        with contextlib.suppress(psycopg.Error), server.connect() as connection:
            connection.execute("SET application_name = 'probe'")
            while not is_waiting.is_set():
                connection.execute("COMMENT ON SCHEMA public IS 'probe'")

    is_waiting = threading.Event()
    thread = threading.Thread(target=commit)
    thread.start()
    try:
        server.wait_for("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    finally:
        is_waiting.set()
        server.terminate_backends("probe")
        thread.join(20)


def test_a_group_is_reported_only_after_a_standby_has_confirmed_it() -> None:
    with (
        PostgresServer({"wal_level": "replica", "max_wal_senders": "2"}) as server,
        Running(PostgresPlace(server, "confirmed")) as run,
    ):
        run.workflow()
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        server.sql("SELECT pg_reload_conf()")
        try:
            wait_until_commits_wait(server)
            run.put(submissions=[submission(1, 10)])
            waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            server.wait_for(f"SELECT count(*) {waiting}")
            server.sql(f"SELECT pg_cancel_backend(pid) {waiting}")
            assert isinstance(run.outcome(), Stalled)
            server.wait_for(f"SELECT count(*) {waiting}")  # the empty group
            server.sql(f"SELECT pg_cancel_backend(pid) {waiting}")
            server.wait_for(f"SELECT count(*) {waiting}")
            while not run.outcomes.empty():
                assert isinstance(run.outcome(), Stalled)
        finally:
            server.sql("ALTER SYSTEM RESET synchronous_standby_names")
            server.sql("SELECT pg_reload_conf()")
        assert isinstance(final(run), Committed)
        assert run.task_ids() == [10]
        assert len(run.history()) == 1


def test_text_that_the_database_cannot_store_is_parked_and_output_of_programs_is_not(place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i) for i in (10, 20)], steps_dispatched=[dispatched(i) for i in (11, 21)])
        done = run.write(
            steps_completed=[completed(11, b'"\x00"'), completed(21)], steps_stderr=[StepStderr(21, 1, "a\0b")]
        )
        assert [one.task_id for one in done.rejected] == [10]
        assert run.queries.step_stderr(21) == (21, 1, "a\N{REPLACEMENT CHARACTER}b")
        assert run.queries.step(21).state == "completed"


# -- a start ----------------------------------------------------------------------------------------------------------


def test_a_second_broker_starts_without_a_lane_while_the_first_one_owns_them(place: PostgresPlace) -> None:
    with Running(place, "b1"):
        second = open_at(place, "b2")
        assert second.opened.lanes == ()
        second.close(1.0)


def test_a_second_process_with_the_same_id_does_not_start_while_the_first_one_lives(
    server: PostgresServer, place: PostgresPlace
) -> None:
    with Running(place, "b1") as run:
        ended = threading.Event()
        assert run.store.cluster is not None
        cluster = run.store.cluster

        def live() -> None:
            while not ended.wait(0.1):
                cluster.beat(Presence())

        beats = threading.Thread(target=live)
        beats.start()
        try:
            with pytest.raises(InUse, match="in use by the broker b1"):
                open_at(place, "b1")
        finally:
            ended.set()
            beats.join()


def test_a_broker_whose_process_has_ended_is_followed_by_another_one_at_once(
    server: PostgresServer, place: PostgresPlace
) -> None:
    first = open_at(place, "b1")
    server.sql(f"UPDATE {place.schema}.brokers SET pid_started = 1")  # another process has the pid now
    with Running(place, "b2") as run:
        assert (run.taken.lane, run.taken.end) == (LANE, 0)
    assert first.close(1.0)


def test_lanes_of_a_database_are_never_fewer_than_it_has(place: PostgresPlace) -> None:
    settings: DatabaseSettings = place.settings()
    with Running(place):
        pass
    with pytest.raises(StoreRefused, match=r"database.lanes is 2, and the schema .* has 1 lanes: .*db lanes 2"):
        open_database(
            DatabaseSettings(url=settings.url, schema=settings.schema, lanes=2),
            "b1",
            lease_ms=1,
            broker_lease_ms=1_000,
            wall_ms=1,
            entropy=1,
        )
