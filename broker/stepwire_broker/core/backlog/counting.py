"""The steps in the memory of a broker, counted by handler and by the workers that they go to.

A broker with others on its database writes these counts into its row at every beat.
"""

from collections.abc import Iterator
from typing import Final

from stepwire_broker.core.membership.cluster_rows import RouteLoad
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.targets import Selector, Target
from stepwire_broker.core.state import BrokerState

ROUTES_MAX: Final = 200  # in the row of a broker: the largest
COUNTED_EXACTLY_MAX: Final = 10_000  # steps of one route: of a longer queue the length is taken

Key = tuple[str, str, Selector, Selector]  # handler, executor, labels that are needed, labels that are excluded


class Count:
    __slots__ = ("oldest_ms", "running", "waiting")

    def __init__(self) -> None:
        self.waiting = self.running = 0
        self.oldest_ms: int | None = None

    def add(self, waiting: int, since_ms: int | None) -> None:
        self.waiting += waiting
        if since_ms is not None and (self.oldest_ms is None or since_ms < self.oldest_ms):
            self.oldest_ms = since_ms


def in_memory(state: BrokerState) -> list[RouteLoad]:
    """Count the ready steps and the steps at workers, the largest routes first."""
    counts: dict[Key, Count] = {}

    def of(handler_class: str, target: Target) -> Count:
        key = handler_class, target.executor, target.selector, target.without
        count = counts.get(key)
        if count is None:
            count = counts[key] = Count()
        return count

    for route, steps, since_ms in state.ready.backlog(COUNTED_EXACTLY_MAX):
        of(route.handler_class, route.target).add(steps, since_ms)
    for step, is_running in _at_workers(state):
        route = step.route or state.route_of(step)
        count = of(route.handler_class, route.target)
        if is_running:
            count.running += 1
        else:
            count.add(1, step.ready_ms)
    loads = [RouteLoad(*key, of.waiting, of.running, of.oldest_ms) for key, of in counts.items()]
    return sorted(loads, key=lambda load: (-load.waiting - load.running, load.handler_class, load.selector))


def in_row(state: BrokerState) -> tuple[RouteLoad, ...]:
    """Return what the row of this broker tells the others."""
    return tuple(in_memory(state)[:ROUTES_MAX])


def _at_workers(state: BrokerState) -> Iterator[tuple[Step, bool]]:
    """Yield the steps that workers hold, and whether each runs. A worker runs as many steps as it has slots, and
    reports which only with its next heartbeat."""
    for session in state.sessions.values():
        for number, step in enumerate(session.deliveries.values()):
            yield step, number < session.slots
    for steps in state.recovered.values():
        for step in steps.values():
            yield step, True
    for handout in state.level0.handouts.values():
        for number, (step_id, _) in enumerate(handout.items):
            held = state.steps.get(step_id)
            if held is not None:
                yield held, number == 0
