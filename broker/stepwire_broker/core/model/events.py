"""What comes in: facts of the world and commands of people. Messages of workers are events as they are.

A command carries `request`, the number its Answer comes back under, and is answered once, after the commit of what
was decided by then.
"""

from typing import Literal, NamedTuple, TypeAlias

from msgspec import Raw, Struct
from stepwire_protocol.messages import ResultsLevel0, WorkerMessage

from stepwire_broker.core.definitions.settings import ExecutionSettings, RuleSettings
from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads
from stepwire_broker.core.definitions.workflow import Workflow

from .commit_group import Outcome


class Now(NamedTuple):
    """One reading of both clocks. `mono` never jumps and counts sleep; `wall` is UTC and only for what is stored."""

    mono: int  # milliseconds
    wall: int  # milliseconds


# -- commands ---------------------------------------------------------------------------------------------------------


class NewTask(NamedTuple):
    """One task of a submission, checked by the requests stage. `digest` is of everything but the key."""

    namespace: str
    workflow: str
    version: str | None
    context: bytes  # compact JSON object
    key: str | None
    digest: bytes
    priority: int
    labels: bytes | None
    deadline_ms: int | None = None


class SubmitTasks(Struct, frozen=True):
    """Store these together or not at all. `entropy` is 128 random bits; the tasks' uids count up from it."""

    request: int
    tasks: list[NewTask]
    entropy: int


class ApplyWorkflow(Struct, frozen=True):
    request: int
    workflow: Workflow
    activate: bool = True


class ActivateWorkflow(Struct, frozen=True):
    request: int
    namespace: str
    name: str
    version: str


class AwaitTask(Struct, frozen=True):
    """Answer when the task is terminal, or waits on a held step (`attention`)."""

    request: int
    task_id: int


class Forget(Struct, frozen=True):
    """Whoever asked `request` has gone away."""

    request: int


class CancelTask(Struct, frozen=True):
    request: int
    task_id: int
    reason: str = ""


class PauseTask(Struct, frozen=True):
    request: int
    task_id: int


class ResumeTask(Struct, frozen=True):
    request: int
    task_id: int


class RetryTask(Struct, frozen=True):
    """Run failed, cancelled and skipped steps again; with `from_step`, that step and all after it."""

    request: int
    task_id: int
    from_step: str | None = None
    again: bool = False  # also completed at_most_once steps
    new_key: bool = False
    reason: str = ""


class ResolveStep(Struct, frozen=True):
    """An operator says what became of a held step."""

    request: int
    step_id: int
    outcome: Literal["completed", "failed", "retry"]
    reason: str
    output: Raw | None = None
    message: str = ""
    new_key: bool = False


class DrainWorker(Struct, frozen=True):
    """Give this worker nothing new; with `quit`, let it go once it holds nothing."""

    request: int
    worker: str
    quit: bool = False


class PauseExecutor(Struct, frozen=True):
    """Hand this executor nothing new until it is resumed, or this process ends."""

    request: int
    executor: str


class ResumeExecutor(Struct, frozen=True):
    request: int
    executor: str


class SetBreaker(Struct, frozen=True):
    """Keep a handler's breaker open or closed, or leave it to itself again."""

    request: int
    handler_class: str
    state: Literal["open", "closed", "auto"]
    reason: str = ""


class SetRule(Struct, frozen=True):
    """Route by this rule from now on, also after a restart. None: no longer."""

    request: int
    match: str
    rule: RuleSettings | None


Command: TypeAlias = (
    SubmitTasks
    | ApplyWorkflow
    | ActivateWorkflow
    | AwaitTask
    | Forget
    | CancelTask
    | PauseTask
    | ResumeTask
    | RetryTask
    | ResolveStep
    | DrainWorker
    | PauseExecutor
    | ResumeExecutor
    | SetBreaker
    | SetRule
)


# -- facts of the world -----------------------------------------------------------------------------------------------


class Attached(Struct, frozen=True):
    """A worker of the broker's own process: what runs there is this executor's. With `joins_bus` it takes what goes to
    the bus as well."""

    worker: str
    executor: str
    joins_bus: bool = False


class Detached(Struct, frozen=True):
    """That worker is no more."""

    worker: str


class Subscribed(Struct, frozen=True):
    """A peer subscribed this worker's inbox."""

    worker: str


class SubscriptionVanished(Struct, frozen=True):
    """The last pipe that subscribed this worker's inbox is gone: it died, or it lost its connection."""

    worker: str


class PeerSubscribed(Struct, frozen=True):
    """A level-0 handler subscribed `steps`. It receives what is granted to it in this very turn, or nothing."""


class PeerVanished(Struct, frozen=True):
    """This level-0 peer unsubscribed, died or lost its connection. It may be busy, and come back with its result."""

    to: str


class EndpointsBound(Struct, frozen=True):
    """The bus is open. Workers are sent these addresses in `welcome`."""

    steps: str
    results: str


class MessageRefused(Struct, frozen=True):
    """A message of the bus that could not be decoded. `worker`, `kind` and `rid` are what could be read of it."""

    topic: bytes
    code: str
    message: str
    worker: str | None = None
    kind: str | None = None
    rid: int | None = None


class MessageIgnored(Struct, frozen=True):
    """A message of a type that this version does not know. The protocol lets later versions add types."""

    code: str


class FrameRefused(Struct, frozen=True):
    """A frame of the bus without a topic or a body that could be read."""

    code: str


class PeersUncertain(Struct, frozen=True):
    """One of the level-0 peers is gone, and nobody can say which."""


class ProcessDied(Struct, frozen=True):
    """The operating system says that this worker's process is no more."""

    worker: str


class LoadedTasks(Struct, frozen=True):
    """A load came back. `absent`: steps it asked for that are final, or were pruned with their task."""

    loaded: Loaded
    request: int
    absent: frozenset[int] = frozenset()


class LoadedPayloads(Struct, frozen=True):
    payloads: Payloads
    request: int


class LoadFailed(Struct, frozen=True):
    request: int
    error: str


class LoopWasLate(Struct, frozen=True):
    """The loop stood still for `gap_ms`: nobody is to be called silent for that time."""

    gap_ms: int


class Tick(Struct, frozen=True):
    """A timer is due."""


class Reconfigure(Struct, frozen=True):
    """The configuration of routing is this one now. It was checked by `routing.check`."""

    execution: ExecutionSettings


class Drain(Struct, frozen=True):
    """The broker is to stop: no intake, no dispatch; running steps may finish."""


class Leave(Struct, frozen=True):
    """The broker goes now."""


Event: TypeAlias = (
    WorkerMessage
    | ResultsLevel0
    | MessageRefused
    | MessageIgnored
    | FrameRefused
    | Command
    | Outcome
    | EndpointsBound
    | Attached
    | Detached
    | Subscribed
    | SubscriptionVanished
    | PeerSubscribed
    | PeerVanished
    | PeersUncertain
    | ProcessDied
    | LoadedTasks
    | LoadedPayloads
    | LoadFailed
    | LoopWasLate
    | Tick
    | Reconfigure
    | Drain
    | Leave
)
