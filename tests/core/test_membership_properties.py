"""Two to five brokers against the rows of one database, in every order of beats, takes, releases, pauses and kills.

Each broker has a clock of its own, up to 3 % fast or slow. A beat is three events: it is sent, the database applies it,
and its answer arrives. A take is applied between two beats. Any time may pass between any two of these.
"""

import itertools
from collections import deque
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from stepwire_broker.core.membership.cluster_rows import Beaten, BrokerRow, LaneOwner, TakeLanes
from stepwire_broker.core.membership.members import Members, OwnLanes

LEASE_MS: Final = 10_000
BEAT_MS: Final = 2_000


class Rows:
    """The tables `brokers` and `lanes`, with the statements of a beat, a take and a release."""

    def __init__(self, lanes: int) -> None:
        self.brokers: dict[str, BrokerRow] = {}
        self.lanes = {n: LaneOwner(n) for n in range(1, lanes + 1)}
        self.epochs = itertools.count(1)
        self.moves = 0

    def begin(self, broker: str) -> int:
        epoch = next(self.epochs)
        self.brokers[broker] = BrokerRow(id=broker, epoch=epoch, beat=0, lease_ms=LEASE_MS, version="1")
        return epoch

    def beat(self, broker: str, epoch: int, *, is_draining: bool) -> tuple[Any, Any]:
        row = self.brokers[broker]
        if row.epoch == epoch:
            self.brokers[broker] = BrokerRow(
                id=broker, epoch=epoch, beat=row.beat + 1, lease_ms=LEASE_MS, version="1", is_draining=is_draining
            )
        return tuple(self.brokers.values()), tuple(self.lanes.values())

    def take(self, broker: str, epoch: int, takes: TakeLanes) -> dict[int, int]:
        dead = {
            (each.id, each.epoch)
            for each in takes.dead
            if (row := self.brokers[each.id]).epoch > each.epoch or (row.epoch, row.beat) == (each.epoch, each.beat)
        }
        free = [
            lane
            for lane in self.lanes.values()
            if lane.owner is None
            or (lane.owner == broker and lane.lane not in takes.served)
            or (lane.owner, lane.owner_epoch) in dead
        ]
        taken = {lane.lane: lane.epoch + 1 for lane in free[: takes.most]}
        for lane, lane_epoch in taken.items():
            self.lanes[lane] = LaneOwner(lane, broker, epoch, lane_epoch)
        self.moves += len(taken)
        return taken

    def release(self, lane: int, epoch: int) -> None:
        if self.lanes[lane].epoch == epoch:
            self.lanes[lane] = LaneOwner(lane, None, None, epoch + 1)
            self.moves += 1


class Clock(Struct):
    """The own clock of a broker: an offset and a rate to true time."""

    offset_ms: int
    percent: int  # 97 to 103

    def mono(self, true_ms: int) -> int:
        return self.offset_ms + true_ms * self.percent // 100


class Broker:
    """A process: a thread that beats, one that takes and releases, and the loop that handles what they post."""

    def __init__(self, id: str, rows: Rows, clock: Clock, true_ms: int) -> None:
        self.id, self.rows, self.clock = id, rows, clock
        self.is_alive = True
        self.is_draining = False
        self.start(true_ms)

    def start(self, true_ms: int) -> None:
        begun = self.clock.mono(true_ms)
        self.epoch = self.rows.begin(self.id)
        self.members = Members(self.id, self.epoch, "1", LEASE_MS, begun)
        self.served: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.sent_mono: int | None = None
        self.read: tuple[Any, Any] | None = None
        self.beat_due_ms = true_ms
        self.jobs: deque[TakeLanes | tuple[int, int]] = deque()  # for the thread
        self.posted: deque[Any] = deque()  # for the loop
        self.is_alive = True

    def owns(self, true_ms: int) -> set[int]:
        """Return the lanes for which this process would send something now."""
        if not self.is_alive or self.members.is_dark(self.clock.mono(true_ms)):
            return set()
        return set(self.served)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def send(self, true_ms: int) -> None:
        if self.sent_mono is None and true_ms >= self.beat_due_ms:
            self.sent_mono, self.beat_due_ms = self.clock.mono(true_ms), true_ms + BEAT_MS

    def apply(self) -> None:
        """The database does what the thread has sent."""
        if self.sent_mono is not None and self.read is None:
            self.read = self.rows.beat(self.id, self.epoch, is_draining=self.is_draining)

    def work(self) -> None:
        """The other thread does what the loop has decided."""
        if self.jobs:
            job = self.jobs.popleft()
            if isinstance(job, TakeLanes):
                self.posted.append(self.rows.take(self.id, self.epoch, job))
            else:
                self.rows.release(*job)
                self.posted.append(job[0])

    def receive(self, true_ms: int) -> None:
        if self.sent_mono is not None and self.read is not None:
            brokers, lanes = self.read
            now = self.clock.mono(true_ms)
            self.posted.append(Beaten(sent_mono=self.sent_mono, received_mono=now, brokers=brokers, lanes=lanes))
            self.sent_mono = self.read = None

    def lose(self) -> None:
        """The connection is lost: the beat may have been applied, and its answer never arrives."""
        self.sent_mono = self.read = None

    # -- the loop -----------------------------------------------------------------------------------------------------

    def handle(self) -> None:
        if not self.posted:
            return
        event = self.posted.popleft()
        if isinstance(event, dict):
            self.served |= event
            self.members.taken()
        elif isinstance(event, int):
            self.members.released(event, self.served.pop(event, 0))
            self.leaving.discard(event)
        else:
            own = OwnLanes(self.served, frozenset(self.leaving), self.is_draining)
            verdict = self.members.beaten(event, own)
            if verdict.replaced is not None:
                self.is_alive = False
                return
            for lane in verdict.lost:
                del self.served[lane]
                self.leaving.discard(lane)
            for lane in verdict.releases:
                self.leaving.add(lane)
                self.jobs.append((lane, self.served[lane]))
            if verdict.takes is not None:
                self.jobs.append(verdict.takes)


ROUND: Final = ("send", "apply", "receive", "handle", "handle", "work", "handle", "work", "handle")


class Site:
    def __init__(self, lanes: int, clocks: list[Clock]) -> None:
        self.true_ms = 0
        self.rows = Rows(lanes)
        self.brokers = [Broker(f"b{n}", self.rows, clock, 0) for n, clock in enumerate(clocks)]

    def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("pass", ms):
                self.true_ms += ms
            case ("run", n, ms):
                self.run([self.brokers[n % len(self.brokers)]], ms)
            case ("run all", _, ms):
                self.run(self.brokers, ms)
            case ("interrupted", n, (stages, ms)):
                self.interrupted(self.brokers[n % len(self.brokers)], stages, ms)
            case ("kill", n, _):
                self.brokers[n % len(self.brokers)].is_alive = False
            case ("restart", n, _):
                broker = self.brokers[n % len(self.brokers)]
                if not broker.is_alive:  # a running one would be a namesake, whose lease `safe_at` waits for
                    broker.start(self.true_ms)
            case (step, n, _):
                broker = self.brokers[n % len(self.brokers)]
                if broker.is_alive:
                    self.step(broker, step)
        self.check()

    def interrupted(self, broker: Broker, stages: int, ms: int) -> None:
        """Let a broker do this number of stages of a round, then the others run for this time, then the rest."""
        broker.beat_due_ms = min(broker.beat_due_ms, self.true_ms)
        for place, step in enumerate(ROUND):
            if place == stages:
                self.run([each for each in self.brokers if each is not broker], ms)
            if broker.is_alive:
                self.step(broker, step)
            self.check()

    def step(self, broker: Broker, step: str) -> None:
        match step:
            case "send":
                broker.send(self.true_ms)
            case "apply":
                broker.apply()
            case "receive":
                broker.receive(self.true_ms)
            case "lose":
                broker.lose()
            case "work":
                broker.work()
            case "lose take":
                broker.work()
                if broker.posted and isinstance(broker.posted[-1], dict):
                    broker.posted[-1] = {}
            case "handle":
                broker.handle()

    def run(self, brokers: list[Broker], ms: int) -> None:
        """Let these brokers do everything that is due, for this time."""
        end_ms = self.true_ms + ms
        while True:
            for broker, step in itertools.product(brokers, ROUND):
                if broker.is_alive:
                    self.step(broker, step)
                    self.check()
            if any(broker.jobs or broker.posted for broker in brokers if broker.is_alive):
                continue
            due_ms = min((broker.beat_due_ms for broker in brokers if broker.is_alive), default=end_ms)
            if due_ms >= end_ms:
                self.true_ms = end_ms
                return
            self.true_ms = max(due_ms, self.true_ms + 1)

    def check(self) -> None:
        seen: set[int] = set()
        for broker in self.brokers:
            owned = broker.owns(self.true_ms)
            assert not owned & seen, f"two brokers act for the lanes {owned & seen}"
            seen |= owned

    def heal(self) -> None:
        """End every fault. Each lane then gets a living owner in a lease and two beats, and lanes come to rest."""
        if not any(broker.is_alive for broker in self.brokers):
            self.brokers[0].start(self.true_ms)
        self.run(self.brokers, int(1.04 * LEASE_MS) + 2 * BEAT_MS)
        alive = {(broker.id, broker.epoch): broker for broker in self.brokers if broker.is_alive}
        for lane in self.rows.lanes.values():
            assert (lane.owner, lane.owner_epoch) in alive, f"lane {lane.lane} has no living owner"
        self.run(self.brokers, 30_000)
        shares = [len(broker.served) for broker in alive.values()]
        assert max(shares) - min(shares) <= 1, f"the shares are {shares}"
        assert sum(shares) == len(self.rows.lanes)
        moves = self.rows.moves
        self.run(self.brokers, 30_000)
        assert self.rows.moves == moves, "lanes move between brokers that have equal shares"


STEPS = st.sampled_from(["send", "apply", "receive", "handle", "work", "lose", "lose take", "kill", "restart"])
WHICH = st.integers(0, 4)
STALLS = st.tuples(st.integers(1, len(ROUND)), st.integers(1, 300).map(lambda n: 100 * n))
ACTIONS = st.one_of(
    st.tuples(st.just("interrupted"), WHICH, STALLS),
    st.tuples(STEPS, WHICH, st.just(0)),
    st.tuples(st.just("run"), WHICH, st.integers(1, 150).map(lambda n: 100 * n)),
    st.tuples(st.just("run all"), WHICH, st.integers(1, 60).map(lambda n: 100 * n)),
    st.tuples(st.just("pass"), st.integers(1, 30_000)),
)
CLOCKS = st.builds(Clock, st.integers(0, 10**6), st.integers(97, 103))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(CLOCKS, min_size=2, max_size=5),
    st.booleans(),
    st.lists(ACTIONS, max_size=40),
)
def test_brokers_never_act_for_one_lane_together_and_share_all_lanes_after_faults(
    lanes: int, clocks: list[Clock], is_settled: bool, actions: list[tuple[Any, ...]]
) -> None:
    site = Site(lanes, clocks)
    if is_settled:
        site.run(site.brokers, 20_000)
    for action in actions:
        site.act(action)
    site.heal()


def test_64_lanes_are_shared_as_fast_as_8() -> None:
    site = Site(64, [Clock(0, 100)] * 3)
    site.run(site.brokers[:1], 20_000)
    assert len(site.brokers[0].served) == 64
    for broker in site.brokers[1:]:
        broker.start(site.true_ms)
    site.run(site.brokers, 20_000)
    assert sorted(len(broker.served) for broker in site.brokers) == [21, 21, 22]
    moves = site.rows.moves
    site.run(site.brokers, 20_000)
    assert site.rows.moves == moves
