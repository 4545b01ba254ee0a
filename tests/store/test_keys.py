"""Idempotency keys: who inserts a key first has it, in the database, in the same transaction as the task."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.model.commit_group import Key, Submission
from stepwire_broker.store.keys import KeyOwner, settle

from .stored_rows import Running, dispatched, fact, submission, task_changed, task_new


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def test_the_same_key_with_the_same_content_is_the_task_that_is_there(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"same")})])
        done = run.write(
            submissions=[submission(2, 20, keys={20: ("k", b"same")})],
            steps_dispatched=[dispatched(21)],
            tasks_changed=[task_changed(20)],
            history=[fact(20)],
        )
        assert done.submissions == [(2, {20: 10}, None, None)]
        assert _stored(run) == [10]
        assert run.sql("SELECT DISTINCT task_id FROM history") == [(10,)]
        assert run.sql("SELECT DISTINCT task_id FROM steps") == [(10,)]


def test_the_same_key_with_other_content_is_a_conflict_and_stores_nothing(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"one")})])
        done = run.write(submissions=[submission(2, 20, keys={20: ("k", b"two")})])
        assert done.submissions == [(2, {}, "k", None)]
        assert _stored(run) == [10]


def test_keys_of_two_namespaces_are_two_keys(database: Path) -> None:
    elsewhere = submission(2, 20)._replace(keys=[Key("other", "k", b"two", 20)])
    with Running(database) as run:
        run.workflow()
        done = run.write(submissions=[submission(1, 10, keys={10: ("k", b"one")}), elsewhere])
        assert [o.existing for o in done.submissions] == [{}, {}]
        assert _stored(run) == [10, 20]


def test_of_two_submissions_in_one_group_the_earlier_one_has_the_key(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        done = run.write(
            submissions=[
                submission(1, 10, keys={10: ("k", b"same")}),
                submission(2, 20, keys={20: ("k", b"same")}),
                submission(3, 30, keys={30: ("k", b"other")}),
            ]
        )
        assert done.submissions == [(1, {}, None, None), (2, {20: 10}, None, None), (3, {}, "k", None)]
        assert _stored(run) == [10]


def test_a_key_is_kept_over_restarts(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"same")})])
    with Running(database) as run:
        done = run.write(submissions=[submission(1, 20, keys={20: ("k", b"same")})])
        assert done.submissions == [(1, {20: 10}, None, None)]


def test_a_batch_with_one_conflict_is_not_stored_at_all_and_its_keys_stay_free(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("taken", b"one")})])
        batch = submission(2, 20, 30, 40, keys={20: ("a", b"x"), 30: ("taken", b"two"), 40: ("b", b"x")})
        later = submission(3, 50, keys={50: ("a", b"y")})
        done = run.write(submissions=[batch, later])
        assert done.submissions == [(2, {}, "taken", None), (3, {}, None, None)]
        assert _stored(run) == [10, 50]
        assert run.sql("SELECT key, task_id FROM keys ORDER BY key") == [("a", 50), ("taken", 10)]


def test_a_batch_is_stored_without_those_of_its_tasks_that_are_there(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("b", b"same")})])
        batch = submission(2, 20, 30, 40, keys={20: ("a", b"x"), 30: ("b", b"same")})
        assert run.write(submissions=[batch]).submissions == [(2, {30: 10}, None, None)]
        assert _stored(run) == [10, 20, 40]


def test_a_refused_submission_leaves_its_key_free(database: Path) -> None:
    with Running(database) as run:
        run.workflow()
        bad = submission(1, 10, keys={10: ("k", b"same")}, context=b"\xff")
        good = submission(2, 20, keys={20: ("k", b"same")})
        done = run.write(submissions=[bad, good])
        assert {o.request: (o.existing, bool(o.failed)) for o in done.submissions} == {1: ({}, True), 2: ({}, False)}
        assert _stored(run) == [20]


def test_a_storm_of_the_same_submissions_makes_no_task_twice(database: Path) -> None:
    keys = {i: (f"k{i}", b"same") for i in range(10, 9010, 10)}
    with Running(database) as run:
        run.workflow()
        run.write(submissions=[submission(i, i, keys=keys) for i in keys])
        again = {i + 100_000: key for i, key in keys.items()}
        done = run.write(submissions=[submission(i, i, keys=again) for i in again])
        assert [o.existing for o in done.submissions] == [{i: i - 100_000} for i in again]
        assert _stored(run) == list(keys)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"1", b"2"])), min_size=1, max_size=3), max_size=6
    ),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([b"1", b"2"])),
)
def test_settling_a_group_at_once_is_settling_its_submissions_one_by_one(
    asked: list[list[tuple[str, bytes]]], there: dict[str, bytes]
) -> None:
    """`settle` sees the keys only after all were claimed at once; one by one there is nothing to get wrong."""
    submissions = []
    for request, batch in enumerate(asked):
        ids = [1000 * (request + 1) + i for i in range(len(batch))]
        keys = [Key("n", name, digest, i) for (name, digest), i in zip(batch, ids, strict=True)]
        submissions.append(Submission(request, keys, [task_new(i) for i in ids], [], []))
    before = {("n", name): KeyOwner(digest, ord(name)) for name, digest in there.items()}

    at_once = dict(before)
    for submission_ in submissions:
        for key in submission_.keys:
            at_once.setdefault((key.namespace, key.key), KeyOwner(key.digest, key.task_id))
    verdict = settle(submissions, at_once)
    for key in verdict.release:
        assert at_once.pop((key.namespace, key.key)).task_id == key.task_id
    for key in verdict.claim:
        assert at_once.setdefault((key.namespace, key.key), KeyOwner(key.digest, key.task_id)).task_id == key.task_id

    stored = dict(before)
    expected = []
    for submission_ in submissions:
        trial, existing, conflict = dict(stored), {}, None
        for key in submission_.keys:
            owner = trial.setdefault((key.namespace, key.key), KeyOwner(key.digest, key.task_id))
            if owner.digest != key.digest:
                conflict = key.key
                break
            if owner.task_id != key.task_id:
                existing[key.task_id] = owner.task_id
        if conflict is None:
            stored = trial
        expected.append((submission_.request, {} if conflict else existing, conflict, None))
    assert verdict.outcomes == expected
    assert at_once == stored


def _stored(run: Running) -> list[int]:
    return [row[0] for row in run.sql("SELECT id FROM tasks ORDER BY id")]
