"""Another broker, which is not simulated, takes lanes of the only broker, and leaves them again some seconds later.

The broker learns of the loss from the fence of its next group, or before that from an event, as from the rows of other
brokers. No broker serves the lane meanwhile: its steps run on, and no command on its tasks is carried out.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.commit.decision import OrderToStore, WaitElsewhere
from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.model.commit_group import LaneLost
from stepwire_broker.core.model.events import LanesTaken

from tests.memory_store.database import taken_lane

from .faults import LANE_KINDS

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .world import World

ELSEWHERE: Final = "elsewhere"  # the other broker
AGAIN_MS: Final = 500.0  # before the next attempt to give a lane back to a broker that is dead or suspended
ANSWER_MS: Final = 300.0  # an order that no broker carries out


class LaneChanges:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.is_on = not world.faults.on.isdisjoint(LANE_KINDS)
        self._chance = Random(f"{world.seed}/lane_changes")
        self._taken = 0

    def strike(self, luck: float, size: float) -> None:
        """Take one lane, or several."""
        broker, tables = self.world.broker, self.world.tables
        own = [lane for lane, row in tables.lanes.items() if row.owner == broker.id and broker.is_alive]
        for lane in self._chance.sample(own, min(len(own), 1 + int(4 * luck**3))):
            self._taken += 1
            tables.take(lane, ELSEWHERE, 1_000_000 + self._taken)
            self.world.count("lane", "taken away")
            self.world.trace("lane_taken_away", lane)
            if luck < 0.6:
                self.world.schedule.after(2_000.0 * size, self._tell, broker, lane, broker.life)
            self.world.schedule.after(1_000.0 + 14_000.0 * size**2, self._give_back, lane)

    def _tell(self, broker: "BrokerNode", lane: int, life: int) -> None:
        if broker.life == life and self.world.tables.lanes[lane].owner == ELSEWHERE:
            broker.post("event", LaneLost(lane))

    def _give_back(self, lane: int) -> None:
        """Let the broker take the lane again. A start of the broker takes all lanes anyway."""
        broker, tables = self.world.broker, self.world.tables
        if tables.lanes[lane].owner != ELSEWHERE:
            return
        if not broker.is_alive or broker.is_paused:
            self.world.schedule.after(AGAIN_MS, self._give_back, lane)
        elif lane in broker.state.lanes:
            broker.post("event", LaneLost(lane))
            self.world.schedule.after(AGAIN_MS, self._give_back, lane)
        else:
            tables.take(lane, broker.id, broker.state.identity.epoch)
            self.world.count("lane", "taken again")
            self.world.trace("lane_taken_again", lane)
            broker.post("called", self._open, (broker, taken_lane(tables, lane, broker.settings.bus.lease_ms)))

    def _open(self, broker: "BrokerNode", taken: TakenLane) -> None:
        """In the process of the broker."""
        broker.open_lane(taken)
        broker.hear(LanesTaken((taken,)))

    def through_others(self, broker: "BrokerNode") -> dict[str, Callable[[Any], None]]:
        """The other broker answers nothing."""
        refuse = partial(self._refuse, broker)
        return {"order": refuse, "wait_elsewhere": refuse, "pass_on": lambda results: None}

    def _refuse(self, broker: "BrokerNode", asked: OrderToStore | WaitElsewhere) -> None:
        refused = CommandRefused("commit_unknown", "the owner of the lane did not answer")
        self.world.schedule.after(ANSWER_MS, self._answer, broker, broker.life, asked.request, refused)

    def _answer(self, broker: "BrokerNode", life: int, request: int, answer: CommandRefused) -> None:
        if broker.is_alive and broker.life == life:
            broker.give_answer(request, answer)
