"""The database server of several brokers: the connections to it, its failures, and transactions in separate events.

A transaction reaches the server, locks its lane, and commits: three events, and each answer takes its own way back. So
a lane may be taken between any two of them, and a COMMIT may be executed long after its client gave up. As with real
connections, a short cut delays what is under way, and a long one ends the connection.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.model.commit_group import CommitGroup, Outcome
from stepwire_broker.store.lane import Trouble, Writing

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .stores import Observed
    from .world import World

UNREACHED_MS: Final = 10_000.0  # a connection whose bytes are not confirmed for this time is closed
NO_ANSWER_MS: Final = 30_000.0  # a group waits at most this time for its answer
LOCK_MS: Final = 5_000.0  # a statement waits at most this time for a lock
LOOK_MS: Final = 15.0  # a statement that waits for a lock looks again after this time
GONE: Final = Trouble("passing", "database_unavailable", "the connection was lost")
LOCKED: Final = Trouble("passing", "database_locked", "the lane is locked")


class Path:
    """The network between one broker and the server."""

    def __init__(self) -> None:
        self.up_until_ms = self.down_until_ms = -1.0  # until when each way is cut


class Transaction:
    """One attempt to write a group, as its client and the server see it."""

    def __init__(
        self, node: "BrokerNode", writer: "Observed", writing: Writing, group: CommitGroup, again: tuple[Any, ...]
    ) -> None:
        self.node = node
        self.life = node.life
        self.writer = writer
        self.writing = writing
        self.group = group
        self.again = again  # what the client needs for the next attempt
        self.waits_since_ms: float | None = None  # for the lock of its lane
        self.is_over = False  # at the server
        self.is_answered = False  # its answer has reached the client, or the client has given up


class Server:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.tables = world.tables
        self.tables.end_blocker = self._end_blocker
        self.chance = Random(f"{world.seed}/server")
        self.paths = {broker.id: Path() for broker in world.brokers}
        self.down_until_ms = -1.0
        self.open: list[Transaction] = []
        self._late = world.faults.rate("late_commit", 0.05)
        self._statement_chance = Random(f"{world.seed}/statements")
        self._late_chance = Random(f"{world.seed}/late_commit")

    @property
    def is_down(self) -> bool:
        return self.world.now < self.down_until_ms

    def is_reached_by(self, node: "BrokerNode") -> bool:
        """Both ways are free, and the server runs."""
        path = self.paths[node.id]
        return not self.is_down and max(path.up_until_ms, path.down_until_ms) <= self.world.now

    def heal(self) -> None:
        self.down_until_ms = -1.0
        for path in self.paths.values():
            path.up_until_ms = path.down_until_ms = -1.0

    # -- the network --------------------------------------------------------------------------------------------------

    def _delay_ms(self, until_ms: float) -> float | None:
        """The time that a packet takes. None: the connection ends before the packet arrives."""
        cut_ms = until_ms - self.world.now
        if cut_ms <= 0:
            return 0.1 + 0.4 * self.chance.random()
        return cut_ms + 200.0 * self.chance.random() if cut_ms < UNREACHED_MS else None

    def call(
        self,
        node: "BrokerNode",
        perform: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[], None],
        patience_ms: float,
        is_in_thread: bool = False,
        locks: int | None = None,
        begins: Callable[[], None] | None = None,
    ) -> None:
        """Have the server perform one statement for this process. Either `answered` or `failed` is called, if the
        process still lives; a statement whose answer is lost or late may have been performed. `is_in_thread`: they are
        called in a thread of the process, otherwise on its loop. `locks`: the statement waits for this lane's lock.
        `begins`: called when the statement begins, before it has its locks, mostly by milliseconds."""
        state = {"over": False}

        def end(then: Callable[..., None], *args: Any) -> None:
            if not state["over"]:
                state["over"] = True
                if is_in_thread:
                    node.in_thread(life, then, *args)
                else:
                    node.come(life, "called", (then, args))

        def arrive() -> None:
            if self.is_down:
                end(failed)
                return
            if locks in self.tables.locked:
                self.world.schedule.after(LOOK_MS, arrive)
                return
            result = perform()
            back_ms = self._delay_ms(self.paths[node.id].down_until_ms)
            if back_ms is not None:
                self.world.schedule.after(back_ms, end, answered, result)

        def begin() -> None:
            if begins is not None and not self.is_down:
                begins()
            self.world.schedule.after(1_500.0 * self._statement_chance.random() ** 6, arrive)

        life = node.life
        there_ms = self._delay_ms(self.paths[node.id].up_until_ms)
        if there_ms is not None:
            self.world.schedule.after(there_ms, arrive if begins is None else begin)
        self.world.schedule.after(patience_ms, end, failed)

    # -- transactions -------------------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction, takes_ms: float) -> None:
        """A client sends all statements of a group and its COMMIT. The server takes this time from lock to commit."""
        schedule = self.world.schedule
        there_ms = self._delay_ms(self.paths[transaction.node.id].up_until_ms)
        self.open.append(transaction)
        if there_ms is None:
            self._end(transaction)
            schedule.after(UNREACHED_MS, self._give_up, transaction)
            return
        luck, late_ms = self._late_chance.random(), 30_000.0 * self._late_chance.random() ** 2
        name = f"{transaction.node.id}.{transaction.life}.{transaction.group.lane}.{transaction.group.seq}"
        if luck < self._late and self.world.faults.strikes("late_commit", name):
            takes_ms += late_ms
            schedule.after(20.0 + 200.0 * luck, self._give_up, transaction)
        schedule.after(NO_ANSWER_MS, self._give_up, transaction)
        schedule.after(there_ms, self._lock, transaction, takes_ms)

    def _lock(self, transaction: Transaction, takes_ms: float) -> None:
        """The fence: lock the lane, or fail."""
        if transaction.is_over:
            return
        lane, now = transaction.group.lane, self.world.now
        if self.is_down:
            self._end(transaction)
            self._give_up(transaction)
        elif lane in self.tables.locked:
            transaction.waits_since_ms = since_ms = transaction.waits_since_ms or now
            if now - since_ms < LOCK_MS:
                self.world.schedule.after(LOOK_MS, self._lock, transaction, takes_ms)
                return
            self._end(transaction)
            self._answer(transaction, LOCKED)
        elif not transaction.writer.fits(transaction.group.seq):
            self._end(transaction)
            self._answer(transaction, transaction.writing.attempt())
        else:
            self.tables.locked[lane] = transaction
            self.world.schedule.after(takes_ms, self._commit, transaction)

    def _commit(self, transaction: Transaction) -> None:
        if not transaction.is_over:
            outcome = transaction.writing.attempt()
            self._end(transaction)
            self._answer(transaction, outcome)

    def _end(self, transaction: Transaction) -> None:
        """The server is done with this transaction: its locks are free."""
        transaction.is_over = True
        self.open = [each for each in self.open if each is not transaction]
        if self.tables.locked.get(transaction.group.lane) is transaction:
            del self.tables.locked[transaction.group.lane]

    def _answer(self, transaction: Transaction, outcome: Outcome | Trouble) -> None:
        back_ms = self._delay_ms(self.paths[transaction.node.id].down_until_ms)
        if back_ms is None:
            self.world.schedule.after(UNREACHED_MS, self._give_up, transaction)
        else:
            self.world.schedule.after(back_ms, self._arrive, transaction, outcome)

    def _arrive(self, transaction: Transaction, outcome: Outcome | Trouble) -> None:
        if not transaction.is_answered:
            transaction.is_answered = True
            transaction.node.come(transaction.life, "finished", (outcome, *transaction.again))

    def _give_up(self, transaction: Transaction) -> None:
        self._arrive(transaction, GONE)

    def _end_blocker(self, lane: int) -> None:
        """A broker ends the connection whose transaction holds this lane."""
        holder = self.tables.locked.get(lane)
        if isinstance(holder, Transaction):
            self.world.count("lane", "blocker ended")
            self._end(holder)
            self.world.schedule.after(self.chance.random(), self._give_up, holder)

    # -- failures -----------------------------------------------------------------------------------------------------

    def broker_died(self, node: "BrokerNode") -> None:
        """The server executes what it has received; of some transactions the COMMIT is missing, and they are undone."""
        for transaction in list(self.open):
            if transaction.node is node:
                transaction.is_answered = True
                if self.chance.random() < 0.5:
                    self._end(transaction)

    def crash(self, for_ms: float) -> None:
        """The server ends at once. Of each open transaction it is unknown whether it was committed."""
        self.world.trace("database_down", int(for_ms))
        self.down_until_ms = self.world.now + for_ms
        for transaction in list(self.open):
            is_locked = self.tables.locked.get(transaction.group.lane) is transaction
            if is_locked and self.chance.random() < 0.5:
                transaction.writing.attempt()
            self._end(transaction)
            self.world.schedule.after(self.chance.random(), self._give_up, transaction)
