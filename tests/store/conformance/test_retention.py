"""Retention removes tasks that ended long enough ago, whole, and refused input. Every store promises this."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.commit_group import AttentionChanged, Parked, StepStderr
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.retention import Pruned, Retention
from stepwire_broker.store.rows import StepFilter, TaskFilter

from tests.store.running import Place, Running
from tests.store.stored_rows import NOW, completed, fact, step_changed, step_new, submission, task_changed

DAY_MS = 24 * 3600 * 1000
WEEK_AND_MONTH = RetentionSettings(completed_ms=7 * DAY_MS, failed_ms=30 * DAY_MS)


def end(run: Running, task_id: int, state: str, at_ms: int, steps: int = 2) -> None:
    """Store that this task and all its steps ended."""
    final = "cancelled" if state == "cancelled" else "failed"
    ids = [task_id + 1 + i for i in range(steps)]
    is_completed = state == "completed"
    run.write(
        steps_completed=[completed(i)._replace(finished_ms=at_ms) for i in ids] if is_completed else [],
        steps_changed=[] if is_completed else [step_changed(i, final, finished_ms=at_ms) for i in ids],
        tasks_changed=[task_changed(task_id, state=state, finished_ms=at_ms)],
        history=[fact(task_id)],
        steps_stderr=[StepStderr(i, 1, f"standard error of {i}") for i in ids],
        attention=[AttentionChanged(i, task_id, "failed", at_ms, "h") for i in ids if state == "failed"],
    )


@contextmanager
def retaining(run: Running, step_s: float = 0.0) -> Iterator[Retention]:
    """Retention that the test works by hand, between groups. Its clock moves by `step_s` at every look."""
    now_s = [0.0]

    def mono_s() -> float:
        now_s[0] += step_s
        return now_s[0]

    yield Retention(run.store._database.pruning[LANE], WEEK_AND_MONTH, wall_ms=lambda: NOW, mono_s=mono_s)


def prune(run: Running) -> Pruned:
    with retaining(run) as retention:
        while (pruned := retention.work()) is None:
            pass
        return pruned


@pytest.mark.parametrize(
    ("state", "days", "is_removed"),
    [
        ("completed", 8, True),
        ("completed", 6, False),
        ("failed", 8, False),
        ("failed", 31, True),
        ("cancelled", 8, False),
        ("cancelled", 31, True),
        ("running", 400, False),
        ("paused", 400, False),
    ],
)
def test_a_task_that_ended_long_enough_ago_is_removed_with_all_it_has(
    place: Place, state: str, days: int, is_removed: bool
) -> None:
    at_ms = NOW - days * DAY_MS
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20, keys={10: ("k", b"d"), 20: ("other", b"d")}, created_ms=at_ms)])
        if state in ("completed", "failed", "cancelled"):
            end(run, 10, state, at_ms)
        else:
            run.write(tasks_changed=[task_changed(10, state=state)], history=[fact(10)])
        pruned = prune(run)
        is_listed = run.queries.list_end(StepFilter(state="failed"), 1) is not None
        assert is_listed == (state == "failed" and not is_removed)
        left = [20] if is_removed else [10, 20]
        assert run.task_ids() == left
        assert {row.task_id for row in run.history()} == set(left)
        assert sorted(run.queries.tasks_of_steps([11, 12, 21, 22])) == [i + n for i in left for n in (1, 2)]
        with_stderr = [] if is_removed or state in ("running", "paused") else [11, 12]
        assert [i for i in (11, 12, 21, 22) if run.queries.step_stderr(i) is not None] == with_stderr
        counts = (pruned.tasks, pruned.steps, pruned.history, pruned.keys)
        assert counts == ((1, 2, 2, 1) if is_removed else (0, 0, 0, 0))


def test_many_tasks_of_every_state_are_removed_and_their_neighbours_kept(place: Place) -> None:
    ended = [(state, days) for state in ("completed", "failed", "cancelled") for days in (60, 50, 40, 1)]
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, 10 * i) for i in range(1, len(ended) + 1)])
        for i, (state, days) in enumerate(ended, 1):
            end(run, 10 * i, state, NOW - days * DAY_MS)
        pruned = prune(run)
        assert (pruned.tasks, pruned.steps, pruned.history, pruned.keys) == (9, 18, 18, 0)
        assert run.task_ids() == [40, 80, 120]
        assert {row.task_id for row in run.history()} == {40, 80, 120}
        assert run.queries.task(40) is not None


def test_a_key_is_kept_as_long_as_its_task_and_is_free_afterwards(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"d")})])
        end(run, 10, "completed", NOW - 8 * DAY_MS)
        assert run.write(submissions=[submission(2, 20, keys={20: ("k", b"d")})]).submissions[0].existing == {20: 10}
        prune(run)
        assert run.write(submissions=[submission(3, 30, keys={30: ("k", b"d")})]).submissions[0].existing == {}
        assert run.task_ids() == [30]


def test_a_task_with_a_held_step_is_kept_whatever_its_row_says(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20)])
        end(run, 10, "completed", NOW - 9 * DAY_MS)
        end(run, 20, "completed", NOW - 8 * DAY_MS)
        run.write(steps_changed=[step_changed(12, "held")])
        assert prune(run).tasks == 1
        assert run.task_ids() == [10]
        assert [step.id for step in run.stored_steps(10)] == [11, 12]


def test_a_task_that_is_partly_removed_is_neither_shown_nor_changed_and_then_removed(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        large = submission(1, 10)._replace(steps=[step_new(11 + i, 10, i) for i in range(300)])
        run.write(submissions=[large, submission(2, 5000)])
        end(run, 10, "completed", NOW - 8 * DAY_MS, steps=300)
        with retaining(run, step_s=1.0) as retention:
            assert retention.work() is None
            assert run.queries.task(10) is None
            assert [row.id for row in run.queries.tasks(TaskFilter())] == [5000]
            assert [task.id for task in run.queries.load_tasks([10, 5000], 0).tasks] == [5000]
            # A late result of it is traced to an ended task, and acked.
            assert run.queries.tasks_of_steps([310])[310].state == "completed"
            rejected = run.write(tasks_changed=[task_changed(10), task_changed(5000)]).rejected
            assert [(r.task_id, "was removed" in r.error) for r in rejected] == [(10, True)]
    with Running(place) as run:
        assert prune(run).tasks == 1  # another process continues
        assert run.queries.tasks_of_steps([310]) == {}
        assert {row.task_id for row in run.history()} == {5000}


def test_refused_input_is_kept_as_long_as_a_failed_task(place: Place) -> None:
    with Running(place) as run:
        for days in (31, 29):
            run.write(parked=[Parked(NOW - days * DAY_MS, None, None, "bad", "test", b"x")])
        assert prune(run).parked == 1
        assert [row.id for row in run.queries.parked()] == [2]
