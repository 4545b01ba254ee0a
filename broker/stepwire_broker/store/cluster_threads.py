"""Three threads of a broker that shares its database: one beats and sends notifications, one takes lanes and gives them
up, and one receives notifications.

A take may read for seconds how much work a lane has, so it must not delay a beat. The thread beats only for a loop that
turns: a broker whose loop hangs is silent towards its workers, and other brokers must get its lanes.
"""

import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from stepwire_broker.core.commit.decision import LaneReleasable
from stepwire_broker.core.definitions.stored_rows import TakenLane
from stepwire_broker.core.membership.cluster_rows import Beaten, Presence, TakeLanes
from stepwire_broker.core.membership.members import BEATS_A_LEASE
from stepwire_broker.core.membership.notifications import NOTHING, Notification, NotificationCounts
from stepwire_broker.core.model.events import LaneReleased, LanesTaken
from stepwire_broker.errors import BrokerError

from .clocks import read_clocks
from .ports import Cluster

RETRY_MS: Final = 250  # after a beat that failed
CLOSE_S: Final = 5.0  # for a call that the database does not answer
RELEASE_AGAIN_S: Final = 1.0
NOTIFY_EVERY_MS: Final = 50  # what is to be sent meanwhile goes into one notification
LISTEN_AGAIN_S: Final = 1.0

ClusterEvent: TypeAlias = Beaten | LanesTaken | LaneReleased | Notification


class ClusterThreads:
    """`report` gets what happened, in the thread in which it happened."""

    def __init__(self, cluster: Cluster, report: Callable[[ClusterEvent], object], counts: NotificationCounts) -> None:
        self._cluster = cluster
        self._report = report
        self._presence = Presence()
        self._turned_mono = 0
        self._wake = threading.Event()
        self._beats_now = False
        self._end = threading.Event()
        self._to_send = NOTHING
        self._send_from_mono = 0
        self._sending = threading.Lock()  # for the two before
        self._counts = counts
        self._jobs: queue.SimpleQueue[TakeLanes | LaneReleasable | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._beat, name="stepwire-beat", daemon=True),
            threading.Thread(target=self._work, name="stepwire-lanes", daemon=True),
            threading.Thread(target=self._listen, name="stepwire-listen", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def turned(self, presence: Presence) -> None:
        """The loop turns. The next beat describes the broker like this."""
        self._presence = presence
        self._turned_mono = read_clocks().mono

    def beat_now(self, presence: Presence) -> None:
        """Beat without waiting for the next time, because other brokers should know this soon, or have changed their
        rows."""
        self.turned(presence)
        self._beats_now = True
        self._wake.set()

    def notify(self, notification: Notification) -> None:
        """Send a notification, at most NOTIFY_EVERY_MS later. It is lost if the database is away."""
        with self._sending:
            self._to_send |= notification
        self._wake.set()

    def take(self, takes: TakeLanes) -> None:
        """LanesTaken follows, with no lane if the take failed."""
        self._jobs.put(takes)

    def release(self, releasable: LaneReleasable) -> None:
        """LaneReleased follows, once the release is stored or the lane is known to belong to another broker."""
        self._jobs.put(releasable)

    def close(self) -> None:
        """End all threads after the queued work, and wait for them for some seconds."""
        self._end.set()
        self._wake.set()
        self._jobs.put(None)
        self._cluster.stop_receiving()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(CLOSE_S)

    def _beat(self) -> None:
        lease_ms = self._cluster.lease_ms
        due_mono = 0
        while True:
            now = read_clocks().mono
            if now < due_mono and self._wake.wait(self._wait_ms(now, due_mono) / 1000):
                self._wake.clear()
            if self._end.is_set():
                return
            self._send()
            now = read_clocks().mono
            if now < due_mono and not self._beats_now:
                continue
            self._beats_now = False
            if now - self._turned_mono > lease_ms // 2:
                due_mono = now + RETRY_MS
                continue
            due_mono = now + lease_ms // BEATS_A_LEASE
            try:
                beaten = self._cluster.beat(self._presence)
            except BrokerError:
                # A beat that fails is a missed beat. The lanes report what is wrong with the database.
                due_mono = read_clocks().mono + RETRY_MS
            else:
                self._report(beaten)

    def _wait_ms(self, now: int, due_mono: int) -> int:
        """Return the time until the next beat or the next notification."""
        with self._sending:
            return min(due_mono, max(now, self._send_from_mono)) - now if self._to_send else due_mono - now

    def _send(self) -> None:
        """Send what there is, unless the last notification was sent a moment ago."""
        now = read_clocks().mono
        with self._sending:
            if not self._to_send or now < self._send_from_mono:
                return
            notification, self._to_send = self._to_send, NOTHING
            self._send_from_mono = now + NOTIFY_EVERY_MS
        try:
            self._cluster.notify(notification)
        except BrokerError:
            return  # the other brokers find the same by their own looks
        self._counts.sent += 1

    def _listen(self) -> None:
        while not self._end.is_set():
            try:
                notification = self._cluster.receive()
            except BrokerError:
                self._counts.is_listening = False
                self._end.wait(LISTEN_AGAIN_S)
                continue
            if notification is None:
                return
            self._counts.is_listening = True
            self._counts.received += 1
            self._report(notification)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, TakeLanes):
                self._report(LanesTaken(tuple(self._taken(job))))
            elif self._released(job):
                self._report(LaneReleased(job.lane))

    def _taken(self, takes: TakeLanes) -> list[TakenLane]:
        try:
            return self._cluster.take(takes)
        except BrokerError:
            return []  # later beats show which lanes this broker owns

    def _released(self, job: LaneReleasable) -> bool:
        """Release until the outcome is known. False: the broker ends, and gives all lanes up then."""
        while True:
            try:
                self._cluster.release(job.lane, job.epoch, job.to)
                return True
            except BrokerError:
                if self._end.wait(RELEASE_AGAIN_S):
                    return False
