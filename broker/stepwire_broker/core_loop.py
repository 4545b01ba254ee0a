"""The loop around the core: pass events to the core, and its decisions to the bus, the store and the callers.

Every turn is the same. Events are handled one by one, and actions that need no commit are taken at once. After all
arrived messages are read, or a commit has an outcome, the lane's next group goes to its writer. Only then are the
messages of the last commit sent.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, assert_never

import structlog
import zmq
from stepwire_protocol.messages import ResultsLevel0, WorkerMessage

from .bus import deaths
from .bus.wire import Wire
from .bus_events import BusEvents
from .cluster_link import ClusterActions, ClusterLink
from .coordinator.coordinator import Coordinator
from .core.answers.answers import CommandRefused
from .core.commit.decision import (
    BreakerChanged,
    Complaint,
    LaneGone,
    OffersLeftOut,
    Read,
    WatchProcess,
    WorkerDied,
    WorkerFlaps,
)
from .core.commit.outbox import LaneState
from .core.definitions.settings import Settings
from .core.machine import Machine
from .core.model.commit_group import Broken, CommitGroup, Committed, LaneLost, LostCommits, Outcome, Stalled
from .core.model.events import (
    ClaimRefuted,
    Event,
    FrameRefused,
    LoadedTasks,
    LoadFailed,
    MessageIgnored,
    MessageRefused,
    ProcessDied,
)
from .core.model.live import StepProgress
from .core.model.principal import PROCESS, Grant
from .core.routing.level0_handlers import OFFERED_MAX
from .core.workers import authority
from .elsewhere import Elsewhere
from .errors import BrokerError
from .loop_measures import nothing_yet, rows_of
from .pulse import Pulse, PulseActions
from .results_elsewhere import PassedOn
from .stages import claims, results
from .stages.finish import PendingAnswers
from .stages.turn import Around, Turn
from .store import Store
from .store.clocks import read_clocks
from .taps import Taps

log = structlog.get_logger("stepwire.broker")

LINGER_MS: Final = 1_000
WATCH_MS: Final = 250
WATCH_FOR_MS: Final = 5_000
COMPLAIN_EVERY_S: Final = 10.0
REFUSALS_REMEMBERED_MAX: Final = 4_096
UNTRUSTED: Final = frozenset(
    {authority.UNAUTHORIZED, authority.FOREIGN_INBOX, authority.LEVEL0, authority.SUBSCRIPTION}
)


class BrokerStopped(BrokerError):
    """A running broker had to stop. The message is the reason."""


class CoreLoop:
    """Handles events while `is_open`. `failed` gets BrokerStopped when the broker cannot go on."""

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        store: Store,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
        failed: asyncio.Future[None],
    ) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._state = machine.state
        self._store = store
        self._failed = failed
        self.is_open = False
        self.answers = PendingAnswers()
        self.elsewhere = Elsewhere(store, self.answers, lambda notification: self.cluster.notify(notification))
        actions = ClusterActions(self.handle, self.flush, self._fail, self.elsewhere.look_now)
        self.measures = nothing_yet()
        self.cluster = ClusterLink(settings, self._state, store, actions, self.measures.notifications)
        self.ask = partial(self.answers.ask, handle=self.handle_soon)
        self._passed_on = PassedOn(self.ask, self.handle_soon)
        self.coordinator = Coordinator(self._state, self.measures, read_clocks)
        self.commit_listeners: list[Callable[[], None]] = []
        self.progress_listeners: list[Callable[[StepProgress], None]] = []
        self._flush_due = False
        self._handed: dict[int, float] = {}  # by lane: when its writer got its current group
        self._stalled_s: dict[int, float] = {}  # by lane: since when the database stalls
        self._complained: dict[str, float] = {}  # by code: when a fault of an unknown sender was last logged
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()  # by worker and code: the logged refusals
        listener = BusEvents(
            on_message=self.receive,
            on_refused_frame=self._on_refused_frame,
            refusal_of=self._refusal_of,
            after_drain=self.flush,
            handle=self.handle,
            grant_of=self._grant_of,
        )
        self.wire = Wire(settings.bus, settings.broker.id, listener, context, is_strict=settings.security.strict)
        self.taps = Taps(self.wire)
        self._turn = Turn(machine, self._around())
        pulse_actions = PulseActions(
            self.handle,
            self._tick,
            self.flush,
            lambda: self.wire.is_behind,
            store.lost,
            self.on_outcome,
            self.measures.loop_lag_s,
            self._turned,
        )
        self.pulse = Pulse(machine, pulse_actions)

    def _around(self) -> Around:
        return Around(
            self.cluster.clock,
            self.wire,
            self._put,
            self.answers.answer,
            self._read,
            lambda watch: self._check(watch, deaths.ticks_ago(watch.heard_ms_ago), 0),
            _log_breaker,
            self._log_complaint,
            self._tell_progress,
            _log_offers_left_out,
            _log_worker_news,
            self._close_lane,
            self.cluster.release,
            self.elsewhere.order,
            self.elsewhere.wait,
            self._passed_on.pass_on,
            self.cluster.conclude,
            self.cluster.notify,
        )

    # -- events in ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, principal: str = PROCESS) -> None:
        if self.is_open:
            self._turn.handle(event, principal)

    def _tick(self, mono: int) -> None:
        if self.is_open:
            self._turn.tick(mono)

    def handle_soon(self, event: Event) -> None:
        """Handle an event that nothing waits for. Its writes go into the next group."""
        self.handle(event)
        self.flush_soon()

    def receive(self, topic: bytes, body: bytes, principal: str = PROCESS) -> str | None:
        """Handle one message of the bus, or of a worker that is attached to this process. Returns the code of its
        refusal, or None."""
        if not self.is_open:
            return None
        event = results.read(topic, body, self._settings.bus.max_message_bytes)
        if self.taps.are_open and not isinstance(event, ResultsLevel0):
            self._show_received(topic, body, event, principal)
        decision = self._turn.handle(event, principal)
        complaint = decision.complaints[0] if decision.complaints else None
        code, reason = (complaint.code, complaint.text) if complaint is not None else (None, None)
        if self.taps.are_open and isinstance(event, ResultsLevel0):
            # Only the core can tell whether an answer without a session is at fault.
            self.taps.show("in", topic, body, code, reason)
        return code

    def _show_received(
        self, topic: bytes, body: bytes, event: WorkerMessage | MessageRefused | MessageIgnored, principal: str
    ) -> None:
        """Show a message before the answers to it."""
        match event:
            case MessageRefused():
                self.taps.show("in", topic, body, event.code, event.message)
            case MessageIgnored():
                self.taps.show("in", topic, body, event.code)
            case _:
                refusal = authority.of_message(self._state, principal, event)
                code, reason = (None, None) if refusal is None else refusal
                self.taps.show("in", topic, body, code, reason)

    def _on_refused_frame(self, code: str, data: bytes, principal: str) -> None:
        self.taps.show("in", b"", data, code)
        self.handle(FrameRefused(code), principal)

    def _grant_of(self, principal: str) -> Grant | None:
        rights = self._state.principals.get(principal)
        return None if rights is None else rights.grant

    def _refusal_of(self, topic: bytes, principal: str) -> str | None:
        refusal = authority.of_subscription(self._state, principal, topic)
        if refusal is None:
            return None
        self.taps.show("in", topic, b"", refusal.code, refusal.message)
        self._log_complaint(Complaint(refusal.code, refusal.message, "", "subscription", principal))
        return refusal.code

    def report(self, outcome: Outcome) -> None:
        """Pass an outcome to the loop. Called in the writer's thread."""
        self._loop.call_soon_threadsafe(self.on_outcome, outcome)

    def on_outcome(self, outcome: Outcome) -> None:
        if not self.is_open:
            return
        lane = self._state.outbox.lanes.get(outcome.lane)
        is_over = isinstance(outcome, LaneLost | LostCommits)
        if isinstance(outcome, Broken) or (is_over and self._was_the_last(outcome.lane)):
            self._fail(_reason_of(outcome))  # type: ignore[arg-type]
            return
        if lane is None:
            return  # of a lane that was lost meanwhile
        if isinstance(outcome, Stalled):
            log.warning("database_stalled", code=outcome.code, error=outcome.error)
            if lane.stalled is None:
                self.measures.stalls[outcome.code] = self.measures.stalls.get(outcome.code, 0) + 1
            self.coordinator.group_stalled(outcome.lane)
        elif isinstance(outcome, Committed):
            self.coordinator.group_committed(outcome.lane)
            self.measures.commit_s.observe(self._loop.time() - self._handed[outcome.lane])
        stalled = lane.stalled
        self._turn.commit(outcome)
        self._log_stall(stalled, lane)
        if isinstance(outcome, Committed):
            for listener in tuple(self.commit_listeners):
                listener()
        self.pulse.arm()

    def _was_the_last(self, lane: int) -> bool:
        """True if the broker cannot go on without this lane: it has no other, and takes none."""
        return not self.cluster.is_shared and self._state.lanes.keys() <= {lane}

    def _close_lane(self, gone: LaneGone) -> None:
        self._store.close_lane(gone.lane)
        self.coordinator.lane_closed(gone.lane)
        self._handed.pop(gone.lane, None)
        self._stalled_s.pop(gone.lane, None)
        if gone.cause == "released":
            log.info("lane_released", lane=gone.lane)
        elif gone.cause == "commits_lost":
            log.error("lane_stopped", lane=gone.lane, reason=gone.text, tasks=gone.tasks, sessions=gone.sessions)
        else:
            log.warning("lane_lost", lane=gone.lane, reason=gone.text, tasks=gone.tasks, sessions=gone.sessions)

    def _log_stall(self, before: str | None, lane: LaneState) -> None:
        """Log the end of a stall. `before` is the code before the outcome was handled."""
        after = lane.stalled
        if before is None and after is not None:
            self._stalled_s[lane.number] = self._loop.time()
        elif before is not None and after is None and lane.number in self._stalled_s:
            stalled_ms = int((self._loop.time() - self._stalled_s.pop(lane.number)) * 1000)
            log.warning("database_recovered", code=before, stalled_ms=stalled_ms)

    def _fail(self, reason: str) -> None:
        """Write and answer nothing from now on: the next start of a broker recovers the state."""
        self.is_open = False
        self.pulse.stop()
        log.error("broker_failed", reason=reason)
        self.elsewhere.close()
        self._passed_on.close()
        self.answers.give_up(CommandRefused("commit_unknown", reason))
        if not self._failed.done():
            self._failed.set_exception(BrokerStopped(reason))

    def close(self) -> None:
        """Answer the requests that wait. Their outcomes are unknown."""
        self.is_open = False
        self.pulse.stop()
        self.elsewhere.close()
        self._passed_on.close()
        self.wire.close(LINGER_MS)
        self.answers.give_up(CommandRefused("commit_unknown", "the broker stopped before the outcome was known"))

    # -- decisions out ------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Flush after the other callbacks of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Dispatch, and hand the lanes' groups to their writers."""
        self._flush_due = False
        if self.is_open:
            self._turn.flush()
            self.pulse.arm()

    def handled(self) -> asyncio.Future[None]:
        """Return a future that is done when all earlier calls and messages are handled.

        Their immediate answers have been delivered by then, and an asyncio task that was created earlier has run to its
        first wait. The loop runs callbacks in order, and the callback of this future is the last of them.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_soon(_resolve, future)
        return future

    def _put(self, group: CommitGroup) -> None:
        self._handed[group.lane] = self._loop.time()
        self.measures.group_rows.observe(rows_of(group))
        self.coordinator.group_handed(group)
        self._store.put(group)

    def _read(self, read: Read) -> None:
        self.coordinator.read_asked(read)
        future = self._store.read(
            claims.perform, self._settings.limits.resident_payload_bytes, read, self.cluster.clock().wall
        )
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._on_read, read, done))

    def _on_read(self, read: Read, done: Any) -> None:
        if not self.is_open:
            return
        error = done.exception()
        event = None if error is not None else done.result()
        self.coordinator.read_ended(read, event.loaded if isinstance(event, LoadedTasks) else None)
        if event is not None:
            self.handle(event)
        else:
            log.warning("read_failed", error=str(error))
            self.handle(LoadFailed(read.request, str(error)))
        self.flush()

    def _turned(self) -> None:
        self.cluster.turned()
        self.coordinator.turned()

    def _check(self, watch: WatchProcess, heard_ticks: int, waited_ms: int) -> None:
        """Check every `WATCH_MS`, for `WATCH_FOR_MS`, whether the operating system has ended this process."""
        if not self.is_open:
            return
        finding = deaths.examine(watch.pid, watch.pid_started, heard_ticks)
        if finding == "gone":
            self.handle(ProcessDied(watch.worker))
            self.flush()
        elif finding == "refuted":
            self.handle(ClaimRefuted(watch.worker))
        elif waited_ms < WATCH_FOR_MS:
            self._loop.call_later(WATCH_MS / 1000, self._check, watch, heard_ticks, waited_ms + WATCH_MS)

    def _tell_progress(self, reports: list[StepProgress]) -> None:
        for listener in tuple(self.progress_listeners):
            for report in reports:
                listener(report)

    def _log_complaint(self, complaint: Complaint) -> None:
        """Log the first refusal of each code for each worker. For unknown senders, log each code once in
        `COMPLAIN_EVERY_S`: unsolicited messages must not fill the log."""
        if complaint.code in UNTRUSTED:
            # The names in such a message are the sender's inventions, so the principal decides how often it is logged.
            if self._is_due(f"{complaint.code} of {complaint.principal}"):
                self._log_refused(complaint)
            return
        if complaint.worker:
            if self._is_new_refusal(complaint.worker, complaint.code):
                self._log_refused(complaint)
            return
        if self._is_due(complaint.code):
            if complaint.worker is None:
                log.warning("level0_answer_refused", code=complaint.code, text=complaint.text)
            else:
                self._log_refused(complaint)

    def _is_due(self, what: str) -> bool:
        """True if this was last logged at least `COMPLAIN_EVERY_S` ago."""
        now_s = self._loop.time()
        if now_s - self._complained.get(what, -COMPLAIN_EVERY_S) < COMPLAIN_EVERY_S:
            return False
        self._complained[what] = now_s
        return True

    def _is_new_refusal(self, worker: str, code: str) -> bool:
        key = (worker, code)
        if key in self._refused:
            return False
        self._refused[key] = None
        if len(self._refused) > REFUSALS_REMEMBERED_MAX:
            self._refused.popitem(last=False)
        return True

    def _log_refused(self, complaint: Complaint) -> None:
        log.warning(
            "message_refused",
            worker=complaint.worker or None,
            type=complaint.kind,
            code=complaint.code,
            text=complaint.text,
            principal=complaint.principal,
        )


def _reason_of(outcome: Broken | LaneLost | LostCommits) -> str:
    match outcome:
        case Broken():
            return f"the database failed and nothing more can be acknowledged: {outcome.error}"
        case LostCommits():
            return f"{outcome.error}: see `stepwire db accept-loss`"
        case LaneLost():
            return "another broker has taken over this broker's lane"
        case _:
            assert_never(outcome)


def _log_offers_left_out(left_out: OffersLeftOut) -> None:
    log.warning("offers_not_recorded", worker=left_out.worker, handlers=left_out.handlers, limit=OFFERED_MAX)


def _log_worker_news(news: WorkerDied | WorkerFlaps) -> None:
    if isinstance(news, WorkerDied):
        log.info("worker_died", worker=news.worker, pid=news.pid)
    else:
        log.warning("worker_flaps", worker=news.worker, code=news.code, resets=news.resets, within_ms=news.within_ms)


def _log_breaker(changed: BreakerChanged) -> None:
    """Log the opening of a breaker as a warning, and other changes as information."""
    facts: dict[str, Any] = {
        "handler_class": changed.handler_class,
        "by": "an operator" if changed.is_forced else "itself",
        "cause": changed.cause,
        "reason": changed.reason,
        "left_ms": changed.left_ms,
    }
    if changed.state == "open":
        log.warning("breaker_opened", **facts)
    elif changed.state == "closed":
        log.info("breaker_closed", **facts)
    else:
        log.info("breaker_half_open", **facts)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
