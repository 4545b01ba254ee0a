"""Members and pools: who holds a batch of a stage, for how long, and how that went.

A member holds a batch from when the batch is taken until it is committed or loaded. The caller passes the time, in
`mono` milliseconds.
"""

from collections import deque
from typing import Final, NamedTuple

from .executor_types import ExecutorType
from .health import HealthState, MemberHealth, PoolHealth, pool_health

WINDOW_BEATS: Final = 30  # beats, one a second, over which the utilisation and the throughput are measured


class MemberMetrics(NamedTuple):
    """Counts of a member since it began."""

    items: int
    batches: int
    failed: int  # attempts that failed: a batch may be tried several times
    busy_ms: int


class PoolMember:
    """The right to have one batch of a stage waiting."""

    def __init__(self, id: str, executor_type: ExecutorType, mono: int) -> None:
        self.id = id
        self.executor_type = executor_type
        self.health = MemberHealth(mono)
        self.items = self.batches = self.failed = 0
        self._busy_ms = 0
        self._began_mono: int | None = None
        self._items = 0

    @property
    def is_busy(self) -> bool:
        return self._began_mono is not None

    def begin(self, items: int, mono: int) -> None:
        """Take a batch. `items`: as far as they are known already."""
        self.health.heartbeat(mono)
        if self._began_mono is None:
            self._began_mono = mono
        self._items = items

    def end(self, mono: int, *, items: int | None = None) -> int:
        """End the batch with success. Return the number of its items."""
        assert self._began_mono is not None
        done, took_ms = self._items if items is None else items, mono - self._began_mono
        self._stop(mono)
        self.items += done
        self.batches += 1
        self.health.samples.add(took_ms, mono)
        return done

    def attempt_failed(self, mono: int) -> None:
        """Note that an attempt failed. The member keeps its batch, which is tried again."""
        assert self._began_mono is not None
        self.failed += 1
        self.health.samples.add(mono - self._began_mono, mono, has_failed=True)

    def give_back(self, mono: int) -> None:
        """End the batch without success: its items wait for a batch again."""
        self.attempt_failed(mono)
        self._stop(mono)

    def beat(self, mono: int) -> None:
        """Note that a member without a batch is ready. A member with one proves itself by the end of its batch."""
        if not self.is_busy:
            self.health.heartbeat(mono)

    def metrics(self, mono: int) -> MemberMetrics:
        running_ms = 0 if self._began_mono is None else mono - self._began_mono
        return MemberMetrics(self.items, self.batches, self.failed, self._busy_ms + running_ms)

    def _stop(self, mono: int) -> None:
        assert self._began_mono is not None
        self._busy_ms += mono - self._began_mono
        self._began_mono = None
        self._items = 0
        self.health.heartbeat(mono)


class _Beat(NamedTuple):
    mono: int
    busy_ms: int
    items: int
    members_ms: int  # the time of all members together


class Pool:
    """The members of one stage. Members come and go; the counts of the pool go on."""

    def __init__(self, executor_type: ExecutorType, mono: int) -> None:
        self.executor_type = executor_type
        self.members: dict[str, PoolMember] = {}
        self._left = MemberMetrics(0, 0, 0, 0)  # of members that are gone
        self._members_ms = 0
        self._beats: deque[_Beat] = deque([_Beat(mono, 0, 0, 0)], maxlen=WINDOW_BEATS + 1)

    def add(self, id: str, mono: int) -> PoolMember:
        member = self.members[id] = PoolMember(id, self.executor_type, mono)
        return member

    def remove(self, id: str, mono: int) -> None:
        """Forget a member. Its batch, if it holds one, is no longer counted."""
        member = self.members.pop(id)
        self._left = MemberMetrics(*map(sum, zip(self._left, member.metrics(mono), strict=True)))
        member.health.stopped(mono)

    def beat(self, mono: int) -> None:
        """Measure. Called once a second."""
        for member in self.members.values():
            member.beat(mono)
        self._members_ms += (mono - self._beats[-1].mono) * len(self.members)
        metrics = self.metrics(mono)
        self._beats.append(_Beat(mono, metrics.busy_ms, metrics.items, self._members_ms))

    def check(self, mono: int) -> list[PoolMember]:
        """End a window of health. Return the members whose state changed."""
        return [member for member in self.members.values() if member.health.check(mono)]

    def metrics(self, mono: int) -> MemberMetrics:
        """Return the counts of all members that ever were."""
        all_of = (self._left, *(member.metrics(mono) for member in self.members.values()))
        return MemberMetrics(*map(sum, zip(*all_of, strict=True)))

    @property
    def health(self) -> PoolHealth:
        return pool_health(member.health.state for member in self.members.values())

    @property
    def states(self) -> dict[HealthState, int]:
        """Count the members by their states."""
        counts = dict.fromkeys(HealthState, 0)
        for member in self.members.values():
            counts[member.health.state] += 1
        return counts

    @property
    def utilization(self) -> float:
        """The busy share of the members, over the last seconds."""
        first, last = self._beats[0], self._beats[-1]
        available_ms = last.members_ms - first.members_ms
        return min(1.0, max(0, last.busy_ms - first.busy_ms) / available_ms) if available_ms else 0.0

    @property
    def throughput(self) -> float:
        """Items a second, over the last seconds."""
        first, last = self._beats[0], self._beats[-1]
        took_ms = last.mono - first.mono
        return 1000 * (last.items - first.items) / took_ms if took_ms else 0.0
