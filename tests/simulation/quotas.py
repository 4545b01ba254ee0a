"""Quotas of namespaces: in some seeds the two namespaces have limits, which the configuration changes while tasks run.

An account of its own judges each submission: the open steps are counted from the rows and the tasks in memory, the rate
from the submissions that were accepted. A broker among others knows the open steps of the others as of their last
beats, and each broker counts the rate by itself. So several brokers are judged only by what one of them accepts: its
own open steps alone never exceed the limit.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from stepwire_broker.core.definitions.settings import QuotaSettings, Settings
from stepwire_broker.core.model.events import QuotasChanged, SubmitTasks

from . import flows
from .checks import quotas as checks

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .world import World


class Quotas:
    def __init__(self, world: "World", *, is_possible: bool) -> None:
        self.world = world
        self.chance = Random(f"{world.seed}/quotas")
        self.is_on = is_possible and self.chance.random() < 0.25
        self._changes = self.is_on and self.chance.random() < 0.5
        self.configured = self._drawn() if self.is_on else {}
        self.active = self.configured
        self._has_changed = False
        self._left: dict[str, tuple[float, int]] = {}  # by namespace: the steps that its rate allowed, and when

    def _drawn(self) -> dict[str, QuotaSettings]:
        chance = self.chance
        drawn = {
            namespace: QuotaSettings(
                max_open_steps=chance.choice((None, 8, 15, 40)),
                steps_per_s=chance.choice((None, None, 2, 5)),
                priority_max=chance.choice((None, None, 3)),
            )
            for namespace in flows.NAMESPACES
            if chance.random() < 0.8
        }
        return {namespace: quota for namespace, quota in drawn.items() if quota != QuotaSettings()}

    def settings(self, drawn: Settings) -> Settings:
        limits = msgspec.structs.replace(drawn.limits, namespaces=self.configured)
        return msgspec.structs.replace(drawn, limits=limits)

    def plan(self, phase_ms: float) -> None:
        for _ in range(self.chance.randint(1, 4) if self._changes else 0):
            self.world.schedule.at(phase_ms * self.chance.random(), self._change, self._drawn())

    def _change(self, quotas: dict[str, QuotaSettings]) -> None:
        """The configuration is reloaded. A suspended broker reads it later, so it is left alone."""
        if len(self.world.brokers) > 1:
            self._has_changed = True  # the brokers read it at different times
            for each in self.world.brokers:
                each.post("event", QuotasChanged(quotas))
            return
        broker = self.world.broker
        if broker.is_alive and not broker.is_paused:
            left = {namespace: self._left_now(namespace, rate) for namespace, rate in self._rates().items()}
            used = {namespace for namespace, rate in self._rates().items() if left[namespace] < rate}
            self.active = quotas
            self._left = {name: (left[name], broker.now().mono) for name in used & self._rates().keys()}
            broker.post("event", QuotasChanged(quotas))

    def heal(self) -> None:
        """Lift all limits: a task whose submission never fits would otherwise never be submitted."""
        if self.is_on:
            self.configured = {}
            self.world.settings = self.settings(self.world.settings)
            self._change({})

    def broker_started(self) -> None:
        """Every start reads the configuration, and begins with a full second of each rate."""
        self.active = self.configured
        self._left = {}

    def handle(self, broker: "BrokerNode", command: Any, handle: Callable[[], None]) -> None:
        """Give the broker a command, and judge what it decided about a submission."""
        if not self.is_on or not isinstance(command, SubmitTasks):
            handle()
            return
        if len(self.world.brokers) > 1:
            self._handle_among_others(broker, command, handle)
            return
        state = self.world.broker.state
        expected, is_building = self._over(command), bool(state.building)
        refused_before = sum(state.counters.over_quota.values())
        ids_before = sum(lane.ids.next for lane in state.lanes.values())
        handle()
        is_refused = sum(state.counters.over_quota.values()) > refused_before
        is_accepted = sum(lane.ids.next for lane in state.lanes.values()) > ids_before
        if not is_building:  # the open steps of a submission that is being built cannot be counted from outside
            checks.check_decision(self.world.checks.books, expected, is_refused=is_refused, is_accepted=is_accepted)
        if is_accepted:
            steps = _steps_of(command)
            for namespace, rate in self._rates().items():
                if namespace in steps:
                    left = self._left_now(namespace, rate) - steps[namespace]
                    self._left[namespace] = left, self.world.broker.now().mono

    def _handle_among_others(self, broker: "BrokerNode", command: SubmitTasks, handle: Callable[[], None]) -> None:
        state = broker.state
        is_judged = not state.building and not self._has_changed
        open_steps = checks.open_steps(state, self.world.tables) if is_judged else Counter[str]()
        ids_before = sum(lane.ids.next for lane in state.lanes.values())
        handle()
        if is_judged and sum(lane.ids.next for lane in state.lanes.values()) > ids_before:
            for namespace, steps in _steps_of(command).items():
                quota = self.configured.get(namespace)
                most = None if quota is None else quota.max_open_steps
                checks.check_own_steps(self.world.checks.books, broker, open_steps[namespace] + steps, most)

    def _over(self, command: SubmitTasks) -> str | None:
        """The quota that this submission exceeds, if any."""
        open_steps = checks.open_steps(self.world.broker.state, self.world.tables)
        for new in command.tasks:
            quota = self.active.get(new.namespace)
            ranks = [new.priority + step.priority for step in _workflow_of(new.workflow).steps]
            if quota is not None and quota.priority_max is not None and max(ranks) > quota.priority_max:
                return "priority_max"
        for namespace, steps in _steps_of(command).items():
            quota = self.active.get(namespace)
            if quota is None:
                continue
            if quota.max_open_steps is not None and open_steps[namespace] + steps > quota.max_open_steps:
                return "max_open_steps"
            if quota.steps_per_s is not None and self._left_now(namespace, quota.steps_per_s) < 1.0:
                return "steps_per_s"
        return None

    def _rates(self) -> dict[str, int]:
        return {name: quota.steps_per_s for name, quota in self.active.items() if quota.steps_per_s is not None}

    def _left_now(self, namespace: str, steps_per_s: int) -> float:
        """The steps that the rate allows now: at most those of one second are kept."""
        now = self.world.broker.now().mono
        left, at_mono = self._left.get(namespace, (float(steps_per_s), now))
        return round(min(float(steps_per_s), left + (now - at_mono) * steps_per_s / 1000), 6)


def _workflow_of(name: str) -> Any:
    return flows.workflow(int(name.removeprefix("flow")))


def _steps_of(command: SubmitTasks) -> Counter[str]:
    steps: Counter[str] = Counter()
    for new in command.tasks:
        steps[new.namespace] += len(_workflow_of(new.workflow).steps)
    return steps
