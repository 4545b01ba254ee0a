"""Bugs of quotas: a submission is judged by other steps than those of its namespace."""

from typing import Any, Final

import msgspec
from stepwire_broker.core import state
from stepwire_broker.core.guards import step_rate
from stepwire_broker.core.intake import quotas

from tests.memory_store.queries import MemoryQueries

from .plant import Bug, Plant


def _own_steps_forgotten(plant: Plant) -> None:
    """Only the steps that are open already are compared with the quota."""

    def over(original: Any, core: Any, namespace: str, quota: Any, steps: int, tasks: int) -> Any:
        refused = original(core, namespace, quota, steps, tasks)
        is_open = core.open_by_namespace.get(namespace, 0) >= (quota.max_open_steps or 0)
        return refused if is_open else None

    plant.function(quotas._over_open_steps, over)


def _all_namespaces_count(plant: Plant) -> None:
    def over(original: Any, core: Any, namespace: str, quota: Any, steps: int, tasks: int) -> Any:
        counts = core.open_by_namespace
        core.open_by_namespace = dict.fromkeys(counts, sum(counts.values()))
        try:
            return original(core, namespace, quota, steps, tasks)
        finally:
            core.open_by_namespace = counts

    plant.function(quotas._over_open_steps, over)


def _lost_at_a_restart(plant: Plant) -> None:
    """The open steps of all namespaces are counted for one of them."""

    def open_counts(original: Any, self: Any) -> Any:
        return {
            lane: counts._replace(steps={"default": sum(counts.steps.values())} if counts.steps else {})
            for lane, counts in original(self).items()
        }

    plant.method(MemoryQueries, "open_counts", open_counts)


def _undone_steps_kept(plant: Plant) -> None:
    """The steps of a submission whose key exists already stay counted for their namespace."""

    def count_open(original: Any, self: Any, lane: int, namespace: str, more: int) -> None:
        original(self, lane, namespace, more)
        if more < -1:
            self.open_by_namespace[namespace] = self.open_by_namespace.get(namespace, 0) + 1

    plant.method(state.BrokerState, "count_open", count_open)


def _rate_without_limit(plant: Plant) -> None:
    """An unused rate is kept for longer than a second."""

    def refill(original: Any, self: Any, steps_per_s: int, now_mono: int) -> None:
        self.left += max(0, now_mono - self.at_mono) * steps_per_s
        self.at_mono = now_mono

    plant.method(step_rate.StepRate, "refill", refill)


def _steps_have_no_priority(plant: Plant) -> None:
    def over(original: Any, core: Any, tasks: Any, workflows: Any) -> Any:
        plain = [
            msgspec.structs.replace(w, steps=tuple(msgspec.structs.replace(s, priority=0) for s in w.steps))
            for w in workflows
        ]
        return original(core, tasks, plain)

    plant.function(quotas._over_priority, over)


BUGS: Final = (
    Bug("quota: the steps of the submission are forgotten", _own_steps_forgotten),
    Bug("quota: the steps of all namespaces count", _all_namespaces_count),
    Bug("quota: a restart counts all steps for one namespace", _lost_at_a_restart),
    Bug("quota: the steps of an undone submission stay counted", _undone_steps_kept),
    Bug("quota: an unused rate is kept for longer than a second", _rate_without_limit),
    Bug("quota: the priority of a step does not count", _steps_have_no_priority),
)
