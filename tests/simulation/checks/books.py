"""The books of the checks: committed facts, and the actions of handlers and workers."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import msgspec
from stepwire_broker.core.commit.id_blocks import block_of
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_protocol import limits
from stepwire_protocol import messages as wire

from tests.simulation.broker_node import BrokerNode, compiled
from tests.simulation.clock import WALL_START_MS
from tests.simulation.peer_node import PeerNode, RunningAtLevel0
from tests.simulation.worker_node import Running, WorkerNode

if TYPE_CHECKING:
    from tests.simulation.world import World

FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
TASK_FINAL: Final = frozenset({"completed", "failed", "cancelled"})
LEVEL0_GRACE_MS: Final = 5_000
CLOCK_SHARE: Final = 0.98  # of a duration: the clocks' rates differ

json: Final = msgspec.json.decode


class Violation(Exception):
    """A promise was broken."""


class Dispatch(NamedTuple):
    """One dispatch of a step, as it was committed."""

    worker: str
    batch_id: str
    at_ms: float


class Dispatched(NamedTuple):
    """A `dispatched` fact of the group that is being read, with the states of the step's dependencies at that fact."""

    task_id: int
    fact: list[Any]
    step_id: int
    states: dict[int, str]


class StepBook:
    """The committed facts of one step, and its handler's runs."""

    __slots__ = (
        "backed_off",
        "cancelled",
        "completed_delivery",
        "delivery",
        "dispatched",
        "expected",
        "granted",
        "held",
        "held_as",
        "lost",
        "readied",
        "reopened",
        "reopened_delivery",
        "reopened_ms",
        "runs",
        "state",
        "taken_back",
    )

    def __init__(self) -> None:
        self.state = "waiting"
        self.taken_back: set[int] = set()
        self.cancelled: set[int] = set()  # deliveries that a worker was asked to stop
        self.delivery = 0
        self.dispatched: dict[int, Dispatch] = {}  # by delivery
        self.granted: set[int] = set()
        self.expected: dict[int, dict[str, str | None]] = {}  # by delivery: the outputs of the dependencies
        self.runs: list[Run] = []
        self.reopened = 0
        self.reopened_delivery = 0
        self.reopened_ms = -1.0
        self.readied: tuple[str, int, float] | None = None  # broker, its life, time; None: loaded since then
        self.backed_off = 0
        self.lost = 0
        self.held = 0
        self.held_as: str | None = None  # the reason of the current hold, until an operator resolves it
        self.completed_delivery = 0

    def runs_of(self, delivery: int) -> "list[Run]":
        return [run for run in self.runs if run.delivery == delivery]


class Run:
    """One entry of a handler."""

    __slots__ = (
        "at_ms",
        "delivery",
        "ended_ms",
        "life",
        "reopened",
        "result",
        "running",
        "timeout_ms",
        "was_stopped",
        "worker",
    )

    def __init__(
        self, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode, at_ms: float, reopened: int
    ) -> None:
        self.running = running
        self.worker = worker
        self.life = worker.life
        self.delivery = running.run.item[1]
        self.timeout_ms = running.run.step.metadata.timeout_ms
        self.at_ms = at_ms
        self.ended_ms: float | None = None
        self.reopened = reopened
        self.result: wire.Result | None = None
        self.was_stopped = False

    @property
    def is_unknown(self) -> bool:
        return self.result is not None and self.result.error is not None and self.result.error.code == "outcome_unknown"


class TaskBook:
    """The committed facts of one task."""

    __slots__ = ("cancel_asked", "facts", "operated", "paused", "state")

    def __init__(self) -> None:
        self.state = "running"
        self.paused = False
        self.cancel_asked = False
        self.operated: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()


class Ledger:
    """The credit that one worker process has named: by broker, pairs of the number of a message and its credit."""

    def __init__(self) -> None:
        self.entries: defaultdict[str, list[list[int]]] = defaultdict(list)
        self.most = 0  # the most steps that it had room for

    def promised(self, broker: str) -> int:
        return max((free for _, free in self.entries[broker]), default=0)


class Books:
    """Everything the checks know of a world. Each module of checks reads it; the observer keeps it up to date."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.is_closing = False
        self.notes_dispatches = True  # until commits are lost
        self.steps: dict[int, StepBook] = {}
        self.audit_rows = 0  # committed rows of the audit
        self.carried_out: set[tuple[str | None, str, str]] = set()  # requests, actions and targets of operators
        self.last_seq: dict[int, int] = {}  # by lane: of its last transaction
        self.tasks: dict[int, TaskBook] = {}
        self.erased: dict[int, int] = {}  # by task: when it was erased
        self.open_tasks: set[int] = set()
        self.held: set[int] = set()
        self.acked_keys: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.acked_tasks: dict[int, Any] = {}
        self.created_tasks: set[int] = set()  # by an answer; an answer from another lane may name them earlier
        self.acked_commands: Counter[tuple[int, str]] = Counter()
        self.entered_items: set[tuple[str, int, int]] = set()
        # Worker, step, delivery: a cancel reached the process, or the process reported that it will not run it.
        self.disowned_items: set[tuple[str, int, int]] = set()
        self.results: dict[tuple[str, int], wire.Results] = {}
        self.reported: dict[tuple[int, int], list[wire.Result]] = {}  # by step and delivery
        # By broker: steps and batches of which a success reached its present life.
        self.succeeded: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self._workflows: dict[int, Workflow] = {}
        self.outputs: dict[tuple[int, int], set[bytes]] = {}
        self.resolved_outputs: set[int] = set()
        self.refused_ends: set[int] = set()  # steps that ended in rows which the database refused
        self.seen_batches: set[str] = set()
        self.handlers_of_workers: dict[
            tuple[str, str], float
        ] = {}  # by broker: when it first sent a worker a step of it
        self.read_ms: dict[tuple[str, str], float] = {}  # the same, without messages that reached a suspended process
        self.returned: set[tuple[int, str]] = set()  # step, batch: a level-0 program answered `unknown_handler`
        self.mixed_refusals: set[str] = set()  # batches of several handlers that were refused as a whole
        self.refused_handlers: set[tuple[str, str]] = set()  # `to` of a level-0 program, and a handler it does not know
        # By broker and worker:
        self.dropped_ms: dict[tuple[str, str], float] = {}  # when it last dropped a session
        self.last_n: dict[tuple[str, str], int] = {}  # the number of its newest heartbeat or hello
        self.reached_ms: dict[tuple[str, str], float] = {}  # when its last current heartbeat reached the broker
        self.muted: set[tuple[str, str]] = set()
        self.controls: dict[tuple[str, str], str | None] = {}  # by kind and name: as their answers say
        self.controls_asked: list[tuple[str, Any]] = []  # brokers, and commands that set them, without an answer yet
        self.died_ms: dict[str, float] = {}
        self.dispatched_ms: dict[str, float] = {}  # by broker: when a dispatch was last committed
        self.provable: dict[str, str] = {}  # by worker whose death can be proven on its host: the host
        self.sent_back: Counter[tuple[str, int]] = Counter()  # by worker and step
        self.unanswered: dict[tuple[str, str], int] = {}  # by worker and batch: times received without an answer
        self.credit: defaultdict[str, Ledger] = defaultdict(Ledger)  # by worker
        self.result_numbers: defaultdict[str, set[int]] = defaultdict(set)  # by worker: `n` of results that were sent
        self.numbers: Counter[str] = Counter()

    def fail(self, check: str, text: str) -> NoReturn:
        raise Violation(f"{check}: {text}")

    def figures(self) -> dict[str, int]:
        return dict(self.numbers)

    # -- definitions --------------------------------------------------------------------------------------------------

    def workflow_of(self, task_id: int) -> Workflow:
        number = self.world.tables.tasks[task_id].workflow_id
        workflow = self._workflows.get(number)
        if workflow is None:
            workflow = self._workflows[number] = compiled(self.world.tables.workflows[number])
        return workflow

    def definition(self, task_id: int, index: int) -> Any:
        return self.workflow_of(task_id).steps[index]

    def definition_of(self, running: Running | RunningAtLevel0) -> Any:
        step = running.run.step
        return self.definition(step.task_id, step.step_id - step.task_id - 1)

    def has_deadline(self, step_id: int, index: int) -> bool:
        task_id = step_id - 1 - index
        definition = self.definition(task_id, index)
        return definition.deadline_ms is not None or self.world.tables.tasks[task_id].deadline_ms is not None

    def delivery_of(self, step_id: int, worker: str, batch_id: str) -> int:
        if not self.notes_dispatches:
            return 0
        for delivery, dispatch in self.steps[step_id].dispatched.items():
            if (dispatch.worker, dispatch.batch_id) == (worker, batch_id):
                return delivery
        self.fail("P2 no step is sent before its commit", f"step {step_id}, {batch_id} to {worker}")

    # -- runs and workers ---------------------------------------------------------------------------------------------

    def owner_of(self, number: int) -> BrokerNode:
        """The broker that owns the lane of this task or step, or owned it last."""
        owner = self.world.owner_of(number)
        assert owner is not None, number
        return owner

    def is_cut_off(self, worker_id: str, step_id: int, since_ms: float) -> bool:
        """The worker died, lost a broker of the step for a lease, or its lease is over now and it has not checked yet.
        A broker of the step is one that has owned its lane since then."""
        brokers = self._owners_since(step_id, since_ms)
        if any(self.dropped_ms.get((broker, worker_id), -1.0) >= since_ms for broker in brokers):
            return True
        for worker in self.world.workers:
            if worker.is_alive and worker.id == worker_id:
                peers = [worker.session.brokers.get(broker) for broker in brokers]
                return any(peer is None or peer.lease.until_ms <= worker.now() for peer in peers)
        return True

    def taken_ms(self, number: int) -> float:
        """When the present owner of the lane of this step took the lane; 0: a broker alone, or the first owner."""
        if len(self.world.brokers) == 1:
            return 0.0
        tables = self.world.tables
        return tables.owners[tables.blocks[block_of(number)].lane][-1][0] - WALL_START_MS

    def _owners_since(self, step_id: int, since_ms: float) -> set[str]:
        tables = self.world.tables
        owners = tables.owners[tables.blocks[block_of(step_id)].lane]
        first = max((i for i, (at_ms, _) in enumerate(owners) if at_ms - WALL_START_MS <= since_ms), default=0)
        return {owner for _, owner in owners[first:]}

    def is_overdue(self, run: Run) -> bool:
        until_ms = self.world.now if run.ended_ms is None else run.ended_ms
        return until_ms - run.at_ms >= CLOCK_SHARE * run.timeout_ms

    def is_result_overdue(self, run: Run) -> bool:
        """The run ended in time, but no copy of its result arrived in all the time allowed for it."""
        lease_ms = self.owner_of(run.running.run.item[0]).settings.bus.lease_ms
        wait_ms = run.timeout_ms + limits.TIMEOUT_GRACE_MS + lease_ms
        return self.world.now - run.at_ms >= CLOCK_SHARE * wait_ms

    def had_level0_lease(self, book: StepBook, delivery: int) -> bool:
        """Nearly a lease: the clocks' rates differ, and a commit takes time."""
        return self.world.now - book.dispatched[delivery].at_ms >= 0.97 * (1_000 + LEVEL0_GRACE_MS)

    # -- for the simulated operator -----------------------------------------------------------------------------------

    def task_between_attempts(self, luck: float) -> int | None:
        """Half the time, a task with a step that waits to retry, if there is one."""
        rows = self.world.tables.steps
        waiting = sorted({rows[i].stored.task_id for i, book in self.steps.items() if book.state == "retry_wait"})
        return waiting[0] if waiting and luck * 7 % 1 < 0.5 else None

    def held_steps(self) -> list[int]:
        return sorted(self.held)
