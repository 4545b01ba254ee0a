"""The loop's side of a cluster: beats describe this broker, and what they bring goes to the core."""

import asyncio
import hashlib
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import msgspec
import structlog

from .core.backlog import counting
from .core.commit.decision import LaneReleasable
from .core.definitions.settings import Settings
from .core.lanes import beats, darkness
from .core.membership.cluster_rows import Presence, RouteLoad
from .core.membership.members import Conclusion
from .core.membership.notifications import Notification, NotificationCounts
from .core.model.commit_group import LaneLost
from .core.model.events import Event, LanesTaken, Now
from .core.state import BrokerState
from .store import Store
from .store.clocks import read_clocks
from .store.cluster_threads import ClusterEvent, ClusterThreads

BACKLOG_MS: Final = 1_000  # between two counts of the steps in memory

log = structlog.get_logger("stepwire.broker")


class ClusterActions(NamedTuple):
    """The functions of the loop that the cluster's events need."""

    handle: Callable[[Event], None]
    flush: Callable[[], None]
    stop: Callable[[str], None]  # for this reason, because another process has replaced this one
    answered: Callable[[Collection[int]], None]  # these orders have answers now


class ClusterLink:
    """Used on the loop. Without a cluster, every method does nothing."""

    def __init__(
        self, settings: Settings, state: BrokerState, store: Store, actions: ClusterActions, counts: NotificationCounts
    ) -> None:
        self._state = state
        self._store = store
        self._actions = actions
        self._http = settings.http.listen
        self._config_digest = digest_of(settings)
        self._loop = asyncio.get_running_loop()
        self._is_dark = False  # as it was logged
        self._is_closed = False
        self._backlog: tuple[RouteLoad, ...] = ()
        self._backlog_due_mono = 0
        self._threads = None if store.cluster is None else ClusterThreads(store.cluster, self._report, counts)

    @property
    def is_shared(self) -> bool:
        """Whether other brokers can use the database."""
        return self._threads is not None

    def clock(self) -> Now:
        """Read both clocks. Times that are stored are of the database's clock, if several brokers use the database."""
        now, members = read_clocks(), self._state.members
        return now if members is None else Now(now.mono, now.wall + members.offset_ms)

    def is_dark(self) -> bool:
        """Whether this broker must be silent, because its lease in the database may be over."""
        return darkness.is_dark(self._state, read_clocks())

    def join(self) -> None:
        """Begin to beat."""
        if self._threads is not None:
            self.turned()
            self._threads.start()

    def leave(self) -> None:
        """End the beats. Waits for the database, so it is called in another thread."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.close()

    def beat_now(self) -> None:
        """Let the other brokers know of a change at once."""
        if self._threads is not None:
            self._threads.beat_now(self._presence())

    def turned(self) -> None:
        """The loop turns: beats may go on."""
        if self._threads is None:
            return
        self._threads.turned(self._presence())
        is_dark = self.is_dark()
        if is_dark and not self._is_dark:
            log.warning("broker_dark", lanes=len(self._state.lanes))
        self._is_dark = is_dark

    def conclude(self, conclusion: Conclusion) -> None:
        """Do what the core has concluded from a beat."""
        if conclusion.replaced is not None:
            self._actions.stop(conclusion.replaced)
            return
        for broker in conclusion.joined:
            log.info("broker_joined", broker=broker)
        for broker in conclusion.died:
            log.warning("broker_died", broker=broker)
        if conclusion.dark_ms:
            log.warning("broker_not_dark", dark_ms=conclusion.dark_ms, lost=conclusion.lost)
        if conclusion.takes is not None and self._threads is not None:
            self._threads.take(conclusion.takes)

    def notify(self, notification: Notification) -> None:
        """Let the other brokers look at the database now. Without them, there is nothing to send."""
        members = self._state.members
        if self._threads is not None and members is not None and members.live:
            self._threads.notify(notification)

    def release(self, releasable: LaneReleasable) -> None:
        """Give a lane up."""
        assert self._threads is not None, "only a broker among others releases lanes"
        self._threads.release(releasable)

    def _presence(self) -> Presence:
        # Counting takes milliseconds, and the loop turns more often than it beats.
        now_mono = read_clocks().mono
        if now_mono >= self._backlog_due_mono:
            self._backlog, self._backlog_due_mono = counting.in_row(self._state), now_mono + BACKLOG_MS
        return beats.presence(self._state, self._http, self._config_digest, self._backlog)

    def _report(self, event: ClusterEvent) -> None:
        """Pass an event to the loop. Called in the threads of the cluster."""
        self._loop.call_soon_threadsafe(self._on_event, event)

    def _on_event(self, event: ClusterEvent) -> None:
        if self._is_closed:
            return
        if isinstance(event, Notification):
            if event.lanes:
                self.beat_now()
            self._actions.answered(event.answers)
        elif isinstance(event, LanesTaken):
            for taken in event.lanes:
                if taken.lane in self._state.lanes:
                    self._actions.handle(LaneLost(taken.lane))  # the broker has lost it, and taken it again
                self._store.open_lane(taken)
                log.info("lane_taken", lane=taken.lane, open_tasks=taken.open_tasks)
        self._actions.handle(event)
        self._actions.flush()


def digest_of(settings: Settings) -> str:
    """Return a digest of the settings that must be equal on all brokers of a database: where steps run, and limits."""
    shared = (settings.execution, settings.executors.exec.commands, settings.dispatch, settings.limits)
    return hashlib.sha256(msgspec.json.encode(shared, order="deterministic")).hexdigest()[:16]
