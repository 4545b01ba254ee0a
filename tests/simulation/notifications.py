"""Notifications between brokers, which the shipped cluster_threads.py sends and receives in threads.

In half of the seeds there are none. In the others they are often late, doubled or lost: nothing may depend on them.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from stepwire_broker.core.membership.notifications import NOTHING, Notification
from stepwire_broker.store.cluster_threads import NOTIFY_EVERY_MS

if TYPE_CHECKING:
    from .broker_node import BrokerNode

LATE_MS: Final = 5_000.0


class Notifications:
    """The notifications that one life of a broker's process sends."""

    def __init__(self, node: "BrokerNode") -> None:
        self._node = node
        of_seed = Random(f"{node.world.seed}/notifications")
        self._are_sent = of_seed.random() < 0.5
        self._lost = of_seed.random() ** 2
        self._late = of_seed.random() ** 2
        self._chance = Random(f"{node.world.seed}/notifications/{node.id}.{node.life}")
        self._to_send = NOTHING
        self._from_ms = 0.0

    def send(self, notification: Notification) -> None:
        if not self._are_sent:
            return
        if not self._to_send:
            self._node.thread(max(0.1, self._from_ms - self._node.world.now), self._send)
        self._to_send |= notification

    def _send(self) -> None:
        world, notification = self._node.world, self._to_send
        self._to_send = NOTHING
        self._from_ms = world.now + NOTIFY_EVERY_MS
        server = world.server
        if server is None or not server.is_reached_by(self._node):
            return
        for other in world.brokers:
            if other is self._node:
                continue
            for _ in range(1 + (self._chance.random() < 0.1)):
                is_lost, is_late = self._chance.random() < self._lost, self._chance.random() < self._late
                delay_ms = 0.2 + self._chance.random() + is_late * LATE_MS * self._chance.random() ** 2
                if not is_lost and server.is_reached_by(other):
                    world.schedule.after(delay_ms, other.come, other.life, "notified", (notification,))
