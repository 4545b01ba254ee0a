"""The objects that the core holds in memory and that refer to one another: tasks, steps, batches and sessions.

These objects are changed in place. Only `apply` changes their stored members. The cyclic garbage collector does not
track most of them, because a scan of a large heap would stop the loop for hundreds of milliseconds. Therefore a task
that leaves memory is unlinked.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Struct
from stepwire_protocol import limits
from stepwire_protocol.messages import CancelReason

from stepwire_broker.core.definitions.step_definition import StepDefinition
from stepwire_broker.core.definitions.workflow import Workflow

from .commit_group import AttentionChanged
from .facts import Fact
from .figures import Figures
from .principal import PROCESS, Rights
from .states import STEP_FINAL, WAITING, StepState, TaskState
from .targets import Route

# The parts of a step that must be written when the group closes.
DIRTY_DISPATCHED: Final = 1
DIRTY_COMPLETED: Final = 2
DIRTY_CHANGED: Final = 4
DIRTY_OUTPUT: Final = 8
DIRTY_STDERR: Final = 16


EARLIER_MAX: Final = 32  # earlier deliveries remembered per step, so that their late results still count
LEVEL0: Final = "level0."  # prefix of the names of level-0 peers; no worker can choose such a name
RETRY_COUNTED: Final = "counted"  # handed out, and counted by the retry budget
RETRY_NAMED: Final = "named"  # the handler named the time of the next attempt
RESTORED: Final = "restored"  # the reason of a step that is held because its database was restored from a backup
STOPPED: Final = "stopped"  # the reason of a held step whose run was asked to stop: its failure proves nothing


class Delivery(NamedTuple):
    """An earlier delivery of a step. A late result may still name it."""

    number: int
    batch_id: str
    worker: str
    granted: bool


class StandardError(NamedTuple):
    """The end of what a run of a step wrote to standard error."""

    delivery: int
    text: str


class StepProgress(Struct, frozen=True, gc=False):
    """The latest progress report of a running step. It is in memory only."""

    step: "Step"
    delivery: int
    at_ms: int  # UTC
    done: float
    total: float | None
    note: str | None


class Step(Struct, gc=False, weakref=False, eq=False):
    # stored
    id: int
    task: "Task"
    position: int  # index in the task, by which facts name the step
    definition: StepDefinition
    state: StepState = WAITING
    attempt: int = 0  # failed attempts
    delivery: int = 0  # number of the latest delivery: the fence
    accept_from: int = 0  # results of deliveries before this one no longer count
    batch_id: str | None = None
    worker: str | None = None
    granted: bool = False
    lost_sessions: int = 0
    ready_ms: int | None = None
    dispatched_ms: int | None = None
    started_ms: int | None = None
    not_before_ms: int | None = None
    finished_ms: int | None = None
    deadline_ms: int | None = None
    run_ms: int | None = None  # duration of the latest run, as its worker measured it
    error: bytes | None = None
    reason: str | None = None
    key_number: int = 0
    earlier: list[Delivery] | None = None
    handle: str | None = None  # the executor's name of a run that outlives the broker
    output: bytes | None = None  # None also when it is too large to stay in memory
    output_bytes: int = 0
    # in memory only
    waits: int = 0  # dependencies that are not final
    deadline_mono: int | None = None
    dirty: int = 0
    queued: bool = False  # is in the ready queue
    route: Route | None = None  # its route in the ready queue, or the route by which it was dispatched
    session: "WorkerSession | None" = None  # holds the current delivery
    batch: "StepBatch | None" = None
    seen: str | None = None  # as the worker last reported it: queued, asking, running, done
    cancel: CancelReason | None = None  # the reason of the cancel that was sent to its worker
    avoid: set[str] | None = None  # workers that refused or lost the step: chosen only if no other can take it
    payload_context: bytes | None = None  # fetched for the next dispatch or the rule, then dropped
    fetched_outputs: dict[int, bytes] | None = None
    stderr: "StandardError | None" = None  # to be written when the group closes
    rests_until_ms: int | None = None  # until then the step may leave memory, even if a worker offers its handler
    message_bytes: int = 0  # once it was too large for a worker: what a worker must accept, in whole MESSAGE_BYTES_UNIT
    ended_by_command: bool = False  # an operator's command made it final
    retry: str | None = None  # for its next attempt: RETRY_COUNTED, RETRY_NAMED, or None: the retry budget decides

    @property
    def is_final(self) -> bool:
        return self.state in STEP_FINAL

    @property
    def at_most_once(self) -> bool:
        return self.definition.delivery_mode == "at_most_once"

    @property
    def at_level0(self) -> bool:
        """True if the latest delivery went to level 0. A level-0 handler receives no cancel, and sends only results."""
        return self.worker is not None and self.worker.startswith(LEVEL0)

    @property
    def is_suspect(self) -> bool:
        """True if two sessions died while they held the step, so that the step may kill workers."""
        return self.lost_sessions >= 2


class Task(Struct, gc=False, weakref=False, eq=False):
    id: int
    uid: str
    workflow: Workflow
    lane: int
    namespace: str
    key: str | None
    state: TaskState
    priority: int
    context: bytes | None
    context_bytes: int
    created_ms: int
    labels: bytes | None = None
    attention: str | None = None
    cancelling: bool = False
    finished_ms: int | None = None
    deadline_ms: int | None = None
    steps: list[Step] = []
    # counts of its steps, maintained by `apply`
    open: int = 0  # not final
    moving: int = 0  # ready, dispatched or retry_wait: these go on without an operator
    dispatched: int = 0
    # in memory only
    facts: list[Fact] = []  # since the group opened
    dirty_steps: list[Step] = []  # steps whose rows must be written
    dirty: bool = False  # its own row must be written
    evicting: bool = False
    attention_rows: dict[int, AttentionChanged] | None = None  # to be written, by id
    erase_ms: int | None = None  # the open group erases its payloads, as of this time
    rejected: bool = False  # the database refused its rows: no message that depends on them may be sent
    resident_bytes: int = 0


class ExecutorState(Struct, weakref=False, eq=False):
    """The core's state of an executor, including the sessions that have its key."""

    key: str
    figures: Figures
    paused_wall: int | None = None  # when an operator paused it; None if it is not paused


class StepBatch(Struct, gc=False, weakref=False, eq=False):
    """Steps sent in one message. The same bytes are resent until the worker answers or its session is dead."""

    id: str
    session: "WorkerSession"
    steps: list[Step]
    frame: bytes
    released: bool = False  # committed and sent
    answered: bool = False
    pause_ms: int = limits.STEPS_RETRANSMIT_MS
    released_mono: int = 0


class WorkerSession(Struct, weakref=False, eq=False):
    worker: str
    k: int
    id: str
    offers: Callable[[str], bool]
    is_shadow_safe: Callable[[str], bool]
    handlers: list[str]
    offers_any: bool  # among them is a pattern without a literal part, such as **
    labels: dict[str, str]
    slots: int
    prefetch: int
    heartbeat_ms: int
    max_message_bytes: int
    lang: str
    sdk: str
    host: str
    pid: int
    pid_started: int
    proof: bool
    since_wall: int
    heard_mono: int
    reported_mono: int  # when it last reported what it holds
    reported_n: int  # number of that report: a report with a lower number is late or a duplicate
    topic: bytes
    of: ExecutorState
    joins_bus: bool = False  # takes steps of the executor `bus`, in addition to its own executor's
    principal: str = PROCESS  # the identity that opened it
    rights: Rights | None = None  # of the principal; None: its grant was withdrawn, and the session is mute
    free: int = 0  # number of further steps that the worker last offered to take
    slots_free: int | None = None  # how many of them would start at once; None: the worker does not report it
    free_n: int = -1  # number of the message with that `free`
    unanswered: int = 0  # steps sent since then that no accept, refuse or result has answered
    deliveries: dict[int, Step] = {}  # by step id: held by the worker, or being sent to it
    unanswered_batches: dict[str, StepBatch] = {}
    unknown: set[str] = set()  # handler classes that it offers but refused as unknown
    is_asked: bool = False  # a timer is set that sends an `adopt`
    asking: set[int] = set()  # steps that the worker is asked about until it reports that it holds them
    claims: set[tuple[int, int]] = set()  # deliveries that the worker may count as another broker's, until it answers
    draining: bool = False
    stuck: bool = False  # all its runs exceeded their timeouts: it gets no further steps
    muted: bool = False  # it does not answer its batches: its heartbeats are no longer acked
    suspects: int = 0  # steps it holds that may kill workers: at most one at a time
    expired: bool = False  # it held deliveries of a lost lane: its worker must open another one
    dead: bool = False
    is_claim_refuted: bool = False  # its pid and start time do not belong together: the process cannot be watched
    confirmed: bool = False  # the worker has sent a heartbeat in this session, so it uses this lease
    brokers: frozenset[str] = frozenset()  # live ones with which the worker has a session, by its last heartbeat
    idle_since_mono: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def executor(self) -> str:
        return self.of.key

    @property
    def is_addressable(self) -> bool:
        """True if messages may be sent in this session: it has not ended, and its principal has a grant."""
        return not self.dead and not self.expired and self.rights is not None

    @property
    def credit(self) -> int:
        """The number of further steps that may be sent to this worker now."""
        if (
            self.rights is None
            or self.draining
            or self.stuck
            or self.muted
            or self.expired
            or self.dead
            or self.of.paused_wall is not None
        ):
            return 0
        return self.free - self.unanswered

    @property
    def slots_open(self) -> int:
        """The number of further steps that would start at once."""
        free = self.credit - self.prefetch if self.slots_free is None else self.slots_free - self.unanswered
        return max(0, min(free, self.credit))

    @property
    def rank(self) -> tuple[float, float, int]:
        """The session with the highest rank gets the next batch: the one with the largest share of free slots. Without
        free slots, the one with the largest share of free prefetch; then the one that is idle for longest."""
        credit = self.credit
        return self.slots_open / self.slots, credit / (credit + len(self.deliveries) or 1), -self.idle_since_mono

    def offer(self, free: int, slots_free: int | None) -> None:
        """Replace the credit by what the worker now offers."""
        self.free = free
        self.slots_free = slots_free

    @property
    def has_lease(self) -> bool:
        """A worker without heartbeats has no lease: each of its steps needs a grant and has a time limit of its own."""
        return self.heartbeat_ms > 0
