"""The threads that beat, take and release, over a cluster that the test holds up."""

import queue
import threading
import time
from collections.abc import Iterator

import pytest
from stepwire_broker.core.commit.decision import LaneReleasable
from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.membership.cluster_rows import Beaten, Presence, TakeLanes
from stepwire_broker.core.membership.notifications import Notification, NotificationCounts
from stepwire_broker.core.model.events import LaneReleased, LanesTaken
from stepwire_broker.errors import BrokerError
from stepwire_broker.store.clocks import read_clocks
from stepwire_broker.store.cluster_threads import NOTIFY_EVERY_MS, ClusterEvent, ClusterThreads

LEASE_MS = 1_000
PATIENCE_S = 20.0


class HeldCluster:
    """The port `Cluster`, of a database that answers takes when `may_take` is set, and fails while `is_down`."""

    lease_ms = LEASE_MS

    def __init__(self) -> None:
        self.may_take = threading.Event()
        self.is_down = False
        self.present: list[Presence] = []
        self.releases = 0
        self.failed = threading.Event()  # a notification
        self.notified: queue.SimpleQueue[tuple[int, Notification]] = queue.SimpleQueue()
        self.received: queue.SimpleQueue[Notification | BrokerError | None] = queue.SimpleQueue()

    def beat(self, presence: Presence) -> Beaten:
        if self.is_down:
            raise BrokerError("no connection")
        self.present.append(presence)
        now = read_clocks().mono
        return Beaten(sent_mono=now, received_mono=now, brokers=(), lanes=())

    def take(self, takes: TakeLanes) -> list[TakenLane]:
        assert self.may_take.wait(PATIENCE_S)
        if self.is_down:
            raise BrokerError("no connection")
        return [TakenLane(n, 1, 0, (1, 2), 0, {}, 0) for n in range(takes.most)]

    def release(self, lane: int, epoch: int, to: str | None = None) -> bool:
        self.releases += 1
        if self.is_down:
            raise BrokerError("no connection")
        return True

    def leave(self) -> None:
        pass

    def notify(self, notification: Notification) -> None:
        if self.is_down:
            self.failed.set()
            raise BrokerError("no connection")
        self.notified.put((read_clocks().mono, notification))

    def receive(self) -> Notification | None:
        received = self.received.get()
        if isinstance(received, BrokerError):
            raise received
        return received

    def stop_receiving(self) -> None:
        self.received.put(None)

    def close(self) -> None:
        pass


class Threads:
    def __init__(self) -> None:
        self.cluster = HeldCluster()
        self.events: queue.SimpleQueue[ClusterEvent] = queue.SimpleQueue()
        self.counts = NotificationCounts()
        self.threads = ClusterThreads(self.cluster, self.events.put, self.counts)

    def start(self, lease_ms: int = LEASE_MS) -> None:
        self.cluster.lease_ms = lease_ms
        self.threads.turned(Presence(workers=1))
        self.threads.start()

    def next(self, kind: type[ClusterEvent]) -> ClusterEvent:
        """Return the next event of this kind. The loop turns meanwhile."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            self.threads.turned(Presence(workers=1))
            try:
                event = self.events.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(event, kind):
                return event
        raise AssertionError(f"no {kind.__name__}")

    def await_silence(self) -> None:
        """Wait until no event has come for a lease. The loop does not turn meanwhile."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            try:
                self.events.get(timeout=LEASE_MS / 1000)
            except queue.Empty:
                return
        raise AssertionError("the beats go on")


@pytest.fixture
def running() -> Iterator[Threads]:
    running = Threads()
    yield running
    running.cluster.may_take.set()
    running.threads.close()


def test_beats_go_on_while_a_take_waits_for_the_database(running: Threads) -> None:
    running.start()
    running.threads.take(TakeLanes(2))
    for _ in range(3):
        running.next(Beaten)
    running.cluster.may_take.set()
    taken = running.next(LanesTaken)
    assert isinstance(taken, LanesTaken)
    assert [lane.lane for lane in taken.lanes] == [0, 1]


def test_a_loop_that_hangs_is_not_beaten_for(running: Threads) -> None:
    running.start()
    running.next(Beaten)
    running.await_silence()
    running.next(Beaten)


def test_a_beat_is_sent_at_once_when_other_brokers_should_know_of_a_change(running: Threads) -> None:
    running.start(3_600_000)
    running.next(Beaten)
    running.threads.beat_now(Presence(is_draining=True))
    running.events.get(timeout=PATIENCE_S)
    assert running.cluster.present[-1].is_draining


def test_a_take_that_fails_brings_no_lane(running: Threads) -> None:
    running.start()
    running.cluster.is_down = True
    running.cluster.may_take.set()
    running.threads.take(TakeLanes(1))
    assert running.next(LanesTaken) == LanesTaken(())
    running.cluster.is_down = False
    running.next(Beaten)


def test_a_release_is_repeated_until_the_database_answers(running: Threads) -> None:
    running.start()
    running.cluster.is_down = True
    running.threads.release(LaneReleasable(3, 1, None))
    while running.cluster.releases < 2:
        running.threads.turned(Presence())
        time.sleep(0.01)
    running.cluster.is_down = False
    assert running.next(LaneReleased) == LaneReleased(3)


def test_notifications_within_50_ms_are_merged_into_one(running: Threads) -> None:
    running.start(3_600_000)
    running.next(Beaten)
    running.threads.notify(Notification(orders=(1,)))
    first_mono, first = running.cluster.notified.get(timeout=PATIENCE_S)
    running.threads.notify(Notification(orders=(2,), lanes=True))
    running.threads.notify(Notification(answers=(7,), controls=True))
    second_mono, second = running.cluster.notified.get(timeout=PATIENCE_S)
    assert first == Notification(orders=(1,))
    assert second == Notification(orders=(2,), answers=(7,), controls=True, lanes=True)
    assert second_mono - first_mono >= NOTIFY_EVERY_MS
    assert len(running.cluster.present) == 1  # a notification is no beat


def test_a_notification_that_fails_is_lost_and_the_beats_go_on(running: Threads) -> None:
    running.start()
    running.next(Beaten)
    running.cluster.is_down = True
    running.threads.notify(Notification(lanes=True))
    assert running.cluster.failed.wait(PATIENCE_S)
    running.cluster.is_down = False
    running.next(Beaten)
    assert running.counts.sent == 0


def test_notifications_are_received_again_after_a_lost_connection(running: Threads) -> None:
    running.start()
    running.cluster.received.put(Notification(orders=(3,)))
    assert running.next(Notification) == Notification(orders=(3,))
    assert running.counts.is_listening
    running.cluster.received.put(BrokerError("no connection"))
    running.cluster.received.put(Notification(orders=(4,)))
    assert running.next(Notification) == Notification(orders=(4,))
    assert running.counts.received == 2
