"""Bugs of a broker that loses lanes while it runs, and takes them again."""

from typing import Any, Final

from stepwire_broker.core.commit.outbox import Outbox
from stepwire_broker.core.lanes import losing
from stepwire_broker.core.loading import residency
from stepwire_broker.core.state import BrokerState

from tests.simulation.faults import LANE_KINDS

from .plant import Bug, Plant


def _tasks_kept(plant: Plant) -> None:
    plant.function(losing._forget_tasks, lambda original, state, tasks: [])


def _sends_kept(plant: Plant) -> None:
    def remove_lane(original: Any, self: Any, number: int) -> Any:
        lane, unsent = original(self, number)
        self._held.extend(([], send) for send in unsent)
        return lane, []

    plant.method(Outbox, "remove_lane", remove_lane)


def _old_reads_inserted(plant: Plant) -> None:
    plant.function(residency.of_own_lanes, lambda original, state, loaded, load: loaded)


def _counts_kept(plant: Plant) -> None:
    plant.function(losing._forget_counts, lambda original, state, own: None)


def _requests_kept(plant: Plant) -> None:
    plant.function(losing._forget_requests, lambda original, *args: None)


def _safe_at_once(plant: Plant) -> None:
    """Only of lanes that are taken after the start."""

    def open_lane(original: Any, self: Any, taken: Any, now: Any) -> Any:
        has_lanes = bool(self.lanes) or bool(self.sessions)
        lane = original(self, taken, now)
        if has_lanes:
            lane.safe_at_mono = now.mono
            self.await_safety(now.mono + 50)
        return lane

    plant.method(BrokerState, "open_lane", open_lane)


BUGS: Final = tuple(
    Bug(name, plant, always=frozenset(LANE_KINDS))
    for name, plant in (
        ("the tasks of a lost lane stay in memory", _tasks_kept),
        ("the sends of a lost lane leave", _sends_kept),
        ("a read from before the loss brings the tasks back", _old_reads_inserted),
        ("the counts of a lost lane stay", _counts_kept),
        ("requests for a lost lane wait for ever", _requests_kept),
        ("recovered deliveries of a taken lane are taken back at once", _safe_at_once),
    )
)
