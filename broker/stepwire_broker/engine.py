"""The composition root: the core, its rooms, and the loop that carries events in and decisions out.

One asyncio loop owns the sockets, the core and the timers; SQL runs in the store's threads. Every turn is the same:
events are handled one by one, what may leave at once leaves, and when the drain is over (or a commit came back) the
lane's next group is closed and handed to its writer, before what the last commit released is published.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec
import structlog
import zmq
from stepwire_protocol import codec, host, topics
from stepwire_protocol.messages import ResultsLevel0

from stepwire_broker.core.model.targets import BUS, LOCAL

from .bus import deaths
from .bus.endpoints import advertised
from .bus.wire import Wire, WireCounters
from .core import explain
from .core.commit.decision import BreakerChanged, Complaint, Read, WatchProcess
from .core.definitions.settings import ExecutionSettings, Settings
from .core.definitions.workflow import Workflow, stored_workflow
from .core.intake.routing_rules import stored_rules
from .core.machine import Machine
from .core.model.answers import Answer, CommandRefused
from .core.model.commit_group import Broken, CommitGroup, Committed, Fenced, Outcome, Stalled
from .core.model.events import (
    Attached,
    Command,
    Detached,
    Drain,
    EndpointsBound,
    Event,
    Forget,
    FrameRefused,
    Leave,
    LoadFailed,
    LoopWasLate,
    MessageIgnored,
    MessageRefused,
    Now,
    PeerSubscribed,
    PeersUncertain,
    PeerVanished,
    ProcessDied,
    Reconfigure,
    Subscribed,
    SubscriptionVanished,
    Tick,
)
from .core.model.figures import ExecutorMetrics
from .core.model.hints import Hint, HintCode
from .core.routing.router import Router, RulesRefused, check, hidden
from .core.state import BrokerState, Identity
from .core.takers import is_free
from .core.workers.sessions import here_message
from .exec_runs.leftovers import end_earlier_runs
from .exec_runs.records import RunsRefused
from .loop_measures import nothing_yet, rows_of
from .stages import claims, results
from .stages.finish import PendingAnswers
from .stages.turn import Around, Turn
from .store import Store, open_store
from .store.queries import Queries

P = ParamSpec("P")
T = TypeVar("T")
Tap = Callable[[str, bytes, bytes, str | None], None]

log = structlog.get_logger("stepwire.broker")

INPROC: Final = "inproc://"
PULSE_MS: Final = 250  # how often the loop looks whether it stood still
LATE_MS: Final = 500  # a gap longer than this is nobody's silence but ours
UNROUTABLE_EVERY_MS: Final = 2_000
COMMIT_LATE_MS: Final = 1_000  # a commit that takes longer is trouble with the database
TURNS_PUT_OFF_MAX: Final = 50  # under steady load there is always something to read, and time goes on all the same
WATCH_MS: Final = 250
WATCH_FOR_MS: Final = 5_000
SETTLE_S: Final = 2.0  # for what was said last to be stored
LINGER_MS: Final = 1_000
COMPLAIN_EVERY_S: Final = 10.0
STORE_CLOSE_S: Final = 5.0


class CannotStart(Exception):
    """The broker cannot start. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BrokerStopped(Exception):
    """Why a running broker had to stop."""


class Companion(Protocol):
    """What begins and ends with a broker, inside its process."""

    def keys(self) -> Collection[str]:
        """Executors that it brings."""
        ...

    async def prepare(self) -> None:
        """Before anything is taken up. Raises CannotStart."""
        ...

    def start(self, broker: "Engine") -> None: ...

    async def drain(self, drain_ms: float) -> None:
        """Nothing more is handed out: let what runs finish, and have the rest stop."""
        ...

    async def close(self) -> None: ...

    def metrics(self) -> Mapping[str, ExecutorMetrics | None]:
        """By key, all that steps can go to. None: what the core has counted of it is all there is to know."""
        ...


class Engine:
    """`start`, then `ask` and `read`, then `drain` and `stop`. `failed` is set when it cannot go on."""

    def __init__(
        self,
        settings: Settings,
        *,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        store_faults: Any = None,
        companion: Companion | None = None,
    ) -> None:
        self.settings = settings
        self._companion = companion
        self._executors = frozenset((BUS, LOCAL, *(() if companion is None else companion.keys())))
        self.failed: asyncio.Future[None]
        self._context = context
        self._store_faults = store_faults
        self._waiting = PendingAnswers()
        self._taps: list[Tap] = []
        self._untap: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_mono = 0
        self._pulse: asyncio.TimerHandle | None = None
        self._last_turn_mono = 0
        self._unroutable_mono = 0
        self._unroutable: dict[Any, explain.Unroutable] = {}  # when it was last looked
        self._ticks_put_off = 0
        self._flush_due = False
        self._complained: dict[str, float] = {}  # by code: when an answer of level 0 was complained of
        self._is_open = False
        self._commit_listeners: list[Callable[[], None]] = []
        self._handed: dict[int, float] = {}  # by lane: when its writer was given the group it has
        self.measures = nothing_yet()
        self._store: Store | None = None
        self._wire: Wire | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        self._check_rules(self.settings.execution)
        now = read_clocks()
        entropy = int.from_bytes(os.urandom(16), "big")
        self._store = await asyncio.to_thread(
            open_store,
            self.settings.database,
            self.settings.broker.id,
            lease_ms=self.settings.bus.lease_ms,
            wall_ms=now.wall,
            entropy=entropy,
        )
        await self._end_earlier_runs()
        opened = self._store.opened
        identity = Identity(
            broker=self.settings.broker.id,
            epoch=opened.epoch,
            deployment=opened.deployment,
            nonce=os.urandom(6).hex(),
            host=host.identity() or "",
        )
        self.identity = identity
        runtime_rules = stored_rules(opened.rules)
        self._state = BrokerState(
            self.settings,
            identity,
            dict(opened.lanes),
            opened.ids,
            opened.lease_ms_before or 0,
            now,
            open_steps=opened.open_steps,
            unloaded_tasks=opened.open_tasks,
            router=Router(
                self.settings.execution,
                self._executors,
                bus_is_distributed=not self.settings.bus.steps.startswith(INPROC),
                runtime=runtime_rules,
            ),
            runtime_rules=runtime_rules,
        )
        workflows = [(stored_workflow(row), bool(row.active)) for row in opened.workflows]
        self._machine = Machine(self._state, workflows)
        self._reader = claims.Reader(opened.epoch, self.settings.limits.resident_payload_bytes)
        self._wire = Wire(
            self.settings.bus,
            self.settings.broker.id,
            context=self._context,
            on_message=self._on_message,
            on_refused=self._on_refused_frame,
            on_subscribed=lambda worker: self._handle(Subscribed(worker)),
            on_vanished=lambda worker: self._handle(SubscriptionVanished(worker)),
            on_peer=lambda: self._handle(PeerSubscribed()),
            on_peer_gone=lambda to: self._handle(PeerVanished(to)),
            on_peers_uncertain=lambda: self._handle(PeersUncertain()),
            after_drain=self._flush,
            on_alarm=lambda text: log.warning("bus_alarm", text=text),
        )
        around = Around(
            read_clocks, self._wire, self._put, self._waiting.answer, self._read, self._watch, _tell, self._complain
        )
        self._turn = Turn(self._machine, around)
        self._is_open = True
        self._store.start(self._report, self._store_faults, self.settings.retention)
        if self._companion is not None:
            await self._companion.prepare()
        await self._wire.open(codec.encode(here_message(self._state)))
        endpoints = self._wire.endpoints
        told = {name: advertised(bound, self.settings.bus.advertise) for name, bound in endpoints.items()}
        self._handle(EndpointsBound(told["steps"], told["results"]))
        self._last_turn_mono = read_clocks().mono
        if self._companion is not None:
            self._companion.start(self)
        self._beat()
        self._tick()
        self._warn_of_hidden_rules()
        log.info(
            "broker_started",
            broker=identity.broker,
            epoch=identity.epoch,
            deployment=identity.deployment,
            open_tasks=opened.open_tasks,
            open_steps=opened.open_steps,
            **endpoints,
        )

    async def _end_earlier_runs(self) -> None:
        """What is handed out again must not still run: here for sure, whoever is to have it now."""
        settings = self.settings.executors.exec
        try:
            await asyncio.to_thread(end_earlier_runs, settings.runs_dir, is_used=bool(settings.commands))
        except RunsRefused as error:
            raise CannotStart(str(error)) from None

    def _check_rules(self, execution: ExecutionSettings) -> None:
        try:
            check(execution, self._executors)
        except RulesRefused as error:
            raise CannotStart(str(error), "`stepwire config validate` looks at the rules as well") from None

    def check(self, execution: ExecutionSettings) -> None:
        """Could this broker route by this? Raises RulesRefused."""
        check(execution, self._executors)

    def reconfigure(self, execution: ExecutionSettings) -> None:
        """Route by this from now on; what was handed out stays where it is. Raises RulesRefused."""
        self.check(execution)
        self._handle(Reconfigure(execution))
        self._flush_soon()
        self._warn_of_hidden_rules()

    def _warn_of_hidden_rules(self) -> None:
        for rule, earlier in hidden(self._state.router.rules):
            log.warning("rule_never_matches", rule=rule.match, number=rule.number, because_of=earlier.match)

    async def drain(self) -> None:
        """Take nothing new, hand out nothing, and let what runs finish for `broker.drain_timeout_ms`."""
        self._handle(Drain())
        self._flush()
        drain_ms = self.settings.broker.drain_timeout_ms
        deadline = self._loop.time() + drain_ms / 1000
        leaving = None
        if self._companion is not None:
            leaving = asyncio.ensure_future(self._companion.drain(drain_ms))
        try:
            await self._until_idle(deadline)
            if leaving is not None:
                await leaving
                await self._until_idle(self._loop.time() + SETTLE_S)
        finally:
            if leaving is not None:
                leaving.cancel()
        log.info("broker_drained", running=self._running())

    async def _until_idle(self, deadline: float) -> None:
        while self._loop.time() < deadline and not self.failed.done():
            if not self._running() and self._is_settled():
                break
            await asyncio.sleep(PULSE_MS / 5000)

    def _running(self) -> int:
        """Steps that somebody may be at."""
        at_level0 = sum(len(handout.items) for handout in self._state.level0.handouts.values())
        return at_level0 + sum(len(session.deliveries) for session in self._state.sessions.values())

    async def stop(self) -> None:
        """Say good-bye and close. What was acknowledged is stored; what was not comes again."""
        if self._companion is not None:
            await self._companion.close()
        if self._is_open:
            self._handle(Leave())
            self._flush()
            for _ in range(200):
                if self._is_settled() or self._state.stalled is not None or self.failed.done():
                    break
                await asyncio.sleep(0.01)
        self._is_open = False
        for handle in (self._timer, self._pulse):
            if handle is not None:
                handle.cancel()
        if self._wire is not None:
            self._wire.close(LINGER_MS)
        self._waiting.give_up(
            CommandRefused(
                "draining", "the broker stopped before this was known to be done", Hint(HintCode.WAIT_FOR_BROKER)
            )
        )
        if self._store is not None:
            await asyncio.to_thread(self._store.close, STORE_CLOSE_S)

    def _is_settled(self) -> bool:
        return len(self._state.outbox) == 0 and all(
            lane.is_idle and not lane.is_open for lane in self._state.outbox.lanes.values()
        )

    # -- for the API --------------------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> str:
        return self.identity.broker

    @property
    def epoch(self) -> int:
        return self.identity.epoch

    @property
    def deployment(self) -> str:
        return self.identity.deployment

    @property
    def workflows(self) -> Mapping[int, Workflow]:
        return self._state.workflows

    @property
    def endpoints(self) -> dict[str, str]:
        assert self._wire is not None
        return self._wire.endpoints

    @property
    def state(self) -> BrokerState:
        """The core's state, for metrics, explanations and tests: to look at, never to change."""
        return self._state

    @property
    def wire_counters(self) -> WireCounters:
        assert self._wire is not None
        return self._wire.counters

    def add_commit_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every commit, until the result is called."""
        self._commit_listeners.append(callback)

        def remove() -> None:
            if callback in self._commit_listeners:
                self._commit_listeners.remove(callback)

        return remove

    def now(self) -> Now:
        """Both clocks, as the core reads them."""
        return read_clocks()

    async def ask(self, make: Callable[[int], Command]) -> Answer:
        """Give the core a command; its answer comes after the commit. Cancelled, the request is forgotten."""
        if not self._is_open:
            return CommandRefused("starting", "the broker is not running", Hint(HintCode.SEND_AGAIN), 1_000)
        request, future = self._waiting.open()
        try:
            self._handle(make(request))
            self._flush_soon()
            return await future
        except asyncio.CancelledError:
            self._waiting.close(request)
            if self._is_open:
                self._handle(Forget(request))
            raise

    async def read(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `query(queries, …)` in a reader's thread: it sees what is committed."""
        assert self._store is not None
        return await asyncio.wrap_future(self._store.read(query, *args, **kwargs))

    def read_at_once(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run it on the loop, for a few rows that were committed a moment ago. None rather than wait for a lock."""
        assert self._store is not None
        return self._store.read_at_once(query, *args, **kwargs)

    def prune(self) -> None:
        """Have what is too old removed now, rather than within a minute."""
        assert self._store is not None
        self._store.prune()

    @property
    def unroutable(self) -> list[explain.Unroutable]:
        """Steps that nobody could take for too long, when it was last looked."""
        return list(self._unroutable.values())

    def readiness(self) -> list[str]:
        if not self._is_open:
            return ["not running"]
        reasons = []
        if self._state.draining:
            reasons.append("draining")
        if self._state.stalled is not None:
            reasons.append(self._state.stalled)
        return reasons

    def workers(self) -> list[dict[str, Any]]:
        now = read_clocks()
        return [*self._sessions(now), *self._peers(now)]

    def _peers(self, now: Now) -> list[dict[str, Any]]:
        """Level-0 handlers are workers too, of whom we know only what we gave them. `stuck`: it let a lease expire."""
        return [
            {
                "worker": p.worker,
                "executor": BUS,
                "level": 0,
                "session": p.to,
                "since_ms": p.since_wall,
                "heard_ms_ago": max(0, now.mono - p.heard_mono),
                "handlers": list(self.settings.bus.level0.handlers),
                "labels": {},
                "slots": 1,
                "prefetch": 0,
                "free": int(is_free(p, now)),
                "holding": sum(len(handout.items) for handout in p.holds.values()),
                "running": int(bool(p.holds)),
                "draining": p.draining,
                "stuck": p.doubted,
                "completed": p.completed,
                "failed": p.failed,
                "lang": "",
                "sdk": "",
                "pid": 0,
            }
            for p in self._state.level0.peers.values()
        ]

    def _sessions(self, now: Now) -> list[dict[str, Any]]:
        return [
            {
                "worker": s.worker,
                "executor": s.executor,
                "level": 1,
                "session": s.id,
                "since_ms": s.since_wall,
                "heard_ms_ago": max(0, now.mono - s.heard_mono),
                "handlers": s.handlers,
                "labels": s.labels,
                "slots": s.slots,
                "prefetch": s.prefetch,
                "free": max(0, s.credit),
                "holding": len(s.deliveries),
                "running": sum(step.seen == "running" for step in s.deliveries.values()),
                "draining": s.draining,
                "stuck": s.stuck,
                "completed": s.completed,
                "failed": s.failed,
                "lang": s.lang,
                "sdk": s.sdk,
                "pid": s.pid,
            }
            for s in self._state.sessions.values()
        ]

    def executors(self) -> list[dict[str, Any]]:
        """Where steps can go, and how it does there. `is_hosted`: it runs in this process, and counts for itself."""
        known: Mapping[str, ExecutorMetrics | None] = (
            {BUS: None} if self._companion is None else self._companion.metrics()
        )
        return [self._executor(key, known.get(key)) for key in dict.fromkeys((*known, *self._state.executors))]

    def _executor(self, key: str, own: ExecutorMetrics | None) -> dict[str, Any]:
        level0_state, of = self._state.level0, self._state.executor(key)
        sessions = [s for s in self._state.sessions.values() if s.of is of]
        peers = list(level0_state.peers.values()) if key == BUS else []
        handouts = level0_state.handouts.values() if key == BUS else ()
        active = sum(len(s.deliveries) for s in sessions) + sum(len(handout.items) for handout in handouts)
        slots = sum(s.slots for s in sessions) + len(peers)
        now = read_clocks()
        has_room = any(s.credit > 0 for s in sessions) or any(is_free(peer, now) for peer in peers)
        metrics = of.figures.metrics(active, slots) if own is None else own
        return {
            "executor": key,
            "is_hosted": own is not None,
            "paused_since_ms": of.paused_wall,
            "workers": len(sessions) + len(peers),
            "handlers": sorted({handler for s in sessions for handler in s.handlers}),
            "has_capacity": has_room and of.paused_wall is None,
            **msgspec.structs.asdict(metrics),
        }

    def attach(self, worker: str, executor: str, deliver: Callable[[bytes, bytes], None]) -> Callable[[], None]:
        """A worker that does not come over the bus: what is for its inbox goes to `deliver(topic, body)`, soon, and it
        gets what is routed to `executor`. It speaks by `hear`. The result lets it go; what it held is lost then."""
        assert self._wire is not None

        def later(topic: bytes, body: bytes) -> None:
            self._loop.call_soon(deliver, topic, body)  # never inside of what the core is being asked

        detach = self._wire.attach(topics.to_worker(worker), later)
        gone = self.expect(worker, executor)

        def let_go() -> None:
            detach()
            gone()

        return let_go

    def expect(self, worker: str, executor: str, *, joins_bus: bool = False) -> Callable[[], None]:
        """A worker that will come over `inner_endpoints`, and gets what is routed to `executor`; with `joins_bus`, what
        goes to the bus as well. The result says that it is no more: what it held is lost then."""
        self._handle(Attached(worker, executor, joins_bus))

        def gone() -> None:
            self._handle(Detached(worker))
            self._flush_soon()

        return gone

    def inner_endpoints(self) -> tuple[zmq.Context[zmq.Socket[bytes]], str, str]:
        """Where a worker in this process connects to: a context, steps and results. It ends before the broker stops."""
        assert self._wire is not None
        return (self._wire.context, *self._wire.inner_endpoints())

    def hear(self, topic: bytes, body: bytes) -> None:
        """What an attached worker says."""
        if self._is_open:
            self._on_message(topic, body)
            self._flush_soon()

    def add_tap(self, callback: Tap) -> Callable[[], None]:
        """Call back with (direction, topic, body, refusal code) of every message, until the result is called."""
        assert self._wire is not None
        self._taps.append(callback)
        if self._untap is None:
            self._untap = self._wire.add_tap(self._show_out)

        def remove() -> None:
            if callback in self._taps:
                self._taps.remove(callback)
            if not self._taps and self._untap is not None:
                self._untap()
                self._untap = None

        return remove

    def _show_out(self, direction: str, topic: bytes, body: bytes) -> None:
        if direction == "out":
            self._show("out", topic, body, None)

    def _show(self, direction: str, topic: bytes, body: bytes, code: str | None) -> None:
        for tap in tuple(self._taps):
            tap(direction, topic, body, code)

    # -- events in ----------------------------------------------------------------------------------------------------

    def _on_message(self, topic: bytes, body: bytes, principal: str = "") -> None:
        if not self._is_open:
            return
        event = results.read(topic, body, self.settings.bus.max_message_bytes)
        if not self._taps:
            self._turn.handle(event, principal)
        elif isinstance(event, ResultsLevel0):
            # Only the core can tell whether an answer without a session is at fault.
            decision = self._turn.handle(event, principal)
            self._show("in", topic, body, decision.complaints[0].code if decision.complaints else None)
        else:
            code = event.code if isinstance(event, MessageRefused | MessageIgnored) else None
            self._show("in", topic, body, code)
            self._turn.handle(event, principal)

    def _on_refused_frame(self, code: str, data: bytes) -> None:
        if self._taps:
            self._show("in", b"", data, code)
        self._handle(FrameRefused(code))

    def _complain(self, complaint: Complaint) -> None:
        """Log a fault of level 0, each code once in `COMPLAIN_EVERY_S`: unsolicited messages must not fill the log."""
        now_s = self._loop.time()
        if now_s - self._complained.get(complaint.code, -COMPLAIN_EVERY_S) >= COMPLAIN_EVERY_S:
            self._complained[complaint.code] = now_s
            log.warning("level0_answer_refused", code=complaint.code, text=complaint.text)

    def _report(self, outcome: Outcome) -> None:
        """In the writer's thread."""
        self._loop.call_soon_threadsafe(self._on_outcome, outcome)

    def _on_outcome(self, outcome: Outcome) -> None:
        if not self._is_open:
            return
        if isinstance(outcome, Broken | Fenced):
            self._fail(outcome)
            return
        if isinstance(outcome, Stalled):
            log.warning("database_stalled", code=outcome.code, error=outcome.error)
            if self._state.stalled is None:
                self.measures.stalls[outcome.code] = self.measures.stalls.get(outcome.code, 0) + 1
        elif isinstance(outcome, Committed):
            self.measures.commit_s.observe(self._loop.time() - self._handed[outcome.lane])
        self._turn.commit(outcome)
        if isinstance(outcome, Committed):
            for listener in tuple(self._commit_listeners):
                listener()
        self._arm()

    def _fail(self, outcome: Broken | Fenced) -> None:
        """Nothing more may be written or said: whoever comes after us decides."""
        self._is_open = False
        why = (
            f"the database failed and nothing more can be acknowledged: {outcome.error}"
            if isinstance(outcome, Broken)
            else "another broker has taken over this broker's lane"
        )
        log.error("broker_failed", reason=why)
        self._waiting.give_up(CommandRefused("database_unavailable", why))
        if not self.failed.done():
            self.failed.set_exception(BrokerStopped(why))

    def _handle(self, event: Event) -> None:
        if self._is_open:
            self._turn.handle(event)

    # -- decisions out ------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Once this turn's other work is in."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._is_open:
            self._turn.flush()
            self._arm()

    def _put(self, group: CommitGroup) -> None:
        assert self._store is not None
        self._handed[group.lane] = self._loop.time()
        self.measures.group_rows.observe(rows_of(group))
        self._store.put(group)

    def _read(self, read: Read) -> None:
        assert self._store is not None
        future = self._store.read(claims.perform, self._reader, read, read_clocks().wall)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._on_read, read, done))

    def _on_read(self, read: Read, done: Any) -> None:
        if not self._is_open:
            return
        error = done.exception()
        if error is None:
            self._handle(done.result())
        else:
            log.warning("read_failed", error=str(error))
            self._handle(LoadFailed(read.request, str(error)))
        self._flush()

    def _watch(self, watch: WatchProcess, waited_ms: int = 0) -> None:
        """Is that process gone? The operating system knows; for some seconds it is worth asking."""
        if not self._is_open:
            return
        if deaths.is_gone(watch.pid, watch.pid_started):
            self._handle(ProcessDied(watch.worker))
            self._flush()
        elif waited_ms < WATCH_FOR_MS:
            self._loop.call_later(WATCH_MS / 1000, self._watch, watch, waited_ms + WATCH_MS)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        wake_at = self._machine.wake_at
        if wake_at is None or (self._timer is not None and self._timer_mono <= wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_mono = wake_at
        self._timer = self._loop.call_later(max(0, wake_at - read_clocks().mono) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._is_open:
            return
        assert self._wire is not None
        if self._ticks_put_off < TURNS_PUT_OFF_MAX and self._wire.is_behind:
            # Hear what has arrived before anybody is called silent.
            self._ticks_put_off += 1
            self._timer_mono = 0
            self._timer = self._loop.call_later(0, self._tick)
            return
        self._ticks_put_off = 0
        self._look_at_the_clock()
        self._handle(Tick())
        self._flush()

    def _beat(self) -> None:
        if self._pulse is not None:
            self.measures.loop_lag_s.observe(max(0.0, self._loop.time() - self._pulse.when()))
        self._look_at_the_clock()
        if self._is_open:
            self._look_at_the_writer()
            self._look_for_unroutable()
        self._pulse = self._loop.call_later(PULSE_MS / 1000, self._beat)

    def _look_for_unroutable(self) -> None:
        """Every few seconds; each is told of once, and again when it was over and came back."""
        now = read_clocks()
        if now.mono - self._unroutable_mono < UNROUTABLE_EVERY_MS:
            return
        self._unroutable_mono = now.mono
        found = {each[:3]: each for each in explain.unroutable(self._state, now)}
        for what in found.keys() - self._unroutable.keys():
            each = found[what]
            log.warning(
                "steps_unroutable",
                handler_class=each.handler_class,
                executor=each.executor,
                worker_selector=dict(each.worker_selector),
                steps=each.steps,
                hint="nobody who could take them is there; stepwire why TASK says more",
            )
        self._unroutable = found

    def _look_at_the_clock(self) -> None:
        """Did the loop stand still? Then nobody was silent: it was we who did not listen."""
        now = read_clocks()
        gap_ms = now.mono - self._last_turn_mono - PULSE_MS
        self._last_turn_mono = now.mono
        if gap_ms > LATE_MS:
            log.warning("loop_was_late", gap_ms=gap_ms)
            self._handle(LoopWasLate(gap_ms))

    def _look_at_the_writer(self) -> None:
        """A writer that hangs in its commit cannot say so itself. Nothing new is accepted until it has come back."""
        now = read_clocks()
        for lane in self._state.outbox.lanes.values():
            late_ms = 0 if lane.is_idle else now.mono - lane.handed_mono
            if late_ms > COMMIT_LATE_MS and self._state.stalled is None:
                text = f"a commit has taken {late_ms} ms so far"
                self._on_outcome(Stalled(lane.number, lane.handed, "database_unavailable", text))


def _tell(turned: BreakerChanged) -> None:
    """A breaker that opens is trouble; that it closes is news."""
    say = log.warning if turned.state == "open" else log.info
    event = {"open": "breaker_opened", "closed": "breaker_closed"}.get(turned.state, "breaker_half_open")
    say(
        event,
        handler_class=turned.handler_class,
        by="an operator" if turned.is_forced else "itself",
        cause=turned.cause,
        reason=turned.reason,
        left_ms=turned.left_ms,
    )


def read_clocks() -> Now:
    return Now(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000, time.time_ns() // 1_000_000)
