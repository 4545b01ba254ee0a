"""A broker among others: the shipped cluster_link.py and cluster_threads.py without threads.

One thread beats, another takes lanes and gives them up, one job after the other. Both go on while the loop hangs, and
both stop with the process.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.commit.decision import LaneReleasable
from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.lanes import beats
from stepwire_broker.core.membership.cluster_rows import Beaten, Presence, TakeLanes
from stepwire_broker.core.membership.members import BEATS_A_LEASE, Conclusion, Members, OwnLanes
from stepwire_broker.core.model.commit_group import LaneLost
from stepwire_broker.core.model.events import LaneReleased, LanesTaken
from stepwire_broker.store.cluster_threads import RELEASE_AGAIN_S, RETRY_MS

from tests.memory_store.cluster import BeatRows, MemoryCluster, TakenEnd

if TYPE_CHECKING:
    from .broker_node import BrokerNode

LEASE_MS: Final = 10_000
BEAT_PATIENCE_MS: Final = 2_000.0
VERSION: Final = "1.0"
OLDER: Final = "0.9"


class Membership:
    """One life of a broker's process."""

    def __init__(self, node: "BrokerNode", epoch: int) -> None:
        assert node.world.server is not None
        self._node = node
        self._server = node.world.server
        self.cluster = MemoryCluster(node.world.tables, node.id, epoch, LEASE_MS, node.host_now)
        self._beaten_mono = node.host_now().mono  # own clock before the last successful beat was sent
        self._jobs: deque[TakeLanes | LaneReleasable] = deque()
        self._is_working = False
        self._beats = 0  # that were planned
        self._is_beating = self._beats_again = False
        self.stopped_until_ms = -1.0  # the thread of beats stands still, by a fault
        self.cluster.start(node.version, node.settings.bus.lease_ms)
        self.members = Members(node.id, epoch, node.version, LEASE_MS, self._beaten_mono)

    def first_lanes(self) -> list[TakenLane]:
        """Beat and take for the first time, before the core begins."""
        takes = self.members.beaten(self.cluster.beat(Presence()), OwnLanes({})).takes
        taken = [] if takes is None else self.cluster.take(takes)
        self.members.taken()
        return taken

    def join(self) -> None:
        self._beat_after(LEASE_MS / BEATS_A_LEASE)

    def beat_now(self) -> None:
        """Beat early. The next beat follows at the usual interval. A beat that is under way ends first."""
        self._beats_again = self._is_beating
        if not self._is_beating:
            self._beat_after(0.1)

    def _beat_after(self, delay_ms: float) -> None:
        """The last call of this method decides when the next beat comes."""
        self._beats += 1
        self._node.thread(delay_ms, partial(self._beat_unless_put_off, self._beats))

    def _beat_unless_put_off(self, number: int) -> None:
        if number == self._beats:
            self._beat()

    @property
    def may_speak(self) -> bool:
        """Judged by the rule of the design alone: the lease, less 6 %, from before the last successful beat."""
        return self._node.host_now().mono < self._beaten_mono + 0.94 * LEASE_MS

    # -- beats --------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        node = self._node
        if node.world.now < self.stopped_until_ms or node.hangs_for_ms > LEASE_MS // 2:
            self._beat_after(RETRY_MS)
            return
        self._is_beating = True
        presence = beats.presence(node.state, None, "")
        sent = node.host_now()
        due_ms = node.world.now + LEASE_MS / BEATS_A_LEASE

        def answered(rows: BeatRows) -> None:
            beaten = self.cluster.beaten(rows, sent, node.host_now())
            self._is_beating = False
            self._beat_after(0.1 if self._beats_again else max(0.0, due_ms - node.world.now))
            self._beats_again = False
            node.come(node.life, "beaten", (beaten,))

        def failed() -> None:
            self._is_beating = False
            self._beat_after(RETRY_MS)

        self._server.call(node, lambda: self.cluster.beat_rows(presence), answered, failed, BEAT_PATIENCE_MS, True)

    def handle(self, beaten: Beaten) -> None:
        """On the loop."""
        if any(row.id == self._node.id and row.epoch == self.cluster.epoch for row in beaten.brokers):
            self._beaten_mono = max(self._beaten_mono, beaten.sent_mono)
        self._node.hear(beaten)
        self._node.note_offset(self.members.offset_ms)

    def conclude(self, conclusion: Conclusion) -> None:
        world = self._node.world
        for lane in conclusion.lost:
            world.count("lane", "seen to be lost")
            world.trace("lost", f"{lane} by {self._node.id}")
        if conclusion.dark_ms:
            world.count("broker", "back from the dark")
        if conclusion.replaced is not None:
            self._node.leave_replaced()
        elif conclusion.takes is not None:
            self._add(conclusion.takes)

    # -- takes and releases -------------------------------------------------------------------------------------------

    def release(self, releasable: LaneReleasable) -> None:
        self._node.world.checks.lane_may_go(self._node, releasable.lane)
        self._add(releasable)

    def _add(self, job: TakeLanes | LaneReleasable) -> None:
        self._jobs.append(job)
        if not self._is_working:
            self._is_working = True
            self._node.thread(0.1, self._work)

    def _work(self) -> None:
        if not self._jobs:
            self._is_working = False
        elif isinstance(self._jobs[0], TakeLanes):
            self._take(self._jobs[0])
        else:
            self._give_up(self._jobs[0])

    def _done(self, event: LanesTaken | LaneReleased) -> None:
        self._jobs.popleft()
        self._node.thread(0.1, self._work)
        self._node.come(self._node.life, "owned", (event,))

    def _take(self, takes: TakeLanes) -> None:
        server, node, cluster = self._server, self._node, self.cluster

        def failed() -> None:
            self._done(LanesTaken(()))

        def read(taken: list[TakenEnd]) -> None:
            server.call(node, lambda: cluster.read_taken(taken), opened, failed, BEAT_PATIENCE_MS, True)

        def opened(taken: tuple[TakenLane, ...]) -> None:
            self._done(LanesTaken(taken))

        patience_ms, begins = 2 * BEAT_PATIENCE_MS, cluster.begin_take
        server.call(node, lambda: cluster.take_rows(takes), read, failed, patience_ms, True, begins=begins)

    def _give_up(self, lane: LaneReleasable) -> None:
        def released(_: Any) -> None:
            self._done(LaneReleased(lane.lane))

        def failed() -> None:
            self._node.thread(1_000.0 * RELEASE_AGAIN_S, self._work)

        self._server.call(
            self._node,
            lambda: self.cluster.release(lane.lane, lane.epoch, lane.to),
            released,
            failed,
            BEAT_PATIENCE_MS,
            True,
            locks=lane.lane,
        )

    def owned(self, event: LanesTaken | LaneReleased) -> None:
        """On the loop."""
        node = self._node
        if isinstance(event, LanesTaken):
            for taken in event.lanes:
                if taken.lane in node.state.lanes:
                    node.hear(LaneLost(taken.lane))  # the broker has lost it, and taken it again
                node.open_lane(taken)
        node.hear(event)
