"""The broker: the shipped code except engine.py, sockets and threads, which this module replaces.

The turn is the shipped one. The order of engine.py is kept: inbound messages before timers, one group with the writer
at a time, outcomes and reads that return as calls into the loop, a check of the clock after a suspension.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from stepwire_broker.core import letters
from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.commit.decision import BreakerChanged, Complaint, Decision, LaneGone, Read, WatchProcess
from stepwire_broker.core.definitions.stored_rows import Opened, TakenLane
from stepwire_broker.core.definitions.workflow import Workflow, stored_workflow
from stepwire_broker.core.machine import Machine
from stepwire_broker.core.membership.cluster_rows import Beaten
from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.commit_group import Broken, CommitGroup, LaneLost, Outcome
from stepwire_broker.core.model.events import (
    ClaimRefuted,
    Drain,
    Event,
    Forget,
    LaneReleased,
    LanesTaken,
    Leave,
    LoadedTasks,
    LoadFailed,
    LoopWasLate,
    Now,
    PeerSubscribed,
    PeerVanished,
    ProcessDied,
    Subscribed,
    SubscriptionVanished,
    Tick,
)
from stepwire_broker.core.model.principal import PROCESS
from stepwire_broker.core.state import BrokerState, Identity
from stepwire_broker.core.timer_kinds import AnyTimer
from stepwire_broker.core_loop import WATCH_FOR_MS, WATCH_MS
from stepwire_broker.pulse import LATE_MS, PULSE_MS
from stepwire_broker.stages import claims, results
from stepwire_broker.stages.turn import Around, Turn
from stepwire_broker.store.lane import Stall, Trouble, Writing
from stepwire_broker.store.ports import LANE
from stepwire_protocol import codec, topics

from tests.memory_store.tables import LaneOwner
from tests.memory_store.writer import CannotWriteNow, SyncFailed

from .clock import Clock
from .elsewhere import Elsewhere
from .hostile import THIEF
from .membership import OLDER, VERSION, Membership
from .notifications import Notifications
from .server import Transaction
from .stores import Observed

if TYPE_CHECKING:
    from .network import Link
    from .world import World

HOST: Final = "h1"
READ_MS: Final = 1_000.0  # a read waits at most this time for the database
MISSTATED: Final = 1_706_039_072  # a start time that no process of the simulation has


class Killed(Exception):
    """SIGKILL at this instruction."""


class BrokerNode:
    """One of the brokers. Everything random of the first one is as it was when there was only one."""

    def __init__(self, world: "World", number: int = 0) -> None:
        self.world = world
        self.number = number
        self.id = f"b{number + 1}"
        self.host = HOST if number == 0 else f"h{number + 1}"
        self._of = f"/{self.id}" if number else ""  # in the names of random numbers
        self._prefix = f"{self.id}." if number else ""  # in the names of faults
        self._which = f" {self.id}" if number else ""  # in the trace
        self.chance = Random(f"{world.seed}/broker{self._of}")
        rate = 1.0 + 0.01 * (2.0 * self.chance.random() - 1.0) if number else world.clock_rate()
        self.clock = Clock(rate, 1_000_000.0 + 1e9 * self.chance.random())
        self.life = 0
        self.leaving: int | None = None  # the life that is stopping
        self.is_alive = False
        self.is_paused = False
        self.deaths = 0
        self.died_ms = 0.0
        self.away_ms = 0.0  # its next start comes so much later
        self._is_hung = False  # the loop stands still, and the threads go on
        self._thread_backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.here_frame = b""
        self._asking: Link
        self._backlog: list[tuple[str, tuple[Any, ...]]] = []
        self._now = (-1.0, 0, Now(0, 0))
        self.paused_since_ms = 0.0
        faults = world.faults
        self._rate = {
            kind: faults.rate(kind, most)
            for kind, most in (
                ("broker_killed_loading", 0.5),
                ("broker_killed_handed", 0.02),
                ("broker_killed_before_commit", 0.02),
                ("broker_killed_after_commit", 0.02),
                ("broker_killed_before_send", 0.02),
                ("broker_killed_between_sends", 0.01),
                ("error_before_commit", 0.2),
                ("error_after_commit", 0.2),
                ("fsync_failed", 0.005),
                ("slow_commit", 0.2),
                ("broker_killed_rotating", 0.6),
                ("read_failed", 0.4),
                ("slow_read", 0.6),
            )
        }
        self._slow_reads = Random(f"{world.seed}/slow_reads{self._of}")
        self._commit_ms = 0.5 + 5.0 * faults.rates["slow_commit"]
        self.trouble_until_ms = -1.0
        self.trouble_code = ""

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        if world.server is not None and (world.lost_commits.is_stopped or not world.server.is_reached_by(self)):
            world.schedule.after(500.0, self.start)
            return
        self.life += 1
        is_last = self.number == len(world.brokers) - 1
        is_older = is_last and "broker_older" in world.faults.on and world.faults.strikes("broker_older", self.life)
        self.version = OLDER if is_older else VERSION
        self.is_alive = True
        self.is_paused = False
        self._is_hung = False
        self._thread_backlog = []
        self._backlog = []
        self._requests: dict[int, Callable[[Answer | None], None]] = {}
        self._commands: dict[int, Any] = {}
        self._request = 0
        self._tick_at = float("inf")
        self._ticks = 0
        self._flush_due = False
        self._groups = self._frames = 0
        self._last_commit_frames = 0
        self.handed: dict[int, int] = {}  # by lane: the last group that the writer got
        settings = self.settings = world.settings_of_next_start(self)
        opened, self._writers = self._open()
        now = self.now()
        identity = Identity(
            broker=self.id,
            epoch=opened.epoch,
            deployment=opened.deployment,
            batch_key=self.chance.getrandbits(48).to_bytes(16, "big"),
            host=self.host,
        )
        router = world.routes.router(settings, opened.controls)
        self.state = BrokerState.begin(settings, identity, opened, now, router)
        self.state.slice_steps = world.slice_steps
        self._count_timers()
        self.machine = Machine(self.state, [(compiled(row), bool(row.active)) for row in opened.workflows])
        self.turn = Turn(
            self.machine,
            Around(
                self.now,
                Frames(self),
                self._put,
                self._answer,
                self._read,
                self._watch,
                self._breaker_changed,
                self._complain,
                lambda reports: None,
                lambda left_out: None,  # the limit of recorded offers is not reached here
                lambda news: None,
                self._lane_gone,
                **self._through_others(),
            ),
        )
        self.here_frame = topics.BROKERS + codec.encode(letters.here(self.state.identity))
        world.trace("broker_started" + self._which, self.life)
        world.checks.broker_started(self)
        world.broker_started(self)
        if self._hits("broker_killed_loading", self.life):
            world.schedule.after(400.0 * self.chance.random() ** 2, self._kill_if, self.life)
        world.network.broker_started(self)
        world.routes.broker_started(self)
        self.world.count("event", "EndpointsBound")
        if world.hostile.is_on:
            self.turn.handle(world.hostile.grants())
        world.quotas.broker_started()
        self.turn.handle(world.server_keys.broker_started(self))
        if world.server is not None:
            self.membership.join()
        self.post("tick")

    def _open(self) -> tuple[Opened, dict[int, Observed]]:
        """Open the database. Among other brokers, this process beats once, and takes its first lanes."""
        world, entropy = self.world, self.chance.getrandbits(128)
        if world.server is None:
            lease_ms = self.settings.bus.lease_ms
            opened: tuple[Opened, dict[int, Observed]] = world.store.open(self.id, lease_ms, self.now().wall, entropy)
            return opened
        world.tables.epochs += 1
        self.membership = Membership(self, world.tables.epochs)
        taken = tuple(self.membership.first_lanes())
        self.note_offset(self.membership.members.offset_ms)
        shared: tuple[Opened, dict[int, Observed]] = world.store.open_shared(
            self.membership.cluster.epoch, taken, self.membership.members, entropy
        )
        return shared

    def _through_others(self) -> dict[str, Callable[[Any], None]]:
        """Return the functions of the turn that concern other brokers."""
        if self.world.server is None:
            return self.world.lane_changes.through_others(self)
        self.notifications = Notifications(self)
        self.elsewhere = elsewhere = Elsewhere(self)
        return {
            "order": elsewhere.order,
            "wait_elsewhere": elsewhere.wait,
            "pass_on": elsewhere.pass_on,
            "release": self.membership.release,
            "conclude": self.membership.conclude,
            "notify": self.notifications.send,
        }

    def _count_timers(self) -> None:
        timers, counts = self.state.timers, self.world.counts
        pop_due = timers.pop_due

        def counted(now: Now) -> AnyTimer | None:
            due = pop_due(now)
            if due is not None:
                counts["timer", type(due).__name__] += 1
            return due

        timers.pop_due = counted  # type: ignore[method-assign]

    def _kill_if(self, life: int) -> None:
        if self.is_alive and self.life == life:
            self.kill()

    def kill(self) -> None:
        """Kill the process. Only its store is left, and it starts again after a while."""
        world = self.world
        world.trace("broker_killed" + self._which, self.life)
        world.checks.broker_died(self)
        world.routes.broker_died(self)
        self.is_alive = False
        self.is_paused = False
        if world.faults.is_over:
            self._may_crash_before_send = False  # else the next process is killed at its first send, again and again
        self.deaths += 1
        self.died_ms = world.now
        if world.server is not None:
            world.server.broker_died(self)
        self._backlog = []
        for callback in list(self._requests.values()):
            callback(None)
        self._requests = {}
        down_ms = 50.0 + 1_500.0 * self.chance.random() ** 2
        if self.chance.random() < 0.1 and not world.faults.is_over:
            down_ms += 15_000.0 * self.chance.random()
        down_ms, self.away_ms = down_ms + self.away_ms, 0.0
        world.schedule.after(down_ms, self.start)

    def pause(self, for_ms: float, *, only_loop: bool = False) -> None:
        """Suspend the process, or only its loop, while its threads go on."""
        if self.is_alive and not self.is_paused:
            self.world.trace("broker_paused" + self._which, int(for_ms))
            self.is_paused = True
            self._is_hung = only_loop
            self.paused_since_ms = self.world.now
            self.world.schedule.after(for_ms, self.resume, self.life)

    def resume(self, life: int) -> None:
        if not self.is_paused or self.life != life:
            return
        self.is_paused = self._is_hung = False
        for then, args in self._thread_backlog:
            self.world.schedule.after(0.5 * self.chance.random(), self.in_thread, life, then, *args)
        self._thread_backlog = []
        gap_ms = int((self.world.now - self.paused_since_ms) * self.clock.rate - PULSE_MS * self.chance.random())
        backlog, self._backlog = self._backlog, []
        # The loop reads its sockets before its timers, up to a budget.
        bus_first = self.chance.random() < 0.5
        for kind, args in backlog:
            if kind in _BUS and bus_first:
                self._enter(kind, args)
        if gap_ms > LATE_MS and self.is_alive:
            self._enter("event", (LoopWasLate(gap_ms),))
        for kind, args in backlog:
            if not (kind in _BUS and bus_first):
                self._enter(kind, args)

    def drain_and_stop(self) -> None:
        """SIGTERM: dispatch nothing new, let running steps finish for a while, then leave."""
        if self.is_alive and not self.is_paused:
            self.leaving = self.life
            self.post("event", Drain())
            self.world.schedule.after(3_000.0 * self.chance.random(), self._leave, self.life)

    def _leave(self, life: int) -> None:
        if self.is_alive and self.life == life:
            self.post("event", Leave())
            if self.world.server is not None and self.is_alive:
                self.world.server.call(self, self.membership.cluster.leave, lambda _: None, lambda: None, 1_000.0)
            self.world.schedule.after(5.0, self._kill_if, life)

    # -- events in ----------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        true_ms, clock = self.world.schedule.now, self.clock
        read_ms, jumped_ms, now = self._now
        shift_ms = clock.jumped_ms + clock.corrected_ms
        if read_ms != true_ms or jumped_ms != shift_ms:
            now = Now(int(clock.mono(true_ms)), clock.wall(true_ms) + clock.corrected_ms)
            self._now = true_ms, shift_ms, now
        return now

    def host_now(self) -> Now:
        """The clocks of the host. Among several brokers, the core uses the wall clock of the database."""
        true_ms = self.world.schedule.now
        return Now(int(self.clock.mono(true_ms)), self.clock.wall(true_ms))

    def note_offset(self, offset_ms: int) -> None:
        self.clock.correct(offset_ms, self.world.now)

    @property
    def is_dark(self) -> bool:
        """Its lease may be over, so it must send nothing."""
        return self.world.server is not None and not self.membership.may_speak

    @property
    def hangs_for_ms(self) -> float:
        return self.world.now - self.paused_since_ms if self._is_hung else 0.0

    @property
    def has_empty_backlog(self) -> bool:
        return not self.is_paused and not self._backlog

    @property
    def is_idle(self) -> bool:
        """The broker is alive, writes nothing and reads nothing."""
        lanes = self.state.outbox.lanes.values() if self.is_alive else ()
        return self.is_alive and not self.state.loads and all(lane.is_idle and not lane.is_open for lane in lanes)

    def post(self, kind: str, *args: Any) -> None:
        """An input reaches this process. While the process is suspended, the input waits."""
        if kind == "message" and self.is_alive and args[1] != THIEF and args[1] in self.state.principals:
            self.world.checks.broker_received(self, args[0])
        if self.is_paused:
            self._backlog.append((kind, args))
        elif self.is_alive:
            self._enter(kind, args)

    def _enter(self, kind: str, args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        try:
            _ON[kind](self, *args)
        except Killed:
            self.kill()
            return
        self.world.checks.event_handled(self)

    def _on_message(self, frame: bytes, principal: str) -> None:
        topic, body = codec.split(frame)
        event = results.read(topic, body, self.settings.bus.max_message_bytes)
        self.world.count("event", type(event).__name__)
        self.world.hostile.handle(self, event, principal, lambda: self.turn.handle(event, principal))
        self._flush_soon()

    def _on_subscribe(self, worker: str, principal: str) -> None:
        self.world.hostile.subscribe(self, worker, principal)

    def _on_subscribed(self, worker: str, principal: str) -> None:
        self._on_event(Subscribed(worker), principal)

    def _on_vanished(self, worker: str, principal: str) -> None:
        self._on_event(SubscriptionVanished(worker), principal)

    def _on_peer(self, link: "Link") -> None:
        self._asking = link
        self._on_event(PeerSubscribed(), link.worker.principal)

    def _on_peer_gone(self, link: "Link") -> None:
        if link.to is not None:
            self._on_event(PeerVanished(link.to), link.worker.principal)

    def _on_event(self, event: Event, principal: str = PROCESS) -> None:
        self.world.count("event", type(event).__name__)
        self.turn.handle(event, principal)
        self._flush()

    def _on_tick(self) -> None:
        self._tick_at = float("inf")
        self.world.count("event", "Tick")
        self.turn.handle(Tick())
        self._flush()

    def _on_wake(self, tick: int) -> None:
        if tick == self._ticks:
            self._on_tick()

    def _on_flush(self) -> None:
        self._flush()

    def _flush_soon(self) -> None:
        """Flush when the sockets are drained."""
        if not self._flush_due:
            self._flush_due = True
            self._later(0.3, "flush")

    def _flush(self) -> None:
        self._flush_due = False
        self.turn.flush()
        self._arm()

    def _arm(self) -> None:
        wake_at = self.machine.wake_at
        if wake_at is None or wake_at >= self._tick_at:
            return
        self._tick_at = wake_at
        self._ticks += 1
        left_ms = max(0.0, (wake_at - self.now().mono) / self.clock.rate)
        self._later(left_ms + 0.5, "wake", self._ticks)

    def _later(self, delay_ms: float, kind: str, *args: Any) -> None:
        self.world.schedule.after(delay_ms, self.come, self.life, kind, args)

    def later(self, delay_ms: float, then: Callable[..., None], *args: Any) -> None:
        """Call this later in this life of the process, as soon as the process runs."""
        self._later(delay_ms, "called", then, args)

    def on_keys_later(self, delay_ms: float, go_on: Callable[[], None]) -> None:
        self._later(delay_ms, "keys", go_on)

    def _on_keys(self, go_on: Callable[[], None]) -> None:
        go_on()
        self._flush_soon()

    def may_die_rotating(self, where: str) -> None:
        """The broker is at this point of a rotation of its key. Raises Killed."""
        if self._hits("broker_killed_rotating", self.life, where, self._groups):
            raise Killed

    def come(self, life: int, kind: str, args: tuple[Any, ...]) -> None:
        """Something happens in this life of the process, as soon as the process runs."""
        if life == self.life:
            if self.is_paused:
                self._backlog.append((kind, args))
            elif self.is_alive:
                self._enter(kind, args)

    # -- threads ------------------------------------------------------------------------------------------------------

    def thread(self, delay_ms: float, then: Callable[..., None]) -> None:
        """Call this later in a thread of this life of the process."""
        self.world.schedule.after(delay_ms, self.in_thread, self.life, then)

    def in_thread(self, life: int, then: Callable[..., None], *args: Any) -> None:
        if life == self.life and self.is_alive:
            if self.is_paused and not self._is_hung:
                self._thread_backlog.append((then, args))
            else:
                then(*args)

    def hear(self, event: Event) -> None:
        """Pass an event of a thread to the core."""
        self._on_event(event)

    def _on_beaten(self, beaten: Beaten) -> None:
        self.membership.handle(beaten)

    def _on_notified(self, notification: Notification) -> None:
        if notification.lanes:
            self.membership.beat_now()
        self.elsewhere.look_now(notification.answers)
        self._on_event(notification)

    def _on_owned(self, event: LanesTaken | LaneReleased) -> None:
        self.membership.owned(event)

    def leave_replaced(self) -> None:
        """Another process has this broker's id."""
        raise Killed

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, make: Callable[[int], Any], answered: Callable[[Answer | None], None]) -> int | None:
        """An HTTP request arrives. `answered(None)`: the connection broke."""
        if not self.is_alive:
            answered(None)
            return None
        self._request += 1
        self._requests[self._request] = answered
        self.post("asked", self._request, make)
        return self._request

    def is_asked(self, request: int) -> bool:
        """Whether the client of this request still waits."""
        return request in self._requests

    def give_answer(self, request: int, answer: Answer) -> None:
        callback = self._requests.pop(request, None)
        if callback is not None:
            self.world.checks.answered(self, self._commands.pop(request), answer)
            self.world.schedule.after(0.5 + 2.0 * self.chance.random(), callback, answer)

    def forget(self, request: int) -> None:
        if self._requests.pop(request, None) is not None:
            self.post("event", Forget(request))

    def _on_asked(self, request: int, make: Callable[[int], Any]) -> None:
        if request in self._requests:
            command = make(request)
            self.world.count("event", type(command).__name__)
            self._commands[request] = command
            self.world.checks.asked(self, command)
            self.world.quotas.handle(self, command, lambda: self.turn.handle(command))
            self._flush_soon()

    def _breaker_changed(self, changed: BreakerChanged) -> None:
        self.world.breakers.turned(self, changed)

    def _complain(self, complaint: Complaint) -> None:
        self.world.count("complaint", complaint.code)

    def _answer(self, decision: Decision) -> None:
        for given in decision.answers:
            self._crash_between_sends()
            self.give_answer(given.request, given.answer)

    # -- the database -------------------------------------------------------------------------------------------------

    def _hits(self, kind: str, *name: object) -> bool:
        luck = self.chance.random()
        return luck < self._rate[kind] and self.world.faults.strikes(kind, self._prefix + ".".join(map(str, name)))

    def _put(self, group: CommitGroup) -> None:
        self.world.choose_refused(group)
        self._groups += 1
        self.handed[group.lane] = group.seq
        lane = "" if group.lane == LANE else f"{group.lane}."
        name = f"{self.life}.{lane}{group.seq}"
        if self._hits("broker_killed_handed", name):
            raise Killed
        wait_ms = self._commit_ms * (0.2 + self.chance.expovariate(1.0))
        slow_ms = 100.0 + 4_900.0 * self.chance.random() ** 2
        if self._hits("slow_commit", name):
            wait_ms += slow_ms
        writer = self._writers[group.lane]
        writing = Writing(group.lane, writer, group, Troubles(self, name))
        stall = Stall(group.lane, group.seq)
        if self.world.server is None:
            self._later(wait_ms, "attempt", writing, stall, name, group)
        else:
            self._later(0.1, "ask", writing, stall, name, group, writer, wait_ms)

    def _on_attempt(self, writing: Writing, stall: Stall, name: str, group: CommitGroup) -> None:
        """One transaction, in the writer's thread."""
        if self._hits("broker_killed_before_commit", name):
            raise Killed
        self._on_finished(writing.attempt(), "attempt", writing, stall, name, group)

    def _on_ask(
        self, writing: Writing, stall: Stall, name: str, group: CommitGroup, writer: Observed, takes_ms: float
    ) -> None:
        """One transaction at the server, for which the writer's thread waits."""
        if self._hits("broker_killed_before_commit", name):
            raise Killed
        again = ("ask", writing, stall, name, group, writer, self._commit_ms)
        assert self.world.server is not None
        self.world.server.begin(Transaction(self, writer, writing, group, again), takes_ms)

    def _on_finished(
        self, outcome: Outcome | Trouble, again: str, writing: Writing, stall: Stall, name: str, *of: Any
    ) -> None:
        """An attempt has ended. `again`: the kind of the next one."""
        group: CommitGroup = of[0]
        if self._writers.get(group.lane) is not writing._writer:
            return  # the thread of this writer has ended
        if isinstance(outcome, Trouble):
            self.world.trace("database_trouble" + self._which, outcome.code)
            stalled = stall.again(outcome.code, outcome.error, self.world.now / 1000)
            if stalled is not None:
                self._later(0.1, "outcome", stalled)
            self._later(stall.pause_s() * 1000, again, writing, stall, name, *of)
            return
        if self._hits("broker_killed_after_commit", name):
            raise Killed
        self.world.trace("committed" + self._which, group.seq)
        self._later(0.1 + 0.5 * self.chance.random(), "outcome", outcome)

    def _on_called(self, then: Callable[..., None], args: tuple[Any, ...]) -> None:
        """A statement that belongs to no group was answered, or has failed."""
        then(*args)

    def open_lane(self, taken: TakenLane) -> None:
        """Own this lane from now on."""
        owner = LaneOwner(self.id, self.state.identity.epoch, taken.epoch)
        self._writers[taken.lane] = self.world.store.writer(taken.lane, owner)

    def _on_outcome(self, outcome: Outcome) -> None:
        self.world.count("event", type(outcome).__name__)
        has_others = self.world.server is not None or self.world.lane_changes.is_on
        if isinstance(outcome, Broken) or (isinstance(outcome, LaneLost) and not has_others):
            raise Killed
        self._frames = 0
        self._may_crash_before_send = self._hits("broker_killed_before_send", self.life, self._groups)
        self.turn.commit(outcome)
        self._may_crash_before_send = False
        self._arm()

    def _lane_gone(self, gone: LaneGone) -> None:
        """The writer of the lane ends. The lane is another broker's."""
        self.world.count("lane", gone.cause)
        self.world.trace("lane_gone" + self._which, f"{gone.lane} {gone.cause}")
        if gone.cause == "lost":
            self.world.checks.lane_lost(self, gone.lane, self._writers[gone.lane].owner)
        del self._writers[gone.lane]
        self.handed.pop(gone.lane, None)

    _may_crash_before_send = False

    def _crash_between_sends(self) -> None:
        if self._may_crash_before_send:
            raise Killed
        self._frames += 1
        if self._hits("broker_killed_between_sends", self.life, self._groups, self._frames):
            raise Killed

    def _read(self, read: Read) -> None:
        """In a reader's thread: the read sees what is committed when it runs, and its answer arrives later."""
        self._later(0.2 + 3.0 * self.chance.random() ** 3, "perform", read)

    def _on_perform(self, read: Read) -> None:
        wait_ms = 0.2 + 20.0 * self.chance.random() ** 4
        if self.world.server is not None and not self.world.server.is_reached_by(self):
            self._later(READ_MS, "read", LoadFailed(read.request, "the database cannot be reached"))
            return
        if self._hits("read_failed", self.life, read.request):
            self._later(wait_ms, "read", LoadFailed(read.request, "the disk was busy"))
            return
        answer = claims.perform(
            self.world.store.queries, self.settings.limits.resident_payload_bytes, read, self.now().wall
        )
        if isinstance(answer, LoadedTasks):
            self.world.checks.tasks_loaded(answer)
        luck, slow_ms = self._slow_reads.random(), 4_000.0 * self._slow_reads.random() ** 2
        if luck < self._rate["slow_read"] and self.world.faults.strikes(
            "slow_read", f"{self._prefix}{self.life}.{read.request}"
        ):
            wait_ms += slow_ms
        self._later(wait_ms, "read", answer)

    def _on_read(self, event: Event) -> None:
        self._on_event(event)

    def _watch(self, watch: WatchProcess) -> None:
        self._later(0.0, "watched", watch, 0)

    def _on_watched(self, watch: WatchProcess, waited_ms: int) -> None:
        if not self.world.is_process(watch.worker, watch.pid):
            self._on_event(ProcessDied(watch.worker))
        elif watch.pid_started == MISSTATED:
            self._on_event(ClaimRefuted(watch.worker))
        elif waited_ms < WATCH_FOR_MS:
            self._later(WATCH_MS, "watched", watch, waited_ms + WATCH_MS)


_BUS: Final = frozenset({"message", "subscribe", "subscribed", "vanished", "peer", "peer_gone"})
_ON: Final[dict[str, Callable[..., None]]] = {
    name.removeprefix("_on_"): on for name, on in vars(BrokerNode).items() if name.startswith("_on_")
}


class Frames:
    """The core's Wire: the checks see each frame, then it goes to the network."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def send(self, topic: bytes, body: bytes) -> bool:
        return self._send(topic, body, topic + body)

    def send_frame(self, frame: bytes) -> bool:
        return self._send(*codec.split(frame), frame)

    def _send(self, topic: bytes, body: bytes, frame: bytes) -> bool:
        node = self._node
        worker = topics.worker_of(topic)
        assert worker is not None, topic
        node._crash_between_sends()
        if not worker.startswith(THIEF):
            node.world.checks.sent(node, worker, body)
        node.world.trace(f"{node.id}>{worker}", body)
        node.world.network.to_worker(node, worker, frame)
        return True

    def grant(self, to: str) -> None:
        self._node.world.network.grant(self._node._asking, to)

    def send_to_peer(self, to: str, body: bytes) -> bool:
        node = self._node
        node._crash_between_sends()
        node.world.network.note_batch(to, body)
        node.world.checks.sent_level0(node, to, body)
        node.world.trace(f"{node.id}>{to}", body)
        node.world.network.to_peer(to, body)
        return True


class Troubles:
    """The lane's Faults: the database fails before or after a commit."""

    def __init__(self, node: BrokerNode, name: str) -> None:
        self._node = node
        self._name = name
        self._tries = 0

    def before_commit(self, group: CommitGroup) -> None:
        node = self._node
        self._tries += 1
        if node.world.now < node.trouble_until_ms:
            raise CannotWriteNow(node.trouble_code)
        if node._hits("fsync_failed", self._name, self._tries):
            raise SyncFailed("fsync")
        if node._hits("error_before_commit", self._name, self._tries):
            raise CannotWriteNow("database_unavailable")

    def after_commit(self, group: CommitGroup) -> None:
        if self._node._hits("error_after_commit", self._name, self._tries):
            raise CannotWriteNow("database_unavailable")


_workflows: dict[str, Workflow] = {}


def compiled(row: Any) -> Workflow:
    """Reading a workflow takes longer than simulating it."""
    known = _workflows.get(row.document)
    if known is None:
        known = _workflows[row.document] = stored_workflow(row)
    return msgspec.structs.replace(known, id=row.id)


__all__ = ["HOST", "BrokerNode", "Killed", "Observed"]
