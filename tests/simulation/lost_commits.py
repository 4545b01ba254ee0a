"""The loss of commits: the database returns to an earlier state, as after a failover to an asynchronous standby.

It ends a seed of several brokers. The owners notice that their groups do not follow the lanes' ends. An operator stops
all brokers and accepts the loss with the shipped code, and the brokers start again. What was acknowledged may be gone,
so the other checks end with the loss. One promise stays (L9): no at_most_once step that has started starts again
unasked.
"""

import copy
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.model.events import Now
from stepwire_broker.store.holding import BLOCKS_UNKNOWN, StoredTasks

from tests.memory_store import database as memory
from tests.memory_store.queries import MemoryQueries
from tests.memory_store.tables import BlockRow, LaneOwner, Tables
from tests.memory_store.writer import MemoryWriter

from .checks import Books

if TYPE_CHECKING:
    from .peer_node import PeerNode, RunningAtLevel0
    from .worker_node import Running, WorkerNode
    from .world import World

NOTICED_MS: Final = 12_000.0
STOPPED_MS: Final = 12_000.0
AGAIN_MS: Final = 60_000.0
LOST_MS: Final = 5_000.0
KIND: Final = "commits_lost"


class ChecksAfterLoss:
    """Only L9 is judged. Everything else that the world reports is ignored."""

    def __init__(self, books: Books) -> None:
        self.books = books
        books.is_closing = True
        books.notes_dispatches = False
        books.unanswered.clear()  # answers are no longer noted
        self.started = {step_id for step_id, book in books.steps.items() if book.runs}
        self.is_accepted, self.is_over = False, True

    def __getattr__(self, name: str) -> Any:
        return _ignore

    def handler_entered(self, running: "Running | RunningAtLevel0", worker: "WorkerNode | PeerNode") -> None:
        step = running.run.step
        is_once = getattr(step, "delivery_mode", None) == "at_most_once"
        if self.is_accepted and is_once and step.step_id in self.started:
            self.books.fail("L9 after lost commits no at_most_once step starts again", f"{running.run.item}")
        if not self.is_accepted:
            self.started.add(step.step_id)  # tasks that are submitted later follow the ordinary rules
        self.books.numbers["runs after lost commits"] += self.is_accepted


def _ignore(*args: Any) -> None:
    return None


class LostCommits:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance = Random(f"{world.seed}/lost_commits")
        self.is_on = KIND in world.faults.on
        self.is_stopped = False  # no broker may start

    def run(self) -> None:
        """Instead of the end of the seed."""
        world = self.world
        lost_ms = 20.0 + LOST_MS * self.chance.random() ** 2
        world.schedule.run(world.phase_ms * (0.3 + 0.6 * self.chance.random()))
        before = copied(world.tables)
        world.schedule.run(world.now + lost_ms)
        assert world.server is not None
        if not world.faults.strikes(KIND, "0"):
            return
        world.trace(KIND, lost_ms)
        world.checks.is_over = True
        checks = ChecksAfterLoss(world.checks.books)
        world.checks = checks  # type: ignore[assignment]
        world.quotas.is_on = False
        world.server.crash(300.0)
        vars(world.tables).update(before)
        world.schedule.run(world.now + NOTICED_MS)
        self.is_stopped = True
        for broker in world.brokers:
            if broker.is_alive:
                broker.kill()
        world.schedule.run(world.now + STOPPED_MS)
        world.server.heal()
        self._accept()
        checks.is_accepted = True
        self.is_stopped = False
        world.schedule.run(world.now + AGAIN_MS)

    def _accept(self) -> None:
        """Do what `stepwire db accept-loss` does to the rows."""
        tables = self.world.tables
        tables.locked.clear()
        tables.epochs += 1_000_000
        tables.deployment = f"{self.chance.getrandbits(128):032x}"
        number = max(tables.blocks, default=0) + BLOCKS_UNKNOWN
        for lane, row in tables.lanes.items():
            number += 1
            tables.lanes[lane] = LaneOwner(None, None, max(row.epoch, tables.epochs) + 1)
            tables.blocks[number] = BlockRow(lane, 0)
        taken = []
        for lane in tables.lanes:
            tables.take(lane, "accept-loss", tables.epochs)
            taken.append(memory.taken_lane(tables, lane, 0))
        opened = memory.opened(tables, tables.epochs, tuple(taken), is_shared=True)
        writers = {lane: MemoryWriter(tables, lane) for lane in tables.lanes}
        now = Now(0, tables.now_ms())
        tasks = StoredTasks("accept-loss", opened, writers, Stored(tables), now)
        held = tasks.hold(sum(lane.open_tasks for lane in taken), _ignore)
        self.world.checks.books.numbers["steps held after lost commits"] += held.steps
        for lane, row in tables.lanes.items():
            tables.lanes[lane] = LaneOwner(None, None, row.epoch + 1)


class Stored:
    """The port StoredState over the tables in memory."""

    def __init__(self, tables: Tables) -> None:
        self._queries = MemoryQueries(tables)

    def read(self, query: Any) -> Any:
        return query(self._queries)


def copied(tables: Tables) -> dict[str, Any]:
    """Return a copy of all rows, which are immutable themselves."""
    kept = {}
    for name, value in vars(tables).items():
        if name not in ("locked", "owners") and isinstance(value, dict | list | set | int | str):
            kept[name] = copy.copy(value)
    for name in ("steps_of", "history"):
        kept[name] = {key: list(rows) for key, rows in kept[name].items()}
    return kept
