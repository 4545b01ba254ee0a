"""The steps that no connected worker can run: an operator must know of them, because nothing else happens."""

from typing import NamedTuple

from . import takers
from .answers.hints import Hint, HintCode
from .model.events import Now
from .model.live import Step
from .model.targets import Target
from .phrases import at_time
from .state import BrokerState
from .takers import Obstacle


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


def not_at_level0(state: BrokerState, step: Step, now: Now) -> tuple[str, Hint | None]:
    """Return why the connected level-0 handlers do not get the step, as the end of a sentence, and the setting that
    can change it."""
    name, number = step.definition.handler_class, len(state.level0.peers)
    obstacle = takers.level0_obstacle(state, state.route_of(step))
    setting = Hint(HintCode.NAME_FOR_LEVEL0, handler_class=name)
    if not number or obstacle is Obstacle.OTHER_EXECUTOR:
        return "", None
    match obstacle:
        case Obstacle.RESERVED:
            offer = state.level0_handlers.reserved_by(name)
            assert offer is not None
            first = f"`{offer.worker}` offered it {at_time(offer.at_ms, now)}"
            return f"; {first}, so level 0 gets it only if bus.level0.handlers names it, and `**` does not", setting
        case Obstacle.NOT_OFFERED:
            return "; bus.level0.handlers does not include it", setting
        case Obstacle.LABELS:
            return "; the step requires labels, which level-0 handlers do not have", None
        case Obstacle.NOT_ALLOWED:
            return "; the step is at_most_once, which level-0 handlers get only with bus.level0.at_most_once", None
        case _:
            each = (
                "the only connected level-0 handler" if number == 1 else f"each of {number} connected level-0 handlers"
            )
            return f"; {each} answered that it does not know `{name}`", None
