"""The catalogue: tables that every broker changes and keeps in memory. Workflows, blocks of ids, and controls.

A revision tells of a change, and then all of it is read again. A command that names something unknown waits for such a
read, because another broker may have stored it a moment ago.
"""

from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from stepwire_broker.core.commit.decision import Decision, ReadCatalogue

EVENTS_WAITING_MAX: Final = 10_000

ControlName: TypeAlias = tuple[str, str]  # kind and name


class OwnControl(Struct):
    """A control that this broker has changed. Rows that were read before the commit do not count for it."""

    lane: int
    seq: int
    asked: int | None = None  # the last read that was asked for before the commit; None: not committed


class AsksForReads(Protocol):
    """The part of the state with which a read is asked for."""

    decision: Decision
    workflows: dict[int, Any]

    def next_read(self) -> int: ...


class CatalogueBook(Struct):
    is_shared: bool = False  # other brokers can use the database
    revision: int = 0  # of the controls that this broker has applied
    read: int | None = None  # the read that is under way
    waiting: list[Any] = []  # events that are handled again after it
    waiting_next: list[Any] = []  # events that need a later read
    is_fresh: bool = False  # waiting events are being handled: what is unknown now does not exist
    own: dict[ControlName, OwnControl] = {}

    def look_up(self, event: Any, state: AsksForReads) -> bool:
        """Handle the event again after a read. False: a read that began after the event found nothing, or no other
        broker can have stored anything."""
        if not self.is_shared or self.is_fresh or len(self.waiting) + len(self.waiting_next) >= EVENTS_WAITING_MAX:
            return False
        if self.read is None:
            self.waiting.append(event)
            self.ask(state)
        else:
            self.waiting_next.append(event)
        return True

    def ask(self, state: AsksForReads) -> None:
        self.read = state.next_read()
        state.decision.reads.append(ReadCatalogue(self.read, frozenset(state.workflows)))

    def changed(self, name: ControlName, lane: int, seq: int) -> None:
        """Note a change of this broker that is in the group `seq` of this lane."""
        self.own[name] = OwnControl(lane, seq)

    def commit(self, lane: int, seq: int, reads: int) -> bool:
        """Note that the changes in this lane's groups up to `seq` are durable, and return whether there are any.
        `reads`: the number of the last read."""
        durable = [own for own in self.own.values() if own.asked is None and own.lane == lane and own.seq <= seq]
        for own in durable:
            own.asked = reads
        return bool(durable)

    def forget_before(self, read: int) -> None:
        """Forget the changes that this read has seen."""
        self.own = {name: own for name, own in self.own.items() if own.asked is None or own.asked >= read}

    def forget_lane(self, lane: int) -> None:
        """Read all controls again: changes that were not committed are lost with their lane."""
        self.own = {name: own for name, own in self.own.items() if own.lane != lane or own.asked is not None}
        self.revision = 0
