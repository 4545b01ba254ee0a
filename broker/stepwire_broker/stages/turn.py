"""One turn: an event goes in, what is decided goes out, in the one order that keeps the promises.

Nothing here knows sockets, threads or clocks: the broker's loop and the simulation are two worlds around the same turn.
"""

from collections.abc import Callable
from typing import NamedTuple

from stepwire_broker.core.commit.decision import BreakerChanged, Decision, Read, WatchProcess
from stepwire_broker.core.commit.ports import ReadClocks, WirePort
from stepwire_broker.core.machine import Machine
from stepwire_broker.core.model.commit_group import CommitGroup, Outcome
from stepwire_broker.core.model.events import Event, Now

from . import dispatch


class Around(NamedTuple):
    """What a turn acts on."""

    clock: ReadClocks
    wire: WirePort
    put: Callable[[CommitGroup], None]
    answer: Callable[[Decision], None]
    read: Callable[[Read], None]
    watch: Callable[[WatchProcess], None]
    tell: Callable[[BreakerChanged], None]


class Turn:
    def __init__(self, machine: Machine, around: Around) -> None:
        self._machine = machine
        self._around = around

    def handle(self, event: Event) -> None:
        self.act(self._machine.handle(event, self._around.clock()))

    def commit(self, outcome: Outcome) -> None:
        """The writer has its next group before what this commit released is published."""
        now = self._around.clock()
        decision = self._machine.handle(outcome, now)
        self._hand_over(now)
        self.act(decision)

    def take(self) -> None:
        """What stands to be done without an event."""
        self.act(self._machine.take(self._around.clock()))

    def flush(self) -> None:
        """Hand each lane's open group to its writer, if that is free."""
        self._hand_over(self._around.clock())

    def _hand_over(self, now: Now) -> None:
        for number in self._machine.state.outbox.lanes:
            group, decision = self._machine.close(number, now)
            if group is not None:
                self._around.put(group)
            self.act(decision)

    def act(self, decision: Decision) -> None:
        if decision.is_empty:
            return
        around = self._around
        dispatch.send(around.wire, decision)
        if decision.answers:
            around.answer(decision)
        for read in decision.reads:
            around.read(read)
        for watch in decision.watches:
            around.watch(watch)
        for turned in decision.turned:
            around.tell(turned)
