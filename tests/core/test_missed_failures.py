"""Compensations: the documented rule runs exactly when it should, and a rule that misses failures is reported."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.definitions import missed_failures
from stepwire_broker.core.definitions.trigger_rules import evaluate
from stepwire_broker.core.definitions.workflow import Workflow, read_workflow
from stepwire_broker.core.intake.commands import CancelTask, RetryTask
from stepwire_broker.definition_files import read_document

from .world import World

RECOMMENDED: dict[str, Any] = {"all": [{"completed": "pay"}, {"none": [{"completed": "ship"}]}]}
TEMPTING: dict[str, Any] = {"all": [{"completed": "pay"}, {"failed": "ship"}]}


def step(name: str, *depends_on: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "handler_class": "x", "depends_on": list(depends_on)} | members


def order(rule: dict[str, Any], *between: dict[str, Any], ship_after: tuple[str, ...]) -> Workflow:
    ship = step("ship", *ship_after)
    return read_workflow(
        {"name": "w", "steps": [step("pay"), *between, ship, step("refund", "pay", "ship", trigger_rule=rule)]}
    )


def endings(workflow: Workflow) -> Iterator[dict[str, str]]:
    """Every way in which the steps can end, by the rules of the core: a step that runs may complete or fail."""
    for fates in product(("completed", "failed"), repeat=len(workflow.steps)):
        states: list[str] = [""] * len(workflow.steps)
        for each, fate in zip(workflow.steps, fates, strict=True):
            if each.trigger_rule is None:
                runs = all(states[needed] == "completed" for needed in each.depends_on)
            else:
                runs = evaluate(each.trigger_rule, states, b"{}", {})
            states[each.index] = fate if runs else "skipped"
        yield {each.name: states[each.index] for each in workflow.steps}


CHAIN = (step("label", "pay"), step("pack", "label"))
FORK = (step("label", "pay"), step("pack", "pay"))


@pytest.mark.parametrize(
    ("between", "ship_after"), [((), ("pay",)), (CHAIN, ("pack",)), (FORK, ("label", "pack")), (FORK, ("pack",))]
)
def test_the_documented_compensation_runs_whenever_pay_completed_and_ship_did_not(
    between: tuple[dict[str, Any], ...], ship_after: tuple[str, ...]
) -> None:
    workflow = order(RECOMMENDED, *between, ship_after=ship_after)
    assert workflow.warnings == ()
    seen = set()
    for ended in endings(workflow):
        must_run = ended["pay"] == "completed" and ended["ship"] != "completed"
        assert (ended["refund"] != "skipped") is must_run, ended
        seen.add((ended["pay"], ended["ship"]))
    assert seen >= {("failed", "skipped"), ("completed", "failed"), ("completed", "completed")}


def test_a_compensation_that_waits_for_a_failure_misses_the_failures_before() -> None:
    workflow = order(TEMPTING, *CHAIN, ship_after=("pack",))
    missed = [ended for ended in endings(workflow) if ended["pay"] == "completed" and ended["label"] == "failed"]
    assert {ended["refund"] for ended in missed} == {"skipped"}
    assert [str(warning) for warning in workflow.warnings] == [
        "steps[4].trigger_rule: if pack fails, ship is skipped, not failed, and refund does not run; instead of "
        "{failed: ship} write {none: [{completed: ship}]}, or {none: [{completed: ship}, {skipped: ship}]} if this is "
        "meant"
    ]


@pytest.mark.parametrize(
    ("rule", "failing"),
    [
        (TEMPTING, "pack"),
        ({"failed": "ship"}, "pack"),
        ({"any": [{"failed": "pay"}, {"failed": "ship"}]}, "pack"),
        ({"all": [{"completed": "pay"}, {"none": [{"none": [{"failed": "ship"}]}]}]}, "pack"),
        ({"all": [TEMPTING, {"result": "pay.cents", "op": "greater_than", "value": 100}]}, "pack"),
        (RECOMMENDED, None),
        ({"none": [{"completed": "ship"}, {"skipped": "ship"}]}, None),
        ({"any": [{"failed": "ship"}, {"skipped": "ship"}]}, None),
        ({"all": [{"completed": "pay"}, {"failed": "ship"}, {"none": [{"skipped": "ship"}]}]}, None),
        ({"failed": "pay"}, None),
        ({"any": [{"failed": "ship"}, {"context": "vip", "op": "exists"}]}, None),
        ({"none": [{"failed": "ship"}]}, None),
    ],
)
def test_a_rule_is_reported_only_if_a_failure_before_the_named_step_makes_it_false(
    rule: dict[str, Any], failing: str | None
) -> None:
    workflow = order(rule, *CHAIN, ship_after=("pack",))
    found = [warning.message.split()[1] for warning in workflow.warnings]
    assert found == ([] if failing is None else [failing])


def test_a_branch_that_was_not_taken_is_no_failure() -> None:
    express = step("ship", "pay", trigger_rule={"all": [{"completed": "pay"}, {"context": "express", "op": "exists"}]})
    refund = step("refund", "pay", "ship", trigger_rule=RECOMMENDED)
    assert read_workflow({"name": "w", "steps": [step("pay"), express, refund]}).warnings == ()


def test_the_warning_names_the_line_of_the_rule() -> None:
    document = read_document(
        "name: w\nsteps:\n"
        "  - {name: pay, handler_class: x}\n"
        "  - {name: pack, handler_class: x, depends_on: [pay]}\n"
        "  - {name: ship, handler_class: x, depends_on: [pack]}\n"
        "  - name: refund\n    handler_class: x\n    depends_on: [pay, ship]\n"
        "    trigger_rule: {all: [{completed: pay}, {failed: ship}]}\n",
        "order.yaml",
    )
    (warning,) = read_workflow(document.value, document.where).warnings
    assert str(warning).startswith("order.yaml:9: steps[3].trigger_rule: if pack fails")
    assert (warning.code, warning.path, warning.where) == ("missed_failure", "steps[3].trigger_rule", "order.yaml:9")


_graphs = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        *(st.sets(st.integers(0, i - 1), max_size=3) if i else st.just(set()) for i in range(count))
    )
)


@given(_graphs, st.data())
def test_a_compensation_is_reported_exactly_when_some_failure_is_missed(
    graph: tuple[set[int], ...], data: st.DataObject
) -> None:
    pay, ship = data.draw(st.permutations(range(len(graph))))[:2]
    steps = [step(f"s{i}", *(f"s{needed}" for needed in needs)) for i, needs in enumerate(graph)]
    rule = {"all": [{"completed": f"s{pay}"}, {"failed": f"s{ship}"}]}
    workflow = read_workflow({"name": "w", "steps": [*steps, step("refund", f"s{pay}", f"s{ship}", trigger_rule=rule)]})
    is_missed = any(ended[f"s{pay}"] == "completed" and ended[f"s{ship}"] == "skipped" for ended in endings(workflow))
    assert bool(workflow.warnings) is is_missed


def test_a_large_workflow_is_checked_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [step("s0"), *(step(f"s{i}", f"s{i - 1}") for i in range(1, 2_000))]
    rules = [step(f"r{i}", f"s{i}", trigger_rule={"failed": f"s{i}"}) for i in range(1, 2_000)]
    found = len(read_workflow({"name": "w", "steps": [*chain, *rules]}).warnings)
    monkeypatch.setattr(missed_failures, "VISITS_MAX", 100)
    fewer = len(read_workflow({"name": "w", "steps": [*chain, *rules]}).warnings)
    assert 0 < fewer < found


# -- in the core ------------------------------------------------------------------------------------------------------


def started(*, deadline_ms: int | None = None) -> tuple[World, int]:
    """A task with the documented compensation. Each step's handler has the step's name."""
    world = World()
    names = ("pay", "label", "ship")
    steps = [
        step(name, *needs, handler_class=name, retry_limit=0)
        for name, needs in zip(names, ((), ("pay",), ("label",)), strict=True)
    ]
    refund = step("refund", "pay", "ship", handler_class="refund", trigger_rule=RECOMMENDED)
    deadline = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
    task_id = world.task({"name": "order", "steps": [*steps, refund], **deadline})
    world.hello()
    return world, task_id


def end(world: World, name: str, fate: str = "completed") -> None:
    """Let the step's run end, if the step was dispatched."""
    batch = world.batches()[-1]
    if batch.steps[0].handler_class == name:
        world.result(batch) if fate == "completed" else world.fail(batch)


@pytest.mark.parametrize("fates", list(product(("completed", "failed"), repeat=3)))
def test_the_core_starts_the_documented_compensation_exactly_when_pay_completed_and_ship_did_not(
    fates: tuple[str, str, str],
) -> None:
    world, task_id = started()
    for name, fate in zip(("pay", "label", "ship"), fates, strict=True):
        end(world, name, fate)
    ended = world.states(task_id)
    must_run = ended["pay"] == "completed" and ended["ship"] != "completed"
    assert ended["refund"] == ("dispatched" if must_run else "skipped")


def test_a_task_deadline_between_payment_and_shipment_starts_the_compensation() -> None:
    world, task_id = started(deadline_ms=60_000)
    end(world, "pay")
    world.pass_time(61_000)
    assert world.states(task_id)["label"] == "failed"
    assert world.states(task_id)["ship"] == "skipped"
    assert world.states(task_id)["refund"] in ("ready", "dispatched")


def test_a_cancel_also_cancels_the_compensation_and_a_retry_from_it_starts_it() -> None:
    world, task_id = started()
    end(world, "pay")
    world.refuse(world.batches()[-1], "draining")
    world.ask(CancelTask, task_id=task_id)
    assert world.states(task_id) == {
        "pay": "completed",
        "label": "cancelled",
        "ship": "cancelled",
        "refund": "cancelled",
    }
    world.hello(k=2, n=2)
    world.ask(RetryTask, task_id=task_id, from_step="refund")
    assert world.states(task_id) == {
        "pay": "completed",
        "label": "cancelled",
        "ship": "cancelled",
        "refund": "dispatched",
    }
