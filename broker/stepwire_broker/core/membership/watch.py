"""The death of brokers: a broker is dead if its row has not changed for a whole lease of the watcher's own clock.

The row must have been the same at every successful beat of the watcher, without a gap of more than two beats. No clock
of the database or of another host decides, and after an outage of the database every broker has a lease to come back.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from .cluster_rows import Beaten, BrokerRow, LaneOwner, ObservedBroker

GAP_BEATS: Final = 2.5  # the time of two beats, and some delay of the second
WORKER_SEEN_MS: Final = 30_000  # a broker without a worker for this time gives its lanes to one that has workers


class BrokerRun(NamedTuple):
    """One run of a broker."""

    id: str
    epoch: int


class Workers(Struct):
    """Whether a broker is reached by workers."""

    from_mono: int  # it is known since then
    last_mono: int | None = None  # when it last had one

    def had_one(self, now_mono: int) -> bool:
        return self.last_mono is not None and now_mono - self.last_mono < WORKER_SEEN_MS

    def may_have_one(self, now_mono: int) -> bool:
        """True also for a broker that is too new to judge."""
        return self.had_one(now_mono) or now_mono - self.from_mono < WORKER_SEEN_MS


class Sighting(Struct):
    """When a run of a broker was first seen at its present beat."""

    beat: int
    since_mono: int
    has_moved: bool  # it was seen to beat, or to start
    workers: Workers
    is_dead: bool = False


class BrokerWatch:
    def __init__(self, broker: str, epoch: int, beat_ms: int) -> None:
        self._self = BrokerRun(broker, epoch)
        self._gap_ms = GAP_BEATS * beat_ms
        self._looked_mono: int | None = None
        self._seen: dict[BrokerRun, Sighting] = {}

    def look(self, beaten: Beaten) -> None:
        """Take note of the rows. Afterwards `dead` and `of` answer for the time at which this beat was sent."""
        looked = self._looked_mono
        has_gap = looked is not None and beaten.sent_mono - looked > self._gap_ms
        self._looked_mono = beaten.received_mono
        before, self._seen = self._seen, {}
        for row in (*beaten.brokers, *_former_runs(beaten)):
            key = BrokerRun(row.id, row.epoch)
            sighting = before.get(key)
            if sighting is None or sighting.beat != row.beat:
                workers = Workers(beaten.received_mono) if sighting is None else sighting.workers
                sighting = Sighting(row.beat, beaten.received_mono, looked is not None, workers)
            elif has_gap:
                sighting.since_mono = beaten.received_mono
            self._seen[key] = sighting
            sighting.is_dead = key != self._self and (
                row.is_gone or beaten.sent_mono - sighting.since_mono >= row.lease_ms
            )
            if row.workers:
                sighting.workers.last_mono = beaten.received_mono

    def of(self, row: BrokerRow) -> Sighting:
        return self._seen[BrokerRun(row.id, row.epoch)]

    def dead(self) -> list[ObservedBroker]:
        """Return the runs that are dead, in the order of their rows. A former run has the beat 0."""
        return [ObservedBroker(*key, seen.beat) for key, seen in self._seen.items() if seen.is_dead]


def _former_runs(beaten: Beaten) -> Iterable[BrokerRow]:
    """Return runs that own a lane and whose row a later run of the same broker has replaced. Their beats fail, so they
    are dead a lease after they were first seen so."""
    rows = {row.id: row for row in beaten.brokers}
    lease_ms = max((row.lease_ms for row in beaten.brokers), default=0)
    owners = {BrokerRun(lane.owner, lane.owner_epoch or 0) for lane in beaten.lanes if lane.owner is not None}
    for owner in sorted(owners):
        row = rows.get(owner.id)
        if row is None or row.epoch != owner.epoch:
            yield BrokerRow(id=owner.id, epoch=owner.epoch, beat=0, lease_ms=lease_ms, is_draining=True)


def owner_of(lane: LaneOwner) -> BrokerRun | None:
    return None if lane.owner is None else BrokerRun(lane.owner, lane.owner_epoch or 0)
