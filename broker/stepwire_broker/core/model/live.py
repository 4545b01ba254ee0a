"""The objects that the core holds in memory and that refer to one another: tasks, steps, batches and sessions.

They are changed in place, by `apply` only as far as they are stored. Most of them are not tracked by the cyclic
collector (a large heap would stop the loop for hundreds of milliseconds), so a task that leaves memory is unlinked.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Struct
from stepwire_protocol import limits
from stepwire_protocol.messages import CancelReason

from stepwire_broker.core.definitions.step_definition import StepDefinition
from stepwire_broker.core.definitions.workflow import Workflow

from .facts import Fact
from .figures import Figures
from .states import STEP_FINAL, WAITING, StepState, TaskState
from .targets import Route

# What of a step has to be written when the group closes.
DIRTY_DISPATCHED: Final = 1
DIRTY_COMPLETED: Final = 2
DIRTY_CHANGED: Final = 4
DIRTY_OUTPUT: Final = 8


EARLIER_MAX: Final = 32  # of so many a late result is still taken
LEVEL0: Final = "level0."  # what such a worker's name begins with; no worker can call itself so
RETRY_COUNTED: Final = "counted"  # it was handed out, and the budget knows of it
RETRY_NAMED: Final = "named"  # its handler said when it is to be tried again
RESTORED: Final = "restored"  # the reason of a step that is held since its database was
STOPPED: Final = "stopped"  # the reason of a step that is held because its worker reported a failure after a cancel


class Delivery(NamedTuple):
    """An earlier hand-over of a step that a late result may still name."""

    number: int
    batch_id: str
    worker: str
    granted: bool


class Step(Struct, gc=False, weakref=False, eq=False):
    # what is stored
    id: int
    task: "Task"
    position: int  # in its task: facts name the step by it
    definition: StepDefinition
    state: StepState = WAITING
    attempt: int = 0  # failures charged to it
    delivery: int = 0  # hand-overs: the fence
    accept_from: int = 0  # results of earlier deliveries are history, not news
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
    error: bytes | None = None
    reason: str | None = None
    key_number: int = 0
    earlier: list[Delivery] | None = None
    handle: str | None = None  # the executor's name of a run that outlives the broker
    output: bytes | None = None  # None also when it is too large to stay resident
    output_bytes: int = 0
    # what is only known now
    waits: int = 0  # dependencies that are not final
    deadline_mono: int | None = None
    dirty: int = 0
    queued: bool = False  # stands in the ready queue
    route: Route | None = None  # where it stands there, or stood when it was handed out
    session: "WorkerSession | None" = None  # that holds the current delivery
    batch: "StepBatch | None" = None
    seen: str | None = None  # what the worker last said of it: queued, asking, running, done
    cancel: CancelReason | None = None  # the worker was told to stop it, for this reason
    avoid: set[str] | None = None  # workers that gave it back or lost it: only if no other can
    payload_context: bytes | None = None  # fetched for its next dispatch or for its rule, and let go after it
    fetched_outputs: dict[int, bytes] | None = None
    progress: tuple[float, float | None, str | None] | None = None
    rests_until_ms: int | None = None  # it may leave memory until then, whoever offers its handler
    retry: str | None = None  # of its next attempt: RETRY_COUNTED, RETRY_NAMED; None: its handler's budget decides

    @property
    def is_final(self) -> bool:
        return self.state in STEP_FINAL

    @property
    def at_most_once(self) -> bool:
        return self.definition.delivery_mode == "at_most_once"

    @property
    def at_level0(self) -> bool:
        """Its latest delivery went to a handler without a session: nobody tells that of it, or hears it say, anything
        but its result."""
        return self.worker is not None and self.worker.startswith(LEVEL0)

    @property
    def is_suspect(self) -> bool:
        """Two sessions died with it: it may be what kills them."""
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
    # counts of its steps, kept by apply
    open: int = 0  # not final
    moving: int = 0  # ready, dispatched or retry_wait: something can still happen by itself
    dispatched: int = 0
    # what is only known now
    facts: list[Fact] = []  # since the group opened
    dirty_steps: list[Step] = []  # those whose rows have to be written
    dirty: bool = False  # its own row has to be written
    evicting: bool = False
    rejected: bool = False  # the database refused its rows: nothing decided on them may be said
    resident_bytes: int = 0


class ExecutorState(Struct, weakref=False, eq=False):
    """An executor as the core sees it: sessions that bear its key, whoever stands behind them."""

    key: str
    figures: Figures
    paused_wall: int | None = None  # since when it is handed nothing, if an operator said so


class StepBatch(Struct, gc=False, weakref=False, eq=False):
    """Steps sent in one message. Sent again, the same bytes, until it is answered or its session is dead."""

    id: str
    session: "WorkerSession"
    steps: list[Step]
    frame: bytes
    released: bool = False  # its commit is done and it was sent
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
    reported_mono: int  # when it last said what it holds
    reported_n: int  # and in which message: older ones are late, or came twice
    topic: bytes
    of: ExecutorState
    joins_bus: bool = False  # whatever its executor is
    principal: str = ""  # the identity that opened it; "" while connections are not authenticated
    free: int = 0  # what the worker last said it could take
    free_n: int = -1  # and when, in its own counting
    unanswered: int = 0  # steps sent since, that no accept, refusal or result has answered
    deliveries: dict[int, Step] = {}  # by step id: what it holds, or what is on the way to it
    unanswered_batches: dict[str, StepBatch] = {}
    unknown: set[str] = set()  # handler classes that it offers and does not know after all
    is_asked: bool = False  # a timer stands to ask it what it holds
    asking: set[int] = set()  # deliveries it was asked about and has not said it holds
    draining: bool = False
    stuck: bool = False  # all it runs is past its time-out: it gets no more
    muted: bool = False  # it lets steps go unanswered: its heartbeats are not acked any more
    suspects: int = 0  # steps in it that may be what kills workers: one at a time
    dead: bool = False
    confirmed: bool = False  # it has spoken in this session: so it knows of it, and goes by its lease
    idle_since_mono: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def executor(self) -> str:
        return self.of.key

    @property
    def credit(self) -> int:
        """How many more steps may be sent now."""
        if self.draining or self.stuck or self.muted or self.dead or self.of.paused_wall is not None:
            return 0
        return self.free - self.unanswered

    @property
    def share(self) -> float:
        """The free share of what it can take: whom the next batch goes to."""
        return (self.free - self.unanswered) / (self.slots + self.prefetch)

    @property
    def has_lease(self) -> bool:
        """Without heartbeats there is no lease: each of its steps needs a grant and has a time of its own."""
        return self.heartbeat_ms > 0
