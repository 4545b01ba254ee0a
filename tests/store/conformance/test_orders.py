"""Orders between brokers, in the stores that several brokers can use."""

from stepwire_broker.core.definitions.stored_rows import StoredOrder
from stepwire_broker.core.model.commit_group import ControlChanged, OrderAnswer
from stepwire_broker.store.rows import SettledTask

from tests.store.running import PATIENCE_S, MemoryPlace, Place, PostgresPlace, Running
from tests.store.stored_rows import NOW, submission, task_changed

REQUEST = '["CancelTask",{"task_id":10,"reason":"caf\\u00e9 \\u0000"}]'
ANSWER = '["Done",{"task_id":10,"state":"cancelled","attention":null}]'


def put(run: Running, request: str = REQUEST, lane: int | None = None) -> int:
    assert run.store.orders is not None
    return run.store.orders.put(run.lane if lane is None else lane, request).result(PATIENCE_S)


def test_an_order_is_found_open_until_it_is_answered_and_then_read_by_its_asker(shared: Place) -> None:
    with Running(shared) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        first, second = put(run), put(run, "[]")
        found = run.queries.open_orders([run.lane], 10)
        assert found == [StoredOrder(run.lane, first, found[0].age_ms, REQUEST), found[1]]
        assert 0 <= found[0].age_ms < PATIENCE_S * 1000
        assert run.queries.order_answers([first, second]) == {}
        run.write(
            tasks_changed=[task_changed(10, state="cancelled", finished_ms=NOW)],
            orders_answered=[OrderAnswer(first, ANSWER, ("task", 10))],
        )
        assert run.queries.task_state(10) == "cancelled"
        assert run.queries.order_answers([first, second, 999]) == {first: ANSWER}
        assert [order.id for order in run.queries.open_orders([run.lane], 10)] == [second]


def test_an_effect_whose_order_has_an_answer_already_is_not_stored(shared: Place) -> None:
    """No order is carried out twice, whatever its owners believe."""
    with Running(shared) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20)])
        order = put(run)
        run.write(orders_answered=[OrderAnswer(order, ANSWER)])
        outcome = run.write(
            tasks_changed=[
                task_changed(10, state="cancelled", finished_ms=NOW),
                task_changed(20, state="cancelled", finished_ms=NOW),
            ],
            orders_answered=[OrderAnswer(order, "[]", ("task", 10))],
        )
        assert [rejected.task_id for rejected in outcome.rejected] == [10]
        assert (run.queries.task_state(10), run.queries.task_state(20)) == ("running", "cancelled")
        assert run.queries.order_answers([order]) == {order: ANSWER}


def test_an_answer_is_refused_together_with_the_rows_of_its_task(shared: Place) -> None:
    with Running(shared) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10)])
        order, other = put(run), put(run)
        run.write(
            tasks_changed=[task_changed(10, state="no such state")],
            orders_answered=[OrderAnswer(order, ANSWER, ("task", 10)), OrderAnswer(other, ANSWER)],
        )
        assert run.queries.order_answers([order, other]) == {other: ANSWER}


def test_orders_of_other_lanes_are_not_found(shared: Place) -> None:
    with Running(shared) as run:
        put(run, lane=run.lane + 1)
        order = put(run)
        assert [found.id for found in run.queries.open_orders([run.lane], 10)] == [order]
        assert run.queries.open_orders([], 10) == []


def test_a_look_finds_the_oldest_orders_first_and_no_more_than_its_limit(shared: Place) -> None:
    with Running(shared) as run:
        orders = [put(run) for _ in range(5)]
        assert [found.id for found in run.queries.open_orders([run.lane], 3)] == orders[:3]


def test_an_order_of_more_than_an_hour_ago_is_removed_by_a_later_one(shared: Place) -> None:
    with Running(shared) as run:
        old = put(run)
        if isinstance(shared, MemoryPlace):
            shared.tables.orders[old] = shared.tables.orders[old]._replace(asked_ms=-3_600_001)
        else:
            assert isinstance(shared, PostgresPlace)
            shared.server.sql(f"UPDATE {shared.schema}.orders SET asked_ms = asked_ms - 3600001")  # noqa: S608
        new = put(run)
        assert [found.id for found in run.queries.open_orders([run.lane], 10)] == [new]


def test_tasks_that_have_ended_or_need_an_operator_are_settled(shared: Place) -> None:
    with Running(shared) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20, 30)])
        run.write(
            tasks_changed=[task_changed(10, state="failed", finished_ms=NOW), task_changed(20, attention="held")],
        )
        assert run.queries.settled_tasks([30, 20, 10, 99]) == [
            SettledTask(10, "failed", None),
            SettledTask(20, "running", "held"),
        ]


def test_the_revision_rises_with_every_change_of_controls_and_workflows(shared: Place) -> None:
    with Running(shared) as run:
        revisions = [run.queries.controls_revision()]
        number = run.workflow()
        revisions.append(run.queries.controls_revision())
        for lists in (
            {"controls": [ControlChanged("rule", "a::**", "1", 1)]},
            {"controls": [ControlChanged("rule", "a::**", None, 0)]},
            {"activations": [(1, number)]},
        ):
            run.write(**lists)
            revisions.append(run.queries.controls_revision())
        assert revisions == sorted(set(revisions))
