"""The workflows of the simulated world: small graphs of every shape, with every policy a step can have."""

from functools import cache
from random import Random
from typing import Any, Final

from stepwire_broker.core.definitions.workflow import Workflow, read_workflow

from .peer_node import HANDLER
from .worker_node import HANDLERS

COUNT: Final = 150
# After those, two groups with steps that only level 0 offers; in the second, such a step may be at_most_once.
AT_LEVEL0: Final = 25
NAMESPACES: Final = ("default", "tenant::a")


@cache
def workflow(index: int) -> Workflow:
    return read_workflow(_document(index))


def _document(index: int) -> dict[str, Any]:
    chance = Random(f"workflow/{index}")
    count = chance.choice((1, 1, 2, 2, 3, 3, 4, 5, 7))
    shape = chance.choice(("chain", "fan", "join", "any", "any"))
    document: dict[str, Any] = {"name": f"flow{index}", "namespace": chance.choice(NAMESPACES), "version": "1"}
    if chance.random() < 0.06:
        document["deadline_ms"] = chance.randint(2_000, 40_000)
    document["steps"] = [_step(chance, i, _needs(chance, shape, i, count)) for i in range(count)]
    if index >= COUNT:
        for step in document["steps"]:
            if chance.random() < 0.6 and (index >= COUNT + AT_LEVEL0 or "delivery_mode" not in step):
                step["handler_class"] = HANDLER
    return document


def _needs(chance: Random, shape: str, index: int, count: int) -> list[str]:
    if index == 0:
        return []
    match shape:
        case "chain":
            return [f"s{index - 1}"]
        case "fan":
            return ["s0"]
        case "join":
            return [f"s{i}" for i in range(index)] if index == count - 1 else []
        case _:
            return [f"s{i}" for i in range(index) if chance.random() < 0.5]


def _step(chance: Random, index: int, needs: list[str]) -> dict[str, Any]:
    step: dict[str, Any] = {
        "name": f"s{index}",
        "handler_class": chance.choice(HANDLERS),
        "depends_on": needs,
        "timeout_ms": chance.choice((1_000, 3_000, 8_000)),
        "backoff": {
            "kind": chance.choice(("constant", "exponential")),
            "base_ms": chance.randint(50, 1_500),
            "max_ms": 8_000,
            "jitter": chance.choice(("full", "none")),
        },
    }
    if chance.random() < 0.35:
        step["delivery_mode"] = "at_most_once"
        if chance.random() < 0.25:
            step["on_unknown"] = "fail"
        if chance.random() < 0.5:
            step["retry_reported_failures"] = True
    if step.get("delivery_mode") is None or step.get("retry_reported_failures"):
        step["retry_limit"] = chance.randint(0, 4)
    if chance.random() < 0.06:
        step["queue_timeout_ms"] = chance.randint(500, 20_000)
    if chance.random() < 0.06:
        step["deadline_ms"] = chance.randint(1_000, 30_000)
    if chance.random() < 0.10:
        step["allow_failure"] = True
    if chance.random() < 0.10:
        step["priority"] = chance.randint(-5, 5)
    if needs:
        if chance.random() < 0.20:
            step["trigger_rule"] = _rule(chance, needs)
        if chance.random() < 0.10:
            step["input"] = {"before": f"results.{needs[0]}.n", "who": "context.who"}
    return step


def _rule(chance: Random, needs: list[str]) -> dict[str, Any]:
    rules: list[dict[str, Any]] = [{chance.choice(("completed", "failed", "skipped")): name} for name in needs]
    rules.append({"result": f"{needs[0]}.n", "op": "less_than", "value": 2})
    rules.append({"context": "who", "op": "equals", "value": "me"})
    chosen = chance.sample(rules, min(len(rules), chance.randint(1, 3)))
    return {chance.choice(("all", "any", "none")): chosen} if len(chosen) > 1 else chosen[0]
