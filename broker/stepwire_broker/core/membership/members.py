"""The conclusions from beats: whether this broker must be silent, who else lives, and which lanes change hands.

The conclusions need no message between brokers. A wrong one, for example about a broker that was only suspended, does
no harm to the rows: the epoch of a lane refuses every group of its former owner.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from .cluster_rows import Beaten, BrokerRow, LaneOwner, TakeLanes
from .shares import aims, most_of
from .watch import BrokerWatch, Workers, owner_of

BEATS_A_LEASE: Final = 5
DARK_PERCENT: Final = 94  # of the lease: two clocks may differ by 3 % each
BEHIND_BEATS: Final = 2  # for which another broker has fewer lanes than its aim, before one is released for it
RELEASED_PART: Final = 8  # such a part of all lanes is given up at a beat for balance, while the others are served
OFFSETS: Final = 5  # of the last beats: a single one may have waited on its way
OFFSET_STEP_MS: Final = 1_000
STUCK_BEATS: Final = 3  # at which a lane of a dead broker could not be taken, because a transaction holds it
FREE_BEATS: Final = 2  # after which a lane that its taker leaves may be taken by another broker


class OwnLanes(NamedTuple):
    """The state of this broker at the time of a beat."""

    served: Mapping[int, int]  # the epoch of each lane; the first of them is released first
    leaving: frozenset[int] = frozenset()  # of these, the lanes that are being released
    is_draining: bool = False
    workers: int = 0


class Conclusion(Struct, kw_only=True):
    """The consequences of a beat."""

    replaced: str | None = None  # why this process must end
    lost: list[int] = []  # lanes that another broker owns
    takes: TakeLanes | None = None
    releases: list[int] = []
    died: list[str] = []  # brokers that are dead since this beat
    joined: list[str] = []  # brokers that are alive since this beat
    dark_ms: int = 0  # for how long this broker was dark until this beat


class Candidate(NamedTuple):
    version: str
    workers: int
    seen: Workers


class Share(NamedTuple):
    """The brokers that count, with their lanes, and the number of lanes that each aims at."""

    held: dict[str, int]
    takers: list[str]
    aims: dict[str, int]


class FreeLane(NamedTuple):
    """A lane that any broker may take, as this broker has seen it."""

    epoch: int
    since_mono: int
    beats: int


class Members:
    """One for each start of a broker. `begun_mono`: the own clock before the row of this start was written."""

    def __init__(self, broker: str, epoch: int, version: str, lease_ms: int, begun_mono: int) -> None:
        self._broker = broker
        self._epoch = epoch
        self._version = version
        self._lease_ms = lease_ms
        self._watch = BrokerWatch(broker, epoch, lease_ms // BEATS_A_LEASE)
        self._behind: dict[str, int] = {}  # by broker: the number of beats for which it had fewer lanes than its aim
        self._free: dict[int, FreeLane] = {}
        self._given: dict[int, int] = {}  # by lane that was released: its last own epoch
        self._is_taking = False  # a take was decided and its outcome is not known
        self._counts_from_mono = begun_mono  # an earlier beat does not count as one of several in a row
        self._counted = 1  # 1 if the present beat counts
        self._workers = Workers(begun_mono)
        self._offsets: deque[int] = deque(maxlen=OFFSETS)
        self.offset_ms = 0  # the clock of the database minus the clock of this host, where they differ
        self.dark_mono = begun_mono + self._silence_ms
        self.rows: tuple[BrokerRow, ...] = ()  # of all brokers, as of the last beat
        self.lanes: tuple[LaneOwner, ...] = ()
        self.live: list[BrokerRow] = []  # the other brokers that are not known to be dead
        self._alive: set[str] = set()
        self._dead: set[str] = set()

    @property
    def _silence_ms(self) -> int:
        return self._lease_ms * DARK_PERCENT // 100

    def is_dark(self, mono: int) -> bool:
        """Whether this broker's lease may be over at this time of its own clock. It must then send nothing."""
        return mono >= self.dark_mono

    def beat_age_ms(self, mono: int) -> int:
        """Return the time since the last successful beat was sent."""
        return mono - self.dark_mono + self._silence_ms

    def silent_ms(self, broker: str, mono: int) -> int | None:
        """Return the time for which the row of another broker has not changed, as seen here. None: no such broker."""
        row = next((row for row in self.rows if row.id == broker and row.id != self._broker), None)
        return None if row is None else mono - self._watch.of(row).since_mono

    def taken(self) -> None:
        """The outcome of the last take is known."""
        self._is_taking = False

    def released(self, lane: int, epoch: int) -> None:
        """The release of this lane is stored: rows that were read before it say nothing about the lane."""
        self._given[lane] = epoch

    def beaten(self, beaten: Beaten, own: OwnLanes) -> Conclusion:
        """Conclude from a beat. A decided take must be reported by `taken`, whatever it brought."""
        rows = {row.id: row for row in beaten.brokers}
        mine = rows.get(self._broker)
        if mine is None:
            return Conclusion(replaced=f"the row of the broker {self._broker!r} was removed from the database")
        if mine.epoch != self._epoch:
            return Conclusion(replaced=f"another process with broker.id {self._broker!r} has replaced this one")
        conclusion = Conclusion()
        if self.is_dark(beaten.received_mono):
            conclusion.dark_ms = beaten.received_mono - self.dark_mono
        self.dark_mono = max(self.dark_mono, beaten.sent_mono + self._silence_ms)
        self._count(beaten.sent_mono)
        self.rows, self.lanes = beaten.brokers, beaten.lanes
        self._note_offset(beaten.offset_ms)
        self._watch.look(beaten)
        self._note_living(beaten, conclusion)
        if own.workers:
            self._workers.last_mono = beaten.received_mono
        conclusion.lost = [lane.lane for lane in beaten.lanes if lane.epoch > own.served.get(lane.lane, lane.epoch)]
        served = {lane for lane in own.served if lane not in conclusion.lost}
        share = self._share(beaten, own, served)
        self._take(beaten, own, served, share, conclusion)
        self._release(own, served, share, conclusion)
        return conclusion

    def _count(self, sent_mono: int) -> None:
        """A notification makes a beat early. Such a beat does not count where several in a row stand for a time."""
        self._counted = int(sent_mono >= self._counts_from_mono)
        if self._counted:
            self._counts_from_mono = sent_mono + self._lease_ms // BEATS_A_LEASE // 2

    def _note_offset(self, offset_ms: int) -> None:
        """Follow the database's clock in steps. A smaller difference is the delay of a trip: a wall clock that moved
        with it would end back-offs too early."""
        self._offsets.append(offset_ms)
        median_ms = sorted(self._offsets)[len(self._offsets) // 2]
        if abs(median_ms - self.offset_ms) >= OFFSET_STEP_MS:
            self.offset_ms = median_ms

    # -- who counts ---------------------------------------------------------------------------------------------------

    def _note_living(self, beaten: Beaten, conclusion: Conclusion) -> None:
        """The death of a broker is news if the broker was seen alive, or owns lanes. The end of a drain is not."""
        others = [row for row in beaten.brokers if row.id != self._broker]
        self.live = [row for row in others if not self._watch.of(row).is_dead]
        alive = {row.id for row in self.live if self._watch.of(row).has_moved}
        dead = {row.id for row in others if self._watch.of(row).is_dead and not row.is_draining}
        owned = _lanes_by_owner(beaten.lanes)
        conclusion.died = sorted(id for id in dead - self._dead if id in self._alive or id in owned)
        conclusion.joined = sorted(alive - self._alive)
        self._alive, self._dead = alive, dead

    def _share(self, beaten: Beaten, own: OwnLanes, served: set[int]) -> Share:
        """A broker counts if it lives, goes on, and has workers or is too new to judge. At the first sight of a row it
        lives if it owns a lane. Lanes move only to brokers that have workers, if any has, and to no older version."""
        owned = _lanes_by_owner(beaten.lanes)
        counted = {
            row.id: Candidate(row.version, row.workers, self._watch.of(row).workers)
            for row in self.live
            if not row.is_draining and (self._watch.of(row).has_moved or owned.get(row.id, 0) > 0)
        }
        if not own.is_draining:
            counted[self._broker] = Candidate(self._version, own.workers, self._workers)
            owned[self._broker] = len(served - own.leaving) + len(self._unserved(beaten, own))
        if any(each.workers for each in counted.values()):
            counted = {id: each for id, each in counted.items() if each.seen.may_have_one(beaten.sent_mono)}
            reached = {id for id, each in counted.items() if each.seen.had_one(beaten.sent_mono)}
        else:
            reached = set(counted)
        versions = {id: version_of(counted[id].version) for id in reached}
        newest = max(versions.values(), default=())
        takers = [id for id, version in versions.items() if version == newest]
        held = {id: owned.get(id, 0) for id in counted}
        return Share(held, takers, aims(held, takers, len(beaten.lanes)))

    def lanes_in_doubt(self) -> set[int]:
        """Return the lanes that no broker takes over, because commits may have been lost."""
        live = {row.id for row in self.live}
        return {lane.lane for lane in self.lanes if lane.is_in_doubt and lane.owner not in live}

    # -- lanes --------------------------------------------------------------------------------------------------------

    def _unserved(self, beaten: Beaten, own: OwnLanes) -> list[LaneOwner]:
        """Return own lanes of a former run, and lanes of a take whose answer was lost."""
        return [
            lane
            for lane in beaten.lanes
            if lane.owner == self._broker
            and lane.lane not in own.served
            and lane.epoch > self._given.get(lane.lane, -1)
        ]

    def _take(self, beaten: Beaten, own: OwnLanes, served: set[int], share: Share, conclusion: Conclusion) -> None:
        dead = self._watch.dead()
        runs = {(each.id, each.epoch) for each in dead}
        free = [
            lane
            for lane in beaten.lanes
            if lane.owner is None or (lane.owner != self._broker and owner_of(lane) in runs)
        ]
        self._free = {lane.lane: self._still_free(lane, beaten.received_mono) for lane in free}
        if self._is_taking:
            return
        most = len(self._unserved(beaten, own))
        if self._broker in share.takers:
            most += min(len(free), self._wanted(beaten, share))
        if most:
            owning = {owner_of(lane) for lane in free}
            self._is_taking = True
            conclusion.takes = TakeLanes(
                most=most,
                dead=tuple(each for each in dead if (each.id, each.epoch) in owning),
                served=tuple(sorted(served)),
                stuck=tuple(lane.lane for lane in free if lane.owner is not None and self._is_stuck(lane)),
            )

    def _wanted(self, beaten: Beaten, share: Share) -> int:
        """Return how many lanes of other brokers this one would take: up to its aim. Of lanes that their taker leaves,
        up to the highest share; and any number of those that stay free for a lease."""
        held = share.held[self._broker]
        left = [lane for lane in self._free.values() if lane.beats > FREE_BEATS]
        long_left = [lane for lane in left if beaten.sent_mono - lane.since_mono >= self._lease_ms]
        highest = most_of(len(share.takers), len(beaten.lanes))
        return max(0, share.aims[self._broker] - held, min(len(left), highest - held), len(long_left))

    def _is_stuck(self, lane: LaneOwner) -> bool:
        return self._free[lane.lane].beats >= STUCK_BEATS

    def _still_free(self, lane: LaneOwner, mono: int) -> FreeLane:
        before = self._free.get(lane.lane)
        if before is None or before.epoch != lane.epoch:
            return FreeLane(lane.epoch, mono, 1)
        return before._replace(beats=before.beats + self._counted)

    def _release(self, own: OwnLanes, served: set[int], share: Share, conclusion: Conclusion) -> None:
        """Release every lane if this broker does not count and another one does. Otherwise release lanes above the own
        aim for brokers that have had fewer lanes than theirs for two beats, and have no free lane to take."""
        staying = [lane for lane in own.served if lane in served and lane not in own.leaving]
        if self._broker not in share.held:
            self._behind = {}
            if share.takers:
                conclusion.releases = staying
            return
        missing = {broker: share.aims[broker] - share.held[broker] for broker in share.takers if broker != self._broker}
        self._behind = {
            broker: self._behind.get(broker, 0) + self._counted for broker, lanes in missing.items() if lanes > 0
        }
        wanted = sum(missing[broker] for broker, beats in self._behind.items() if beats >= BEHIND_BEATS)
        leaving = len(own.leaving & served)
        surplus = share.held[self._broker] - share.aims[self._broker]
        several = max(1, len(self.lanes) // RELEASED_PART)
        conclusion.releases = staying[: max(0, min(several, surplus, wanted - len(self._free) - leaving))]


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _lanes_by_owner(lanes: tuple[LaneOwner, ...]) -> dict[str, int]:
    owned: dict[str, int] = {}
    for lane in lanes:
        if lane.owner is not None:
            owned[lane.owner] = owned.get(lane.owner, 0) + 1
    return owned
