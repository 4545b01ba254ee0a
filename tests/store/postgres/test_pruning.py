"""Retention on a server: whole tasks in one trip, and pieces that suit the time of a trip."""

import itertools

import pytest
from stepwire_broker.store.postgres.failures import NotYet
from stepwire_broker.store.postgres.pipeline import Pipeline
from stepwire_broker.store.retention import STEPS_MIN

from tests.postgres.server import PostgresServer
from tests.store.conformance.test_retention import DAY_MS, end, retaining
from tests.store.running import PostgresPlace, Running
from tests.store.stored_rows import NOW, completed, fact, step_changed, step_new, submission, task_changed

_NUMBERS = itertools.count(1)


@pytest.fixture
def place(server: PostgresServer) -> PostgresPlace:
    return PostgresPlace(server, f"pruning_{next(_NUMBERS)}")


def ended(run: Running, tasks: int, first: int = 10) -> None:
    """Store tasks of two steps that ended long ago."""
    ids = range(first, first + 10 * tasks, 10)
    run.write(submissions=[submission(1, *ids)])
    run.write(
        steps_completed=[completed(i + n)._replace(finished_ms=NOW) for i in ids for n in (1, 2)],
        tasks_changed=[task_changed(i, state="completed", finished_ms=NOW - 8 * DAY_MS) for i in ids],
        history=[fact(i) for i in ids],
    )


def test_a_piece_of_whole_tasks_is_one_trip(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(place) as run:
        run.workflow()
        trips: list[int] = []
        ended(run, 1)
        with retaining(run) as retention:
            assert retention.work() is None  # reads what an earlier process left
            ended(run, 20, first=100)
            send = Pipeline.run
            monkeypatch.setattr(Pipeline, "run", lambda self, calls: trips.append(len(calls)) or send(self, calls))
            assert retention.work() is None
            assert len(trips) == 1
            assert retention.so_far.tasks == 21
            assert run.task_ids() == []


def test_pieces_grow_where_a_trip_takes_longer_than_the_work(place: PostgresPlace) -> None:
    """The clock moves by 20 ms at every look, as if the network took that long."""
    with Running(place) as run:
        run.workflow()
        ended(run, 1)
        with retaining(run, step_s=0.02) as retention:
            assert retention.work() is None
            ended(run, 600, first=100)
            pieces = 0
            while retention.so_far.tasks < 601:
                assert retention.work() is None
                pieces += 1
    assert pieces < 600 * 2 / STEPS_MIN / 2


def test_a_task_too_large_for_a_trip_is_removed_in_slices(place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        large = submission(1, 10)._replace(steps=[step_new(11 + i, 10, i) for i in range(300)])
        run.write(submissions=[large])
        end(run, 10, "completed", NOW - 9 * DAY_MS, steps=300)
        ended(run, 3, first=1000)
        with retaining(run) as retention:
            while (pruned := retention.work()) is None:
                pass
        assert (pruned.tasks, pruned.steps) == (4, 306)
        assert run.task_ids() == []


def test_a_task_with_a_held_step_is_left_out_of_a_trip(place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        ended(run, 1)
        with retaining(run) as retention:
            assert retention.work() is None
            ended(run, 3, first=100)
            run.write(steps_changed=[step_changed(112, "held")])
            assert retention.work() is None
            assert retention.so_far.tasks == 3
        assert run.task_ids() == [110]
        assert [step.id for step in run.stored_steps(110)] == [111, 112]


def test_a_broker_that_has_lost_the_lane_removes_nothing(server: PostgresServer, place: PostgresPlace) -> None:
    with Running(place) as run:
        run.workflow()
        ended(run, 1)
        with retaining(run) as retention:
            assert retention.work() is None
            ended(run, 3, first=100)
            server.sql(f"UPDATE {place.schema}.lanes SET owner = 'b2', owner_epoch = 99, epoch = epoch + 1")
            with pytest.raises(NotYet, match="belongs to another broker"):
                retention.work()
        assert len(run.task_ids()) == 3
