# ruff: noqa: E501 - a table reads best with one case a line
"""A workflow written in Python is the same document as one in a file; a mistake is raised where it is made."""

import json
from typing import Any

import pytest
from stepwire import ConfigurationError, Workflow, all_of, any_of, none_of
from stepwire import workflow as builder
from stepwire_broker.core.definitions import workflow_schema
from stepwire_broker.core.definitions.workflow import Workflow as Compiled
from stepwire_broker.core.definitions.workflow import read_workflow
from stepwire_broker.definition_files import read_document

ALL_OF_IT = """\
name: order_fulfillment
namespace: shop::eu
version: "1.0"
description: Every member of a workflow.
deadline: 7d
worker_selector: {region: eu}
steps:
  - {name: validate, handler_class: "Orders::Validate"}
  - name: pay
    handler_class: payments.charge
    description: Charges the card.
    depends_on: [validate]
    handler_config: {gateway: test, retries: [1, 2]}
    input: {order: context.order_id, total: results.validate.total, first: results.validate.items.0, all: context}
    delivery_mode: at_most_once
    on_unknown: fail
    retry_reported_failures: true
    retry_limit: 2
    backoff: {kind: constant, base: 1s, max_ms: 5000, jitter: none}
    timeout_ms: 30000
    queue_timeout: 10m
    deadline: 1h
    priority: 5
    worker_selector: {gpu: true}
  - {name: ship, handler_class: shipping.ship, depends_on: [pay, validate], allow_failure: true, worker_selector: local}
  - name: refund
    handler_class: payments.refund
    depends_on: [pay, ship]
    trigger_rule:
      any:
        - {failed: ship}
        - all:
            - {completed: pay}
            - {result: pay.amount, op: greater_than, value: 100}
            - {context: customer.vip, op: not_exists}
            - none: [{skipped: ship}, {result: pay, op: equals, value: null}]
output: {tracking: results.ship.tracking_number, order: context.order_id}
"""


def all_of_it() -> Workflow:
    order = Workflow(
        "order_fulfillment",
        namespace="shop::eu",
        version="1.0",
        description="Every member of a workflow.",
        deadline="7d",
        worker_selector={"region": "eu"},
    )
    context = order.context
    validate = order.step("validate", "Orders::Validate")
    pay = order.step(
        "pay",
        "payments.charge",
        depends_on=[validate],
        description="Charges the card.",
        handler_config={"gateway": "test", "retries": [1, 2]},
        input={
            "order": context["order_id"],
            "total": "results.validate.total",
            "first": validate["items"][0],
            "all": context,
        },
        delivery_mode="at_most_once",
        on_unknown="fail",
        retry_reported_failures=True,
        retry_limit=2,
        backoff={"kind": "constant", "base": "1s", "max_ms": 5000, "jitter": "none"},
        timeout_ms=30_000,
        queue_timeout="10m",
        deadline="1h",
        priority=5,
        worker_selector={"gpu": True},
    )
    ship = order.step(
        "ship", "shipping.ship", depends_on=[pay, "validate"], allow_failure=True, worker_selector="local"
    )
    order.step(
        "refund",
        "payments.refund",
        depends_on=[pay, ship],
        trigger_rule=any_of(
            ship.failed,
            all_of(
                pay.completed,
                pay["amount"].greater_than(100),
                context["customer"]["vip"].not_exists(),
                none_of(ship.skipped, pay.equals(None)),
            ),
        ),
    )
    order.output({"tracking": ship["tracking_number"], "order": context["order_id"]})
    return order


def compiled(text: str) -> Compiled:
    return read_workflow(read_document(text).value)


def test_a_workflow_in_python_is_the_same_document_as_in_a_file() -> None:
    assert all_of_it().document() == read_document(ALL_OF_IT).value
    assert read_workflow(all_of_it().document()) == compiled(ALL_OF_IT)


def test_the_example_of_the_module_is_a_workflow() -> None:
    text = (builder.__doc__ or "").split("\n\n")[1]
    names: dict[str, Any] = {"Workflow": Workflow, "any_of": any_of}
    exec(text, names)
    read = read_workflow(names["order"].document())
    assert [step.name for step in read.steps] == ["validate_order", "pay", "refund"]
    assert read.warnings == ()


def test_a_document_is_a_copy() -> None:
    config = {"gateway": "test"}
    order = Workflow("w")
    order.step("a", "x", handler_config=config)
    before = json.dumps(order.document())
    config["gateway"] = "live"
    order.document()["steps"].clear()
    assert json.dumps(order.document()) == before


def test_every_member_of_the_format_can_be_written() -> None:
    format_ = workflow_schema.workflow_schema()
    later = {"workerSelector"}
    assert builder.WorkflowMembers.__annotations__.keys() == (
        format_["properties"].keys() - later - {"name", "steps", "output"}
    )
    assert builder.StepMembers.__annotations__.keys() == (
        format_["$defs"]["step"]["properties"].keys() - later - {"name", "handler_class", "depends_on"}
    )
    assert builder.Backoff.__annotations__.keys() == format_["$defs"]["backoff"]["properties"].keys()


NAME = "a name of letters, digits, _ and -, at most 128"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "a b"}, f"step 'a b': name is 'a b', not {NAME}"),
        ({"name": "a\n"}, rf"step 'a\n': name is 'a\n', not {NAME}"),
        ({"name": "before"}, "step 'before': w already has a step with this name"),
        ({"handler_class": ""}, "step 'a': handler_class is '', not the name of a handler: letters, digits, _, ., : and -"),
        ({"retry_limt": 3}, "step 'a': retry_limt is unknown; did you mean retry_limit?"),
        ({"retry_limit": -1}, "step 'a': retry_limit is -1, not a whole number from 0 to 10000"),
        ({"retry_limit": True}, "step 'a': retry_limit is True, not a whole number from 0 to 10000"),
        ({"timeout": 30}, "step 'a': timeout is 30, not a duration like 250ms, 30s, 5m, 2h or 7d"),
        ({"timeout": "5s", "timeout_ms": 5}, "step 'a': timeout_ms and timeout mean the same: remove one"),
        ({"backoff": {"bass": 1}}, "step 'a': backoff: bass is unknown; did you mean base?"),
        ({"backoff": {"kind": "linear"}}, "step 'a': backoff: kind is 'linear', not exponential or constant"),
        ({"delivery_mode": "exactly_once"}, "step 'a': delivery_mode is 'exactly_once', not at_least_once or at_most_once"),
        ({"worker_selector": "gpu"}, "step 'a': worker_selector is 'gpu', not a map of labels, or 'local'"),
        ({"handler_config": {"x": object}}, "step 'a': handler_config is {'x': <class 'object'>}, which is not possible"),
        ({"depends_on": "before"}, "step 'a': depends_on is a list: depends_on=[before]"),
        ({"depends_on": ["befor"]}, "depends_on names 'befor', which is not an earlier step; did you mean before?"),
        ({"depends_on": ["before", "before"]}, "step 'a': depends_on names 'before' twice"),
        ({"input": {"x": "order"}}, "step 'a': input['x'] is 'order', not a path like context.order_id or results.step.total"),
        ({"input": {"x": "results.before"}}, "step 'a': input['x']: 'before' is not in its depends_on"),
        ({"trigger_rule": {"failed": "before"}}, "step 'a': trigger_rule names 'before', which is not in its depends_on"),
        ({"trigger_rule": {"any": [{"none": [{"result": "before.x", "op": "exists"}]}]}}, "trigger_rule names 'before'"),
        ({"trigger_rule": any_of("before")}, "step 'a': trigger_rule holds 'before', not a rule like pay.failed"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_mistake_is_raised_where_it_is_made(members: dict[str, Any], message: str) -> None:
    order = Workflow("w")
    order.step("before", "x")
    with pytest.raises(ConfigurationError) as caught:
        order.step(**{"name": "a", "handler_class": "x", **members})
    assert message in str(caught.value)
    assert [step["name"] for step in order.document()["steps"]] == ["before"], "what was refused is not there"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "a::b"}, "name is 'a::b', not a name of letters"),
        ({"namespace": "a::"}, "namespace is 'a::', not names of letters, digits, _, - and ., joined by ::"),
        ({"namespace": "a" * 129}, "namespace is"),
        ({"version": 1.0}, "version is 1.0, not a version of letters, digits, _, -, . and +, at most 64"),
        ({"stepz": 1}, "workflow 'w': stepz is unknown"),
    ],
)
def test_a_mistake_in_the_workflow_itself_is_raised(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Workflow(**{"name": "w", **members})
    assert message in str(caught.value)


def test_a_step_of_another_workflow_cannot_be_a_dependency() -> None:
    other = Workflow("other").step("a", "x")
    with pytest.raises(ConfigurationError, match="<step a of other>, which is not a step of w"):
        Workflow("w").step("b", "x", depends_on=[other])


def test_a_path_with_an_empty_or_dotted_part_is_refused() -> None:
    order = Workflow("w")
    for word in ("", "a.b"):
        with pytest.raises(ConfigurationError, match="cannot be part of a path"):
            order.context[word]
    with pytest.raises(ConfigurationError, match="equals compares a value in the context"):
        order.context.equals(1)
    with pytest.raises(ConfigurationError, match="'b' is not a step of this workflow"):
        order.output({"x": "results.b"})


def test_each_part_of_a_document_has_the_line_that_wrote_it() -> None:
    order = all_of_it()
    lines = [order.where(("steps", i, "name")).rpartition(":") for i in range(4)]
    assert {file for file, _, _ in lines} == {__file__}
    numbers = [int(line) for _, _, line in lines]
    assert numbers == sorted(set(numbers))
    assert order.where(("output", "x")).startswith(f"{__file__}:")
