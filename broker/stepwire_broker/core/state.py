"""Everything the core knows, and the one way it comes to know more of a task: `record(task, fact)`.

The packages above this module (intake, workers, dispatch, progress, loading) hold the policies,
as functions over this state.
"""

from collections import OrderedDict
from typing import Any, Final

from msgspec import Struct
from stepwire_protocol.messages import Endpoints

from stepwire_broker.core.model.apply import apply, unlink
from stepwire_broker.core.model.live import ExecutorState, Step, Task, WorkerSession
from stepwire_broker.core.model.targets import BUS, LOCAL, Route
from stepwire_broker.core.model.worker_session import offer_of
from stepwire_broker.core.routing.ready_queue import ReadyQueue

from .commit.decision import Decision, ToRequest
from .commit.loads import AnyLoad
from .commit.outbox import LaneOwner, LaneState, Outbox, SendAnswer
from .commit.timers import Timers
from .definitions.settings import RuleSettings, Settings
from .definitions.workflow import Workflow
from .guards.guard import Guards
from .model.answers import Answer, CommandRefused
from .model.events import ApplyWorkflow, Attached, Now
from .model.facts import Fact
from .model.figures import Figures
from .model.level0_peer import Level0
from .routing.router import Router, StepRoute
from .shadows.shadow import Shadows
from .timer_kinds import AnyTimer


class Identity(Struct, frozen=True):
    """Who this broker is, in this run of it."""

    broker: str
    epoch: int
    deployment: str
    nonce: str  # random per start: a restored database must not meet old batch ids
    host: str = ""


class CoreCounters(Struct):
    """What happened since the start, for metrics and tests."""

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
    sessions_opened: int = 0
    deaths_proven: int = 0
    infrastructure_failures: int = 0
    breakers_opened: int = 0
    probes: int = 0
    ignored: int = 0
    refused: dict[str, int] = {}  # by code

    def count_refused(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1


ENDED_REMEMBERED_MAX: Final = 65_536
DEAD_REMEMBERED_MAX: Final = 65_536
QUIETED_REMEMBERED_MAX: Final = 65_536


class BrokerState:
    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        sequences: dict[int, int],
        ids: tuple[int, int],
        lease_ms_before: int,
        now: Now,
        open_steps: int = 0,
        unloaded_tasks: int = 0,
        router: Router | None = None,
        runtime_rules: tuple[RuleSettings, ...] = (),
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.outbox = Outbox(LaneOwner(identity.broker, identity.epoch), sequences)
        self.timers: Timers[AnyTimer] = Timers()
        self.router = router or Router(settings.execution, {BUS, LOCAL}, bus_is_distributed=True)
        self.runtime_rules = runtime_rules
        self.ready = ReadyQueue(settings.bus.batch.max_steps, self.router.route_of)
        self.counters = CoreCounters()
        self.decision = Decision()
        # workflows
        self.workflows: dict[int, Workflow] = {}
        self.versions: dict[tuple[str, str, str], Workflow] = {}
        self.active: dict[tuple[str, str], Workflow] = {}
        # tasks in memory
        self.tasks: dict[int, Task] = {}
        self.steps: dict[int, Step] = {}
        # steps of tasks that ended lately, and their timeout_ms: their results are late
        self.ended: OrderedDict[int, int] = OrderedDict()
        self.resident_bytes = 0
        self.large: list[tuple[LaneState, int, Step]] = []  # outputs to let go once their commit is done
        self.large_contexts: list[tuple[LaneState, int, Task]] = []
        self.undecided_steps: list[Step] = []  # their rules compare what has to be fetched first
        self.open_steps = open_steps  # in memory or not
        self.waiters: dict[int, list[int]] = {}  # task id → requests
        self.asked: dict[int, int] = {}  # request → task id, of the waiters
        # numbers
        self.next_id, self.last_id = ids
        self.ids_asked = False
        self.reads = 0
        self.batches = 0
        self.peers: list[Endpoints] = []
        self.quieted: OrderedDict[str, bool] = OrderedDict()  # workers that get nothing new → are they to quit?
        # sessions
        self.sessions: dict[str, WorkerSession] = {}
        self.executors: dict[str, ExecutorState] = {}  # by key, as they come to our notice
        self.attached: dict[str, Attached] = {}  # by worker: those of our own process
        self.dead_k: OrderedDict[str, int] = OrderedDict()  # by worker: the largest number declared dead here
        self.offer_cache: dict[Route, list[WorkerSession]] = {}
        self.recovered: dict[str, dict[int, Step]] = {}  # by worker: deliveries of before this start
        self.safe_at_mono = now.mono + int(1.03 * max(lease_ms_before, settings.bus.lease_ms))
        self.safe_is_due = True  # a timer stands for it
        self.level0 = Level0(now.mono, offer_of(settings.bus.level0.handlers))
        self.guards = Guards(identity.broker, settings.dispatch)  # of handlers that fail
        self.shadows = Shadows(identity.epoch)
        self.canaries: dict[str, list[int]] = {}  # by match: steps handed to the canary, and to the others
        # submissions whose keys are not decided yet
        self.undecided: dict[int, Any] = {}
        self.undecided_workflows: dict[int, ApplyWorkflow] = {}
        # loading
        self.unloaded = unloaded_tasks
        self.wants: set[str] = set()
        self.loads: dict[int, AnyLoad] = {}
        self.page_asked: int | None = None
        self.page_after_mono = 0
        self.waits_for_room = False  # more could be loaded if some of what is in memory ended
        self.evict_from = 0  # where in `tasks` to go on looking for idle ones
        self.evicted = 0  # since the ready queue was swept
        self.fetching: dict[int, list[Step]] = {}
        # tasks whose rows were refused, until they are in memory as they were: culprits, and what the database said
        self.rejected: dict[int, tuple[frozenset[int], str]] = {}
        # the broker itself
        self.principal = ""  # who sent the message that is being handled; "" for every other event
        self.draining = False
        self.stalled: str | None = None
        self.reserved_tasks = 0

    def executor(self, key: str) -> ExecutorState:
        found = self.executors.get(key)
        if found is None:
            found = self.executors[key] = ExecutorState(key, Figures())
        return found

    def route_of(self, step: Step) -> Route:
        return self.router.route_of(step)

    def on_the_bus(self, worker: str) -> Attached:
        """Whoever comes over a bus that is inproc only is in our own process, and so is what runs there."""
        is_distributed = self.router.bus_is_distributed
        return Attached(worker, BUS if is_distributed else LOCAL, joins_bus=not is_distributed)

    def count_canary(self, step: Step, way: StepRoute) -> None:
        """It is handed out: on which side of its rule's canary?"""
        if way.canary is not None:
            assert way.place.rule is not None
            assert step.route is not None
            match = way.place.rule.match
            counts = self.canaries.get(match)
            if counts is None:
                counts = self.canaries[match] = [0, 0]
            counts[step.route.target is not way.canary[0]] += 1

    def route_by(self, router: Router) -> None:
        """From here on steps go by this one; those that were handed out stay where they are."""
        self.router = router
        self.offer_cache.clear()
        self.ready.sort_again(router.route_of)

    def record(self, task: Task, fact: Fact) -> None:
        """Apply a fact and have it written: state, history and rows go into the same transaction."""
        open_before = task.open
        apply(task, fact)
        self.open_steps += task.open - open_before
        task.facts.append(fact)
        if task.evicting:
            task.evicting = False  # something happens to it: it stays
            task.dirty = True
        self.outbox.mark(task)

    def hold_bytes(self, task: Task, more: int) -> None:
        """This much more (or less) of a task's payloads is in memory."""
        task.resident_bytes += more
        self.resident_bytes += more

    def lane_of_next(self) -> int:
        """The lane of a new task, for good."""
        lanes = self.outbox.lanes
        return self.next_id % len(lanes) if len(lanes) > 1 else next(iter(lanes))

    def answer(self, request: int, answer: Answer, about: Task | None = None, *, awaits: bool = False) -> None:
        """Answer when all that was decided until now is durable; otherwise if the rows of `about` are refused."""
        self.outbox.send(SendAnswer(request, answer, about, awaits))

    def refuse_now(self, request: int, refused: CommandRefused) -> None:
        """A refusal that rests on nothing stored must not wait for a commit: the database may be away."""
        self.decision.answers.append(ToRequest(request, refused))

    def next_batch_id(self) -> str:
        self.batches += 1
        return f"batch_{self.identity.nonce}_{self.batches}"

    def next_read(self) -> int:
        self.reads += 1
        return self.reads

    def drop(self, task: Task) -> None:
        """It leaves memory: it is over, or it waits in the database."""
        self.tasks.pop(task.id, None)
        self.resident_bytes -= task.resident_bytes
        for step in task.steps:
            self.steps.pop(step.id, None)
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
