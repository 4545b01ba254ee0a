"""The whole state of the core, and `record(task, fact)`, the only function through which tasks change.

The packages above this module (intake, workers, dispatch, progress, loading) hold the policies, as functions over this
state.
"""

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct, field, json
from stepwire_protocol.messages import Endpoints

from stepwire_broker.core.model.apply import apply, unlink
from stepwire_broker.core.model.live import ExecutorState, Step, StepProgress, Task, WorkerSession
from stepwire_broker.core.model.targets import BUS, LOCAL, Route
from stepwire_broker.core.routing.ready_queue import ReadyQueue

from .answers.answers import Answer, CommandRefused
from .brokers.listeners import BrokerEndpoints, ListenerKind
from .commit.decision import Decision, ToRequest
from .commit.id_blocks import LaneIds, block_of
from .commit.loads import AnyLoad
from .commit.operator_controls import DrainedWorker, PausedExecutor, removal, stored
from .commit.outbox import LaneState, Outbox, SendAnswer
from .commit.own_lane import OwnLane, count
from .commit.timers import Timers
from .definitions.settings import QuotaSettings, Settings
from .definitions.stored_rows import LeftBehind, Opened, TakenLane
from .definitions.workflow import Workflow
from .deployment.catalogue_book import CatalogueBook
from .deployment.order_book import OrderBook
from .guards.guard import Guards
from .guards.step_rate import StepRate
from .membership.members import Members
from .model.commit_group import AuditNew, AuditPart, ControlChanged
from .model.events import ApplyWorkflow, Attached, CommandOfOperator, Now, SubmitTasks
from .model.facts import Fact
from .model.figures import Figures
from .model.level0_peer import Level0
from .model.principal import PROCESS, Principals, Rights, compile_grants, with_built_in
from .routing.level0_handlers import Level0Handlers
from .routing.router import Router, StepRoute
from .routing.runtime_rules import PlacedRule, stored_rules
from .shadows.shadow import Shadows
from .timer_kinds import AnyTimer, RecoverySafe


class Identity(Struct, frozen=True):
    """The identity of this broker and of its present start."""

    broker: str
    epoch: int
    deployment: str
    batch_key: bytes  # random per start: a restored database must not meet old batch ids
    host: str = ""

    def request_id(self, request: int) -> str:
        """Return the name of a request that no other start of any broker uses."""
        return f"{self.epoch}.{request}"


class CoreCounters(Struct):
    """Counts since the start, for metrics and tests."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    held: int = 0
    retried: int = 0
    dispatched: int = 0
    redelivered: int = 0
    retransmitted: int = 0
    late_results: int = 0
    lease_expiries: int = 0
    level0_expiries: int = 0
    level0_unknown: int = 0
    sessions_opened: int = 0
    deaths_proven: int = 0
    infrastructure_failures: int = 0
    breakers_opened: int = 0
    probes: int = 0
    ignored: int = 0
    erased: int = 0  # tasks
    audited: int = 0  # rows of `audit`
    orders_sent: int = 0
    orders_answered: int = 0
    lane_changes: dict[str, int] = {}  # "taken", or why a lane has ended here
    refused: dict[str, int] = {}  # by code
    over_quota: dict[tuple[str, str], int] = {}  # by namespace and limit: submissions that were refused

    def count_lane(self, change: str) -> None:
        self.lane_changes[change] = self.lane_changes.get(change, 0) + 1

    def count_refused(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def count_over_quota(self, namespace: str, limit: str) -> None:
        self.over_quota[namespace, limit] = self.over_quota.get((namespace, limit), 0) + 1


SLICE_STEPS: Final = 4_000
ENDED_REMEMBERED_MAX: Final = 65_536
DEAD_REMEMBERED_MAX: Final = 65_536
QUIETED_REMEMBERED_MAX: Final = 4_096
FLAPPING_REMEMBERED_MAX: Final = 4_096


class BrokerState(Struct, kw_only=True, eq=False, weakref=False):
    """Built by `begin`. Only the handlers of events change it."""

    settings: Settings
    identity: Identity
    outbox: Outbox
    timers: Timers[AnyTimer] = field(default_factory=Timers)
    counters: CoreCounters = field(default_factory=CoreCounters)

    # the turn that is being decided
    decision: Decision = field(default_factory=Decision)
    principal: str = PROCESS  # whose event is being handled
    undecided_steps: list[Step] = []  # payloads that their rules compare must be fetched first

    # workflows
    workflows: dict[int, Workflow] = {}
    versions: dict[tuple[str, str, str], Workflow] = {}
    active: dict[tuple[str, str], Workflow] = {}

    # tasks in memory
    tasks: dict[int, Task] = {}
    steps: dict[int, Step] = {}
    open_steps: int = 0  # of own lanes, in memory or not
    open_by_namespace: dict[str, int] = {}  # the same steps; no namespace without open steps is here
    open_elsewhere: dict[str, int] = {}  # open steps of the other live brokers: of ALL, and by namespace with a quota
    resident_bytes: int = 0
    large: list[tuple[LaneState, int, Step]] = []  # outputs that leave memory once they are committed
    large_contexts: list[tuple[LaneState, int, Task]] = []
    progress: dict[int, StepProgress] = {}  # by step id: the latest report of each running step
    ended: OrderedDict[int, int] = field(default_factory=OrderedDict)  # by id: `timeout_ms` of steps that ended lately

    # requests
    waiters: dict[int, list[int]] = {}  # task id → requests
    asked: dict[int, int] = {}  # request → task id, of the waiters
    building: dict[int, Any] = {}  # by request: submissions whose tasks are being built
    slice_steps: int = SLICE_STEPS  # of a submission, built in one turn
    undecided: dict[int, Any] = {}  # by request: submissions whose keys are not decided yet
    undecided_workflows: dict[int, ApplyWorkflow] = {}
    reserved_tasks: int = 0  # of undecided submissions

    # requests for tasks of other brokers, and their requests for tasks of this one
    is_shared: bool = False  # several brokers can use the database at a time
    orders: OrderBook = field(default_factory=OrderBook)
    catalogue: CatalogueBook = field(default_factory=CatalogueBook)

    # quotas of namespaces
    quotas: Mapping[str, QuotaSettings]
    step_rates: dict[str, StepRate] = {}  # by namespace: of quotas with `steps_per_s`

    # lanes and numbers
    lanes: dict[int, OwnLane] = {}  # the lanes of `outbox`
    blocks: dict[int, int]  # by number: the lane of each block of ids, of every lane of the database
    stopped: dict[int, str] = {}  # by lane: why it is not served, although no other broker owns it
    left: bool = False  # the broker has returned its ids, and reserves no others
    submissions_waiting: list[SubmitTasks] = []  # for ids
    submissions_waiting_bytes: int = 0
    reads: int = 0
    batches: int = 0
    lane_turn: int = 0  # submissions whose lane was chosen

    # routing and guards
    router: Router
    runtime_rules: tuple[PlacedRule, ...] = ()
    ready: ReadyQueue
    offer_cache: dict[Route, list[WorkerSession]] = {}
    canaries: dict[str, list[int]] = {}  # by match: the number of steps dispatched to the canary, and of other steps
    guards: Guards  # of handlers that fail
    shadows: Shadows

    # sessions
    principals: Principals = field(default_factory=lambda: compile_grants(with_built_in()))
    grants_known: bool = False  # the configured grants were read: from now on a difference is a change
    token_rights: dict[str, Rights] = {}  # by principal: the tokens of attached workers
    inboxes: dict[str, str] = {}  # by worker: the principal whose connection receives its inbox
    former_owners: OrderedDict[str, str] = field(default_factory=OrderedDict)  # by worker: of an ended session
    sessions_of: dict[str, int] = {}  # by principal: the number of its sessions
    came_by: dict[str, ListenerKind] = {}  # by worker: the kind of listener that its inbox came to
    http_url: str | None = None  # of this broker's API, as other hosts reach it
    own_listeners: BrokerEndpoints | None = None  # None: the bus is not open yet
    own_addresses: list[Endpoints] = []  # as workers receive them, with the key that follows in a rotation
    own_in_welcome: list[Endpoints] = []  # the same, and before them a key that is still served for a moment
    other_brokers: tuple[BrokerEndpoints, ...] = ()  # that live now
    live_brokers: frozenset[str]  # the names of all, this one included
    others_addresses: dict[ListenerKind, list[Endpoints]] = {}  # for workers that came to this kind of listener
    addresses_repeated_until_mono: int = 0  # after a change, acks of heartbeats repeat the addresses until this time
    sessions: dict[str, WorkerSession] = {}
    level0: Level0
    level0_handlers: Level0Handlers
    executors: dict[str, ExecutorState] = {}  # by key, from when they are first seen
    attached: dict[str, Attached] = {}  # by worker: the workers of this process
    dead_k: OrderedDict[str, int] = field(default_factory=OrderedDict)  # by worker: the largest number declared dead
    flapping: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict)  # by worker: since when, resets
    quieted: OrderedDict[str, bool] = field(default_factory=OrderedDict)  # by draining worker: whether it must quit

    # recovery
    recovered: dict[str, dict[int, Step]] = {}  # by worker: deliveries from before their lane was taken
    safe_due_mono: int | None = None  # when the timer for the end of recovery is due

    # loading
    unloaded: int = 0  # open tasks of own lanes that are only in the database
    wants: set[str] = set()  # what tasks in the database wait for
    loads: dict[int, AnyLoad] = {}
    fetching: dict[int, list[Step]] = {}
    pages: dict[int, int] = {}  # by request: the limit of each page that is being read
    page_after_mono: int = 0
    waits_for_room: bool = False  # more tasks could be loaded if tasks in memory ended
    evict_from: int = 0  # position in `tasks` at which the search for idle tasks continues
    evicted: int = 0  # since the ready queue was swept
    rejected: dict[int, tuple[frozenset[int], str]] = {}  # refused tasks being reloaded: culprits, the database's error

    # the broker itself
    draining: bool = False
    members: Members | None = None  # None: no other broker can use the database

    @classmethod
    def begin(
        cls,
        settings: Settings,
        identity: Identity,
        opened: Opened,
        now: Now,
        router: Router | None = None,
    ) -> "BrokerState":
        """Return the state of a broker that starts now on this database. No task is in memory yet."""
        router = router or Router(settings.execution, {BUS, LOCAL}, bus_is_distributed=True)
        state = cls(
            settings=settings,
            identity=identity,
            outbox=Outbox(),
            quotas=settings.limits.namespaces,
            blocks=dict(opened.blocks),
            is_shared=opened.is_shared,
            members=opened.members,
            catalogue=CatalogueBook(opened.is_shared, opened.revision),
            router=router,
            runtime_rules=stored_rules(opened.controls),
            ready=ReadyQueue(settings.bus.batch.max_steps, router.route_of),
            guards=Guards(identity.broker, settings.dispatch, opened.controls, now.mono),
            executors={
                key: ExecutorState(key, Figures(), paused.since_ms)
                for key, paused in stored(opened.controls, PausedExecutor)
            },
            quieted=OrderedDict((worker, drained.quit) for worker, drained in stored(opened.controls, DrainedWorker)),
            shadows=Shadows(identity.epoch),
            live_brokers=frozenset((identity.broker,)),
            level0=Level0(),
            level0_handlers=Level0Handlers(settings.bus.level0.handlers, opened.controls),
        )
        for taken in opened.lanes:
            state.open_lane(taken, now)
        return state

    def __repr__(self) -> str:
        return f"<the state of broker {self.identity.broker}, epoch {self.identity.epoch}>"

    def open_lane(self, taken: TakenLane, now: Now) -> OwnLane:
        """Add a lane that this broker owns from now on. None of its tasks is in memory yet."""
        first, last = taken.ids
        lease_ms = max(taken.lease_ms, self.settings.bus.lease_ms)
        self.stopped.pop(taken.lane, None)
        self.outbox.add_lane(taken.lane, taken.end)
        self.blocks.update(dict.fromkeys((*taken.blocks, block_of(first)), taken.lane))
        lane = self.lanes[taken.lane] = OwnLane(
            number=taken.lane,
            epoch=taken.epoch,
            taken_mono=now.mono,
            safe_at_mono=now.mono + int(1.03 * lease_ms) + taken.unproven_ms,
            ids=LaneIds(first, last),
            open_by_namespace=dict(taken.open_steps),
            unloaded=taken.open_tasks,
            left_behind=LeftBehind(taken.lane, before_id=first),
            stored_may_run=taken.open_tasks > 0,
        )
        self.unloaded += taken.open_tasks
        for namespace, steps in taken.open_steps.items():
            self.open_steps += steps
            count(self.open_by_namespace, namespace, steps)
        self.await_safety(lane.safe_at_mono)
        return lane

    def await_safety(self, at_mono: int) -> None:
        """Look at this time for recovered deliveries whose workers no longer hold a lease from a former owner."""
        if self.safe_due_mono is None or at_mono < self.safe_due_mono:
            self.safe_due_mono = at_mono
            self.timers.set(at_mono, RecoverySafe())

    def executor(self, key: str) -> ExecutorState:
        executor = self.executors.get(key)
        if executor is None:
            executor = self.executors[key] = ExecutorState(key, Figures())
        return executor

    def route_of(self, step: Step) -> Route:
        return self.router.route_of(step)

    def on_the_bus(self, worker: str) -> Attached:
        """Return the executor of a worker of the bus. A bus that is only inproc has only workers of this process."""
        is_distributed = self.router.bus_is_distributed
        return Attached(worker, BUS if is_distributed else LOCAL, joins_bus=not is_distributed)

    def count_canary(self, step: Step, step_route: StepRoute) -> None:
        """Count a dispatch on its side of the rule's canary."""
        if step_route.canary is not None:
            assert step_route.destination.rule is not None
            assert step.route is not None
            match = step_route.destination.rule.match
            counts = self.canaries.get(match)
            if counts is None:
                counts = self.canaries[match] = [0, 0]
            counts[step.route.target is not step_route.canary[0]] += 1

    def route_by(self, router: Router) -> None:
        """Use this router from now on. Dispatched steps stay where they are."""
        router.split_namespaces(self.router.splits_namespaces)
        self._queue_by(router)

    def split_namespaces(self, is_split: bool) -> None:
        """Queue ready steps by namespace as well, if a grant distinguishes namespaces."""
        if is_split != self.router.splits_namespaces:
            self.router.split_namespaces(is_split)
            self._queue_by(self.router)

    def _queue_by(self, router: Router) -> None:
        self.router = router
        self.offer_cache.clear()
        self.ready.reroute(router.route_of)

    def record(self, task: Task, fact: Fact) -> None:
        """Apply a fact and mark the task to be written. State, history and rows go into the same transaction."""
        open_before = task.open
        apply(task, fact)
        if task.open != open_before:
            self.count_open(task.lane, task.namespace, task.open - open_before)
        task.facts.append(fact)
        self.write(task)

    def count_open(self, lane: int, namespace: str, more: int) -> None:
        """Count open steps of this lane and namespace. A negative number subtracts."""
        self.open_steps += more
        count(self.open_by_namespace, namespace, more)
        count(self.lanes[lane].open_by_namespace, namespace, more)

    def count_unloaded(self, lane: int, more: int) -> None:
        """Count open tasks of this lane that are only in the database. A negative number subtracts."""
        self.unloaded += more
        self.lanes[lane].unloaded += more

    def write(self, task: Task) -> None:
        """Have the changes of this task written with the open group."""
        if task.evicting:
            task.evicting = False  # a task to which something happens stays in memory
            task.dirty = True
        self.outbox.mark(task)

    def set_control(self, change: ControlChanged) -> None:
        """Write a row of `controls`. Sends decided from here on wait for it."""
        lane = self.outbox.touch_any()
        lane.controls.append(change)
        if self.is_shared:
            self.catalogue.changed((change.kind, change.name), lane.number, lane.handed + 1)

    def forget_quieted(self, worker: str) -> None:
        """Forget that an operator drained this worker: its process has ended, or later ones are remembered instead."""
        if self.quieted.pop(worker, None) is not None:
            self.set_control(removal(worker, DrainedWorker))

    def audit(
        self,
        command: CommandOfOperator,
        action: str,
        target: str,
        now: Now,
        *,
        task: Task | None = None,
        part: AuditPart = None,
        reason: str = "",
        detail: Mapping[str, Any] | None = None,
        outcome: str = "done",
    ) -> None:
        """Write a row of `audit` with the effect of this command. Call this in the turn that decides the effect.

        `task`: whose rows have the effect; its lane gets the row. `part`: another part of the group that has the
        effect. `detail`: ids, counts and digests; never a payload or the value of a label.
        """
        self.write_audit(
            AuditNew(
                at_ms=now.wall,
                principal=command.by or PROCESS,
                via=command.via,
                action=action,
                target=target,
                reason=reason,
                detail=json.encode(detail or {}).decode(),
                outcome=outcome,
                request_id=command.request_id or self.identity.request_id(command.request),
                part=part if task is None else ("task", task.id),
            ),
            None if task is None else task.lane,
        )

    def write_audit(self, row: AuditNew, lane: int | None = None) -> None:
        """Write a row of `audit` into this lane, or the lowest own lane. Sends decided from here on wait for it."""
        (self.outbox.touch_any() if lane is None else self.outbox.touch(lane)).audit.append(row)
        self.counters.audited += 1

    def hold_bytes(self, task: Task, more: int) -> None:
        """Add to the counts of payload bytes in memory. A negative number subtracts."""
        task.resident_bytes += more
        self.resident_bytes += more

    def choose_lane(self, numbers: int) -> int:
        """Return the lane of the next submission, which needs this number of ids: of those that can be written and have
        the ids, the one with the fewest bytes to write. Equal lanes take turns. A task never changes its lane."""
        lanes, own = self.outbox.lanes, self.lanes
        if len(lanes) == 1:
            return next(iter(lanes))
        self.lane_turn += 1
        turn = self.lane_turn

        def cost(n: int) -> tuple[bool, bool, bool, int, int]:
            lane, left = lanes[n], own[n].ids.left
            turns = (n - turn) % len(lanes)
            return own[n].release is not None, lane.stalled is not None, left < numbers, lane.bytes_waiting, turns

        return min(lanes, key=cost)

    def lane_of(self, number: int) -> int | None:
        """Return the lane of the task or the step that has this id. None: no lane that this broker knows has it."""
        return self.blocks.get(block_of(number))

    def is_foreign(self, number: int) -> bool:
        """True if another broker owns the task or the step that has this id."""
        lane = self.lane_of(number)
        return lane is not None and lane not in self.lanes

    def answer(
        self,
        request: int,
        answer: Answer,
        about: Task | None = None,
        *,
        awaits: bool = False,
        lane: int | None = None,
    ) -> None:
        """Answer when everything decided so far is durable. Refuse the request if the rows of `about` are refused.
        `lane`: without a task, the only lane whose rows the answer depends on; None: it depends on controls."""
        if request < 0:
            self.orders.answer(self.outbox, request, answer, about)
            return
        self.outbox.send(SendAnswer(request, answer, about, awaits, lane))

    def refuse_now(self, request: int, refused: CommandRefused) -> None:
        """Refuse a request without waiting for a commit: the refusal depends on nothing stored."""
        if request < 0:
            self.orders.refuse(self.outbox, request, refused)
            return
        self.decision.answers.append(ToRequest(request, refused))

    def next_batch_id(self) -> str:
        """Ids cannot be guessed: a peer that knows one of them learns nothing about the others."""
        self.batches += 1
        digest = blake2b(b"%d" % self.batches, digest_size=8, key=self.identity.batch_key).hexdigest()
        return f"batch_{digest}_{self.batches}"

    def next_read(self) -> int:
        self.reads += 1
        return self.reads

    def drop(self, task: Task) -> None:
        """Remove a task from memory: the task has ended, or it waits in the database."""
        self.tasks.pop(task.id, None)
        self.resident_bytes -= task.resident_bytes
        for step in task.steps:
            self.steps.pop(step.id, None)
            if self.progress:
                self.progress.pop(step.id, None)
            if step.session is not None:
                step.session.deliveries.pop(step.id, None)
        for load in self.loads.values():
            load.gone.add(task.id)
        unlink(task)

    def remember_ended(self, task: Task) -> None:
        ended = self.ended
        for step in task.steps:
            ended[step.id] = step.definition.timeout_ms
        while len(ended) > ENDED_REMEMBERED_MAX:
            ended.popitem(last=False)
