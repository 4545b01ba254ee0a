"""The steps that no connected worker can run: an operator must know of them, because nothing else happens."""

from typing import NamedTuple

from stepwire_broker.core import takers
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.targets import Target
from stepwire_broker.core.state import BrokerState


class Unroutable(NamedTuple):
    executor: str
    handler_class: str
    worker_selector: tuple[tuple[str, str], ...]
    steps: int
    since_ms: int


def find_unroutable(state: BrokerState, now: Now) -> list[Unroutable]:
    """List the steps that have been ready for too long and that no connected worker offers, counted by handler."""
    by_handler: dict[tuple[Target, str], Unroutable] = {}
    latest = now.wall - state.settings.dispatch.unroutable_after_ms
    for route, steps, since_ms in state.ready.oldest():
        if since_ms <= latest and not takers.can_be_taken(state, route):
            target, name = route.target, route.handler_class
            before = by_handler.get((target, name))
            if before is not None:
                steps, since_ms = steps + before.steps, min(since_ms, before.since_ms)
            by_handler[target, name] = Unroutable(target.executor, name, target.selector, steps, since_ms)
    return list(by_handler.values())
