"""Questions and their answers: pages for the core, in the order it needs them, and rows for people. Every store answers
them alike."""

from collections.abc import Sequence
from typing import Any

import pytest
from stepwire_broker.core.definitions.stored_rows import LeftBehind
from stepwire_broker.core.model.commit_group import AttentionChanged, Key
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.rows import HistoryCursor, ListPoint, StepFilter, TaskFilter

from tests.store.running import Place, Running
from tests.store.stored_rows import NOW, completed, dispatched, fact, step_changed, step_new, submission

RESIDENT = 16 * 1024
STORED: dict[str, Any] = {"stored": True, "wake_ms": 0}
EVER = 2**53 - 1


def page(
    run: Running,
    limit: int = 100,
    wants: Sequence[str] = (),
    now: int = NOW,
    left: LeftBehind | None = LeftBehind(LANE),  # noqa: B008 - it cannot change
) -> list[int]:
    loaded = run.queries.load_page(limit, {LANE: left}, wants, now, RESIDENT)
    assert [s.task_id for s in loaded.steps] == [t.id for t in loaded.tasks for _ in range(2)]
    assert [s.position for s in loaded.steps] == [0, 1] * len(loaded.tasks)
    return [t.id for t in loaded.tasks]


# -- loading ----------------------------------------------------------------------------------------------------------


def test_a_page_holds_the_most_urgent_then_the_oldest_tasks_with_their_steps_in_the_same_order(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        for task_id, priority in {10: 0, 20: 5, 30: 0, 40: -1, 50: 5}.items():
            run.write(submissions=[submission(task_id, task_id, priority=priority)])
            run.write(submissions=[submission(100 + task_id, 100 + task_id, priority=priority, **STORED)])
        assert page(run) == [20, 50, 120, 150, 10, 30, 110, 130, 40, 140]
        assert page(run, limit=3) == [20, 50, 10]
        assert page(run, limit=3, left=None) == [120, 150, 110]


def test_a_page_of_an_owned_lane_holds_only_stored_tasks_that_are_open_and_due(place: Place) -> None:
    rows: dict[int, dict[str, Any]] = {
        10: {"state": "pending", **STORED},
        20: {"state": "paused", **STORED},
        40: {},  # in memory
        50: {"stored": True, "wake_ms": NOW},
        60: {"stored": True, "wake_ms": NOW + 1},
        70: {"state": "completed", "finished_ms": NOW},
        80: {"state": "failed", "finished_ms": NOW},
        90: {**STORED, "lane": LANE + 1},  # of another owner
    }
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i, **changes) for i, changes in rows.items()])
        assert page(run, left=None) == [10, 20, 50]
        assert page(run, now=EVER, left=None) == [10, 20, 50, 60]


def test_tasks_that_the_former_owner_had_in_memory_are_read_once_and_before_stored_tasks(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i) for i in (10, 20, 30)])
        run.write(submissions=[submission(5, 5, priority=9, **STORED)])
        run.write(submissions=[submission(40, 40)])  # since the lane was taken
        left: LeftBehind | None = LeftBehind(LANE, before_id=40)
        pages = []
        while left is not None:
            loaded = run.queries.load_page(2, {LANE: left}, (), NOW, RESIDENT)
            pages.append([t.id for t in loaded.tasks])
            ((_, left),) = loaded.left_behind
        assert pages == [[10, 20], [5, 30]]


def test_a_task_that_waits_for_a_handler_is_loaded_when_the_handler_is_offered_or_its_time_has_come(
    place: Place,
) -> None:
    resting = {10: ("shop::A", None), 20: ("shop::B", None), 30: (None, 0), 40: ("shop::A", NOW), 50: (None, EVER)}
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i, stored=True, wants=w, wake_ms=at) for i, (w, at) in resting.items()])
        assert page(run) == [30, 40]
        assert page(run, wants=["shop::A", "shop::C"]) == [10, 30, 40]
        assert page(run, wants=["shop::A", "shop::B"], now=EVER) == [10, 20, 30, 40, 50]
        assert run.queries.load_page(1, {LANE: None}, [], NOW, RESIDENT).wants == ("shop::A", "shop::B")


def test_a_large_payload_stays_in_the_database_until_it_is_fetched(place: Place) -> None:
    large, small = b'"' + b"x" * RESIDENT + b'"', b"{}"
    with Running(place) as run:
        run.workflow()
        run.write(
            submissions=[
                submission(1, 10, context=large, context_bytes=len(large)),
                submission(2, 20, context=small, context_bytes=len(small)),
            ],
            steps_dispatched=[dispatched(i) for i in (11, 21)],
        )
        run.write(steps_completed=[completed(11, large), completed(21, small)])
        loaded = run.queries.load_tasks([20, 10, 99], RESIDENT)
        assert [(t.id, t.context, t.context_bytes) for t in loaded.tasks] == [(10, None, len(large)), (20, "{}", 2)]
        assert [(s.id, s.output, s.output_bytes) for s in loaded.steps if s.output_bytes] == [
            (11, None, len(large)),
            (21, "{}", 2),
        ]
        payloads = run.queries.load_payloads([10, 20, 99], [11, 12, 99])
        assert payloads.contexts == {10: large, 20: small}
        assert payloads.outputs == {11: large}


def test_every_column_of_a_step_is_read_as_it_was_written(place: Place) -> None:
    written = step_changed(
        11,
        "held",
        attempt=2,
        delivery=3,
        accept_from=1,
        batch_id="b",
        granted=True,
        lost_sessions=4,
        ready_ms=5,
        dispatched_ms=6,
        started_ms=7,
        not_before_ms=8,
        deadline_ms=9,
        error=b'{"message":"no"}',
        reason="outcome_unknown",
        key_number=10,
        earlier=b'[[1,"a","w",true]]',
        handle="job-7",
    )
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        run.write(steps_changed=[written])
        stored = run.queries.load_tasks([10], RESIDENT).steps[0]._asdict()
        for name, value in written._asdict().items():
            assert stored[name] == (value.decode() if isinstance(value, bytes) else value), name


def test_steps_are_traced_to_their_tasks_also_to_ended_ones(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10), submission(2, 20, state="completed", finished_ms=NOW)])
        assert run.queries.tasks_of_steps([11, 12, 22, 999]) == {
            11: (10, "running"),
            12: (10, "running"),
            22: (20, "completed"),
        }


# -- for people -------------------------------------------------------------------------------------------------------


def test_a_task_is_read_with_all_its_columns_and_steps(place: Place) -> None:
    with Running(place) as run:
        run.workflow("order", "7")
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"d")}, labels=b'{"region":"eu"}', priority=3)])
        run.write(steps_dispatched=[dispatched(11)])
        run.write(steps_completed=[completed(11, b'{"total": 1.0}')])
        run.write(steps_changed=[step_changed(12, "failed", finished_ms=NOW, error=b'{"code":"x"}', reason="timeout")])
        task = run.queries.task(10)
        assert task.task._asdict() == {
            "id": 10,
            "uid": f"{10:032x}",
            "workflow_id": 1,
            "namespace": "default",
            "workflow": "order",
            "version": "7",
            "key": "k",
            "state": "running",
            "attention": None,
            "cancelling": 0,
            "priority": 3,
            "labels": '{"region":"eu"}',
            "context_bytes": 18,
            "created_ms": NOW,
            "finished_ms": None,
            "deadline_ms": None,
        }
        assert [(s.name, s.state, s.output, s.error, s.reason) for s in task.steps] == [
            ("step_0", "completed", '{"total": 1.0}', None, None),
            ("step_1", "failed", None, '{"code":"x"}', "timeout"),
        ]
        assert run.queries.task(11) is None
        assert run.queries.task_state(10) == "running"
        assert run.queries.task_state(11) is None


FILTERS = [
    (TaskFilter(), [50, 40, 30, 20, 10]),
    (TaskFilter(limit=2), [50, 40]),
    (TaskFilter(limit=2, before=ListPoint(NOW + 40, 40)), [30, 20]),
    (TaskFilter(state="running"), [50, 20, 10]),
    (TaskFilter(state="failed"), [40]),
    (TaskFilter(workflow="order"), [40, 30, 20, 10]),
    (TaskFilter(workflow="order", limit=3, before=ListPoint(NOW + 40, 40)), [30, 20, 10]),
    (TaskFilter(workflow="order", state="running"), [20, 10]),
    (TaskFilter(workflow="unknown"), []),
    (TaskFilter(namespace="default", workflow="other"), [50]),
    (TaskFilter(namespace="elsewhere"), []),
    (TaskFilter(label=("region", "eu")), [30, 20]),
    (TaskFilter(label=("region", "us")), []),
    (TaskFilter(key="k"), [20]),
    (TaskFilter(key="k", namespace="default", workflow="order", state="running"), [20]),
    (TaskFilter(key="k", workflow="other"), []),
    (TaskFilter(key="k", state="failed"), []),
    (TaskFilter(key="k", before=ListPoint(NOW + 20, 20)), []),
    (TaskFilter(key="unknown"), []),
    (TaskFilter(namespace="default", state="running"), [50, 20, 10]),
    (TaskFilter(namespace="default", limit=2, before=ListPoint(NOW + 50, 50)), [40, 30]),
    (TaskFilter(first=ListPoint(NOW + 30, 30)), [50, 40, 30]),
    (TaskFilter(first=ListPoint(NOW + 20, 20), before=ListPoint(NOW + 40, 40), workflow="order"), [30, 20]),
    (TaskFilter(first=ListPoint(NOW + 40, 40), state="failed"), [40]),
    (TaskFilter(first=ListPoint(NOW + 41, 41), state="failed"), []),
    (TaskFilter(since_ms=NOW + 30), [50, 40, 30]),
    (TaskFilter(since_ms=NOW + 30, label=("region", "eu"), state="completed"), [30]),
]


@pytest.mark.parametrize(("wanted", "ids"), FILTERS)
def test_tasks_are_listed_by_filter_the_newest_first(place: Place, wanted: TaskFilter, ids: list[int]) -> None:
    rows: dict[int, dict[str, Any]] = {
        10: {},
        20: {"workflow_id": 2, "labels": b'{"region":"eu"}'},
        30: {"state": "completed", "finished_ms": NOW, "labels": b'{"size":"s","region":"eu"}'},
        40: {"workflow_id": 2, "state": "failed", "finished_ms": NOW},
        50: {"workflow_id": 3},
    }
    with Running(place) as run:
        run.workflow("order", "1")
        run.workflow("order", "2")
        run.workflow("other", "1")
        keys = {20: ("k", b"digest")}
        run.write(
            submissions=[submission(i, i, keys=keys, **{"created_ms": NOW + i, **row}) for i, row in rows.items()]
        )
        assert [t.id for t in run.queries.tasks(wanted)] == ids


def test_a_filter_that_no_stored_text_can_match_finds_nothing(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        assert run.queries.tasks(TaskFilter(namespace="\0")) == []
        assert run.queries.tasks(TaskFilter(key="a\0b", label=("\0", "x"))) == []
        assert run.queries.steps(StepFilter(handler_class="\0")) == []
        assert run.queries.workflow_rows("\0") == []


def test_a_key_is_found_in_every_namespace_or_in_one(place: Place) -> None:
    elsewhere = submission(2, 20, namespace="shop", workflow_id=2)
    elsewhere.tasks[0] = elsewhere.tasks[0]._replace(key="k")
    with Running(place) as run:
        run.workflow()
        run.workflow(namespace="shop")
        run.write(submissions=[submission(1, 10, keys={10: ("k", b"d")})])
        run.write(submissions=[elsewhere._replace(keys=[Key("shop", "k", b"d", 20)])])
        assert [t.id for t in run.queries.tasks(TaskFilter(key="k"))] == [20, 10]
        assert [t.id for t in run.queries.tasks(TaskFilter(key="k", namespace="shop"))] == [20]
        assert [t.id for t in run.queries.tasks(TaskFilter(key="k", namespace="nowhere"))] == []


STEP_FILTERS = [
    (StepFilter(), [21, 15, 14, 13, 12, 11]),
    (StepFilter(limit=2), [21, 15]),
    (StepFilter(limit=2, before=ListPoint(NOW, 14)), [13, 12]),
    (StepFilter(before=ListPoint(NOW + 5, 21)), [15, 14, 13, 12, 11]),
    (StepFilter(first=ListPoint(NOW + 5, 20)), [21]),
    (StepFilter(state="held"), [12, 14]),  # 12 was held after 14
    (StepFilter(state="held", before=ListPoint(NOW + 3, 12)), [14]),
    (StepFilter(state="held", first=ListPoint(NOW + 3, 12)), [12]),
    (StepFilter(state="failed"), [13]),
    (StepFilter(state="waiting"), [21, 15, 11]),
    (StepFilter(state="waiting", before=ListPoint(NOW + 5, 20)), [15, 11]),
    (StepFilter(handler_class="Shop::**", before=ListPoint(NOW, 15)), [14, 13, 12]),
    (StepFilter(handler_class="Shop::Pay"), [13, 12]),
    (StepFilter(handler_class="Shop::*"), [13, 12]),
    (StepFilter(handler_class="Shop::**"), [15, 14, 13, 12]),
    (StepFilter(state="held", handler_class="**::Ship"), [14]),
    (StepFilter(state="held", namespaces=("elsewhere",)), []),
    (StepFilter(handler_class="shop::*"), []),
]


@pytest.mark.parametrize(("wanted", "ids"), STEP_FILTERS)
def test_steps_are_listed_by_state_and_handler_the_newest_first(
    place: Place, wanted: StepFilter, ids: list[int]
) -> None:
    handlers = ["plain", "Shop::Pay", "Shop::Pay", "Shop::Sub::Ship", "Shop::Sub::Ship"]
    with Running(place) as run:
        run.workflow()
        steps = [step_new(11 + i, 10, i, handler_class=handler) for i, handler in enumerate(handlers)]
        later = submission(2, 20, created_ms=NOW + 5)._replace(steps=[step_new(21, 20, 0, handler_class="plain")])
        run.write(submissions=[submission(1, 10, created_ms=NOW)._replace(steps=steps), later])
        run.write(
            steps_changed=[
                step_changed(12, "held"),
                step_changed(13, "failed", finished_ms=NOW),
                step_changed(14, "held"),
                step_changed(15, "held"),
            ],
            attention=[
                AttentionChanged(12, 10, "held", NOW + 3, "Shop::Pay"),
                AttentionChanged(13, 10, "failed", NOW, "Shop::Pay"),
                AttentionChanged(14, 10, "held", NOW + 1, "Shop::Sub::Ship"),
                AttentionChanged(15, 10, "held", NOW + 2, "Shop::Sub::Ship"),
                AttentionChanged(10, 10, "task_held", NOW + 3, None),
            ],
        )
        assert run.queries.held_count() == 3
        run.write(
            steps_changed=[step_changed(15, "waiting")],
            attention=[
                AttentionChanged(15, 10, None, NOW, "Shop::Sub::Ship"),
                AttentionChanged(10, 10, None, NOW, None),
            ],
        )
        assert [s.id for s in run.queries.steps(wanted)] == ids


def test_lists_are_in_the_order_of_time_also_where_ids_are_not(place: Place) -> None:
    created = {10: NOW + 5, 20: NOW + 1, 30: NOW + 5, 40: NOW}
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i, created_ms=at_ms) for i, at_ms in created.items()])
        for wanted in (TaskFilter(limit=1), TaskFilter(limit=1, workflow="order")):
            tasks: list[int] = []
            page = wanted
            while rows := run.queries.tasks(page):
                tasks += [row.id for row in rows]
                page = page._replace(before=rows[-1].point)
            assert tasks == [30, 10, 20, 40]
        of_steps: list[int] = []
        listed = StepFilter(limit=1)
        while found := run.queries.steps(listed):
            of_steps += [row.task_id for row in found]
            listed = listed._replace(before=found[-1].point)
        assert list(dict.fromkeys(of_steps)) == [30, 10, 20, 40]
        assert len(of_steps) == len(run.queries.steps(StepFilter()))


def test_the_end_of_a_part_of_a_list_is_found(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i, created_ms=NOW + i) for i in (10, 20, 30)])
        run.write(
            steps_changed=[step_changed(11, "held"), step_changed(21, "held")],
            attention=[AttentionChanged(11, 10, "held", NOW + 9, "h"), AttentionChanged(21, 20, "held", NOW + 8, "h")],
        )
        ends = [run.queries.list_end(TaskFilter(), rows) for rows in (1, 3, 4)]
        assert ends == [(NOW + 30, 30), (NOW + 10, 10), (0, 0)]
        assert run.queries.list_end(StepFilter(state="ready", before=ListPoint(NOW + 30, 31)), 2) == (NOW + 20, 20)
        assert run.queries.list_end(StepFilter(state="held"), 1) == (NOW + 9, 11)
        assert run.queries.list_end(StepFilter(state="held", before=ListPoint(NOW + 9, 11)), 9) == (0, 0)
        for wanted in (
            TaskFilter(before=ListPoint(NOW + 10, 10)),
            StepFilter(state="failed"),
            StepFilter(state="held", before=ListPoint(NOW + 8, 21)),
        ):
            assert run.queries.list_end(wanted, 1) is None


def test_events_are_read_from_a_cursor_on(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10), submission(2, 20)])
        for n in range(3):
            run.write(history=[fact(10, b"[%d]" % n), fact(20, b"[-%d]" % n)])
        events = run.queries.task_events(10)
        assert [e.facts for e in events] == ['[["submitted"]]', "[0]", "[1]", "[2]"]
        assert run.queries.task_events(10, tuple(events[1][:3])) == events[2:]
        assert run.queries.task_events(10, None, 2) == events[:2]
        (lane,) = run.queries.lanes()
        everything = run.queries.events_from(lane.id, HistoryCursor(), 100)
        assert len(everything) == 8
        for i, item in enumerate(everything):
            first = HistoryCursor(item.seq, item.position)
            assert run.queries.events_from(lane.id, first, 2) == everything[i : i + 2]


def test_a_reader_sees_every_group_that_was_reported_committed(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        for task_id in range(10, 300, 10):
            run.write(submissions=[submission(task_id, task_id)])
            assert run.queries.task_state(task_id) == "running"


def test_after_a_restart_every_open_task_is_found_page_by_page(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(i, i) for i in range(10, 5000, 10)])
    loaded: list[int] = []
    with Running(place) as run:
        left: LeftBehind | None = LeftBehind(LANE, before_id=run.taken.ids[0])
        while left is not None:
            found = run.queries.load_page(100, {LANE: left}, (), NOW, RESIDENT)
            loaded += [t.id for t in found.tasks]
            ((_, left),) = found.left_behind
    assert loaded == list(range(10, 5000, 10))


def test_stored_tasks_are_counted_by_what_they_wait_for_up_to_a_limit(place: Place) -> None:
    wants: dict[int, dict[str, Any]] = {
        10: {"stored": True, "wants": "a", "created_ms": NOW + 9},
        20: {"stored": True, "wants": "a", "created_ms": NOW + 3, "workflow_id": 2},
        30: {"stored": True, "wants": "a,b"},
        40: {"stored": True, "wake_ms": NOW},  # it waits for a time
        50: {"wants": "a"},  # in a broker's memory
        60: {"stored": True, "wants": "a", "state": "completed", "finished_ms": NOW},
        70: {"stored": True, "wants": "c", "created_ms": NOW + 7},
    }
    with Running(place) as run:
        run.workflow()
        run.workflow("other")
        for task_id, members in wants.items():
            run.write(submissions=[submission(task_id, task_id, **members)])
        queries = run.queries
        assert queries.stored_wants() == ["a", "a,b", "c"]
        assert queries.stored_counts(["a", "a,b"], 100) == {"a": 2, "a,b": 1}
        assert sum(queries.stored_counts(["a", "a,b", "c"], 3).values()) == 3
        assert queries.stored_counts_by_workflow(["a", "a,b"], 100) == {("a", 1): 1, ("a", 2): 1, ("a,b", 1): 1}
        assert sum(queries.stored_counts_by_workflow(["a", "c"], 2).values()) == 2
        assert queries.oldest_stored_ms(["a", "c"]) == NOW + 3
        assert queries.oldest_stored_ms(["d"]) is None
        assert queries.stored_counts([], 100) == {}
