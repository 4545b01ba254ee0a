"""The composition root: it opens the store, the core and the bus, for the API and the embedded broker.

One asyncio loop owns the sockets, the core and the timers; SQL runs in the store's threads. `core_loop.py` carries
events into the core and decisions out of it, and `pulse.py` wakes it.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import structlog
import zmq
from stepwire_protocol import codec, host, topics

from . import posture
from .audit_trail import AuditTrail
from .bus.announcement import endpoints_for_workers
from .bus.counters import WireCounters
from .bus.keys.server_key import BrokerKeys
from .coordinator.coordinator import Coordinator
from .core import letters, overview
from .core.answers.answers import Answer, CommandRefused
from .core.answers.hints import Hint, HintCode
from .core.backlog.unroutable import Unroutable
from .core.definitions.settings import ExecutionSettings, QuotaSettings, Settings, listed
from .core.definitions.workflow import Workflow, stored_workflow
from .core.lanes import darkness
from .core.machine import Machine
from .core.model.events import (
    ActionNoticed,
    Attached,
    Command,
    Detached,
    Drain,
    HttpServed,
    Leave,
    Now,
    QuotasChanged,
    Reconfigure,
)
from .core.model.figures import ExecutorMetrics
from .core.model.live import StepProgress
from .core.model.principal import PROCESS, Grant
from .core.model.targets import BUS, LOCAL
from .core.overview import ExecutorView, WorkerView
from .core.routing.router import Router, RulesRefused, check, hidden
from .core.routing.runtime_rules import stored_rules
from .core.state import BrokerState, Identity
from .core_loop import CoreLoop
from .erasures import Erasures
from .errors import BrokerError
from .loop_measures import Measures
from .store import Store, open_store
from .store.clocks import read_clocks
from .store.queries import Queries
from .taps import Tap

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L")

log = structlog.get_logger("stepwire.broker")

INPROC: Final = "inproc://"
IDLE_CHECK_S: Final = 0.05
READS_AT_ONCE: Final = 8  # results in memory; the store has four readers
SETTLE_S: Final = 2.0  # time to store the last messages of a drain
STORE_CLOSE_S: Final = 5.0


class CannotStart(BrokerError):
    """The broker cannot start. `hint` is the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Companion(Protocol):
    """An object that starts and ends with a broker, inside its process."""

    def keys(self) -> Collection[str]:
        """Return the keys of the executors that the companion provides."""
        ...

    async def prepare(self) -> None:
        """Prepare, before any task is loaded. Raises CannotStart."""
        ...

    def start(self, broker: "Engine") -> None: ...

    async def drain(self, drain_ms: float) -> None:
        """Let runs finish for this time, then stop the others. Called after the last dispatch."""
        ...

    async def close(self) -> None: ...

    def metrics(self) -> Mapping[str, ExecutorMetrics | None]:
        """Return the figures of every executor by key. None: only the core has figures of this executor."""
        ...


class Engine:
    """A running broker: `start`, then `ask` and `read`, then `drain` and `stop`. `failed` is set on a fatal fault."""

    failed: asyncio.Future[None]
    # Set by `start`. `state` and `workflows` belong to the core: other code may read them and must not change them.
    identity: Identity
    broker_id: str
    epoch: int
    deployment: str
    state: BrokerState
    workflows: Mapping[int, Workflow]
    measures: Measures
    coordinator: Coordinator
    audit: AuditTrail
    wire_counters: WireCounters
    erasures: Erasures
    announce_http: Callable[[str], None]

    def __init__(
        self,
        settings: Settings,
        *,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        store_faults: Any = None,
        companion: Companion | None = None,
    ) -> None:
        self.settings = settings
        self._context = context
        self._store_faults = store_faults
        self._companion = companion
        self._executors = frozenset((BUS, LOCAL, *(() if companion is None else companion.keys())))
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._store: Store | None = None
        self._core: CoreLoop | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Raises CannotStart, and StoreRefused when the database cannot be used."""
        self.failed = asyncio.get_running_loop().create_future()
        try:
            self.check(self.settings.execution)
        except RulesRefused as error:
            raise CannotStart(str(error), "`stepwire config validate` checks the rules as well") from None
        now = read_clocks()
        store = self._store = await asyncio.to_thread(
            open_store,
            self.settings.database,
            self.settings.broker.id,
            lease_ms=self.settings.bus.lease_ms,
            broker_lease_ms=self.settings.broker.lease_ms,
            wall_ms=now.wall,
            entropy=int.from_bytes(os.urandom(16), "big"),
        )
        self.erasures = Erasures(self.settings.security, store, store.file)
        core = self._core = self._open_core(store, now)
        core.is_open = True
        store.start(core.report, self._store_faults, self.settings.retention)
        if self._companion is not None:
            await self._companion.prepare()
        await core.wire.open(codec.encode(letters.here(self.identity)))
        _report_endpoints(core, self.settings.bus.advertise)
        if core.wire.keys is not None:
            core.wire.keys.on_changed = partial(_announce, core, self.audit, self.settings.bus.advertise)
            core.wire.keys.on_served = partial(_report_endpoints, core, self.settings.bus.advertise)
        if self._companion is not None:
            self._companion.start(self)
        core.cluster.join()
        core.pulse.start()
        self.audit.start()
        _warn_of_hidden_rules(self.state.router)
        log.info(
            "broker_started",
            broker=self.broker_id,
            epoch=self.epoch,
            deployment=self.deployment,
            open_tasks=store.opened.open_tasks,
            open_steps=store.opened.open_steps,
            steps=[pair.steps for pair in core.wire.bound],
            results=[pair.results for pair in core.wire.bound],
        )

    def _open_core(self, store: Store, now: Now) -> CoreLoop:
        """Build the core from the stored data, and the loop around the core. Nothing runs yet."""
        settings, opened = self.settings, store.opened
        self.identity = Identity(
            broker=settings.broker.id,
            epoch=opened.epoch,
            deployment=opened.deployment,
            batch_key=os.urandom(16),
            host=host.identity() or "",
        )
        self.broker_id, self.epoch, self.deployment = settings.broker.id, opened.epoch, opened.deployment
        router = Router(
            settings.execution,
            self._executors,
            bus_is_distributed=not all(each.startswith(INPROC) for each in listed(settings.bus.steps)),
            runtime=[placed.rule for placed in stored_rules(opened.controls)],
        )
        self.state = BrokerState.begin(settings, self.identity, opened, now, router)
        self.workflows = self.state.workflows
        machine = Machine(self.state, [(stored_workflow(row), bool(row.active)) for row in opened.workflows])
        core = CoreLoop(settings, machine, store, self._context, self.failed)
        self.audit = AuditTrail(core.handle_soon, store)
        self.announce_http = lambda url: core.handle(HttpServed(url))
        self.measures, self.wire_counters = core.measures, core.wire.counters
        self.coordinator = core.coordinator
        return core

    async def drain(self) -> None:
        """Accept and dispatch nothing new, and let running steps finish for `broker.drain_timeout_ms`."""
        core = self.core_loop
        core.handle(Drain())
        core.flush()
        core.cluster.beat_now()
        loop = asyncio.get_running_loop()
        drain_ms = self.settings.broker.drain_timeout_ms
        deadline = loop.time() + drain_ms / 1000
        leaving = None
        if self._companion is not None:
            leaving = asyncio.ensure_future(self._companion.drain(drain_ms))
        try:
            await self._until_idle(deadline)
            if leaving is not None:
                await leaving
                await self._until_idle(loop.time() + SETTLE_S)
        finally:
            if leaving is not None:
                leaving.cancel()
        log.info("broker_drained", running=overview.steps_in_flight(self.state))

    async def _until_idle(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < deadline and not self.failed.done():
            if not overview.steps_in_flight(self.state) and overview.is_settled(self.state):
                break
            await asyncio.sleep(IDLE_CHECK_S)

    async def stop(self) -> None:
        """Notify the workers, and close. Acknowledged results are stored; workers resend all others."""
        if self._companion is not None:
            await self._companion.close()
        core = self._core
        if core is not None:
            self.audit.stop()
            if core.is_open:
                core.handle(Leave())
                core.flush()
                for _ in range(200):
                    if overview.is_settled(self.state) or self.state.outbox.stalled is not None or self.failed.done():
                        break
                    await asyncio.sleep(0.01)
            core.close()
            await asyncio.to_thread(core.cluster.leave)
        if self._store is not None:
            await asyncio.to_thread(self._store.close, STORE_CLOSE_S)

    @property
    def core_loop(self) -> CoreLoop:
        assert self._core is not None, "the engine is not started"
        return self._core

    # -- routing ------------------------------------------------------------------------------------------------------

    def check(self, execution: ExecutionSettings) -> None:
        """Check routing settings. Raises RulesRefused when this broker could not route by them."""
        check(execution, self._executors)

    def reconfigure(self, execution: ExecutionSettings, quotas: Mapping[str, QuotaSettings]) -> None:
        """Route by these settings and use these quotas from now on. Dispatched steps stay where they are, and open
        steps stay open. Raises RulesRefused."""
        self.check(execution)
        core = self.core_loop
        core.handle(Reconfigure(execution))
        core.handle(QuotasChanged(quotas))
        core.flush_soon()
        _warn_of_hidden_rules(self.state.router)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, make: Callable[[int], Command]) -> Answer:
        """Pass a command to the core and return its answer after the commit. A cancelled call drops the request."""
        core = self._core
        if core is None or not core.is_open:
            return CommandRefused("starting", "the broker is not running", Hint(HintCode.SEND_AGAIN), 1_000)
        if core.cluster.is_dark():
            return darkness.DARK
        return await core.ask(make)

    def handled(self) -> asyncio.Future[None]:
        """Return a future that is done when all commands and messages from before this call are handled.

        The core's immediate answers to attached workers have been delivered by then.
        """
        return self.core_loop.handled()

    async def read(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `query(queries, …)` in a reader's thread, where it sees committed rows.

        READS_AT_ONCE limits the results in memory that the loop has not used: each may have megabytes."""
        assert self._store is not None
        async with self._reads:
            with self.coordinator.reading():
                return await asyncio.wrap_future(self._store.read(query, *args, **kwargs))

    async def scan(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that may read many rows, in a thread that no other read waits for."""
        assert self._store is not None
        return await asyncio.wrap_future(self._store.scan(query, *args, **kwargs))

    def read_at_once(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a query on the loop, for a few rows committed a moment ago. None instead of waiting for a lock."""
        assert self._store is not None
        return self._store.read_at_once(query, *args, **kwargs)

    def prune(self) -> None:
        """Remove old rows now, rather than within a minute."""
        assert self._store is not None
        self._store.prune()

    def add_commit_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every commit until the returned function is called."""
        return _added(self.core_loop.commit_listeners, callback)

    def add_progress_listener(self, callback: Callable[[StepProgress], None]) -> Callable[[], None]:
        """Call `callback` with every progress report until the returned function is called."""
        return _added(self.core_loop.progress_listeners, callback)

    # -- state for display --------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> dict[str, str]:
        """The addresses of "steps" and "results" for workers on this host."""
        return self.core_loop.wire.endpoints

    @property
    def unroutable(self) -> list[Unroutable]:
        """The ready steps that no worker could take for too long, as of the last check."""
        return [] if self._core is None else self._core.pulse.unroutable

    def now(self) -> Now:
        """Both clocks, as the core reads them."""
        return read_clocks()

    def readiness(self) -> list[str]:
        """Return the reasons why no work can be accepted now; empty when work is accepted."""
        if self._core is None or not self._core.is_open:
            return ["not running"]
        reasons = ["draining"] if self.state.draining else []
        if self._core.cluster.is_dark():
            reasons.append("broker_dark")
        if not self.state.lanes:
            reasons.append("no_lane")
        in_doubt = set() if self.state.members is None else self.state.members.lanes_in_doubt()
        reasons += [f"lost_commits in lane {lane}" for lane in sorted({*self.state.stopped, *in_doubt})]
        stalled = self.state.outbox.stalled
        return reasons if stalled is None else [*reasons, stalled]

    def insecure(self) -> list[str]:
        """Return what is open to other users or hosts, as codes of INSECURE; empty if nothing is."""
        if self._core is None or not self._core.is_open:
            return []
        return posture.of(self.settings, self._core.wire.bound, self._core.wire.client_faults)

    def workers(self) -> list[WorkerView]:
        return overview.workers(self.state, read_clocks())

    def executors(self) -> list[ExecutorView]:
        """Return the executors that steps can be dispatched to."""
        known: Mapping[str, ExecutorMetrics | None] = (
            {BUS: None} if self._companion is None else self._companion.metrics()
        )
        return overview.executors(self.state, known, read_clocks())

    def add_tap(self, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every message of the bus until the returned function is called."""
        return self.core_loop.taps.add(tap)

    # -- workers of this process --------------------------------------------------------------------------------------

    def attach(
        self, worker: str, executor: str, deliver: Callable[[bytes, bytes], None], grant: Grant | None = None
    ) -> Callable[[], None]:
        """Connect a worker that does not use the bus, for steps that are routed to `executor`.

        Messages for it go to `deliver(topic, body)` in a later callback of the loop, never during a call of the worker.
        The worker sends with `hear`. The returned function detaches the worker, whose steps are then lost. `grant`: of
        the token that the worker's calls carry; without one, the worker is part of this process.
        """
        loop = asyncio.get_running_loop()

        def later(topic: bytes, body: bytes) -> None:
            loop.call_soon(deliver, topic, body)

        detach_wire = self.core_loop.wire.attach(topics.to_worker(worker), later)
        forget = self.expect(worker, executor, grant=grant)

        def detach() -> None:
            detach_wire()
            forget()

        return detach

    def regrant(self, worker: str, executor: str, grant: Grant) -> None:
        """Give the workers of an attached worker's token the token's changed grant."""
        self.core_loop.handle(Attached(worker, executor, grant=grant))

    def expect(
        self, worker: str, executor: str, *, joins_bus: bool = False, grant: Grant | None = None
    ) -> Callable[[], None]:
        """Announce a worker that will connect to `inner_endpoints`, for steps that are routed to `executor`.

        With `joins_bus` the worker also gets steps that are routed to the bus. The returned function reports that the
        worker has ended, and its steps are then lost.
        """
        core = self.core_loop
        core.handle(Attached(worker, executor, joins_bus, grant))

        def gone() -> None:
            core.handle(Detached(worker))
            core.flush_soon()

        return gone

    def inner_endpoints(self) -> tuple[zmq.Context[zmq.Socket[bytes]], str, str]:
        """Return the context and endpoints for a worker in this process. It must end before the broker stops."""
        wire = self.core_loop.wire
        return (wire.context, *wire.inner_endpoints())

    def hear(self, topic: bytes, body: bytes, principal: str = PROCESS) -> None:
        """Receive a message of an attached worker. `principal`: of the grant that the worker was attached with."""
        core = self.core_loop
        core.receive(topic, body, principal)
        core.flush_soon()


def _added(listeners: list[L], listener: L) -> Callable[[], None]:
    """Add a listener. The returned function removes it."""
    listeners.append(listener)

    def remove() -> None:
        if listener in listeners:
            listeners.remove(listener)

    return remove


def _announce(core: CoreLoop, audit: AuditTrail, host: str | None, before: BrokerKeys, after: BrokerKeys) -> None:
    """Send the brokers' new keys to the workers, and record the change. The files have no author."""
    key, following = after.current.public, None if after.next is None else after.next.public
    if before.current != after.current:
        action = "server_key_replaced"
        log.warning("server_key_replaced", key=key, next=following)
    elif after.next is not None:
        action = "server_key_added"
        log.warning("server_key_added", key=key, next=following)
    else:
        action = "server_key_dropped"
        log.warning("server_key_dropped", key=key, next=following)
    _report_endpoints(core, host)
    detail = {"key": key, "before": before.current.public, "next": following}
    audit.notice(ActionNoticed(PROCESS, "file", action, "server key", detail))
    core.flush_soon()


def _report_endpoints(core: CoreLoop, host: str | None) -> None:
    core.handle(endpoints_for_workers(core.wire.bound, core.wire.keys, host))


def _warn_of_hidden_rules(router: Router) -> None:
    for rule, earlier in hidden(router.rules):
        log.warning("rule_never_matches", rule=rule.match, number=rule.number, because_of=earlier.match)
