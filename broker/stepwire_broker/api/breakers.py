"""`/v1/breakers`: the breakers and retry budgets of handlers that failed recently. Both are in memory only."""

from typing import Literal

from msgspec import Struct

from stepwire_broker.core.guards.guard import Guard
from stepwire_broker.core.model.events import Now
from stepwire_broker.timestamps import rfc3339, rfc3339_or_none

from . import core_views
from .http import HttpCall
from .replies import Reply, encode


class RetryBudgetDocument(Struct, frozen=True):
    """`starts`: steps started in the current window. `retries`: those of them that were retries. `room`: the number of
    retries that may start now."""

    starts: int
    retries: int
    room: int


class BreakerDocument(Struct, frozen=True, kw_only=True):
    """`forced`: an operator keeps the breaker in this state, until `auto`, also after a restart. `reason`: the last
    failure, or the operator's reason. `cause`: why the breaker last opened. `probes`: trial steps that are running."""

    handler_class: str
    state: Literal["closed", "open", "half_open"]
    forced: bool
    since: str
    next_probe: str | None
    cause: str
    reason: str
    failures_in_row: int
    outcomes: int
    failures: int
    opened: int
    probes: int
    retry_budget: RetryBudgetDocument | None


class BreakerList(Struct, frozen=True):
    """A handler that is not listed has not failed recently: its breaker is closed."""

    broker: str
    epoch: int
    breakers: list[BreakerDocument]


async def page(call: HttpCall) -> Reply:
    call.query()
    broker = call.broker
    now = broker.now()
    guards = sorted(core_views.guards(broker), key=lambda guard: guard.handler_class)
    return Reply(200, encode(BreakerList(broker.broker_id, broker.epoch, [_shown(guard, now) for guard in guards])))


def _shown(guard: Guard, now: Now) -> BreakerDocument:
    breaker, budget = guard.breaker, guard.budget
    outcomes, failures = breaker.lately(now.mono)
    shown = None if budget is None else RetryBudgetDocument(*budget.lately(now.mono), budget.room(now.mono))
    return BreakerDocument(
        handler_class=guard.handler_class,
        state=breaker.state.value,
        forced=breaker.is_forced,
        since=rfc3339(guard.since_wall),
        next_probe=rfc3339_or_none(guard.until_wall),
        cause=breaker.cause,
        reason=guard.reason,
        failures_in_row=breaker.failures_in_row,
        outcomes=outcomes,
        failures=failures,
        opened=breaker.opened,
        probes=breaker.under_way,
        retry_budget=shown,
    )
