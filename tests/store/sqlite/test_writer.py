"""The writer on SQLite: kill -9, lost outcomes, locks, a full disk, a broken disk, and data that SQLite refuses."""

import contextlib
import os
import queue
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepwire_broker.core.model.commit_group import (
    Broken,
    CommitGroup,
    Committed,
    ControlChanged,
    LaneLost,
    Parked,
    Stalled,
)
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.sqlite import opening
from stepwire_broker.store.sqlite.troubles import trouble_of

from tests.store.running import PATIENCE_S, Running
from tests.store.stored_rows import NOW, dispatched, fact, submission, task_changed, workflow_new


class Raises:
    """Fails the writer `times` times, before or after COMMIT."""

    def __init__(self, error: Exception, times: int, after: bool) -> None:
        self.error, self.times, self.after = error, times, after

    def before_commit(self, group: CommitGroup) -> None:
        if not self.after:
            self._strike()

    def after_commit(self, group: CommitGroup) -> None:
        if self.after:
            self._strike()

    def _strike(self) -> None:
        if self.times:
            self.times -= 1
            raise self.error


def io_error(code: int = sqlite3.SQLITE_IOERR_WRITE) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_IOERR"
    return error


# -- controls ---------------------------------------------------------------------------------------------------------


def test_the_highest_revision_of_the_controls_rises_with_every_change(database: Path) -> None:
    """A broker that shares the database reads what is newer than the highest revision it knows."""
    changes = [
        ControlChanged("rule", "a::**", "1", 1),
        ControlChanged("rule", "b::**", "2", 2),
        ControlChanged("rule", "a::**", "3", 1),
        ControlChanged("rule", "a::**", None, 0),
        ControlChanged("rule", "never set", None, 0),
        ControlChanged("rule", "b::**", None, 0),
    ]
    highest = []
    with Running(database) as run, contextlib.closing(sqlite3.connect(database)) as connection:
        for change in changes:
            run.write(controls=[change])
            highest.append(connection.execute("SELECT max(revision) FROM controls").fetchone()[0])
        rows = connection.execute("SELECT kind, name, value FROM controls").fetchall()
    assert highest == [1, 2, 3, 4, 5, 6]
    assert rows == [("removed", "rule", None)]


# -- durable, once ----------------------------------------------------------------------------------------------------

_WRITES_AND_REPORTS = """
import sys
from pathlib import Path
from tests.store.running import Running
from tests.store.stored_rows import submission

run = Running(Path(sys.argv[1]))
run.workflow()
for task_id in range(10, 10_000_000, 10):
    run.write(submissions=[submission(task_id, task_id)])
    print(task_id, flush=True)
"""


def test_every_group_that_was_reported_committed_is_stored_after_kill_minus_9(database: Path) -> None:
    with _python(_WRITES_AND_REPORTS, str(database)) as process:
        reported = [int(_line(process)) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        reported += [int(line) for line in process.stdout.read().split()]
    with Running(database) as run:
        stored = [row[0] for row in run.sql("SELECT id FROM tasks ORDER BY id")]
        # At most one group, the one that was being written, is stored without a report.
        assert stored[: len(reported)] == reported
        assert len(stored) <= len(reported) + 1
        assert run.taken.end == len(stored) + 1
        assert run.opened.epoch == 2


def test_a_lost_outcome_is_found_in_the_database_and_the_group_is_written_once(database: Path) -> None:
    faults = Raises(io_error(), times=0, after=True)
    with Running(database, faults=faults) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"d")})])
        faults.times = 1
        run.put(
            submissions=[submission(2, 20, keys={20: ("k", b"d")}), submission(3, 30)],
            reserve_ids=100,
            history=[fact(10)],
            parked=[Parked(NOW, None, None, "code", "w", b"")],
        )
        assert isinstance(run.outcome(), Stalled)
        committed = run.outcome()
        assert isinstance(committed, Committed)
        assert [(o.request, o.existing) for o in committed.submissions] == [(2, {20: 10}), (3, {})]
        assert committed.ids == (10_001, 10_100)
        assert run.write(reserve_ids=1).ids == (10_101, 10_101)
        assert run.sql("SELECT count(*) FROM history WHERE seq = 3") == [(2,)]
        assert run.sql("SELECT count(*) FROM parked") == [(1,)]


def test_a_commit_whose_answer_was_lost_is_not_repeated(database: Path) -> None:
    """The case of a connection that breaks between the server's COMMIT and its answer."""
    with Running(database) as run:
        run.workflow()
        writer = run.store._database.writers[LANE]
        commit, answers = writer.commit, ["lost"]

        def commit_and_lose_the_answer() -> None:
            commit()
            if answers:
                answers.pop()
                raise io_error()

        writer.commit = commit_and_lose_the_answer  # type: ignore[method-assign]
        run.put(submissions=[submission(1, 10)], reserve_ids=5)
        assert isinstance(run.outcome(), Stalled)
        done = run.outcome()
        assert isinstance(done, Committed)
        assert done.ids == (10_001, 10_005)
        assert run.sql("SELECT count(*) FROM history") == [(1,)]


def test_a_group_with_an_error_before_its_commit_is_written_again_from_the_beginning(database: Path) -> None:
    faults = Raises(io_error(), times=0, after=False)
    with Running(database, faults=faults) as run:
        run.workflow()
        faults.times = 2
        run.put(submissions=[submission(1, 10)], history=[fact(10)])
        stalled = run.outcome()
        assert isinstance(stalled, Stalled)
        assert (stalled.code, stalled.seq) == ("database_unavailable", 2)
        assert isinstance(run.outcome(), Committed)
        assert run.sql("SELECT count(*) FROM history") == [(2,)]


# -- fenced -----------------------------------------------------------------------------------------------------------


def test_a_broker_that_has_lost_its_lane_writes_nothing(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        with contextlib.closing(sqlite3.connect(database)) as other, other:
            other.execute("UPDATE lanes SET epoch = epoch + 1")
        run.put(submissions=[submission(1, 10)])
        run.put(submissions=[submission(2, 20)])
        assert run.outcome() == LaneLost(LANE)
        assert run.sql("SELECT count(*) FROM tasks") == [(0,)]
        run.close()
        with pytest.raises(queue.Empty):
            run.outcomes.get_nowait()


# -- the database is away ---------------------------------------------------------------------------------------------

_HOLDS_THE_DATABASE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_a_database_locked_by_another_process_stalls_and_recovers_by_itself(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        with _python(_HOLDS_THE_DATABASE, str(database)) as process:
            assert _line(process) == "held"
            run.put(submissions=[submission(1, 10)])
            stalled = run.outcome()
            assert isinstance(stalled, Stalled)
            assert (stalled.code, stalled.seq) == ("database_locked", 2)
            # The stall is reported again while it lasts, so that a late listener sees it too.
            assert isinstance(run.outcome(), Stalled)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            while isinstance(outcome := run.outcome(), Stalled):
                pass
            assert isinstance(outcome, Committed)
        assert run.sql("SELECT id FROM tasks") == [(10,)]


def test_closing_a_stalled_store_ends_in_time_and_reports_unwritten_groups(database: Path) -> None:
    faults = Raises(io_error(), times=10**6, after=False)
    with Running(database, faults=faults) as run:
        run.put(history=[fact(1)])
        assert isinstance(run.outcome(), Stalled)
        assert run.store.close(0.1) is False
    with Running(database) as run:
        assert run.sql("SELECT count(*) FROM history") == [(0,)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(point)],
        capture_output=True,
        check=False,
        timeout=10,
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=False, timeout=10)


def test_a_full_disk_stalls_loses_nothing_and_recovers_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    with Running(small_disk / "state.db") as run:
        run.workflow()
        context = b'"' + b"x" * 100_000 + b'"'
        stored = []
        outcome: object = None
        for task_id in range(10, 1000, 10):
            run.put(submissions=[submission(task_id, task_id, context=context, context_bytes=len(context))])
            stored.append(task_id)
            outcome = run.outcome()
            if isinstance(outcome, Stalled):
                break
        assert isinstance(outcome, Stalled), "4 MB were never full"
        assert outcome.code == "disk_full"
        assert run.sql("SELECT id FROM tasks") == [(i,) for i in stored[:-1]]
        ballast.unlink()
        while isinstance(outcome := run.outcome(), Stalled):
            assert outcome.code == "disk_full"
        assert isinstance(outcome, Committed)
        assert run.sql("SELECT id FROM tasks") == [(i,) for i in stored]
        assert run.sql("PRAGMA integrity_check") == [("ok",)]


# -- the database is broken -------------------------------------------------------------------------------------------


def test_a_failed_fsync_ends_all_writing(database: Path) -> None:
    faults = Raises(io_error(sqlite3.SQLITE_IOERR_FSYNC), times=1, after=False)
    with Running(database, faults=faults) as run:
        run.put(history=[fact(1)])
        run.put(history=[fact(2)])
        assert isinstance(run.outcome(), Broken)
        run.close()
        with pytest.raises(queue.Empty):
            run.outcomes.get_nowait()
    with Running(database) as run:
        assert run.sql("SELECT count(*) FROM history") == [(0,)]


def test_a_failed_fsync_of_a_checkpoint_stops_the_lane_after_the_commit(database: Path) -> None:
    with Running(database) as run:
        run.workflow()

        def fails(group: CommitGroup) -> None:
            if group.history:  # not after the workflow's group, which may still be resting
                raise io_error(sqlite3.SQLITE_IOERR_FSYNC)

        run.store._database.writers[LANE].rest = fails  # type: ignore[method-assign]
        assert isinstance(run.write(history=[fact(1)]), Committed)
        assert isinstance(run.outcome(), Broken)


def test_the_log_is_moved_into_the_database_as_it_grows(database: Path) -> None:
    context = b'"' + b"x" * 1_000_000 + b'"'
    with Running(database) as run:
        run.workflow()
        for task_id in range(10, 800, 10):
            large = submission(task_id, task_id, context=context, context_bytes=len(context))
            run.write(submissions=[large], bytes=len(context))
        # SQLite's own checkpoint would come at 64 MB, inside a commit.
        assert Path(f"{database}-wal").stat().st_size < 48_000_000
        assert database.stat().st_size > 32_000_000


def test_the_log_is_lengthened_ahead_of_the_writer_and_recovery_ends_at_the_last_commit(database: Path) -> None:
    log = Path(f"{database}-wal")
    with Running(database) as run:
        assert log.stat().st_size >= opening.LOG_STRIDE_BYTES
        run.workflow()
        context = b'"' + b"x" * 100_000 + b'"'
        for task_id in range(10, 600, 10):
            large = submission(task_id, task_id, context=context, context_bytes=len(context))
            run.write(submissions=[large], bytes=len(context))
        assert log.stat().st_size > 59 * len(context) + opening.LOG_STRIDE_BYTES // 4
        copy = database.parent / "as-if-killed.db"
        shutil.copy(database, copy)
        shutil.copy(log, f"{copy}-wal")
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (59,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_database_removed_under_a_running_broker_stops_it(database: Path) -> None:
    """A commit to a file without a name is lost with the process, so it must not be acknowledged."""
    with Running(database) as run:
        run.workflow()
        database.rename(database.with_suffix(".moved"))
        run.put(history=[fact(1)])
        outcome = run.outcome()
        assert isinstance(outcome, Broken)
        assert outcome.error == f"the database file {database} was removed or moved"


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (sqlite3.SQLITE_BUSY, "passing", "database_locked"),
        (sqlite3.SQLITE_BUSY_RECOVERY, "passing", "database_locked"),
        (sqlite3.SQLITE_LOCKED, "passing", "database_locked"),
        (sqlite3.SQLITE_FULL, "passing", "disk_full"),
        (sqlite3.SQLITE_READONLY, "passing", "database_read_only"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "passing", "database_read_only"),
        (sqlite3.SQLITE_CANTOPEN, "passing", "database_unavailable"),
        (sqlite3.SQLITE_IOERR_WRITE, "passing", "database_unavailable"),
        (sqlite3.SQLITE_IOERR_FSYNC, "broken", None),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, "broken", None),
        (sqlite3.SQLITE_CORRUPT, "broken", None),
        (sqlite3.SQLITE_CORRUPT_INDEX, "broken", None),
        (sqlite3.SQLITE_NOTADB, "broken", None),
        (sqlite3.SQLITE_ERROR, "broken", None),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, "data", None),
        (sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, "data", None),
        (sqlite3.SQLITE_TOOBIG, "data", None),
    ],
)
def test_every_error_of_sqlite_has_its_meaning(code: int, kind: str, says: str | None) -> None:
    assert trouble_of(io_error(code))[:2] == (kind, says)


# -- the data is bad --------------------------------------------------------------------------------------------------

BAD_SUBMISSIONS = {
    "a context that is not UTF-8": submission(666, 660, context=b"\xff"),
    "a number beyond 64 bits": submission(666, 660, deadline_ms=2**63),
    "a lone surrogate": submission(666, 660, namespace="\ud800"),
    "text in a column of numbers": submission(666, 660, priority="high", rank_ms=0),
    "a type that SQLite does not have": submission(666, 660, wants=object()),
}


@pytest.mark.parametrize("what", BAD_SUBMISSIONS)
def test_a_submission_that_sqlite_or_its_driver_refuses_is_parked_and_the_rest_is_written(
    database: Path, what: str
) -> None:
    bad = BAD_SUBMISSIONS[what]
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        done = run.write(
            submissions=[submission(2, 20), bad, submission(3, 30, keys={30: ("k", b"d")})],
            steps_dispatched=[dispatched(11), dispatched(21), dispatched(661)],
            tasks_changed=[task_changed(660)],
            history=[fact(10, b"[1]"), fact(660, b"[2]"), fact(30, b"[3]")],
            reserve_ids=10,
        )
        failed = {o.request: o.failed for o in done.submissions}
        assert set(failed) == {2, 3, 666}
        assert failed[666]
        assert failed[2] is failed[3] is None
        assert done.rejected == []
        assert done.ids is not None
        assert run.sql("SELECT id FROM tasks") == [(10,), (20,), (30,)]
        assert run.sql("SELECT id FROM steps WHERE state = 'dispatched'") == [(11,), (21,)]
        assert run.sql("SELECT facts FROM history WHERE task_id IN (10, 660) AND seq = 3") == [("[1]",)]
        (parked,) = run.queries.parked()
        assert (parked.code, parked.source) == ("refused_by_database", "store")
        assert b"submissions" in parked.body
        assert isinstance(run.write(history=[fact(20)]), Committed)


def test_a_workflow_that_the_database_refuses_fails_alone(database: Path) -> None:
    with Running(database) as run:
        done = run.write(workflows=[workflow_new("good", "1"), workflow_new("bad\ud800", "1")])
        assert [(o.created, bool(o.failed)) for o in done.workflows] == [(True, False), (False, True)]


def test_a_group_with_a_data_error_and_a_lost_outcome_is_written_once(database: Path) -> None:
    faults = Raises(io_error(), times=0, after=True)
    with Running(database, faults=faults) as run:
        run.workflow()
        faults.times = 1
        run.put(submissions=[submission(1, 10), submission(2, 20, context=b"\xff")])
        assert isinstance(run.outcome(), Stalled)
        done = run.outcome()
        assert isinstance(done, Committed)
        assert {o.request: bool(o.failed) for o in done.submissions} == {1: False, 2: True}
        assert run.sql("SELECT id FROM tasks") == [(10,)]
        assert run.sql("SELECT count(*) FROM parked") == [(1,)]


# -- helpers -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _python(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "the other process printed nothing"
    return process.stdout.readline().strip()
