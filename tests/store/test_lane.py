"""What a group becomes: durable once, whole, and only by the broker whose lane it is."""

import contextlib
import itertools
import os
import queue
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stepwire_broker.core.model.commit_group import Broken, CommitGroup, Committed, Fenced, Parked, Stalled, StepOutput
from stepwire_broker.store.rows import HistoryCursor
from stepwire_broker.store.sqlite import opening
from stepwire_broker.store.sqlite.troubles import trouble_of

from .stored_rows import (
    NOW,
    PATIENCE_S,
    Running,
    completed,
    dispatched,
    fact,
    step_changed,
    step_new,
    submission,
    task_changed,
    task_new,
    workflow_new,
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.db"


class Raises:
    """Fails the writer so many times, before or after COMMIT."""

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


# -- a group ----------------------------------------------------------------------------------------------------------


def test_a_group_is_one_transaction_of_all_its_rows(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(
            submissions=[submission(7, 10)],
            steps_dispatched=[dispatched(11)],
            history=[fact(10, b'[["dispatched"]]')],
            parked=[Parked(NOW, 10, 11, "unknown_delivery", "w-1", b"\xff{")],
        )
        run.write(
            steps_completed=[completed(11)],
            steps_changed=[step_changed(12, "ready")],
            tasks_changed=[task_changed(10, attention="held")],
            history=[fact(10, b'[["completed"]]')],
        )
        task = run.queries.task(10)
        assert [(s.state, s.output) for s in task.steps] == [("completed", '{"ok":true}'), ("ready", None)]
        assert (task.task.state, task.task.attention, task.context) == ("running", "held", '{"order_id":12345}')
        events = run.queries.task_events(10)
        assert [(e.seq, e.position, e.facts) for e in events] == [
            (2, 0, '[["submitted"]]'),
            (2, 1, '[["dispatched"]]'),
            (3, 0, '[["completed"]]'),
        ]
        (parked,) = run.queries.parked()
        assert (parked.task_id, parked.code, parked.body) == (10, "unknown_delivery", b"\xff{")


def test_a_completed_step_loses_what_belonged_to_its_delivery(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        run.write(
            steps_changed=[
                step_changed(11, "dispatched", batch_id="b", not_before_ms=5, reason="lost", earlier=b"[[1]]")
            ]
        )
        run.write(steps_completed=[completed(11)])
        found = run.sql("SELECT state, batch_id, not_before_ms, reason, earlier, finished_ms FROM steps WHERE id = 11")
        assert found == [("completed", None, None, None, None, NOW + 2)]


def test_a_state_and_its_output_may_come_in_either_direction(database: Path) -> None:
    """The schema wants an output where a step is completed, so the order inside the transaction matters."""
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)], steps_dispatched=[dispatched(11)])
        run.write(
            steps_changed=[step_changed(11, "completed", finished_ms=NOW)], steps_output=[StepOutput(11, b'"a"', 3)]
        )
        assert run.queries.step(11).output == '"a"'
        run.write(steps_changed=[step_changed(11, "waiting")], steps_output=[StepOutput(11, None, 0)])
        assert run.queries.step(11)[5] == "waiting"


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 192, 193, 255, 256, 257, 300, 513])
def test_many_rows_are_all_written_whatever_their_number(database: Path, count: int) -> None:
    with Running(database) as run:
        run.workflow()
        ids = range(10, 10 + 3 * count, 3)
        run.write(submissions=[submission(1, *ids)])
        run.write(
            steps_dispatched=[dispatched(i + 1) for i in ids],
            steps_changed=[step_changed(i + 2, "failed", finished_ms=i, error=b"{}") for i in ids],
        )
        run.write(
            steps_completed=[completed(i + 1, b'{"n":%d}' % i) for i in ids],
            tasks_changed=[task_changed(i, state="failed", finished_ms=i) for i in ids],
            history=[fact(i) for i in ids],
        )
        assert run.sql("SELECT id, finished_ms FROM tasks WHERE state = 'failed'") == [(i, i) for i in ids]
        assert run.sql("SELECT id, output FROM steps WHERE state = 'completed'") == [
            (i + 1, f'{{"n":{i}}}') for i in ids
        ]
        assert run.sql("SELECT id, finished_ms FROM steps WHERE state = 'failed'") == [(i + 2, i) for i in ids]
        assert run.sql("SELECT count(*) FROM history") == [(2 * count,)]


def test_numbers_are_reserved_without_overlap_also_over_restarts(database: Path) -> None:
    taken: list[tuple[int, int]] = []
    for _ in range(2):
        with Running(database) as run:
            taken.append(run.opened.ids)
            for _ in range(2):
                ids = run.write(reserve_ids=500).ids
                assert ids is not None
                taken.append(ids)
    assert taken[0][0] == 1
    assert all(before[1] < after[0] for before, after in itertools.pairwise(taken))
    assert [last - first + 1 for first, last in taken] == [10_000, 500, 500] * 2


def test_text_beyond_ascii_comes_back_as_it_went(database: Path) -> None:
    context = '{"name":"Zoë 🚚 \\u0000"}'
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, context=context.encode(), labels='{"à":"é"}'.encode())])
        assert run.queries.task(10).context == context
        assert run.queries.load_payloads([10], []).contexts == {10: context.encode()}
        assert run.queries.load_tasks([10], 10**6).tasks[0].context == context


# -- workflows --------------------------------------------------------------------------------------------------------


def test_a_workflow_version_is_stored_once_and_other_content_is_a_conflict(database: Path) -> None:
    with Running(database) as run:
        first = run.workflow("order", "1")
        again = run.write(workflows=[workflow_new("order", "1"), workflow_new("order", "1", digest="other")]).workflows
        assert [(o.workflow_id, o.created, o.conflict) for o in again] == [(first, False, False), (first, False, True)]


def test_the_newest_version_is_active_until_an_operator_names_another(database: Path) -> None:
    def active() -> list[str]:
        return [w.version for w in run.queries.workflows() if w.active]

    with Running(database) as run:
        first = run.workflow("order", "1")
        run.workflow("order", "2")
        run.workflow("order", "3", activate=False)
        run.workflow("other", "9")
        assert active() == ["2", "9"]
        run.write(activations=[(1, first)])
        assert active() == ["1", "9"]
        run.workflow("order", "2")  # there already: applying it again changes nothing
        assert active() == ["1", "9"]
        assert run.queries.workflow("default", "order", None).version == "1"
        assert run.queries.workflow("default", "order", "3").version == "3"
        assert run.queries.workflow("default", "order", "4") is None


# -- durable, once ----------------------------------------------------------------------------------------------------

_WRITES_AND_SAYS_SO = """
import sys
from pathlib import Path
from tests.store.stored_rows import Running, submission

run = Running(Path(sys.argv[1]))
run.workflow()
for task_id in range(10, 10_000_000, 10):
    run.write(submissions=[submission(task_id, task_id)])
    print(task_id, flush=True)
"""


def test_what_was_reported_committed_is_there_after_kill_minus_9(database: Path) -> None:
    with _python(_WRITES_AND_SAYS_SO, str(database)) as process:
        told = [int(_line(process)) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        told += [int(line) for line in process.stdout.read().split()]
    with Running(database) as run:
        stored = [row[0] for row in run.sql("SELECT id FROM tasks ORDER BY id")]
        # At most the one group that was under way is there without having been reported.
        assert stored[: len(told)] == told
        assert len(stored) <= len(told) + 1
        assert run.opened.lanes[0] == len(stored) + 1
        assert run.opened.epoch == 2


def test_an_outcome_that_nobody_heard_is_found_and_the_group_is_written_once(database: Path) -> None:
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


def test_a_commit_that_failed_only_in_what_it_said_is_not_repeated(database: Path) -> None:
    """As when the connection breaks between the server's COMMIT and its answer."""
    with Running(database) as run:
        run.workflow()
        writer = run.store._database.writer
        commit, answers = writer.commit, ["lost"]

        def commits_and_is_cut_off() -> None:
            commit()
            if answers:
                answers.pop()
                raise io_error()

        writer.commit = commits_and_is_cut_off  # type: ignore[method-assign]
        run.put(submissions=[submission(1, 10)], reserve_ids=5)
        assert isinstance(run.outcome(), Stalled)
        done = run.outcome()
        assert isinstance(done, Committed)
        assert done.ids == (10_001, 10_005)
        assert run.sql("SELECT count(*) FROM history") == [(1,)]


def test_an_error_before_the_commit_is_written_again_from_the_beginning(database: Path) -> None:
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


def test_the_sequence_goes_on_over_restarts_and_orders_the_history(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
    with Running(database) as run:
        assert (run.opened.epoch, run.opened.lanes) == (2, {0: 2})
        run.write(history=[fact(10, b"[2]")])
        (lane,) = run.queries.lanes()
        history = run.queries.events_from(lane.id, HistoryCursor(), 10)
        assert [(h.seq, h.facts) for h in history] == [(2, '[["submitted"]]'), (3, "[2]")]
        assert run.queries.events_from(lane.id, HistoryCursor(2, 1), 10) == history[1:]


# -- fenced -----------------------------------------------------------------------------------------------------------


def test_a_broker_that_has_lost_its_lane_writes_nothing_more(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        with contextlib.closing(sqlite3.connect(database)) as other, other:
            other.execute("UPDATE lanes SET epoch = epoch + 1")
        run.put(submissions=[submission(1, 10)])
        run.put(submissions=[submission(2, 20)])
        assert run.outcome() == Fenced(0)
        assert run.sql("SELECT count(*) FROM tasks") == [(0,)]
        run.close()
        with pytest.raises(queue.Empty):
            run.outcomes.get_nowait()


def test_a_group_out_of_its_order_is_not_written(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.seq += 1
        run.put(history=[fact(10)])
        assert run.outcome() == Fenced(0)


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
            # Said again while it lasts, so that a listener who came late knows too.
            assert isinstance(run.outcome(), Stalled)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            while isinstance(outcome := run.outcome(), Stalled):
                pass
            assert isinstance(outcome, Committed)
        assert run.sql("SELECT id FROM tasks") == [(10,)]


def test_closing_a_stalled_store_gives_up_in_time_and_says_that_it_did(database: Path) -> None:
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
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(point)], capture_output=True, check=False, timeout=10
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


def test_after_a_failed_fsync_nothing_is_written_ever_again(database: Path) -> None:
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


def test_a_failed_fsync_of_a_checkpoint_stops_the_lane_after_what_was_committed(database: Path) -> None:
    with Running(database) as run:
        run.workflow()

        def fails(group: CommitGroup) -> None:
            raise io_error(sqlite3.SQLITE_IOERR_FSYNC)

        run.store._database.writer.rest = fails  # type: ignore[method-assign]
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


def test_the_log_is_longer_than_what_is_written_to_it_and_recovery_ends_where_the_writing_did(database: Path) -> None:
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
    """What is written to a file without a name is gone with the process: it must not be acknowledged."""
    with Running(database) as run:
        run.workflow()
        database.rename(database.with_suffix(".moved"))
        run.put(history=[fact(1)])
        outcome = run.outcome()
        assert isinstance(outcome, Broken)
        assert "moved or replaced" in outcome.error


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
        (sqlite3.SQLITE_IOERR_FSYNC, "broken", ""),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, "broken", ""),
        (sqlite3.SQLITE_CORRUPT, "broken", ""),
        (sqlite3.SQLITE_CORRUPT_INDEX, "broken", ""),
        (sqlite3.SQLITE_NOTADB, "broken", ""),
        (sqlite3.SQLITE_ERROR, "broken", ""),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, "data", ""),
        (sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, "data", ""),
        (sqlite3.SQLITE_TOOBIG, "data", ""),
    ],
)
def test_every_error_of_sqlite_has_its_meaning(code: int, kind: str, says: str) -> None:
    assert trouble_of(io_error(code))[:2] == (kind, says)


# -- the data is bad --------------------------------------------------------------------------------------------------

BAD_SUBMISSIONS = {
    "a context that is not UTF-8": submission(666, 660, context=b"\xff"),
    "a number beyond 64 bits": submission(666, 660, deadline_ms=2**63),
    "a lone surrogate": submission(666, 660, namespace="\ud800"),
    "a state that there is not": submission(666, 660, state="done"),
    "a workflow that there is not": submission(666, 660, workflow_id=999),
    "an id that is taken": submission(666, 660)._replace(steps=[step_new(11, 660)]),
    "text where a number belongs": submission(666, 660, priority="high"),
    "a type that no database has": submission(666, 660, owner=object()),
}


@pytest.mark.parametrize("what", BAD_SUBMISSIONS)
def test_a_submission_that_the_database_refuses_is_parked_and_the_rest_is_written(database: Path, what: str) -> None:
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


def test_a_task_whose_rows_the_database_refuses_keeps_its_old_state_and_is_named(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        tasks = list(range(10, 200, 10))
        run.write(submissions=[submission(i, i) for i in tasks], steps_dispatched=[dispatched(i + 1) for i in tasks])
        done = run.write(
            submissions=[submission(1, 500)],
            steps_completed=[completed(i + 1, b"\xff" if i == 50 else b"{}") for i in tasks],
            steps_changed=[step_changed(i + 2, "dispatched" if i == 70 else "ready") for i in tasks],
            tasks_changed=[task_changed(i, priority=5) for i in tasks],
            history=[fact(i, b"[9]") for i in tasks],
        )
        assert sorted(r.task_id for r in done.rejected) == [50, 70]
        assert [o.failed for o in done.submissions] == [None]
        untouched = [("running", 0, "dispatched", "waiting")]
        for task_id in (50, 70):
            assert untouched == run.sql(
                "SELECT tasks.state, priority, a.state, b.state FROM tasks JOIN steps a ON a.id = tasks.id + 1 "
                "JOIN steps b ON b.id = tasks.id + 2 WHERE tasks.id = ?",
                task_id,
            )
        assert run.sql("SELECT count(*) FROM tasks WHERE priority = 5") == [(len(tasks) - 2,)]
        assert run.sql("SELECT count(*) FROM steps WHERE state = 'completed'") == [(len(tasks) - 2,)]
        assert run.sql("SELECT count(*) FROM history WHERE facts = '[9]'") == [(len(tasks) - 2,)]
        assert sorted(p.task_id for p in run.queries.parked()) == [50, 70]


def test_a_workflow_that_the_database_refuses_fails_alone(database: Path) -> None:
    with Running(database) as run:
        done = run.write(workflows=[workflow_new("good", "1"), workflow_new("bad\ud800", "1")])
        assert [(o.created, bool(o.failed)) for o in done.workflows] == [(True, False), (False, True)]


def test_a_data_error_and_an_unheard_outcome_in_one_group_still_write_it_once(database: Path) -> None:
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


# -- what the schema forbids ------------------------------------------------------------------------------------------

WRONG_STEPS: dict[str, Callable[[], object]] = {
    "dispatched without a batch": lambda: step_changed(11, "dispatched"),
    "dispatched without a delivery": lambda: step_changed(11, "dispatched", batch_id="b", delivery=0),
    "ready with a batch": lambda: step_changed(11, "ready", batch_id="b"),
    "retry_wait without its time": lambda: step_changed(11, "retry_wait"),
    "completed without an output": lambda: step_changed(11, "completed", finished_ms=1),
    "failed and not finished": lambda: step_changed(11, "failed"),
    "waiting and finished": lambda: step_changed(11, "waiting", finished_ms=1),
    "no state at all": lambda: step_changed(11, "stuck"),
}


@pytest.mark.parametrize("what", WRONG_STEPS)
def test_a_wrong_state_of_a_step_cannot_be_written(database: Path, what: str) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        done = run.write(steps_changed=[WRONG_STEPS[what]()])
        assert [r.task_id for r in done.rejected] == [10]
        assert run.queries.step(11).state == "waiting"


WRONG_TASKS = {
    "running and finished": task_changed(10, finished_ms=1),
    "completed and not finished": task_changed(10, state="completed"),
    "pending in somebody's memory": task_changed(10, state="pending"),
    "no state at all": task_changed(10, state="done"),
}


@pytest.mark.parametrize("what", WRONG_TASKS)
def test_a_wrong_state_of_a_task_cannot_be_written(database: Path, what: str) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        assert [r.task_id for r in run.write(tasks_changed=[WRONG_TASKS[what]]).rejected] == [10]


def test_a_step_without_its_task_cannot_be_written(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        orphan = submission(1, 10)._replace(tasks=[task_new(20)], steps=[step_new(11, 10)])
        assert run.write(submissions=[orphan]).submissions[0].failed


# -- below them --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _python(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "the other process says nothing"
    return process.stdout.readline().strip()
