"""A hand that moves the lanes of brokers that were killed, in place of the brokers' own decisions.

A second after a second it looks which lanes belong to a process that is dead for a lease, or to a former start of a
broker that lives, and has a living broker take them.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from tests.memory_store.cluster import DeadBroker

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.stored_rows import TakenLane

    from .broker_node import BrokerNode
    from .world import World

LOOK_MS: Final = 1_000.0
LEASE_MS: Final = 10_000.0
PATIENCE_MS: Final = 2_000.0


class Hand:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance = Random(f"{world.seed}/hand")
        self._taking: set[int] = set()

    def plan(self) -> None:
        self.world.schedule.after(LOOK_MS, self._look)

    def _look(self) -> None:
        world = self.world
        for lane in world.tables.lanes:
            owner = world.owner_of_lane(lane)
            is_served = owner is not None and owner.is_alive and lane in owner.state.outbox.lanes
            if owner is None or is_served or lane in self._taking:
                continue
            if owner.is_alive:
                self._take(owner, lane)
            elif world.now - owner.died_ms >= LEASE_MS:
                others = [broker for broker in world.brokers if broker.is_alive and not broker.is_paused]
                if others:
                    self._take(self.chance.choice(others), lane)
        world.schedule.after(LOOK_MS, self._look)

    def _take(self, broker: "BrokerNode", lane: int) -> None:
        world, cluster = self.world, broker.cluster
        server, tables = world.server, world.tables
        row = tables.brokers[tables.lanes[lane].owner or ""]
        dead = DeadBroker(row.id, row.epoch, row.beat)
        assert server is not None
        self._taking.add(lane)
        world.schedule.after(3 * PATIENCE_MS, self._taking.discard, lane)

        def take() -> list[int]:
            return cluster.take(1, [dead], only=[lane], served=broker.state.outbox.lanes)

        def read(taken: list[int]) -> None:
            if taken:
                server.call(broker, lambda: cluster.read_taken(taken), opened, failed, PATIENCE_MS)

        def opened(taken: "tuple[TakenLane, ...]") -> None:
            if taken:
                self.world.count("lane", "taken")
                self.world.trace("taken", f"{lane} by {broker.id}")
                broker.open_lanes(taken)

        def failed() -> None:
            """The next look takes the lane again, from this broker itself."""

        server.call(broker, take, read, failed, PATIENCE_MS)
