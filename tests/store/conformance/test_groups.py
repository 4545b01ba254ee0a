"""A group becomes durable once, whole, and only in its order. Every store promises this."""

import itertools
from collections.abc import Callable

import pytest
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK
from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.model.commit_group import (
    Broken,
    Committed,
    ControlChanged,
    LaneLost,
    LostCommits,
    Parked,
    StepOutput,
    StepStderr,
)
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.rows import HistoryCursor

from tests.store.running import Place, Running, open_at
from tests.store.stored_rows import (
    NOW,
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

# -- a start ----------------------------------------------------------------------------------------------------------


def test_the_first_start_creates_a_deployment_that_every_later_start_finds(place: Place) -> None:
    with Running(place, lease_ms=7_000) as run:
        first = run.opened
    (taken,) = first.lanes
    assert (first.epoch, taken.lane, taken.end, taken.lease_ms, first.workflows) == (1, LANE, 0, 0, [])
    assert first.deployment == f"{0xABC:032x}"
    store = open_at(place, "b1", lease_ms=9_000, entropy=0xDEF)
    assert store.opened.deployment == first.deployment
    assert (store.opened.epoch, store.opened.lanes[0].lease_ms) == (2, 7_000)
    assert store.close(1.0)


def test_a_start_reads_the_workflows_and_counts_open_tasks_and_steps(place: Place) -> None:
    with Running(place) as run:
        run.workflow("order", "1")
        run.write(submissions=[submission(1, 10, 20, 30)])
        run.write(tasks_changed=[task_changed(20, state="cancelled", finished_ms=NOW)])
    with Running(place) as run:
        assert [(w.name, w.version, w.active, w.document) for w in run.opened.workflows] == [
            ("order", "1", 1, '{"name":"order"}')
        ]
        assert (run.taken.open_tasks, run.taken.open_steps) == (2, {"default": 4})


def test_a_start_reads_the_controls_that_were_set_last(place: Place) -> None:
    with Running(place) as run:
        assert run.opened.controls == []
        run.write(controls=[ControlChanged("rule", "a::**", "1", 1), ControlChanged("offered", "a::**", "2", 0)])
        run.write(controls=[ControlChanged("rule", "a::**", "3", 2), ControlChanged("rule", "b::**", "4", 3)])
        run.write(controls=[ControlChanged("rule", "b::**", None, 0), ControlChanged("rule", "never set", None, 0)])
    with Running(place) as run:
        assert run.opened.controls == [
            StoredControl("offered", "a::**", "2", 0),
            StoredControl("rule", "a::**", "3", 2),
        ]


def test_reserved_ids_never_overlap_also_over_restarts(place: Place) -> None:
    reserved: list[tuple[int, int]] = []
    for _ in range(2):
        with Running(place) as run:
            reserved.append(run.taken.ids)
            for _ in range(2):
                ids = run.write(reserve_ids=500).ids
                assert ids is not None
                reserved.append(ids)
    assert reserved[0][0] == 1
    assert all(before[1] < after[0] for before, after in itertools.pairwise(reserved))
    assert [last - first + 1 for first, last in reserved] == [10_000, 500, 500] * 2


def test_reserved_ids_are_in_one_block_which_belongs_to_the_lane(place: Place) -> None:
    with Running(place) as run:
        run.write(reserve_ids=IDS_PER_BLOCK - 10_005)
        assert run.write(reserve_ids=6).ids == (IDS_PER_BLOCK + 1, IDS_PER_BLOCK + 6)  # 5 were left
        run.write(unused_ids=(IDS_PER_BLOCK + 1, IDS_PER_BLOCK + 6))
    with Running(place) as run:
        assert run.opened.blocks == {0: LANE, 1: LANE}
        assert sorted(run.taken.blocks) == [0, 1]
        assert run.taken.ids[0] == IDS_PER_BLOCK + 1


def test_returned_ids_are_the_next_ones_to_be_reserved(place: Place) -> None:
    with Running(place) as run:
        ids = run.write(reserve_ids=500).ids
        assert ids is not None
        run.write(unused_ids=(ids[0] + 7, ids[1]))
    with Running(place) as run:
        assert run.taken.ids[0] == ids[0] + 7


def test_ids_are_not_returned_after_others_were_reserved(place: Place) -> None:
    with Running(place) as run:
        first, second = run.write(reserve_ids=500).ids, run.write(reserve_ids=500).ids
        assert first is not None
        assert second is not None
        run.write(unused_ids=first)
        assert run.write(reserve_ids=1).ids == (second[1] + 1, second[1] + 1)


# -- a group ----------------------------------------------------------------------------------------------------------


def test_a_group_is_one_transaction_of_all_its_rows(place: Place) -> None:
    with Running(place) as run:
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
        assert task is not None
        assert [(s.state, s.output) for s in task.steps] == [("completed", '{"ok":true}'), ("ready", None)]
        assert (task.task.state, task.task.attention, task.context) == ("running", "held", '{"order_id":12345}')
        assert [(e.seq, e.position, e.facts) for e in run.queries.task_events(10)] == [
            (2, 0, '[["submitted"]]'),
            (2, 1, '[["dispatched"]]'),
            (3, 0, '[["completed"]]'),
        ]
        (parked,) = run.queries.parked()
        assert (parked.id, parked.task_id, parked.code, parked.body) == (1, 10, "unknown_delivery", b"\xff{")


def test_a_completed_step_loses_what_belonged_to_its_delivery(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        run.write(
            steps_changed=[
                step_changed(11, "dispatched", batch_id="b", not_before_ms=5, reason="lost", earlier=b"[[1]]")
            ]
        )
        run.write(steps_completed=[completed(11)])
        step = run.stored_steps(10)[0]
        assert (step.state, step.finished_ms, step.run_ms) == ("completed", NOW + 2, 1)
        assert (step.batch_id, step.not_before_ms, step.reason, step.earlier) == (None, None, None, None)


def test_one_group_may_set_or_clear_an_output_together_with_its_state(place: Place) -> None:
    """The tables require an output of a completed step, so the order inside the transaction matters."""
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)], steps_dispatched=[dispatched(11)])
        run.write(
            steps_changed=[step_changed(11, "completed", finished_ms=NOW)], steps_output=[StepOutput(11, b'"a"', 3)]
        )
        assert run.stored_steps(10)[0].output == '"a"'
        run.write(steps_changed=[step_changed(11, "waiting")], steps_output=[StepOutput(11, None, 0)])
        assert run.stored_steps(10)[0].state == "waiting"


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 192, 193, 255, 256, 257, 300, 513])
def test_any_number_of_rows_is_written_whole(place: Place, count: int) -> None:
    with Running(place) as run:
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
        loaded = run.queries.load_tasks(list(ids), 1 << 20)
        assert [(t.id, t.state, t.finished_ms) for t in loaded.tasks] == [(i, "failed", i) for i in ids]
        assert [(s.id, s.output) for s in loaded.steps if s.state == "completed"] == [
            (i + 1, f'{{"n":{i}}}') for i in ids
        ]
        assert [(s.id, s.finished_ms) for s in loaded.steps if s.state == "failed"] == [(i + 2, i) for i in ids]
        assert len(run.history()) == 2 * count


def test_text_beyond_ascii_is_read_as_it_was_written(place: Place) -> None:
    context = '{"name":"Zoë 🚚 \\u0000"}'
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, context=context.encode(), labels='{"à":"é"}'.encode())])
        task = run.queries.task(10)
        assert task is not None
        assert task.context == context
        assert run.queries.load_payloads([10], []).contexts == {10: context.encode()}
        assert run.queries.load_tasks([10], 10**6).tasks[0].context == context


def test_the_latest_standard_error_of_a_step_replaces_the_one_before(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        assert run.queries.step_stderr(11) is None
        run.write(steps_stderr=[StepStderr(11, 1, "first"), StepStderr(12, 1, "another step's")])
        run.write(steps_stderr=[StepStderr(11, 2, "zweite: ü\n")])
    with Running(place) as run:
        assert run.queries.step_stderr(11) == (11, 2, "zweite: ü\n")
        assert run.queries.step_stderr(12) == (12, 1, "another step's")


def test_a_change_of_a_step_that_does_not_exist_changes_nothing(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        assert run.write(steps_changed=[step_changed(999, "ready")], steps_dispatched=[dispatched(998)]).rejected == []
        assert run.queries.step(999) is run.queries.step(998) is None


# -- workflows --------------------------------------------------------------------------------------------------------


def test_a_workflow_version_is_stored_once_and_other_content_is_a_conflict(place: Place) -> None:
    with Running(place) as run:
        first = run.workflow("order", "1")
        outcomes = run.write(
            workflows=[workflow_new("order", "1"), workflow_new("order", "1", digest="other")]
        ).workflows
        assert [(o.workflow_id, o.created, o.conflict) for o in outcomes] == [
            (first, False, False),
            (first, False, True),
        ]


def test_the_newest_version_is_active_until_an_operator_names_another(place: Place) -> None:
    def active() -> list[str]:
        return [w.version for w in run.queries.workflows() if w.active]

    def version(wanted: str | None) -> str | None:
        row = run.queries.workflow("default", "order", wanted)
        return None if row is None else row.version

    with Running(place) as run:
        first = run.workflow("order", "1")
        run.workflow("order", "2")
        run.workflow("order", "3", activate=False)
        run.workflow("other", "9")
        assert active() == ["2", "9"]
        run.write(activations=[(1, first)])
        assert active() == ["1", "9"]
        run.workflow("order", "2")  # exists already: applying it again changes nothing
        assert active() == ["1", "9"]
        assert (version(None), version("3"), version("4")) == ("1", "3", None)


# -- the lane's sequence ----------------------------------------------------------------------------------------------


def test_the_sequence_continues_over_restarts_and_orders_the_history(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
    with Running(place) as run:
        assert (run.opened.epoch, run.taken.end) == (2, 2)
        run.write(history=[fact(10, b"[2]")])
        history = run.history()
        assert [(h.seq, h.facts) for h in history] == [(2, '[["submitted"]]'), (3, "[2]")]
        (lane,) = run.queries.lanes()
        assert run.queries.events_from(lane.id, HistoryCursor(2, 1), 10) == history[1:]


def test_a_group_out_of_its_order_is_not_written_and_ends_the_lane(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.seq += 1
        run.put(history=[fact(10)])
        assert isinstance(run.outcome(), LaneLost | LostCommits | Broken)
        assert run.history() == []


# -- bad data ---------------------------------------------------------------------------------------------------------

BAD_SUBMISSIONS = {
    "a state that does not exist": submission(666, 660, state="done"),
    "a workflow that does not exist": submission(666, 660, workflow_id=999),
    "the id of another step": submission(666, 660)._replace(steps=[step_new(11, 660)]),
    "a step of no task": submission(666, 660)._replace(steps=[step_new(661, 661)]),
}


@pytest.mark.parametrize("what", BAD_SUBMISSIONS)
def test_a_submission_that_the_database_refuses_is_parked_and_the_rest_is_written(place: Place, what: str) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        done = run.write(
            submissions=[submission(2, 20), BAD_SUBMISSIONS[what], submission(3, 30, keys={30: ("k", b"d")})],
            steps_dispatched=[dispatched(21), dispatched(661)],
            history=[fact(20, b"[1]"), fact(660, b"[2]"), fact(30, b"[3]")],
            reserve_ids=10,
        )
        assert {o.request: bool(o.failed) for o in done.submissions} == {2: False, 3: False, 666: True}
        assert done.rejected == []
        assert done.ids is not None
        assert run.task_ids() == [10, 20, 30]
        assert run.stored_steps(20)[0].state == "dispatched"
        facts = [(row.task_id, row.facts) for row in run.history() if row.seq == 3 and "submitted" not in row.facts]
        assert sorted(facts) == [(20, "[1]"), (30, "[3]")]
        (parked,) = run.queries.parked()
        assert (parked.code, parked.source) == ("refused_by_database", "store")
        assert b"submissions" in parked.body
        assert isinstance(run.write(history=[fact(20)]), Committed)


def test_a_submission_of_an_unknown_workflow_is_refused_each_time(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        for task_id in (10, 20):
            done = run.write(submissions=[submission(task_id, task_id, workflow_id=999)])
            assert done.submissions[0].failed
        assert run.task_ids() == []


def test_a_task_whose_rows_the_database_refuses_keeps_its_old_state_and_is_named(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        tasks = list(range(10, 200, 10))
        run.write(submissions=[submission(i, i) for i in tasks], steps_dispatched=[dispatched(i + 1) for i in tasks])
        done = run.write(
            submissions=[submission(1, 500)],
            steps_completed=[completed(i + 1, b"\xff" if i == 50 else b"{}") for i in tasks],
            steps_changed=[step_changed(i + 2, "dispatched" if i == 70 else "ready") for i in tasks],
            tasks_changed=[task_changed(i, deadline_ms=5) for i in tasks],
            history=[fact(i, b"[9]") for i in tasks],
            steps_stderr=[StepStderr(i + 1, 1, "loading\n") for i in tasks],
        )
        assert sorted(r.task_id for r in done.rejected) == [50, 70]
        assert [o.failed for o in done.submissions] == [None]
        loaded = run.queries.load_tasks(tasks, 1 << 20)
        changed = [i for i in tasks if i not in (50, 70)]
        assert [t.id for t in loaded.tasks if t.deadline_ms == 5] == changed
        assert [s.task_id for s in loaded.steps if s.state == "completed"] == changed
        assert [s.task_id for s in loaded.steps if s.state == "ready"] == changed
        assert sorted(row.task_id for row in run.history() if row.facts == "[9]") == changed
        assert [i for i in tasks if run.queries.step_stderr(i + 1) is not None] == changed
        assert sorted(p.task_id or 0 for p in run.queries.parked()) == [50, 70]


WRONG_STEPS: dict[str, Callable[[], object]] = {
    "dispatched without a batch": lambda: step_changed(11, "dispatched"),
    "dispatched without a delivery": lambda: step_changed(11, "dispatched", batch_id="b", delivery=0),
    "ready with a batch": lambda: step_changed(11, "ready", batch_id="b"),
    "retry_wait without its time": lambda: step_changed(11, "retry_wait"),
    "completed without an output": lambda: step_changed(11, "completed", finished_ms=1),
    "failed and not finished": lambda: step_changed(11, "failed"),
    "waiting and finished": lambda: step_changed(11, "waiting", finished_ms=1),
    "no known state": lambda: step_changed(11, "stuck"),
}


@pytest.mark.parametrize("what", WRONG_STEPS)
def test_a_wrong_state_of_a_step_cannot_be_written(place: Place, what: str) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        done = run.write(steps_changed=[WRONG_STEPS[what]()])
        assert [r.task_id for r in done.rejected] == [10]
        assert run.stored_steps(10)[0].state == "waiting"


WRONG_TASKS = {
    "running and finished": task_changed(10, finished_ms=1),
    "completed and not finished": task_changed(10, state="completed"),
    "pending in a broker's memory": task_changed(10, state="pending"),
    "no known state": task_changed(10, state="done"),
}


@pytest.mark.parametrize("what", WRONG_TASKS)
def test_a_wrong_state_of_a_task_cannot_be_written(place: Place, what: str) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        assert [r.task_id for r in run.write(tasks_changed=[WRONG_TASKS[what]]).rejected] == [10]


def test_a_change_of_a_task_that_does_not_exist_is_rejected(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        done = run.write(tasks_changed=[task_changed(10, deadline_ms=1), task_changed(99)], history=[fact(99)])
        assert [r.task_id for r in done.rejected] == [99]
        assert run.queries.load_tasks([10], 0).tasks[0].deadline_ms == 1


def test_a_step_without_its_task_cannot_be_written(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        orphan = submission(1, 10)._replace(tasks=[task_new(20)], steps=[step_new(11, 10)])
        assert run.write(submissions=[orphan]).submissions[0].failed
