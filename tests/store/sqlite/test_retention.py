"""Retention on SQLite: how it works in pieces, between groups, and next to other processes."""

import contextlib
import queue
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.commit_group import CommitGroup, Committed, Outcome, Parked
from stepwire_broker.store import retention
from stepwire_broker.store.lane import Lane, Trouble
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.retention import Pruned, Retention
from stepwire_broker.store.rows import TaskFilter
from stepwire_broker.store.sqlite import opening
from stepwire_broker.store.sqlite.pruning import SqlitePruning
from stepwire_broker.store.sqlite.queries import SqliteQueries
from stepwire_broker.store.sqlite.writer import OwnedLane, SqliteWriter
from structlog.testing import capture_logs

from tests.store.running import PATIENCE_S, Running
from tests.store.stored_rows import NOW, completed, fact, step_changed, step_new, submission, task_changed

DAY_MS = 24 * 3600 * 1000
WEEK_AND_MONTH = RetentionSettings(completed_ms=7 * DAY_MS, failed_ms=30 * DAY_MS)
TABLES = ("tasks", "steps", "history", "keys")


class Clock:
    """Does not move, or moves by `step_s` with every reading."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@contextlib.contextmanager
def retaining(
    path: Path, kept: RetentionSettings = WEEK_AND_MONTH, now_ms: int = NOW, clock: Clock | None = None
) -> Iterator[tuple[Retention, SqliteWriter]]:
    """Retention on a database that no broker has open; the test calls its pieces."""
    connection = opening.open_writer(path)
    try:
        writer = SqliteWriter(connection, path, OwnedLane(LANE, 1, 0))
        yield Retention(SqlitePruning(writer), kept, wall_ms=lambda: now_ms, mono_s=clock or Clock()), writer
    finally:
        connection.close()


def work(retention: Retention, pieces_max: int = 1_000) -> Pruned:
    """Work until the run is over."""
    for _ in range(pieces_max):
        if (run := retention.work()) is not None:
            return run
    raise AssertionError("the run does not end")


def prune(path: Path, kept: RetentionSettings = WEEK_AND_MONTH, now_ms: int = NOW) -> Pruned:
    with retaining(path, kept, now_ms) as (retention, _):
        return work(retention)


def end(run: Running, task_id: int, state: str, at_ms: int, steps: int = 2) -> None:
    """Store that this task and all its steps ended."""
    final = "cancelled" if state == "cancelled" else "failed"
    done = (
        [completed(task_id + 1 + i)._replace(finished_ms=at_ms) for i in range(steps)] if state == "completed" else []
    )
    changed = [] if done else [step_changed(task_id + 1 + i, final, finished_ms=at_ms) for i in range(steps)]
    run.write(
        steps_completed=done,
        steps_changed=changed,
        tasks_changed=[task_changed(task_id, state=state, finished_ms=at_ms)],
        history=[fact(task_id)],
    )


def left(path: Path) -> dict[str, list[int]]:
    """By table, the tasks that have rows left."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        column = {"tasks": "id"}
        return {
            table: [
                row[0]
                for row in connection.execute(
                    f"SELECT DISTINCT {column.get(table, 'task_id')} AS t FROM {table} ORDER BY t"  # noqa: S608
                )
            ]
            for table in TABLES
        }


def note(path: Path, name: str) -> Any:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else msgspec.json.decode(row[0])


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_a_task_with_a_held_step_is_logged_and_kept_whatever_its_row_says(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20)])
        end(run, 10, "completed", NOW - 9 * DAY_MS)
        end(run, 20, "completed", NOW - 8 * DAY_MS)
        run.write(steps_changed=[step_changed(12, "held")])
    before = left(database)
    with capture_logs() as logs:
        assert prune(database).tasks == 1
    assert [line["task_id"] for line in logs if line["event"] == "task_is_not_over"] == [10]
    assert left(database) == {table: [i for i in ids if i == 10] for table, ids in before.items()}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (2,)


def test_a_huge_task_with_a_held_step_at_its_end_loses_nothing(database: Path) -> None:
    _store_large(database, steps=300, last="held")
    with retaining(database, clock=Clock(step_s=1.0)) as (retention, _):
        assert work(retention).is_empty
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM steps WHERE task_id = 10").fetchone() == (300,)


# -- in pieces --------------------------------------------------------------------------------------------------------


def _store_large(path: Path, steps: int, last: str = "completed") -> None:
    """Store task 10, which has ended and has this number of steps, and task 5000, which is open."""
    at_ms = NOW - 8 * DAY_MS
    with Running(path) as run:
        run.workflow()
        large = submission(1, 10, keys={10: ("k", b"d")})._replace(
            steps=[step_new(11 + i, 10, i) for i in range(steps)]
        )
        run.write(submissions=[large, submission(2, 5000)])
        end(run, 10, "completed", at_ms, steps)
        if last != "completed":
            run.write(steps_changed=[step_changed(10 + steps, last)])


def test_a_task_that_does_not_fit_into_a_piece_is_hidden_and_removed_by_the_next_pieces(database: Path) -> None:
    _store_large(database, steps=300)
    with retaining(database, clock=Clock(step_s=1.0)) as (retention, writer):
        assert retention.work() is None
        assert writer.partly_removed == {10}
        assert note(database, "pruning") == [10]
        (steps,) = writer.execute("SELECT count(*) FROM steps WHERE task_id = 10").fetchone()
        assert 0 < steps < 300
        with contextlib.closing(opening.open_reader(database)) as reader:
            queries = SqliteQueries(reader)
            assert queries.load_tasks([10, 5000], 1 << 20).tasks[0].id == 5000
            assert queries.task(10) is None
            assert [row.id for row in queries.tasks(TaskFilter())] == [5000]
            # A late result of it is traced to an ended task, and acked.
            assert queries.tasks_of_steps([10 + 300])[10 + 300].state == "completed"
        assert work(retention).tasks == 1
        assert writer.partly_removed == set()
    assert left(database) == {"tasks": [5000], "steps": [5000], "history": [5000], "keys": []}
    assert note(database, "pruning") is None


def test_another_process_continues_where_one_was_killed(database: Path) -> None:
    _store_large(database, steps=300)
    with retaining(database, clock=Clock(step_s=1.0)) as (retention, _):
        retention.work()
        assert note(database, "pruning") == [10]
    # By this clock no task is old enough: a removal that began is finished all the same.
    assert prune(database, now_ms=0).tasks == 1
    assert left(database)["steps"] == [5000]
    assert note(database, "pruning") is None


def test_a_removed_or_partly_removed_task_cannot_be_changed(database: Path) -> None:
    """The case of an operator's retry that was decided on rows read before their removal."""
    _store_large(database, steps=300)
    reopened = task_changed(10)
    with retaining(database, clock=Clock(step_s=1.0)) as (retention, writer):
        for is_removed in (False, True):
            if is_removed:
                work(retention)
            else:
                retention.work()
            reports: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
            lane = Lane(0, _Unclosed(writer), reports.put)
            lane.start()
            (seq,) = writer.execute("SELECT seq FROM lanes").fetchone()
            group = CommitGroup(
                lane=LANE, seq=seq + 1, tasks_changed=[reopened, task_changed(5000)], history=[fact(10), fact(5000)]
            )
            lane.put(group)
            outcome = reports.get(timeout=PATIENCE_S)
            lane.close(PATIENCE_S)
            assert isinstance(outcome, Committed)
            assert [rejected.task_id for rejected in outcome.rejected] == [10]
            assert "was removed" in outcome.rejected[0].error
            (written,) = writer.execute(
                "SELECT count(*) FROM history WHERE task_id = 5000 AND seq = ?", (seq + 1,)
            ).fetchone()
            assert written == 1
    assert left(database)["history"] == [5000]


class _Unclosed:
    """The writer, which outlives the lane."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def close(self) -> None:
        pass


def test_a_slow_piece_makes_the_next_piece_smaller(database: Path) -> None:
    pieces = {}
    for step_s in (0.0, 1.0):
        _store_many(database, 400)
        with retaining(database, clock=Clock(step_s)) as (retained, _):
            pieces[step_s] = 1
            while retained.work() is None:
                pieces[step_s] += 1
        assert left(database)["tasks"] == []
    assert 2 * pieces[0.0] < pieces[1.0] <= 800 / retention.STEPS_MIN * 2


def test_a_run_takes_a_tenth_of_the_time_and_half_when_it_is_late_or_requested(database: Path) -> None:
    kept = RetentionSettings(completed_ms=7 * DAY_MS, failed_ms=30 * DAY_MS)
    for late_ms, is_asked, times in ((60_000, False, 10), (2 * retention.BEHIND_MS, False, 2), (60_000, True, 2)):
        database.unlink(missing_ok=True)
        _store_many(database, 20, at_ms=NOW - 7 * DAY_MS - late_ms)
        clock = Clock()
        with retaining(database, kept, clock=clock) as (retained, _):
            if is_asked:
                retained.ask()
            clock.step_s = 0.001
            began_s = clock.now_s
            retained.work()
            clock.step_s = 0.0
            took_s = clock.now_s - began_s
            assert (times - 1) / 2 < retained.pause_s() / took_s < (times - 1) * 2


def _store_many(path: Path, count: int, at_ms: int = NOW - 8 * DAY_MS) -> None:
    with Running(path) as run:
        run.workflow()
        ids = [10 * (i + 1) for i in range(count)]
        run.write(submissions=[submission(1, *ids)])
        run.write(
            steps_completed=[completed(i + 1 + k)._replace(finished_ms=at_ms) for i in ids for k in range(2)],
            tasks_changed=[task_changed(i, state="completed", finished_ms=at_ms) for i in ids],
            history=[fact(i) for i in ids],
        )


def test_the_space_of_removed_rows_is_used_again(database: Path) -> None:
    sizes = []
    for _ in range(4):
        _store_many(database, 300)
        prune(database)
        with contextlib.closing(sqlite3.connect(database)) as connection:
            sizes.append(connection.execute("PRAGMA page_count").fetchone()[0])
    assert sizes[3] <= sizes[0] * 1.1


# -- between groups ---------------------------------------------------------------------------------------------------


class Restless:
    """Upkeep that always has a piece to do."""

    def __init__(self) -> None:
        self.pieces = 0

    def pause_s(self) -> float:
        return 0.0

    def work(self) -> None:
        self.pieces += 1

    def is_hindered(self, trouble: Trouble) -> None:
        raise AssertionError(trouble)


def test_a_group_waits_for_at_most_one_piece(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
    with retaining(database) as (_, writer):
        reports: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        upkeep = Restless()
        lane = Lane(0, _Unclosed(writer), reports.put, upkeep=upkeep)
        (seq,) = writer.execute("SELECT seq FROM lanes").fetchone()
        for i in range(20):
            lane.put(CommitGroup(lane=LANE, seq=seq + 1 + i, history=[]))
        pieces: list[int] = []
        lane._report = lambda outcome: (pieces.append(upkeep.pieces), reports.put(outcome))  # type: ignore[assignment]
        lane.start()
        for _ in range(20):
            assert isinstance(reports.get(timeout=PATIENCE_S), Committed)
        lane.close(PATIENCE_S)
    assert [after - before for before, after in zip([0, *pieces], pieces, strict=False)] == [1] * 20


def test_an_idle_broker_prunes_and_logs_the_run_once(database: Path) -> None:
    kept = RetentionSettings(completed_ms=1, failed_ms=1)
    with capture_logs() as logs, Running(database, retention=kept) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20)])
        end(run, 10, "completed", NOW)
        eventually(lambda: left(database)["tasks"] == [20])
        eventually(lambda: note(database, "pruned") is not None)
    pruned = note(database, "pruned")
    assert (pruned["tasks"], pruned["steps"], pruned["parked"]) == (1, 2, 0)
    assert pruned["started_ms"] <= pruned["ended_ms"]
    runs = [line for line in logs if line["event"] == "pruned"]
    assert [(line["tasks"], line["steps"], line["history"]) for line in runs] == [(1, 2, 2)]


def test_a_requested_run_begins_at_once(database: Path) -> None:
    with Running(database, retention=RetentionSettings(completed_ms=DAY_MS, failed_ms=DAY_MS)) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        end(run, 10, "completed", NOW)  # NOW is long ago, and the next look would be in a minute
        run.store.prune()
        eventually(lambda: left(database)["tasks"] == [])


def test_a_busy_broker_writes_its_groups_while_it_prunes(database: Path) -> None:
    _store_many(database, 400, at_ms=NOW - 40 * DAY_MS)
    with Running(database, retention=RetentionSettings(completed_ms=DAY_MS, failed_ms=DAY_MS)) as run:
        written = 0
        while left(database)["tasks"] != [] and written < 5_000:
            run.write(history=[fact(7)])
            written += 1
        eventually(lambda: note(database, "pruned") is not None)
        assert run.sql("SELECT count(*) FROM history WHERE task_id = 7") == [(written,)]
    assert note(database, "pruned")["tasks"] == 400


def test_a_locked_database_is_tried_again_later(database: Path) -> None:
    _store_many(database, 5)
    clock = Clock()
    with (
        retaining(database, clock=clock) as (retained, writer),
        contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as raised:
            retained.work()
        trouble = writer.trouble(raised.value)
        assert trouble.kind == "passing"
        retained.is_hindered(trouble)
        assert retained.pause_s() == retention.TROUBLE_PAUSE_S
        other.execute("ROLLBACK")
        clock.now_s += retention.TROUBLE_PAUSE_S
        assert work(retained).tasks == 5


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, "not within its time"
        time.sleep(0.005)


# -- refused input ----------------------------------------------------------------------------------------------------


def park(path: Path, *rows: tuple[int, int]) -> None:
    """(at_ms, bytes) of each."""
    with Running(path) as run:
        for start in range(0, len(rows), 500):
            part = rows[start : start + 500]
            run.write(parked=[Parked(at_ms, None, None, "bad", "test", b"x" * size) for at_ms, size in part])


def parked(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM parked ORDER BY id")]


def test_the_newest_refused_inputs_are_kept(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PARKED_ROWS_MAX", 100)
    park(database, *[(NOW, 1)] * 1_300)
    assert prune(database).parked == 1_200
    assert parked(database) == list(range(1_201, 1_301))


def test_refused_input_is_kept_up_to_a_number_of_bytes(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PARKED_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(retention, "BYTES_MAX", 300_000)
    park(database, *[(NOW, 250_000)] * 9)
    with retaining(database) as (retained, writer):
        assert work(retained).parked == 5
        assert parked(database) == [6, 7, 8, 9]
        writer.execute("INSERT INTO parked (at_ms, code, source, body) VALUES (?, 'bad', 'test', ?)", (NOW, b"y"))
        assert work(retained).parked == 1
    assert parked(database) == [7, 8, 9, 10]
