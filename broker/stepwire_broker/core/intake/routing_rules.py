"""Routing rules that change while the broker runs.

Dispatched steps stay where they are. Ready steps follow the new rules in the transaction that stores the rules.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.definitions.settings import ExecutionSettings, RuleSettings
from stepwire_broker.core.model.commit_group import AuditPart
from stepwire_broker.core.model.events import Command, CommandOfOperator, Now, Reconfigure
from stepwire_broker.core.routing.router import Router, RulesRefused, check_rule
from stepwire_broker.core.routing.runtime_rules import PlacedRule, removal_of
from stepwire_broker.core.state import BrokerState

from .submission import intake_refused

RULES_MAX: Final = 256


class SetRule(CommandOfOperator, frozen=True):
    """Set a rule, which is stored. None: remove the rule that was set for `match`."""

    match: str
    rule: RuleSettings | None


class Routed(Answer, frozen=True):
    """The rule for `match` is set, or removed."""

    match: str
    is_set: bool


def on_set_rule(state: BrokerState, event: SetRule, now: Now) -> None:
    """Set this rule, or remove the rule that was set for its `match`."""
    before = state.runtime_rules
    others = tuple(placed for placed in before if placed.rule.match != event.match)
    refused = intake_refused(state)
    if refused is None and event.rule is None and len(others) == len(before):
        text = f"no rule was set at run time for {event.match}"
        refused = CommandRefused("not_found", text, Hint(HintCode.LIST_RULES))
    if refused is None and len(others) >= RULES_MAX:
        refused = CommandRefused(
            "invalid", f"{len(others)} rules are set at run time, which is the limit", Hint(HintCode.CONFIGURE_RULES)
        )
    if refused is None and event.rule is not None:
        try:
            check_rule(event.rule, state.router.executors)
        except RulesRefused as error:
            refused = CommandRefused("invalid", str(error))
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    if event.rule is None:
        state.runtime_rules = others
        change = removal_of(event.match)
    else:
        state.runtime_rules, changed = _with(before, event.rule)
        change = changed.row
    state.set_control(change)
    action = "remove_rule" if event.rule is None else "set_rule"
    detail = {} if change.value is None else {"rule_sha256": sha256(change.value.encode()).hexdigest()}
    part: AuditPart = ("control", f"{change.kind} {change.name}")
    state.audit(event, action, f"rule {event.match}", now, part=part, detail=detail)
    state.route_by(_router(state, state.router.settings))
    state.answer(event.request, Routed(event.match, event.rule is not None))


def _with(before: tuple[PlacedRule, ...], rule: RuleSettings) -> tuple[tuple[PlacedRule, ...], PlacedRule]:
    """Return the rules with this rule, and the rule with its position: a changed rule keeps its position, and a new
    rule comes first."""
    for number, placed in enumerate(before):
        if placed.rule.match == rule.match:
            changed = PlacedRule(rule, placed.position)
            return (*before[:number], changed, *before[number + 1 :]), changed
    changed = PlacedRule(rule, before[0].position + 1 if before else 1)
    return (changed, *before), changed


def use_rules(state: BrokerState, rules: tuple[PlacedRule, ...]) -> None:
    """Route by these run-time rules, which another broker may have stored."""
    if rules != state.runtime_rules:
        state.runtime_rules = rules
        state.route_by(_router(state, state.router.settings))


def on_reconfigure(state: BrokerState, event: Reconfigure, now: Now) -> None:
    """Route by a configuration that was read again and checked."""
    state.route_by(_router(state, event.execution))


def _router(state: BrokerState, execution: ExecutionSettings) -> Router:
    before = state.router
    rules = [placed.rule for placed in state.runtime_rules]
    return Router(execution, before.executors, bus_is_distributed=before.bus_is_distributed, runtime=rules)


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {SetRule: on_set_rule}
