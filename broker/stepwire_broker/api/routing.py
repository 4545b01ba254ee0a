"""`/v1/route` and `/v1/rules`: where a step goes and why, and the rules, which can be changed while the broker runs."""

from typing import Final

from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.model.targets import Selector, Target
from stepwire_broker.core.routing.router import RoutingRule, Split, hidden, missing_text, near_miss
from stepwire_broker.timestamps import rfc3339

from . import http_problems
from .http import HttpCall
from .replies import Reply, encode

PATH_CHARACTERS_MAX: Final = 1024
SEGMENTS: Final = 3  # at least: a namespace may itself hold ::


class AsideDocument(Struct, frozen=True):
    """Where so many in a hundred tasks go instead (canary), or a copy of their steps goes besides (shadow)."""

    percent: float
    executor: str | None
    worker_selector: dict[str, str]


class RuleDocument(Struct, frozen=True, kw_only=True):
    """The first rule that matches wins. `origin`: it stands in the configuration, or was set while a broker ran.
    `canary_steps` and `other_steps`: of a rule with a canary, steps handed out on either side since this start of the
    broker. `hidden_by`: the number of a rule before it that takes all that this one would."""

    number: int
    match: str
    origin: str
    executor: str | None
    worker_selector: dict[str, str]
    canary: AsideDocument | None
    canary_steps: int
    other_steps: int
    shadow: AsideDocument | None
    hidden_by: int | None


class RuleList(Struct, frozen=True):
    """What no rule takes goes to `default_executor`; where a step without labels runs says
    `default_execution_mode`."""

    default_execution_mode: str
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
    """What the dispatcher decides for a step of this path. `reason` says it in a sentence. `nearly`: the first rule
    that does not match and looks as if it were meant to."""

    path: str
    decided: str
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
    """How the copies of one rule and handler compared with the steps themselves, since this broker's start. `failed`:
    the copy did, and the step did not; `not_compared`: the step itself failed, or an output was too large; `lost`: no
    answer in its time; `dropped`: never sent, because nobody had room for it or declared it safe."""

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
    if len(path) > PATH_CHARACTERS_MAX or path.count(patterns.SEPARATOR) < SEGMENTS - 1 or "" in path.split("::"):
        raise http_problems.HttpProblem(
            400, "bad_query", "`path` has to be namespace::workflow::step", "for instance path=default::order::charge"
        )
    router = call.broker.state.router
    selector = _selector(members.get("worker_selector", ""))
    place = router.route(path, selector)
    before = [] if place.decided == "local" else router.rules[: None if place.rule is None else place.rule.number - 1]
    near = near_miss(before, path)
    by = "no rule matches" if place.rule is None else f"rule {place.rule.number} ({place.rule.match}) matches first"
    if place.missing is not None:
        reason = missing_text(place)
    elif place.decided == "local":
        because = "its worker_selector is local" if selector == "local" else "the default_execution_mode is local"
        reason = f"it runs inside the broker: {because}"
    else:
        reason = f"{by}: it goes to {_said(place.target)}"
        if place.canary is not None and place.rule is not None and place.rule.canary is not None:
            reason += f", and for {place.rule.canary.percent:g} % of its tasks to {_said(place.canary)}"
        if place.shadow is not None and place.rule is not None and place.rule.shadow is not None:
            percent = place.rule.shadow.percent
            share = "" if percent == 100 else f" for {percent:g} % of its tasks"
            reason += f"; a copy goes to {_said(place.shadow)}{share}, and is compared"
    return Reply(
        200,
        encode(
            RouteDocument(
                path=path,
                decided=str(place.decided),
                executor=place.target.executor or None,
                worker_selector=dict(place.target.selector),
                rule=None if place.rule is None else _rule(place.rule, None, call.broker.state.canaries),
                canary=_target(place.canary),
                shadow=_target(place.shadow),
                nearly=None if near is None else NearDocument(near.rule.number, near.rule.match, near.why),
                reason=reason,
            )
        ),
    )


async def rules(call: HttpCall) -> Reply:
    call.query()
    router = call.broker.state.router
    behind = {rule.number: earlier.number for rule, earlier in hidden(router.rules)}
    canaries = call.broker.state.canaries
    shown = [_rule(rule, behind.get(rule.number), canaries) for rule in router.rules]
    return Reply(200, encode(RuleList(router.mode, router.default_executor, sorted(router.executors), shown)))


async def shadows(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    found = broker.state.shadows
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
        for tally in found.tallies.values()
    ]
    return Reply(200, encode(ShadowList(broker.broker_id, broker.epoch, len(found.by_id), shown)))


def _selector(written: str) -> dict[str, str] | str | None:
    if not written:
        return None
    if written.strip().lower() == "local":
        return "local"
    labels = dict(part.partition("=")[::2] for part in written.split(","))
    if any(not key.strip() or "=" not in part for key, part in zip(labels, written.split(","), strict=False)):
        raise http_problems.HttpProblem(
            400, "bad_query", "`worker_selector` has to be local, or labels", "for instance worker_selector=gpu=true"
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


def _said(target: Target) -> str:
    return f"executor {target.executor}{_labels(' with ', target.selector)}{_labels(' without ', target.without)}"


def _labels(how: str, labels: Selector) -> str:
    return how + ", ".join(f"{key}={value}" for key, value in labels) if labels else ""
