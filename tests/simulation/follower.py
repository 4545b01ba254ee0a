"""A client that follows the events of all tasks, and asks any broker for each page, in some seeds of several brokers.

It reads with the shipped functions of `/v1/events`, loses some connections in the middle of a page, and continues with
the last cursor that it received.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from stepwire_broker.api import events

from .checks import followers

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .world import World

SHARE: Final = 0.15  # of the seeds with several brokers
EVERYTHING: Final = events.EventFilter()


class Follower:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance = Random(f"{world.seed}/follower")
        self.is_on = len(world.brokers) > 1 and self.chance.random() < SHARE
        self.page = self.chance.choice((3, 40, events.PAGE_EVENTS))
        self.cursor = events.BEGINNING
        self.book = followers.FollowerBook()

    def plan(self) -> None:
        if self.is_on:
            self._look_soon()

    def _look_soon(self) -> None:
        self.world.schedule.after(20.0 + 1_500.0 * self.chance.random() ** 2, self._look)

    def _look(self) -> None:
        broker = self.chance.choice(self.world.brokers)
        server = self.world.server
        assert server is not None
        if broker.is_alive and not broker.is_paused and server.is_reached_by(broker):
            self._read(broker)
        self._look_soon()

    def _read(self, broker: "BrokerNode") -> bool:
        """Read a page at this broker. Returns whether there are more."""
        queries = self.world.store.queries
        positions = events.begin(queries, self.cursor)
        if positions is None:
            self.world.checks.books.fail("L8 every broker continues a cursor", f"{self.cursor} at {broker.id}")
        batch = events.read_events(queries, EVERYTHING, positions, broker.state.workflows, self.page)
        received, self.cursor = batch.events, events.cursor_of(batch.positions)
        if received and not self.world.faults.is_over and self.chance.random() < 0.2:
            received = received[: self.chance.randrange(len(received)) + 1]
            self.cursor = received[-1].cursor
        for event in received:
            followers.note_event(self.world.checks.books, self.book, event.document.task_id, event.document.id)
        self.world.checks.books.numbers["events followed"] += len(received)
        return batch.is_more or len(received) < len(batch.events)

    def check_end(self) -> None:
        """Read the rest. Then the client has received every fact."""
        if self.is_on:
            while self._read(self.world.brokers[0]):
                pass
            followers.check_complete(self.world.checks.books, self.book)
