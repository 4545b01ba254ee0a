"""Idempotency keys: the first task that inserts a key owns it, in the same transaction. Every store promises this."""

from stepwire_broker.core.model.commit_group import Key
from stepwire_broker.store.rows import StepFilter

from tests.store.running import Place, Running
from tests.store.stored_rows import dispatched, fact, submission, task_changed


def test_the_same_key_with_the_same_content_names_the_stored_task(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"same")})])
        done = run.write(
            submissions=[submission(2, 20, keys={20: ("k", b"same")})],
            steps_dispatched=[dispatched(21)],
            tasks_changed=[task_changed(20)],
            history=[fact(20)],
        )
        assert done.submissions == [(2, {20: 10}, None, None)]
        assert run.task_ids() == [10]
        assert {row.task_id for row in run.history()} == {10}
        assert {step.task_id for step in run.queries.steps(StepFilter())} == {10}


def test_the_same_key_with_other_content_is_a_conflict_and_stores_nothing(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"one")})])
        done = run.write(submissions=[submission(2, 20, keys={20: ("k", b"two")})])
        assert done.submissions == [(2, {}, ("k", 10), None)]
        assert run.task_ids() == [10]


def test_keys_of_two_namespaces_are_two_keys(place: Place) -> None:
    elsewhere = submission(2, 20)._replace(keys=[Key("other", "k", b"two", 20)])
    with Running(place) as run:
        run.workflow()
        done = run.write(submissions=[submission(1, 10, keys={10: ("k", b"one")}), elsewhere])
        assert [o.existing for o in done.submissions] == [{}, {}]
        assert run.task_ids() == [10, 20]


def test_the_earlier_of_two_submissions_in_one_group_owns_the_key(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        done = run.write(
            submissions=[
                submission(1, 10, keys={10: ("k", b"same")}),
                submission(2, 20, keys={20: ("k", b"same")}),
                submission(3, 30, keys={30: ("k", b"other")}),
            ]
        )
        assert done.submissions == [(1, {}, None, None), (2, {20: 10}, None, None), (3, {}, ("k", 10), None)]
        assert run.task_ids() == [10]


def test_a_key_is_kept_over_restarts(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"same")})])
    with Running(place) as run:
        done = run.write(submissions=[submission(1, 20, keys={20: ("k", b"same")})])
        assert done.submissions == [(1, {20: 10}, None, None)]


def test_a_batch_with_one_conflict_is_not_stored_at_all_and_its_keys_stay_free(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("taken", b"one")})])
        batch = submission(2, 20, 30, 40, keys={20: ("a", b"x"), 30: ("taken", b"two"), 40: ("b", b"x")})
        later = submission(3, 50, keys={50: ("a", b"y")})
        done = run.write(submissions=[batch, later])
        assert done.submissions == [(2, {}, ("taken", 10), None), (3, {}, None, None)]
        assert run.task_ids() == [10, 50]
        again = submission(4, 60, 70, keys={60: ("a", b"y"), 70: ("taken", b"one")})
        assert run.write(submissions=[again]).submissions == [(4, {60: 50, 70: 10}, None, None)]
        assert run.write(submissions=[submission(5, 80, keys={80: ("b", b"z")})]).submissions[0].existing == {}


def test_a_key_twice_in_one_batch_with_different_content_is_a_conflict_that_names_no_task(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        batch = submission(1, 10, 20, keys={10: ("a", b"x"), 20: ("a", b"y")})
        assert run.write(submissions=[batch]).submissions == [(1, {}, ("a", None), None)]
        assert run.task_ids() == []


def test_a_batch_is_stored_without_its_tasks_that_are_stored_already(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, keys={10: ("b", b"same")})])
        batch = submission(2, 20, 30, 40, keys={20: ("a", b"x"), 30: ("b", b"same")})
        assert run.write(submissions=[batch]).submissions == [(2, {30: 10}, None, None)]
        assert run.task_ids() == [10, 20, 40]


def test_a_refused_submission_leaves_its_key_free(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        bad = submission(1, 10, keys={10: ("k", b"same")}, context=b"\xff")
        good = submission(2, 20, keys={20: ("k", b"same")})
        done = run.write(submissions=[bad, good])
        assert {o.request: (o.existing, bool(o.failed)) for o in done.submissions} == {1: ({}, True), 2: ({}, False)}
        assert run.task_ids() == [20]


def test_a_storm_of_the_same_submissions_makes_no_task_twice(place: Place) -> None:
    keys = {i: (f"k{i}", b"same") for i in range(10, 9010, 10)}
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i, keys=keys) for i in keys])
        again = {i + 100_000: key for i, key in keys.items()}
        done = run.write(submissions=[submission(i, i, keys=again) for i in again])
        assert [o.existing for o in done.submissions] == [{i: i - 100_000} for i in again]
        assert run.task_ids() == list(keys)
