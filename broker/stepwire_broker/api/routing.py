"""`/v1/route`, `/v1/rules` and `/v1/shadows`: the route of a step, the rules, and comparisons of shadow copies."""

from typing import Final

from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.model.targets import Target
from stepwire_broker.core.routing.router import RoutingRule, Split, hidden, near_miss, reason_text
from stepwire_broker.timestamps import rfc3339

from . import core_views, http_problems
from .enumerations import ExecutionMode, RouteDecision, RuleOrigin
from .http import HttpCall
from .replies import Reply, encode

PATH_CHARACTERS_MAX: Final = 1024
SEGMENTS_MIN: Final = 3  # a namespace may itself contain ::


class AsideDocument(Struct, frozen=True):
    """The second target of a rule. A canary receives this percentage of the tasks; a shadow receives copies of their
    steps."""

    percent: float
    executor: str | None
    worker_selector: dict[str, str]


class RuleDocument(Struct, frozen=True, kw_only=True):
    """The first rule that matches applies. `origin`: the configuration, or a command at run time. `canary_steps` and
    `other_steps`: the number of steps that a rule with a canary sent to each side since the broker started.
    `hidden_by`: the number of an earlier rule that matches all paths that this rule matches."""

    number: int
    match: str
    origin: RuleOrigin
    executor: str | None
    worker_selector: dict[str, str]
    canary: AsideDocument | None
    canary_steps: int
    other_steps: int
    shadow: AsideDocument | None
    hidden_by: int | None


class RuleList(Struct, frozen=True):
    """A step that no rule matches goes to `default_executor`. `default_execution_mode` decides where a step without
    labels runs."""

    default_execution_mode: ExecutionMode
    default_executor: str
    executors: list[str]
    rules: list[RuleDocument]


class TargetDocument(Struct, frozen=True):
    executor: str
    worker_selector: dict[str, str]


class NearDocument(Struct, frozen=True):
    number: int
    match: str
    why: str


class RouteDocument(Struct, frozen=True, kw_only=True):
    """The dispatcher's decision for a step with this path. `reason` is the decision as a sentence. `nearly`: the first
    rule that does not match, but was probably intended to."""

    path: str
    decided: RouteDecision
    executor: str | None
    worker_selector: dict[str, str]
    rule: RuleDocument | None
    canary: TargetDocument | None
    shadow: TargetDocument | None
    nearly: NearDocument | None
    reason: str


class DifferenceDocument(Struct, frozen=True):
    task_id: int
    step_id: int
    what: str
    at: str


class ShadowDocument(Struct, frozen=True, kw_only=True):
    """The comparisons of one rule's copies, for one handler, with their steps since the broker started. `failed`: only
    the copy failed. `not_compared`: the step failed, or an output was too large. `lost`: the copy got no answer in
    time. `dropped`: the copy was not sent, because no worker that declares the handler safe for copies had room."""

    match: str
    handler_class: str
    executor: str
    equal: int
    differs: int
    failed: int
    not_compared: int
    lost: int
    dropped: int
    lately: list[DifferenceDocument]


class ShadowList(Struct, frozen=True):
    broker: str
    epoch: int
    under_way: int
    shadows: list[ShadowDocument]


async def route(call: HttpCall) -> Reply:
    members = call.query("path", "worker_selector")
    path = members.get("path", "")
    if len(path) > PATH_CHARACTERS_MAX or path.count(patterns.SEPARATOR) < SEGMENTS_MIN - 1 or "" in path.split("::"):
        raise http_problems.HttpProblem(
            400,
            "bad_query",
            "`path` must be namespace::workflow::step",
            "send for example path=default::order::charge",
        )
    if not call.sees(_namespace_of(path)):
        raise http_problems.not_found(f"step {path[:200]}")
    router = core_views.router(call.broker)
    selector = _selector(members.get("worker_selector", ""))
    destination = router.route(path, selector)
    before = (
        []
        if destination.decided == "local"
        else router.rules[: None if destination.rule is None else destination.rule.number - 1]
    )
    near = near_miss(before, path) if call.namespaces is None else None  # it may be a rule of another namespace
    canaries = core_views.canary_steps(call.broker)
    return Reply(
        200,
        encode(
            RouteDocument(
                path=path,
                decided=str(destination.decided),
                executor=destination.target.executor or None,
                worker_selector=dict(destination.target.selector),
                rule=None if destination.rule is None else _rule(destination.rule, None, canaries),
                canary=_target(destination.canary),
                shadow=_target(destination.shadow),
                nearly=None if near is None else NearDocument(near.rule.number, near.rule.match, near.why),
                reason=reason_text(destination, selector),
            )
        ),
    )


async def rules(call: HttpCall) -> Reply:
    call.query()
    router = core_views.router(call.broker)
    behind = {rule.number: earlier.number for rule, earlier in hidden(router.rules)}
    canaries = core_views.canary_steps(call.broker)
    shown = [_rule(rule, behind.get(rule.number), canaries) for rule in router.rules]
    return Reply(200, encode(RuleList(router.mode, router.default_executor, sorted(router.executors), shown)))


async def shadows(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    tallies, under_way = core_views.shadows(broker)
    shown = [
        ShadowDocument(
            match=tally.match,
            handler_class=tally.handler_class,
            executor=tally.executor,
            equal=tally.equal,
            differs=tally.differs,
            failed=tally.failed,
            not_compared=tally.not_compared,
            lost=tally.lost,
            dropped=tally.dropped,
            lately=[DifferenceDocument(d.task_id, d.step_id, d.what, rfc3339(d.at_ms)) for d in tally.lately],
        )
        for tally in tallies
    ]
    return Reply(200, encode(ShadowList(broker.broker_id, broker.epoch, under_way, shown)))


def _namespace_of(path: str) -> str:
    return path.rsplit(patterns.SEPARATOR, 2)[0]


def _selector(written: str) -> dict[str, str] | str | None:
    if not written:
        return None
    if written.strip().lower() == "local":
        return "local"
    labels = dict(part.partition("=")[::2] for part in written.split(","))
    if any(not key.strip() or "=" not in part for key, part in zip(labels, written.split(","), strict=False)):
        raise http_problems.HttpProblem(
            400, "bad_query", "`worker_selector` must be local, or labels", "send for example worker_selector=gpu=true"
        )
    return {key.strip(): value.strip() for key, value in labels.items()}


def _rule(rule: RoutingRule, hidden_by: int | None, canaries: dict[str, list[int]]) -> RuleDocument:
    canary_steps, other_steps = canaries.get(rule.match, (0, 0))
    return RuleDocument(
        number=rule.number,
        match=rule.match,
        origin=rule.origin,
        executor=rule.executor,
        worker_selector=dict(rule.selector),
        canary=_aside(rule.canary),
        canary_steps=canary_steps,
        other_steps=other_steps,
        shadow=_aside(rule.shadow),
        hidden_by=hidden_by,
    )


def _aside(aside: Split | None) -> AsideDocument | None:
    return None if aside is None else AsideDocument(aside.percent, aside.executor, dict(aside.selector))


def _target(target: Target | None) -> TargetDocument | None:
    return None if target is None else TargetDocument(target.executor, dict(target.selector))
