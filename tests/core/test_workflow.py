# ruff: noqa: E501 - a table reads best with one case a line
"""Workflow definitions: what they mean, what is wrong with them, and that the stored form means the same."""

import copy
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.definitions.settings import LimitSettings
from stepwire_broker.core.definitions.step_definition import BackoffPolicy
from stepwire_broker.core.definitions.step_reader import DOCUMENT_BYTES_MAX
from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
from stepwire_broker.core.definitions.trigger_rules import Compare, DependencyEnded, Every, Nothing
from stepwire_broker.core.definitions.workflow import Workflow, read_workflow, stored_workflow
from stepwire_broker.core.reading.document_problems import PROBLEMS_MAX, InvalidWorkflow
from stepwire_broker.definition_files import read_document

ORDER = """\
name: order_fulfillment
namespace: shop
version: "1.0"
steps:
  - {name: validate_order, handler_class: "OrderFulfillment::StepHandlers::ValidateOrderHandler"}
  - name: process_payment
    handler_class: "OrderFulfillment::StepHandlers::ProcessPaymentHandler"
    depends_on: [validate_order]
    handler_config: {gateway: test}
    delivery_mode: at_most_once
    on_unknown: hold
    timeout_ms: 30000
    input: {order: context.order_id, total: results.validate_order.total}
  - name: ship_order
    handler_class: shipping.ship
    depends_on: [process_payment]
    retry_limit: 5
    backoff: {kind: exponential, base_ms: 1000, max_ms: 300000, jitter: full}
    queue_timeout_ms: 600000
    deadline_ms: 3600000
    priority: 0
    worker_selector: {region: eu}
  - {name: refund, handler_class: payments.refund, depends_on: [ship_order], trigger_rule: {none: [{completed: ship_order}]}}
output: {tracking: results.ship_order.tracking_number}
"""


def step(name: str = "a", *depends_on: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "handler_class": "x", "depends_on": list(depends_on)} | members


def workflow(*steps: Any, **members: Any) -> dict[str, Any]:
    return {"name": "w", "steps": list(steps)} | members


def read_one(**members: Any) -> Any:
    """The compiled second step of a workflow of two, with these members."""
    return read_workflow(workflow(step("before"), step("a", "before", **members))).steps[1]


def problems_of(document: Any, **options: Any) -> list[str]:
    with pytest.raises(InvalidWorkflow) as caught:
        read_workflow(document, **options)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [str(problem) for problem in caught.value.problems]


# -- what it means ----------------------------------------------------------------------------------------------------


def test_the_documented_example_is_read_as_the_documentation_says() -> None:
    read = read_workflow(read_document(ORDER).value)
    assert (read.namespace, read.name, read.version, read.id) == ("shop", "order_fulfillment", "1.0", 0)
    assert read.by_name == {"validate_order": 0, "process_payment": 1, "ship_order": 2, "refund": 3}
    assert (read.roots, read.last) == ((0,), (3,))
    assert read.output == (("tracking", ("results", "ship_order", "tracking_number")),)
    validate, pay, ship, refund = read.steps
    assert validate.handler_class == "OrderFulfillment::StepHandlers::ValidateOrderHandler"
    assert (validate.depends_on, validate.dependents, validate.retry_limit) == ((), (1,), 3)
    assert (pay.depends_on, pay.delivery_mode, pay.on_unknown, pay.retry_limit) == ((0,), "at_most_once", "hold", 0)
    assert bytes(pay.handler_config) == b'{"gateway":"test"}'
    assert pay.input == (("order", ("context", "order_id")), ("total", ("results", "validate_order", "total")))
    assert (ship.retry_limit, ship.backoff, ship.queue_timeout_ms) == (5, BackoffPolicy(), 600_000)
    assert (ship.deadline_ms, ship.worker_selector) == (3_600_000, {"region": "eu"})
    assert refund.trigger_rule == Nothing((DependencyEnded("completed", 2),))
    assert read.warnings == ()


def test_absent_members_have_their_defaults() -> None:
    read = read_workflow({"name": "w", "steps": [{"name": "a", "handler_class": "x"}]})
    only = read.steps[0]
    assert (read.namespace, read.version, read.deadline_ms, read.output) == ("default", "1", None, None)
    assert bytes(only.handler_config) == b"{}"
    assert (only.delivery_mode, only.on_unknown, only.retry_limit) == ("at_least_once", "hold", 3)
    assert (only.timeout_ms, only.queue_timeout_ms, only.deadline_ms) == (30_000, None, None)
    assert (only.priority, only.allow_failure, only.input) == (0, False, None)
    assert (only.backoff, only.trigger_rule, only.worker_selector) == (BackoffPolicy(), None, None)


@pytest.mark.parametrize(
    ("members", "field", "value"),
    [
        ({"timeout_ms": 250}, "timeout_ms", 250),
        ({"timeout": "250ms"}, "timeout_ms", 250),
        ({"timeout": "30s"}, "timeout_ms", 30_000),
        ({"timeout": " 5m "}, "timeout_ms", 300_000),
        ({"timeout": "1.5h"}, "timeout_ms", 5_400_000),
        ({"queue_timeout": "7d"}, "queue_timeout_ms", 604_800_000),
        ({"deadline": "2 h"}, "deadline_ms", 7_200_000),
        ({"deadline": None}, "deadline_ms", None),
        ({"backoff": {"base": "2s", "max": "1m"}}, "backoff", BackoffPolicy(base_ms=2_000, max_ms=60_000)),
        ({"backoff": {"kind": "constant", "jitter": "none"}}, "backoff", BackoffPolicy(kind="constant", jitter="none")),
        ({"retry_limit": 0}, "retry_limit", 0),
        ({"delivery_mode": "at_most_once"}, "retry_limit", 0),
        ({"delivery_mode": "at_most_once", "retry_limit": 0}, "retry_limit", 0),
        ({"delivery_mode": "at_most_once", "retry_reported_failures": False}, "retry_limit", 0),
        ({"delivery_mode": "at_most_once", "retry_reported_failures": True}, "retry_limit", 3),
        ({"delivery_mode": "at_most_once", "retry_reported_failures": True, "retry_limit": 7}, "retry_limit", 7),
        ({"worker_selector": "local"}, "worker_selector", "local"),
        ({"worker_selector": " LOCAL "}, "worker_selector", "local"),
        ({"workerSelector": {" gpu ": " true "}}, "worker_selector", {"gpu": "true"}),
        ({"worker_selector": {"gpu": True, "cores": 8, "x": 1.5}}, "worker_selector", {"gpu": "true", "cores": "8", "x": "1.5"}),
        ({"worker_selector": {}}, "worker_selector", None),
        ({"allow_failure": True}, "allow_failure", True),
        ({"priority": -100}, "priority", -100),
        ({"on_unknown": "fail", "delivery_mode": "at_most_once"}, "on_unknown", "fail"),
        ({"input": {}}, "input", ()),
        ({"input": {"all": "context", "b": "results.before"}}, "input", (("all", ("context",)), ("b", ("results", "before")))),
        ({"trigger_rule": {"completed": "before"}}, "trigger_rule", DependencyEnded("completed", 0)),
        ({"trigger_rule": {"context": "a.b", "op": "exists"}}, "trigger_rule", Compare("context", None, ("a", "b"), "exists")),
        (
            {"trigger_rule": {"all": [{"result": "before.x.0", "op": "equals", "value": [1]}, {"skipped": "before"}]}},
            "trigger_rule",
            Every((Compare("result", 0, ("x", "0"), "equals", [1]), DependencyEnded("skipped", 0))),
        ),
        ({"trigger_rule": {"result": "before", "op": "equals", "value": None}}, "trigger_rule", Compare("result", 0, (), "equals")),
    ],
)  # fmt: skip
def test_a_member_is_read_as(members: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read_one(**members), field) == value


@pytest.mark.parametrize(
    ("of_workflow", "of_step", "value"),
    [
        ({"region": "eu"}, None, {"region": "eu"}),
        ({"region": "eu"}, {"gpu": "true"}, {"gpu": "true"}),
        ({"region": "eu"}, {}, None),
        ({"region": "eu"}, "local", "local"),
        ("local", None, "local"),
        ("local", {}, None),
        ({}, None, None),
    ],
)
def test_a_steps_selector_replaces_its_workflows(of_workflow: Any, of_step: Any, value: Any) -> None:
    read = read_workflow(workflow(step(worker_selector=of_step), worker_selector=of_workflow))
    assert read.steps[0].worker_selector == value
    assert read_workflow(json.loads(read.document)) == read


def test_a_workflow_can_have_a_deadline() -> None:
    assert read_workflow(workflow(step(), deadline="1d")).deadline_ms == 86_400_000


# -- what is wrong ----------------------------------------------------------------------------------------------------

NAME = "a name of letters, digits, _ and -, at most 128"
FORMS = "all, any, none, completed, failed, skipped, context or result"
OPS = "equals, not_equals, greater_than, less_than, contains, not_contains, exists, not_exists"


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"name": "a b"}, f"steps[1].name: 'a b' is not {NAME}"),
        ({"name": "a.b"}, f"steps[1].name: 'a.b' is not {NAME}"),
        ({"name": "a::b"}, f"steps[1].name: 'a::b' is not {NAME}"),
        ({"name": "a/b"}, f"steps[1].name: 'a/b' is not {NAME}"),
        ({"name": 'a"'}, f"steps[1].name: 'a\"' is not {NAME}"),
        ({"name": "a\n"}, f"steps[1].name: 'a\\n' is not {NAME}"),
        ({"name": ""}, f"steps[1].name: '' is not {NAME}"),
        ({"name": "x" * 129}, f"steps[1].name: '{'x' * 60}…' is not {NAME}"),
        ({"name": 7}, f"steps[1].name: 7 is not {NAME}; quote it"),
        ({"name": None}, "steps[1]: the step has no name"),
        ({"handler_class": None}, "steps[1]: the step has no handler_class"),
        ({"handler_class": "a b"}, "steps[1].handler_class: 'a b' is not the name of a handler: letters, digits, _, ., : and -, at most 128"),
        ({"retry_limt": 3}, "steps[1].retry_limt: unknown member; did you mean retry_limit?"),
        ({"zzz": 3}, "steps[1].zzz: unknown member"),
        ({"a b": 3}, "steps[1].'a b': unknown member"),
        ({"handler_config": [1]}, "steps[1].handler_config: a list is not a map"),
        ({"handler_config": {"x": 2**53}}, f"steps[1].handler_config: {2**53} is outside ±(2^53 - 1)"),
        ({"handler_config": {"x": "a\0"}}, "steps[1].handler_config: a string holds U+0000, which databases cannot store"),
        ({"delivery_mode": "exactly_once"}, "steps[1].delivery_mode: 'exactly_once' is not at_least_once or at_most_once"),
        ({"on_unknown": True}, "steps[1].on_unknown: true is not hold or fail"),
        ({"retry_limit": -1}, "steps[1].retry_limit: -1 is not a whole number from 0 to 10000"),
        ({"retry_limit": True}, "steps[1].retry_limit: true is not a whole number from 0 to 10000"),
        ({"retry_limit": 1.5}, "steps[1].retry_limit: 1.5 is not a whole number from 0 to 10000"),
        ({"retry_limit": "3"}, "steps[1].retry_limit: '3' is not a whole number from 0 to 10000"),
        ({"priority": 101}, "steps[1].priority: 101 is not a whole number from -100 to 100"),
        ({"allow_failure": "no"}, "steps[1].allow_failure: 'no' is not true or false"),
        ({"timeout_ms": 0}, "steps[1].timeout_ms: 0 is not a whole number from 1 to 31622400000"),
        ({"timeout_ms": "30s"}, "steps[1].timeout_ms: '30s' is not a whole number from 1 to 31622400000"),
        ({"timeout": 30}, "steps[1].timeout: 30 is not a duration like 250ms, 30s, 5m, 2h or 7d; or write timeout_ms in milliseconds"),
        ({"timeout": "30"}, "steps[1].timeout: '30' is not a duration like 250ms, 30s, 5m, 2h or 7d; or write timeout_ms in milliseconds"),
        ({"timeout": "0.5ms"}, "steps[1].timeout: '0.5ms' is not a duration like 250ms, 30s, 5m, 2h or 7d; or write timeout_ms in milliseconds"),
        ({"timeout": "0s"}, "steps[1].timeout: 0 is not a whole number from 1 to 31622400000"),
        ({"timeout_ms": 5, "timeout": "5ms"}, "steps[1].timeout: timeout_ms and timeout are the same; keep one"),
        ({"backoff": "fast"}, "steps[1].backoff: 'fast' is not a map like {kind: exponential, base_ms: 1000, max_ms: 300000}"),
        ({"backoff": {"kind": "linear"}}, "steps[1].backoff.kind: 'linear' is not exponential or constant"),
        ({"backoff": {"bass": "1s"}}, "steps[1].backoff.bass: unknown member; did you mean base_ms?"),
        ({"backoff": {"max_ms": 10}}, "steps[1].backoff: max_ms is 10, less than base_ms, which is 1000"),
        ({"worker_selector": "gpu"}, "steps[1].worker_selector: 'gpu' is not a map of labels or the string local"),
        ({"worker_selector": [1]}, "steps[1].worker_selector: a list is not a map of labels or the string local"),
        ({"worker_selector": {"a": None}}, "steps[1].worker_selector.a: null is not a string of at most 256 characters"),
        ({"worker_selector": {"a": [1]}}, "steps[1].worker_selector.a: a list is not a string of at most 256 characters"),
        ({"worker_selector": {" ": "x"}}, "steps[1].worker_selector.' ': a label's key is a string of 1 to 256 characters, and occurs once"),
        ({"worker_selector": {"a": "x", " a": "y"}}, "steps[1].worker_selector.' a': a label's key is a string of 1 to 256 characters, and occurs once"),
        ({"worker_selector": {str(i): "x" for i in range(65)}}, "steps[1].worker_selector: 65 labels; at most 64 are allowed"),
        ({"worker_selector": "local", "workerSelector": "local"}, "steps[1].workerSelector: worker_selector and workerSelector are the same; keep one"),
        ({"depends_on": "before"}, "steps[1].depends_on: 'before' is not a list of step names"),
        ({"depends_on": ["before", 1]}, "steps[1].depends_on: 1 is not a step name"),
        ({"depends_on": ["befor"]}, "steps[1].depends_on[0]: 'befor' is not a step of this workflow; did you mean before?"),
        ({"depends_on": ["zzz"]}, "steps[1].depends_on[0]: 'zzz' is not a step of this workflow"),
        ({"depends_on": ["a"]}, "steps[1].depends_on[0]: a step cannot depend on itself"),
        ({"depends_on": ["before", "before"]}, "steps[1].depends_on[1]: 'before' is listed twice"),
        ({"name": "before", "depends_on": []}, "steps[1].name: 'before' is the name of steps[0] already"),
        ({"delivery_mode": "at_most_once", "retry_limit": 1}, "steps[1].retry_limit: an at_most_once step is not retried; remove retry_limit, or set "
            "retry_reported_failures: true if a failure that its handler reports means that nothing happened"),
        ({"input": "context"}, "steps[1].input: 'context' is not a map of at most 1000 members to paths"),
        ({"input": {"x": 1}}, "steps[1].input.x: 1 is not a path like context.order or results.step.total; a constant belongs in the step's"
         " handler_config"),
        ({"input": {"x": "order"}}, "steps[1].input.x: 'order' is not a path like context.order or results.step.total; a constant belongs in the"
         " step's handler_config"),
        ({"input": {"x": "results"}}, "steps[1].input.x: 'results' is not a path like context.order or results.step.total; a constant belongs in the"
         " step's handler_config"),
        ({"input": {"x": "context..y"}}, "steps[1].input.x: 'context..y' is not a path: parts joined by dots, at most 1024 characters"),
        ({"input": {"x": "results.befor.y"}}, "steps[1].input.x: 'befor' is not in this step's depends_on; did you mean before?"),
        ({"input": {"x": "results.a.y"}}, "steps[1].input.x: 'a' is not in this step's depends_on"),
        ({"trigger_rule": "always"}, "steps[1].trigger_rule: 'always' is not a map"),
        ({"trigger_rule": {}}, f"steps[1].trigger_rule: a rule has exactly one of {FORMS}; this one has none"),
        ({"trigger_rule": {"all": [], "any": []}}, f"steps[1].trigger_rule: a rule has exactly one of {FORMS}; this one has all and any"),
        ({"trigger_rule": {"all": []}}, "steps[1].trigger_rule.all: an empty list is not a list of rules"),
        ({"trigger_rule": {"all": {"failed": "before"}}}, "steps[1].trigger_rule.all: a map is not a list of rules"),
        ({"trigger_rule": {"any": ["before"]}}, f"steps[1].trigger_rule.any[0]: 'before' is not a map with one of {FORMS}"),
        ({"trigger_rule": {"failed": "befor"}}, "steps[1].trigger_rule.failed: 'befor' is not in this step's depends_on; did you mean before?"),
        ({"trigger_rule": {"failed": "a"}}, "steps[1].trigger_rule.failed: 'a' is not in this step's depends_on"),
        ({"trigger_rule": {"failed": 1}}, "steps[1].trigger_rule.failed: 1 is not in this step's depends_on"),
        ({"trigger_rule": {"failed": "before", "op": "exists"}}, "steps[1].trigger_rule.op: unknown member of a rule with failed"),
        ({"trigger_rule": {"context": "x", "op": "is"}}, f"steps[1].trigger_rule.op: 'is' is not one of {OPS}"),
        ({"trigger_rule": {"context": "x"}}, f"steps[1].trigger_rule.op: null is not one of {OPS}"),
        ({"trigger_rule": {"context": "x", "op": "equals"}}, "steps[1].trigger_rule: equals needs a value to compare with"),
        ({"trigger_rule": {"context": "x", "op": "exists", "value": 1}}, "steps[1].trigger_rule.value: exists compares with nothing; leave it out"),
        ({"trigger_rule": {"context": "x", "op": "exists", "vale": 1}}, "steps[1].trigger_rule.vale: unknown member of a rule with context; did you mean value?"),
        ({"trigger_rule": {"context": 1, "op": "exists"}}, "steps[1].trigger_rule.context: 1 is not a path"),
        ({"trigger_rule": {"context": "", "op": "exists"}}, "steps[1].trigger_rule.context: '' is not a path: parts joined by dots, at most 1024 characters"),
        ({"trigger_rule": {"result": "a.x", "op": "exists"}}, "steps[1].trigger_rule.result: 'a' is not in this step's depends_on"),
        ({"trigger_rule": {"none": [{"all": [{"completed": "x"}]}]}}, "steps[1].trigger_rule.none[0].all[0].completed: 'x' is not in this step's depends_on"),
        ({"description": 1}, "steps[1].description: 1 is not a text of at most 8192 characters"),
    ],
)  # fmt: skip
def test_a_wrong_member_is_named_with_its_remedy(members: dict[str, Any], problem: str) -> None:
    assert problems_of(workflow(step("before"), step("a", "before") | members)) == [problem]


WORKFLOW_NAME = "a name of letters, digits, _, - and ., at most 128"


@pytest.mark.parametrize(
    ("document", "problems"),
    [
        (None, ["the document is null, not a map with a name and steps"]),
        ([], ["the document is a list, not a map with a name and steps"]),
        ({}, ["the workflow has no name", "the workflow has no steps"]),
        ({"name": "w", "steps": []}, ["the workflow has no steps"]),
        ({"name": "w", "steps": {"a": {}}}, ["steps: a map is not a list; begin each step with `- name:`"]),
        ({"name": "w", "steps": ["a"]}, ["steps[0]: 'a' is not a map with name and handler_class"]),
        (workflow(step(), name="a::b"), [f"name: 'a::b' is not {WORKFLOW_NAME}"]),
        (workflow(step(), name="../x"), [f"name: '../x' is not {WORKFLOW_NAME}"]),
        (workflow(step(), namespace="a::"), ["namespace: 'a::' is not names of letters, digits, _, - and ., joined by ::"]),
        (workflow(step(), namespace="a" * 129), ["namespace: 129 characters; at most 128 are allowed"]),
        (workflow(step(), version=1.0), ["version: 1.0 is not a version of letters, digits, _, -, . and +, at most 64; quote it"]),
        (workflow(step(), stepz=1), ["stepz: unknown member; did you mean steps?"]),
        (workflow(step(), deadline_ms=0), ["deadline_ms: 0 is not a whole number from 1 to 31622400000"]),
        (workflow(step(), output={"x": "results.b"}), ["output.x: 'b' is not a step of this workflow"]),
        (workflow(step(), output={"x": "task.b"}), ["output.x: 'task.b' is not a path like context.order or results.step.total"]),
        (
            workflow(step(worker_selector={"gpu": "1"}), worker_selector="local"),
            ["steps[0].worker_selector: the workflow's worker_selector is local, where no worker has labels; remove one of the two"],
        ),
        (
            workflow(step("a", "b"), step("b", "c"), step("c", "a"), step("d", "c")),
            ["steps[0].depends_on: the steps wait for each other: a needs b, which needs c, which needs a"],
        ),
        (
            workflow(step("a", "b"), step("b", "a"), step("c", "d"), step("d", "c")),
            [
                "steps[0].depends_on: the steps wait for each other: a needs b, which needs a",
                "steps[2].depends_on: the steps wait for each other: c needs d, which needs c",
            ],
        ),
    ],
)  # fmt: skip
def test_a_wrong_workflow_is_named_with_its_remedy(document: Any, problems: list[str]) -> None:
    assert problems_of(document) == problems


def test_a_namespace_can_have_several_parts() -> None:
    assert read_workflow(workflow(step(), namespace="acme::shop.eu")).namespace == "acme::shop.eu"


def test_all_problems_are_reported_at_once_each_with_its_line() -> None:
    text = ORDER.replace("retry_limit: 5", "retry_limt: 5").replace(
        "depends_on: [process_payment]", "depends_on: [pay]"
    )
    text = text.replace("priority: 0", "priority: high").replace("gateway: test", "gateway: test}\n    x: {y: 1")
    document = read_document(text, "order.yaml")
    assert problems_of(document.value, where=document.where) == [
        "order.yaml:10: steps[1].x: unknown member",
        "order.yaml:18: steps[2].retry_limt: unknown member; did you mean retry_limit?",
        "order.yaml:22: steps[2].priority: 'high' is not a whole number from -100 to 100",
        "order.yaml:17: steps[2].depends_on[0]: 'pay' is not a step of this workflow",
    ]


def test_a_long_cycle_is_shown_in_part() -> None:
    steps = [step(f"s{i}", f"s{(i + 1) % 5000}") for i in range(5000)]
    (problem,) = problems_of(workflow(*steps))
    assert problem.endswith("which needs s9, which needs (4990 more), which needs s0")


def test_problems_beyond_the_limit_are_counted() -> None:
    problems = problems_of(workflow(*(step(f"s{i}", retry_limit=-1) for i in range(PROBLEMS_MAX + 23))))
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "and 23 more problems"


def test_too_many_steps_and_edges_are_refused() -> None:
    limits = LimitSettings(steps_per_workflow=3, edges_per_workflow=2)
    steps = [step("a"), step("b", "a"), step("c", "a", "b"), step("d")]
    assert problems_of(workflow(*steps), limits=limits) == ["steps: there are 4 steps, at most 3"]
    assert problems_of(workflow(*steps[:3]), limits=limits) == ["steps: depends_on names 3 steps in all, at most 2"]
    assert read_workflow(workflow(*steps[:2]), limits=limits).last == (1,)


def test_a_document_that_is_too_deep_or_too_large_is_refused() -> None:
    deep: Any = {}
    for _ in range(12):
        deep = {"x": deep}
    ok = workflow(step(handler_config=deep))  # the document, its steps and the step are levels 1 to 3
    assert read_workflow(ok).steps[0].handler_config
    too_deep = workflow(step(handler_config={"x": deep}))
    assert problems_of(too_deep) == ["the nesting is deeper than 16"]
    (problem,) = problems_of(workflow(step(handler_config={"x": "y" * DOCUMENT_BYTES_MAX})))
    assert "bytes, at most 4194304" in problem


def test_ten_thousand_steps_with_fifty_thousand_edges_are_read() -> None:
    chance = random.Random(7)
    steps = [step(f"s{i}", *{f"s{chance.randrange(i)}" for _ in range(5)} if i else ()) for i in range(10_000)]
    chance.shuffle(steps)
    read = read_workflow(workflow(*steps))
    assert len(read.steps) == 10_000
    assert sum(len(each.dependents) for each in read.steps) > 45_000


def test_a_wide_fan_out_is_read() -> None:
    limits = LimitSettings(steps_per_workflow=60_001, edges_per_workflow=60_000)
    steps = [step("root"), *(step(f"s{i}", "root") for i in range(60_000))]
    assert len(read_workflow(workflow(*steps), limits=limits).steps[0].dependents) == 60_000


# -- what is probably not meant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "warnings"),
    [
        (
            workflow(step(deadline_ms=1000)),
            ["steps[0].deadline_ms: its deadline_ms of 1000 can end a run of a before its timeout_ms of 30000"],
        ),
        (
            workflow(step(timeout="2m"), deadline="1m"),
            ["deadline_ms: the task's deadline_ms of 60000 can end a run of a before its timeout_ms of 120000"],
        ),
        (workflow(step(deadline_ms=1000, timeout_ms=1000)), []),
        (
            workflow(step(on_unknown="fail")),
            ["steps[0].on_unknown: on_unknown has no effect: the step is not at_most_once"],
        ),
        (
            workflow(step(retry_reported_failures=True)),
            ["steps[0].retry_reported_failures: retry_reported_failures has no effect: the step is not at_most_once"],
        ),
    ],
)
def test_a_member_that_is_probably_a_mistake_gives_a_warning(document: Any, warnings: list[str]) -> None:
    assert list(map(str, read_workflow(document).warnings)) == warnings


# -- the stored form --------------------------------------------------------------------------------------------------


def as_row(read: Workflow) -> StoredWorkflow:
    document = read.document.decode()
    return StoredWorkflow(42, read.namespace, read.name, read.version, read.digest, document, 0, 1)


def test_the_stored_form_leaves_out_the_defaults() -> None:
    read = read_workflow(read_document(ORDER).value)
    assert msgspec.json.decode(read.document)["steps"][1:3] == [
        {
            "name": "process_payment",
            "handler_class": "OrderFulfillment::StepHandlers::ProcessPaymentHandler",
            "depends_on": ["validate_order"],
            "handler_config": {"gateway": "test"},
            "input": {"order": "context.order_id", "total": "results.validate_order.total"},
            "delivery_mode": "at_most_once",
        },
        {
            "name": "ship_order",
            "handler_class": "shipping.ship",
            "depends_on": ["process_payment"],
            "retry_limit": 5,
            "queue_timeout_ms": 600_000,
            "deadline_ms": 3_600_000,
            "worker_selector": {"region": "eu"},
        },
    ]


def test_a_stored_workflow_is_exactly_what_was_applied() -> None:
    read = read_workflow(read_document(ORDER).value)
    assert stored_workflow(as_row(read)) == read.with_id(42)


def test_a_stored_workflow_is_read_whatever_the_limits_are_now() -> None:
    wide = LimitSettings(steps_per_workflow=20_000)
    read = read_workflow(workflow(*(step(f"s{i}") for i in range(15_000))), limits=wide)
    assert stored_workflow(as_row(read)) == read.with_id(42)


SAME = [
    workflow(step()),
    {"steps": [{"handler_class": "x", "name": "a"}], "name": "w"},
    workflow(step(retry_limit=3), namespace="default", version="1"),
    workflow(step(timeout="30s", handler_config={}, backoff={}, priority=0, deadline=None)),
    workflow(step(backoff={"kind": "exponential", "base": "1s"}, worker_selector={}), description=""),
]


def test_documents_with_the_same_meaning_have_the_same_digest() -> None:
    assert len({read_workflow(document).digest for document in SAME}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"retry_limit": 4},
        {"timeout_ms": 30_001},
        {"handler_class": "y"},
        {"handler_config": {"a": 1}},
        {"description": "new"},
        {"backoff": {"jitter": "none"}},
        {"worker_selector": "local"},
        {"delivery_mode": "at_most_once"},
    ],
)
def test_documents_with_different_meanings_have_different_digests(change: dict[str, Any]) -> None:
    assert read_workflow(workflow(step() | change)).digest != read_workflow(SAME[0]).digest


def test_the_order_of_handler_config_members_is_kept_and_does_not_change_the_digest() -> None:
    one = read_workflow(workflow(step(handler_config={"b": 1, "a": {"d": 1, "c": 2}})))
    other = read_workflow(workflow(step(handler_config={"a": {"c": 2, "d": 1}, "b": 1})))
    assert bytes(one.steps[0].handler_config) == b'{"b":1,"a":{"d":1,"c":2}}'
    assert one.digest == other.digest


# -- properties -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))))
def test_a_cycle_is_reported_exactly_when_a_topological_sort_fails(edges: list[tuple[int, int]]) -> None:
    needs: dict[int, set[int]] = {}
    for one, other in edges:
        needs.setdefault(one, set())
        needs.setdefault(other, set())
        if one != other:
            needs[one].add(other)
    needs = needs or {0: set()}
    document = workflow(*(step(f"s{i}", *(f"s{j}" for j in sorted(needs[i]))) for i in sorted(needs)))
    left = copy.deepcopy(needs)
    while free := [i for i in left if not left[i] & left.keys()]:
        for i in free:
            del left[i]
    try:
        read_workflow(document)
    except InvalidWorkflow as invalid:
        assert left
        for problem in invalid.problems:
            names = problem.message.removeprefix("the steps wait for each other: ")
            names = names.replace(", which needs ", " needs ")
            cycle = [int(name[1:]) for name in names.split(" needs ") if name.startswith("s")]
            if "more" not in names:
                assert cycle[0] == cycle[-1]
                assert all(b in needs[a] for a, b in zip(cycle, cycle[1:], strict=False))  # noqa: RUF007
    else:
        assert not left


_durations = st.integers(1, 10**9)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_members = st.fixed_dictionaries(
    {},
    optional={
        "handler_config": st.dictionaries(st.text("abc", max_size=2), _json, max_size=3),
        "on_unknown": st.sampled_from(["hold", "fail"]),
        "retry_limit": st.integers(0, 10_000),
        "backoff": st.builds(
            lambda kind, base, more, jitter: {"kind": kind, "base_ms": base, "max_ms": base + more, "jitter": jitter},
            st.sampled_from(["exponential", "constant"]),
            _durations,
            _durations,
            st.sampled_from(["full", "none"]),
        ),
        "timeout_ms": _durations,
        "queue_timeout_ms": _durations,
        "deadline_ms": _durations,
        "priority": st.integers(-100, 100),
        "worker_selector": st.just("local") | st.dictionaries(st.text("ab", min_size=1, max_size=2), st.text("xy"), max_size=2),
        "allow_failure": st.booleans(),
        "description": st.text("ab"),
        "input": st.dictionaries(st.text("ab", max_size=2), st.sampled_from(["context", "context.a.0"]), max_size=2),
        "trigger_rule": st.recursive(
            st.builds(lambda v: {"context": "a.b", "op": "equals", "value": v}, _json) | st.just({"context": "x", "op": "exists"}),
            lambda inner: st.builds(lambda kind, of: {kind: of}, st.sampled_from(["all", "any", "none"]), st.lists(inner, min_size=1, max_size=2)),
            max_leaves=3,
        ),
    },
)  # fmt: skip


@given(
    st.lists(_members, min_size=1, max_size=4),
    st.dictionaries(st.text("ab", max_size=1), st.just("context.x"), max_size=1),
)
def test_a_workflow_that_is_read_can_be_stored_and_read_again(
    members: list[dict[str, Any]], output: dict[str, str]
) -> None:
    steps = [step(f"s{i}", *(f"s{j}" for j in range(i) if (i + j) % 2)) | each for i, each in enumerate(members)]
    read = read_workflow(workflow(*steps, output=output))
    again = stored_workflow(as_row(read))
    assert again == msgspec.structs.replace(read, id=42, warnings=())
    assert (again.digest, again.document) == (read.digest, read.document)


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "steps", "handler_class", "depends_on", "trigger_rule", "all", "context", "op", "value",
                         "backoff", "base", "timeout", "input", "output", "worker_selector", "handler_config", "x"]),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(_junk)
def test_any_document_is_either_read_or_refused(document: Any) -> None:
    second = {"name": "b", "handler_class": "x", "depends_on": ["a"], "trigger_rule": document, "input": document}
    for candidate in (document, {"name": "w", "steps": [document]}, workflow(step(), second)):
        try:
            read_workflow(candidate)
        except InvalidWorkflow as invalid:
            assert invalid.problems  # noqa: PT017
